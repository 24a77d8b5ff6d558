"""The flags, errors and exit codes of commands that need no gin."""

import argparse
from collections.abc import Callable, Sequence
import pathlib
import re
import sys
from typing import Any, NoReturn, cast

from speccascade.runtime import shown_text, standard_error, standard_output

_LONG_WORD = re.compile(r"\S{300,}")  # its middle is cut out of messages
_MOST_CHARACTERS = 1200  # of a message, whose middle is cut out as well


def path(text: str) -> pathlib.Path:
  """Returns the path that a flag gives, with "~" as the home folder.

  A shell does not expand "~" inside `--flag=~/a`.
  """
  return pathlib.Path(text).expanduser()


class Parser(argparse.ArgumentParser):
  """Reads the flags of a main without gin.

  A wrong flag is an error of one line, with exit code 2.

  Args:
    name: the name of the main, as in `python -m PACKAGE.NAME`.
    doc: the text that `--help` shows above the flags.
    package: the package of the main, as in `python -m PACKAGE.NAME`.
  """

  def __init__(self, name: str, doc: str, package: str = "speccascade"):
    super().__init__(
      prog=f"python -m {package}.{name}",
      description=doc,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  def error(self, message: str) -> NoReturn:
    """Prints one line about a wrong flag, and exits."""
    sys.exit(fail(message, 2))

  def print_help(self, file: Any = None) -> None:
    """Prints the help; argparse itself is silent where it cannot be written."""
    print(self.format_help(), end="", file=file)

  def run(
    self,
    function: Callable[..., int | None],
    argv: Sequence[str] | None,
    interrupted: str = "interrupted",
  ) -> int:
    """Calls a function with the flags, and returns the exit code.

    Args:
      function: gets the flags by name. Its result is the exit code; None is 0.
      argv: the command line, without the program. None takes the process's own.
      interrupted: the message after an interrupt.
    """
    standard_error.make_safe()
    standard_output.make_safe()
    try:
      flags = vars(self.parse_args(argv))
      code = function(**flags) or 0
    except SystemExit as stop:  # after `--help`, or a wrong flag
      sys.exit(finish(cast(int, stop.code)))
    except (ValueError, OSError) as error:
      code = fail(error)
    except KeyboardInterrupt as stop:
      # `signals.Interrupted` says which signal it was, and what to do.
      code = fail(str(stop) or interrupted, getattr(stop, "exit_code", 130))
    return finish(code)


def fail(error: str | Exception, code: int = 1) -> int:
  """Prints one line about an error that the user can fix.

  Args:
    error: the error, or the line.
    code: the exit code.

  Returns:
    The exit code.
  """
  message = str(error) or type(error).__name__
  if isinstance(error, OSError) and error.filename is not None:
    message = f"{error.filename}: {error.strerror}"
  message = _LONG_WORD.sub(_cut_middle, shown_text.one_line(message))
  if len(message) > _MOST_CHARACTERS:
    # What was given begins a message, and what to do ends it.
    half = _MOST_CHARACTERS // 2
    message = f"{message[:half]} ... {message[-half:]}"
  print(f"error: {message}", file=sys.stderr)
  return code


def finish(code: int) -> int:
  """Writes the rest of standard output; returns the code, 1 where it failed."""
  error = standard_output.finish()
  return code if error is None else code or fail(error)


def _cut_middle(match: re.Match[str]) -> str:
  """Returns both ends of a long word, such as a path or a list."""
  return f"{match[0][:99]}...{match[0][-99:]}"
