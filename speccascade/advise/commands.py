"""The command that decodes as advised, from the command that asked."""

from collections.abc import Collection, Mapping, Sequence
import pathlib
import re
import shlex

_OWN_FILE = "advise.gin"  # the part of the config that asks


def decode_command(
  argv: Sequence[str], own: Collection[str], bindings: Mapping[str, object]
) -> str:
  """Returns a command to paste.

  Args:
    argv: the command line that asked, program first.
    own: names of macros that are of the question, and so left out.
    bindings: values of macros to set; they take the place of the command
      line's.

  >>> print(decode_command(
  ...   ["x", "--gin_file=a.gin", "--gin_file", "runs/advise.gin",
  ...    "--gin.MAX_LOSS=1", "--gin.TEMPERATURE=0.5"],
  ...   {"MAX_LOSS"}, {"METHOD": "spec_decode", "GAMMA": 4}))
  python -m speccascade.decode --gin_file=a.gin --gin.TEMPERATURE=0.5 \\
    --gin.METHOD='"spec_decode"' --gin.GAMMA=4
  """
  kept = [
    _quoted(arg)
    for arg in _joined(argv[1:])
    if not _is_own(arg, {*own, *bindings})
  ]
  values = {
    name: f'"{value}"' if isinstance(value, str) else str(value)
    for name, value in bindings.items()
  }
  added = [
    f"--gin.{name}={shlex.quote(value)}" for name, value in values.items()
  ]
  first = " ".join(["python -m speccascade.decode", *kept])
  return f"{first} \\\n  {' '.join(added)}"


def _joined(args: Sequence[str]):
  """Yields flags as one word each, `--flag value` as `--flag=value`."""
  args = iter(args)
  for arg in args:
    if re.fullmatch(r"--?gin_(file|bindings|search_paths)", arg):
      arg = f"{arg}={next(args, '')}"
    yield arg


def _is_own(arg: str, names: Collection[str]) -> bool:
  """Whether a flag is of the question alone, or binds one of the names."""
  flag, _, value = arg.partition("=")
  if flag.endswith("gin_file"):
    return pathlib.PurePath(value).name == _OWN_FILE
  bound = re.match(r"--?gin(?:\.|_bindings=)\s*([\w./]+)", arg)
  return bound is not None and (
    bound[1] in names or bound[1].startswith(("advisor.", "effort.", "wanted."))
  )


def _quoted(arg: str) -> str:
  """Returns a flag as a shell takes it, its value alone in quotes."""
  flag, equals, value = arg.partition("=")
  return flag + equals + shlex.quote(value) if equals else shlex.quote(arg)
