"""Lists the commands of the package: python -m speccascade.

A command is a module whose docstring names the command and whose last lines run
it. The list is read from the source files, so it is quick: no command is
imported, and neither is JAX nor TensorFlow.
"""

import ast
import pathlib
import re
import sys
import textwrap
from typing import NamedTuple

from speccascade.runtime import standard_output

_PACKAGE = pathlib.Path(__file__).parent
_NAME = _PACKAGE.name
_WIDTH = 80
# How a docstring names the command of its module.
_COMMAND = re.compile(rf"python -m {_NAME}\.([\w.]+)")
# The commands that a new user needs, in the order in which they are needed.
_FIRST = ("quickstart", "train", "decode", "sweep", "report", "advise")
_HELP = ("-h", "--help")


class _Command(NamedTuple):
  """A module that can be run."""

  name: str  # of the module after that of the package: `advise.trees`
  summary: str  # the first line of the module's docstring

  @property
  def is_tool(self) -> bool:
    """Whether the module is inside a package of the package."""
    return "." in self.name

  @property
  def rank(self) -> tuple[bool, int, str]:
    """The place in the list: `_FIRST`, then the others, tools last."""
    is_first = self.name in _FIRST
    place = _FIRST.index(self.name) if is_first else len(_FIRST)
    return self.is_tool, place, self.name


def find() -> list[_Command]:
  """Returns the commands of the package, in the order of the list."""
  commands = []
  for path in _PACKAGE.rglob("*.py"):
    source = path.read_text(encoding="utf-8")
    if '\nif __name__ == "__main__":\n' not in source:
      continue
    docstring = ast.get_docstring(ast.parse(source)) or ""
    place = path.relative_to(_PACKAGE).with_suffix("").parts
    name = ".".join(place).removesuffix(".__main__")
    # A module that only another program runs does not say how to run it.
    if named := _COMMAND.findall(docstring):
      # A command of a command, such as report.card, is found in its library.
      name = name if name in named else named[0]
      commands.append(_Command(name, docstring.partition("\n")[0]))
  return sorted(commands, key=lambda command: command.rank)


def text() -> str:
  """Returns the list of commands, which `--help` prints too."""
  groups = {
    "To begin with, in this order:": [],
    "More commands:": [],
    "Tools:": [],
  }
  first, more, tools = groups.values()
  for command in find():
    if command.name in _FIRST:
      first.append(command)
    else:
      (tools if command.is_tool else more).append(command)
  lines = [
    f"Commands of {_NAME}: python -m {_NAME}.NAME",
    f"python -m {_NAME}.NAME --help says what a command takes.",
  ]
  for heading, commands in groups.items():
    lines += ["", heading]
    column = max(len(command.name) for command in commands) + 4
    for command in commands:
      lines += textwrap.wrap(
        command.summary,
        _WIDTH,
        initial_indent=f"  {command.name}".ljust(column),
        subsequent_indent=" " * column,
      )
  return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
  """Prints the list; returns the exit code.

  Args:
    argv: the command line without the program; None takes the process's own.
  """
  words = sys.argv[1:] if argv is None else argv
  others = [word for word in words if word not in _HELP]
  if not others:
    print(text())
    return 0
  names = [command.name for command in find()]
  advice = f"python -m {_NAME} lists the commands"
  if others[0] in names:
    advice = f"run python -m {_NAME}.{others[0]}"
  print(
    f"error: python -m {_NAME} takes no {others[0]!r}, only --help; {advice}",
    file=sys.stderr,
  )
  return 2


if __name__ == "__main__":
  sys.exit(standard_output.run(main))
