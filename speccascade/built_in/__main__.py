"""Makes the pair that comes with the package once more.

  python -m speccascade.built_in --output_dir=out/built_in

Trains both models on the built-in task, as configs/built_in says, and writes
them to OUTPUT_DIR/pair in bfloat16, with a card of recipe and hashes. A second
run goes on where the first one stopped.
"""

import pathlib
import sys

from speccascade import cli
from speccascade.runtime import folders


def main(argv: list[str] | None = None) -> int:
  """Makes the pair; returns the exit code."""
  parser = cli.Parser("built_in", __doc__)
  parser.add_argument(
    "--output_dir",
    dest="folder",
    type=cli.path,
    default=pathlib.Path("out/built_in"),
    help="where checkpoints and the pair go (%(default)s)",
  )
  parser.add_argument(
    "--fast",
    dest="is_fast",
    action="store_true",
    help="seconds: tiny models that learn nothing, to see that all works",
  )
  return parser.run(run, argv, "interrupted; run again to go on")


def run(folder: pathlib.Path, *, is_fast: bool) -> int:
  """Makes the pair and prints where it is; returns the exit code.

  Args:
    folder: where everything goes.
    is_fast: whether the models may learn nothing.
  """
  cli.compilation_cache()
  from speccascade.built_in import making

  with folders.sole_writer(folder, "--output_dir"):
    pair = making.make(folder, is_fast=is_fast)
  print(f"the pair is in {pair.absolute()}: README.md there has its hashes")
  return 0


if __name__ == "__main__":
  sys.exit(main())
