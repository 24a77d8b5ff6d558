"""Runs command lines, one a line of stdin; answers with their exit codes.

  python -m tests.audit.fuzz.worker BASE LOG

What a command writes to stderr is in LOG, a new one for each. The right
files are made in BASE where it lacks. What one case leaves in this process, the
next one must not find: tasks are unregistered, --tfds_data_dir and what gin was
given are forgotten.
"""

import ast
import importlib
import os
import pathlib
import sys
import traceback

import gin

from tests import mains
from tests.audit.fuzz import right_files
from tests.audit.fuzz.case import ROOT

_MODULES = (
  *("speccascade.training.finetune", "speccascade.tasks.reading"),
  *("speccascade.study.search.sweeps", "speccascade.study.search.halving"),
  *("speccascade.training.ngram_files", "speccascade.study.report.writing"),
  "speccascade.tools.exchange.formats",
)
_WITHOUT_GIN = (
  *("report", "quickstart", "analysis", "vocabulary", "smollm", "exchange"),
)


def main(base: pathlib.Path, log: pathlib.Path):
  """Answers until stdin ends."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  for name in _MODULES:
    importlib.import_module(name)
  if not base.exists():
    base.mkdir()
    right_files.write(base)
  answers.write("0\n")
  answers.flush()
  for line in sys.stdin:
    with log.open("wb") as file:
      os.dup2(file.fileno(), 2)
    code = _run(ast.literal_eval(line))
    sys.stderr.flush()
    answers.write(f"{code}\n")
    answers.flush()


def _run(argv: list[str]) -> int:
  """Does what `python -m speccascade.NAME` does; returns the exit code."""
  from speccascade import cli
  from speccascade.tasks._tf import seqio

  name = argv[0]
  folder = ROOT / "speccascade" / name.replace(".", "/")
  is_package = (folder / "__main__.py").is_file()
  module = importlib.import_module(
    f"speccascade.{name}" + ".__main__" * is_package
  )
  sys.argv = argv
  try:
    with mains.own_tasks():
      if "checkpoints" in name or name in _WITHOUT_GIN:
        return module.main(argv[1:])
      preview = getattr(module, "preview", None)
      return cli.start(module.main, module.__doc__, argv, preview=preview)
  except SystemExit as stop:
    return stop.code if isinstance(stop.code, int) else 1
  except BaseException:
    traceback.print_exc()
    return 99
  finally:
    gin.clear_config()
    seqio.set_tfds_data_dir_override(None)


if __name__ == "__main__":
  main(*map(pathlib.Path, sys.argv[1:]))
