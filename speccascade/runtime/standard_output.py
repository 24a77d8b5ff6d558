"""Standard output of a command: what it shows, and what it says of a full disk.

Texts are shown without the control characters that they have, see `shown_text`.
An error of the stream names its file, e.g. "standard output (/dev/full)".
"""

from collections.abc import Callable, Iterable
import contextlib
import os
import sys
from typing import Any, TextIO, cast

from speccascade.runtime import files, shown_text

_TITLE = "standard output"


class _Shown:
  """A text stream that shows control characters, and names itself in errors."""

  def __init__(self, stream: TextIO) -> None:
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a string, its control characters as escapes."""
    with files.name_file_in_errors(_name()):
      self._stream.write(shown_text.visible(text))
    return len(text)

  def writelines(self, lines: Iterable[str]) -> None:
    """Writes texts one after the other."""
    for line in lines:
      self.write(line)

  def flush(self) -> None:
    """Flushes the stream."""
    with files.name_file_in_errors(_name()):
      self._stream.flush()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def _name() -> str:
  """Returns the name of standard output, with its file where one is known."""
  with contextlib.suppress(OSError):
    path = os.readlink("/proc/self/fd/1")
    if path.startswith("/") and not path.startswith("/dev/pts"):
      return f"{_TITLE} ({path})"
  return _TITLE


def make_safe() -> None:
  """Lets standard output show control characters, from here on."""
  if not isinstance(sys.stdout, _Shown):
    sys.stdout = cast(TextIO, _Shown(sys.stdout))


def run(main: Callable[[], int | None]) -> int:
  """Calls a main; an error of standard output is one line on stderr.

  Args:
    main: returns an exit code, or None for 0.

  Returns:
    The exit code, 1 where the output could not be written.
  """
  make_safe()
  try:
    code = main() or 0
    error = finish()
  except SystemExit as stop:  # of argparse, whose codes are numbers
    code, error = cast(int, stop.code), finish()
  except OSError as failed:
    if not str(failed.filename).startswith(_TITLE):
      raise
    drop()
    code, error = 1, failed
  if error is not None:
    print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
  return code or int(error is not None)


def drop() -> None:
  """Drops what is not written yet, and what is written from here on."""
  # Python flushes stdout once more when it ends, and would fail again.
  with contextlib.suppress(OSError, ValueError):
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def finish() -> OSError | None:
  """Writes what is left; returns the error where it cannot be written.

  A reader that has stopped reading, such as `head`, is not an error.
  """
  try:
    sys.stdout.flush()
  except BrokenPipeError:
    drop()
  except OSError as error:
    drop()
    return error
  return None
