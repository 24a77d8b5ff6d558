"""Judges a sampler: whether it is lossless, and if not, what is wrong.

  python -m speccascade.judge MODULE:FUNCTION --kind=verify

The function is one of three kinds (docs/judge.md):

  verify   (tokens [B, G], q [B, G, V], p [B, G+1, V], u_accept [B, G],
           u_draw [B]) -> (num_accepted [B], token [B])
  step     (tokens [G], q [G, V], p [G+1, V]) -> emitted tokens; it draws by
           itself with random, numpy, torch or jax
  sampler  (problem, seed) -> tokens

The first two are enumerated. A sampler is sampled, or enumerated by --exact.
The exit code is 0 where all is right, 1 where something is wrong, and 2 where
the command is.
"""

import argparse
from collections.abc import Callable
import importlib
import importlib.util
import pathlib
import sys

from speccascade import judge


class _Parser(argparse.ArgumentParser):
  """Reads the flags; a wrong one is an error of one line."""

  def error(self, message: str):
    sys.exit(_fail(message))


def _fail(message: str | Exception) -> int:
  """Prints one line; returns the exit code."""
  print(f"error: {message}", file=sys.stderr)
  return 2


def load(place: str) -> Callable:
  """Returns the function at MODULE:FUNCTION, or FILE.py:FUNCTION.

  Raises:
    ValueError: there is none.
  """
  module_name, colon, name = place.rpartition(":")
  if not colon:
    raise ValueError(f"{place!r} names no function; give MODULE:FUNCTION")
  if module_name.endswith(".py"):
    path = pathlib.Path(module_name)
    if not path.is_file():
      raise ValueError(f"there is no file {module_name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
  else:
    try:
      module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
      raise ValueError(
        f"cannot import {module_name}: {error}; run from its folder, or install"
        " it"
      ) from error
  function = getattr(module, name, None)
  if not callable(function):
    raise ValueError(f"{module_name} has no function {name}")
  return function


def main(argv: list[str] | None = None) -> int:
  """Judges; returns the exit code.

  Args:
    argv: the command line without the program; None takes the process's own.
  """
  parser = _Parser(
    prog="python -m speccascade.judge",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("function", metavar="MODULE:FUNCTION")
  parser.add_argument(
    "--kind", choices=("verify", "step", "sampler"), required=True
  )
  parser.add_argument(
    "--one_row",
    action="store_true",
    help="--kind=verify: the function takes one row, without the axis B",
  )
  parser.add_argument(
    "--settings",
    default="",
    metavar="LIST",
    help="--kind=sampler: those of temperature,top_k,top_p that it takes",
  )
  parser.add_argument(
    "--num_rows",
    type=int,
    default=1,
    help="--kind=sampler: 2 if it takes problems of several prompts",
  )
  parser.add_argument(
    "--exact",
    action="store_true",
    help="--kind=sampler: enumerate all paths instead of sampling",
  )
  parser.add_argument(
    "--resolution",
    type=float,
    help="--kind=sampler: the total variation to notice (0.05)",
  )
  parser.add_argument(
    "--false_alarm",
    type=float,
    help="--kind=sampler: how often a right one may be called wrong (0.001)",
  )
  parser.add_argument(
    "--batch",
    type=int,
    help="--kind=sampler: rows to draw at a time; it takes so many prompts",
  )
  parser.add_argument(
    "--seed", type=int, help="--kind=sampler: the first seed (0)"
  )
  parser.add_argument(
    "--only", help="ask the problems whose label has this text"
  )
  flags = vars(parser.parse_args(argv))
  place, kind = flags.pop("function"), flags.pop("kind")
  one_row = flags.pop("one_row")
  given = {name: value for name, value in flags.items() if value is not None}
  only = {"only": given["only"]} if "only" in given else {}
  if "settings" in given:
    given["settings"] = [x for x in given["settings"].split(",") if x]
  plain = {"settings": [], "num_rows": 1, "exact": False}
  idle = [x for x in given if given[x] != plain.get(x) and x not in only]
  if kind != "sampler" and idle:
    return _fail(f"--{idle[0]} is for --kind=sampler; leave it out")
  if one_row and kind != "verify":
    return _fail("--one_row is for --kind=verify; leave it out")
  if given["exact"] and {*given} & {"resolution", "false_alarm", "batch"}:
    return _fail(
      "--exact draws no samples; leave out resolution, false_alarm and batch"
    )
  try:
    function = load(place)
    if kind == "verify":
      function = judge.rows(function) if one_row else function
      judgement = judge.judge_verify(function, **only)
    elif kind == "step":
      judgement = judge.judge_step(function, **only)
    else:
      judgement = judge.judge_sampler(function, **given)
  except ValueError as error:
    return _fail(error)
  print(judgement)
  return 0 if judgement.passed else 1


if __name__ == "__main__":
  sys.exit(main())
