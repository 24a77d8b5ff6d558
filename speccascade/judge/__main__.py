"""Judges a sampler: whether it is lossless, and if not, what is wrong.

  python -m speccascade.judge MODULE:FUNCTION --kind=verify

The function is one of three kinds (docs/judge.md):

  verify   (tokens [B, G], q [B, G, V], p [B, G+1, V], u_accept [B, G],
           u_draw [B]) -> (num_accepted [B], token [B])
  step     (tokens [G], q [G, V], p [G+1, V]) -> emitted tokens; it draws by
           itself with random, numpy, torch or jax
  sampler  (problem, seed) -> tokens

The first two are enumerated. A sampler is sampled, or enumerated by --exact.

exit codes:
  0  right in all problems
  1  wrong in one problem or more
  2  wrong in none, but the judged code failed (it raised, exited, did not end,
     or returned no tokens), or the command is not understood
  3  neither, but some problem is open: the code cannot be enumerated
"""

import argparse
from collections.abc import Callable
import contextlib
import importlib
import importlib.util
import pathlib
import re
import sys

from speccascade import judge
from speccascade.judge.judged_code import TIME_LIMIT_S
from speccascade.judge.replaced import SOURCE, replaced
from speccascade.runtime import (
  named_functions,
  shown_text,
  standard_output,
)

# How the function of each kind is called, for who wrote another one.
_CALLS = {
  "verify": "It is called as verify(tokens [B, G], q [B, G, V], p [B, G+1, V],"
  " u_accept [B, G], u_draw [B]); --one_row leaves out B.",
  "step": "It is called as step(tokens [G], q [G, V], p [G+1, V]).",
  "sampler": "It is called as sampler(problem, seed).",
}


class _Parser(argparse.ArgumentParser):
  """Reads the flags; a wrong one is an error of one line."""

  def error(self, message: str):
    sys.exit(_fail(message))

  def print_help(self, file=None):
    # argparse itself is silent where the help cannot be written.
    print(self.format_help(), end="", file=file)


def _fail(message: str | Exception) -> int:
  """Prints one line; returns the exit code."""
  print(f"error: {shown_text.one_line(str(message))}", file=sys.stderr)
  return 2


def load(place: str, replaces: bool = False) -> Callable:
  """Returns the function at MODULE:FUNCTION, or FILE.py:FUNCTION.

  Args:
    place: of the function.
    replaces: whether random functions and generators that the module takes at
      import are replaced, to be enumerated later.

  Raises:
    ValueError: there is none.
  """

  @contextlib.contextmanager
  def importing(module_name: str):
    if not replaces:
      yield
      return
    _import_libraries(module_name)
    with replaced(SOURCE):
      yield

  return named_functions.load(place, importing)


def _import_libraries(name: str):
  """Imports torch and JAX where a file or module names them."""
  # They must be there before their functions are replaced.
  path = pathlib.Path(name)
  if not name.endswith(".py"):
    spec = importlib.util.find_spec(name)
    if spec is None or not (spec.origin or "").endswith(".py"):
      return
    path = pathlib.Path(spec.origin)
  text = path.read_text(encoding="utf-8", errors="replace")
  for library in ("torch", "jax"):
    if re.search(rf"^\s*(import|from)\s+{library}\b", text, re.MULTILINE):
      importlib.import_module(library)


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
    "--time_limit_s",
    type=float,
    default=TIME_LIMIT_S,
    help="seconds that one call of the function may take (60)",
  )
  parser.add_argument(
    "--only", help="ask the problems whose label has this text"
  )
  flags = vars(parser.parse_args(argv))
  place, kind = flags.pop("function"), flags.pop("kind")
  one_row = flags.pop("one_row")
  given = {name: value for name, value in flags.items() if value is not None}
  only = {x: given[x] for x in ("only", "time_limit_s") if x in given}
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
    function = load(place, replaces=kind == "step" or given["exact"])
    if kind == "verify":
      function = judge.rows(function) if one_row else function
      judgement = judge.judge_verify(function, **only)
    elif kind == "step":
      judgement = judge.judge_step(function, **only)
    else:
      judgement = judge.judge_sampler(function, **given)
  except ValueError as error:
    return _fail(error)
  if all(line.raised for line in judgement.problems):
    return _fail(f"{judgement.verdict} {_CALLS[kind]}")
  print(judgement)
  return judgement.exit_code


if __name__ == "__main__":
  sys.exit(standard_output.run(main))
