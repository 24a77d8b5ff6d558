"""Plans a run before it starts: memory, slices of TPUs, communication.

  python -m speccascade.planning

Lists its commands, which end in a table for the config of a run.
"""

import sys

from speccascade import cli
from speccascade.tools import planning as _library

# Python finds `speccascade.planning.slices` and the like here.
__path__ = _library.__path__
COMMANDS = ("slices", "communication")


def main(argv: list[str] | None = None) -> int:
  """Prints the commands; returns the exit code."""
  return cli.Parser("planning", __doc__).run(show, argv)


def show():
  """Prints a line for each command."""
  for name in COMMANDS:
    print(f"python -m speccascade.planning.{name} --help")


if __name__ == "__main__":
  sys.exit(main())
