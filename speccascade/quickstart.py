"""Trains a small pair on the built-in task and compares methods with it.

  bash launch/quickstart.sh            makes .venv, installs, runs this
  python -m speccascade.quickstart     runs it

A second run reuses the checkpoints and the measured points that it finds.
"""

import os
import pathlib
import sys
import time

from speccascade import cli
from speccascade.runtime import folders, signals
from speccascade.tools import examples as _library

# Python finds `speccascade.quickstart.packaged` and the like here.
__path__ = _library.__path__
_CONTINUES = "run again to continue"  # after a signal


def main(argv: list[str] | None = None) -> int:
  """Runs the quick start; returns the exit code."""
  parser = cli.Parser("quickstart", __doc__)
  parser.add_argument(
    "--output_dir",
    dest="folder",
    type=cli.path,
    default=pathlib.Path("out/quickstart"),
    help="where checkpoints, rows, table and figure go (%(default)s)",
  )
  parser.add_argument(
    "--fast",
    dest="is_fast",
    action="store_true",
    help="seconds: tiny models that learn nothing, to see that all works",
  )
  parser.add_argument(
    "--all_methods",
    action="store_true",
    help="every method of one drafter, not a dozen: several times as long",
  )
  return parser.run(run, argv, f"interrupted; {_CONTINUES}")


def run(folder: pathlib.Path, **flags) -> int:
  """Trains, measures, prints and writes the report; returns the exit code.

  Args:
    folder: where everything goes.
    **flags: as in `quickstart.run`.
  """
  cli.compilation_cache()
  from speccascade.tools.examples import quickstart

  seconds = {}
  if install_s := os.environ.get("SPECCASCADE_INSTALL_S"):
    seconds["install"] = float(install_s)  # by launch/quickstart.sh
  with (
    folders.sole_writer(folder, "--output_dir"),
    signals.interruptible(_CONTINUES),
  ):
    outcome = quickstart.run(folder, seconds=seconds, **flags)
    if outcome.stop:
      print(f"stopped by {outcome.stop.name}; {_CONTINUES}")
      return outcome.stop.exit_code
    begin = time.time()
    quickstart.write(folder, outcome.rows)
    seconds["report"] = time.time() - begin
  print(quickstart.text(outcome.rows))
  print(quickstart.describe_seconds(seconds))
  print(f"table, rows and figure are in {folder.absolute()}")
  print(f"a page of them: python -m speccascade.report --results_dir={folder}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
