"""Holds back standard error while a block runs, or passes it on line by line.

Native code writes to the descriptor of standard error, past Python's own
`sys.stderr`. So the descriptor itself is redirected here.
"""

from collections.abc import Callable
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time


class _Tolerant:
  """A text stream that drops what it cannot write."""

  def __init__(self, stream):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a text, if its reader still reads."""
    with contextlib.suppress(OSError, ValueError):
      self._stream.write(text)
    return len(text)

  def flush(self):
    """Flushes the stream."""
    with contextlib.suppress(OSError, ValueError):
      self._stream.flush()

  def __getattr__(self, name):
    return getattr(self._stream, name)


def make_safe():
  """Lets a process work on whose standard streams are closed.

  A descriptor that is closed is opened on /dev/null. The next file that is
  opened would otherwise get its number, and what native code says would be
  written into that file. What is said on stderr is dropped where nobody reads
  it any more: it would otherwise end the work.
  """
  for number, name in enumerate(("stdin", "stdout", "stderr")):
    try:
      os.fstat(number)
    except OSError:
      null = os.open(os.devnull, os.O_RDWR)
      if null != number:
        os.dup2(null, number)
        os.close(null)
    if getattr(sys, name) is None:
      mode = "w" if number else "r"
      stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
      setattr(sys, name, stream)
  if not isinstance(sys.stderr, _Tolerant):
    sys.stderr = _Tolerant(sys.stderr)


@contextlib.contextmanager
def hide_failing_threads():
  """Drops what is written to stderr if the block fails.

  For blocks whose threads each print a traceback of the same fault. The error
  that the block raises says the same in one line. If the block ends well, what
  was written is passed on.
  """
  has_failed = False
  with hold_back(lambda line: not has_failed):
    try:
      yield
    except BaseException:
      has_failed = True
      # Threads that are still at work print their tracebacks in this time.
      time.sleep(0.2)
      raise


@contextlib.contextmanager
def hold_back(passes: Callable[[bytes], bool]):
  """Holds back stderr until the block ends, and then lets some lines pass.

  Python's own `sys.stderr` writes to the same descriptor. Its lines are held
  back too, in order with the others, until the block ends or fails.

  Args:
    passes: gets a line, with its line break; returns whether it is written.
  """
  try:
    sys.stderr.flush()
    terminal = os.dup(2)
  except (OSError, AttributeError):  # There is no stderr to hold back.
    yield
    return
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      # What Python has buffered goes to the file before the terminal is back.
      sys.stderr.flush()
      os.dup2(terminal, 2)
      os.close(terminal)
      held.seek(0)
      passed = b"".join(filter(passes, held))
      if passed:
        with contextlib.suppress(OSError):  # Nobody reads stderr any more.
          os.write(2, passed)


def relay(faults: dict[str, str]):
  """Passes stdin on to stderr, up to the first error, which is one line.

  This function is the program of a helper process (`cli/distributed.py`). The
  helper ends when its input ends: signals that end the writer do not end the
  helper, so the last line still arrives.

  Args:
    faults: {pattern: message} for errors of JAX's distributed runtime, which
      ends the process in C++. The first pattern that is found in the runtime's
      text gives the message; the message may refer to groups of the pattern.
  """
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  for line in sys.stdin.buffer:
    if b"JAX distributed service detected fatal errors" in line:
      # The reason may stand some lines further on, so all is read first.
      report = (line + sys.stdin.buffer.read()).decode(errors="replace")
      line = f"error: {_explain(report, faults)}\n".encode()
    sys.stderr.buffer.write(line)
    sys.stderr.flush()
    if line.startswith(b"error: "):
      sys.stdin.buffer.read()  # Whatever follows an error is dropped.


def _explain(report: str, faults: dict[str, str]) -> str:
  """Returns the message of the first pattern that is found in a report."""
  for pattern, message in faults.items():
    if match := re.search(pattern, report):
      return match.expand(message)
  raise ValueError("no pattern is found; the last one should be empty")


if __name__ == "__main__":
  relay(json.loads(sys.argv[1]))
