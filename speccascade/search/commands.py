"""Turns a command that asked for advice into one that decodes as advised."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import pathlib
import re
import shlex

_ADVICE_FILE = "advise.gin"  # the part of the config that asks for advice
_ADVICE_PARTS = (
  "advisor.",
  "effort.",
  "wanted.",
)  # what its bindings begin with


def decode_command(
  argv: Sequence[str],
  advice_macros: Collection[str],
  bindings: Mapping[str, object],
) -> str:
  """Returns a command to paste.

  Args:
    argv: the command line that asked for advice, program first.
    advice_macros: the names of macros that only the question for advice has;
      flags that bind them are left out.
    bindings: the values of macros to set. They take the place of values on the
      command line.

  >>> print(decode_command(
  ...   ["x", "--gin_file=a.gin", "--gin_file", "runs/advise.gin",
  ...    "--gin.MAX_LOSS=1", "--gin.TEMPERATURE=0.5"],
  ...   {"MAX_LOSS"}, {"METHOD": "spec_decode", "GAMMA": 4}))
  python -m speccascade.decode --gin_file=a.gin --gin.TEMPERATURE=0.5 \\
    --gin.METHOD='"spec_decode"' --gin.GAMMA=4
  """
  replaced = {*advice_macros, *bindings}
  flags = [
    _quote_value(flag)
    for flag in _join_values(argv[1:])
    if not _is_left_out(flag, replaced)
  ]
  settings = []
  for name, value in bindings.items():
    text = f'"{value}"' if isinstance(value, str) else str(value)
    settings.append(f"--gin.{name}={shlex.quote(text)}")
  first_line = " ".join(["python -m speccascade.decode", *flags])
  return f"{first_line} \\\n  {' '.join(settings)}"


def _join_values(args: Sequence[str]) -> Iterator[str]:
  """Yields flags as one word each: `--flag value` becomes `--flag=value`."""
  args = iter(args)
  for arg in args:
    if re.fullmatch(r"--?gin_(file|bindings|search_paths)", arg):
      arg = f"{arg}={next(args, '')}"
    yield arg


def _is_left_out(flag: str, macros: Collection[str]) -> bool:
  """Returns whether only the question for advice needs a flag."""
  name, _, value = flag.partition("=")
  if name.endswith("gin_file"):
    return pathlib.PurePath(value).name == _ADVICE_FILE
  binding = re.match(r"--?gin(?:\.|_bindings=)\s*([\w./]+)", flag)
  if binding is None:
    return False
  return binding[1] in macros or binding[1].startswith(_ADVICE_PARTS)


def _quote_value(flag: str) -> str:
  """Returns a flag as a shell reads it, with quotes around its value alone."""
  name, equals, value = flag.partition("=")
  return name + equals + shlex.quote(value) if equals else shlex.quote(flag)
