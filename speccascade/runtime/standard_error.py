"""Standard error, held back while a block runs, or passed on line by line."""

from collections.abc import Callable
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time


@contextlib.contextmanager
def hide_failing_threads():
  """Holds back stderr, and drops it where the block fails: its error says it.

  For blocks whose threads each print a traceback of the same fault.
  """
  failed = False
  with hold_back(lambda line: not failed):
    try:
      yield
    except BaseException:
      failed = True
      time.sleep(0.2)  # threads that are still at work have their say
      raise


@contextlib.contextmanager
def hold_back(passes: Callable[[bytes], bool]):
  """Holds back stderr until the block ends; then lets some lines pass.

  Python's own `sys.stderr` writes to the same descriptor and is held back with
  it, in order, until the block ends, normally or not.
  """
  try:
    sys.stderr.flush()
    saved = os.dup(2)
  except (OSError, AttributeError):  # no usable stderr: nothing to hold back
    yield
    return
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(saved, 2)
      os.close(saved)
      held.seek(0)
      rest = b"".join(filter(passes, held))
      if rest:
        os.write(2, rest)


def relay(faults: dict[str, str]):
  """Passes on what comes from stdin, up to an error, which is one line.

  It ends with its input: signals that end the writer are not for it.

  Args:
    faults: what is said where JAX's distributed runtime ends a process, by what
      its message then holds, a pattern; the first that does.
  """
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  for line in sys.stdin.buffer:
    if b"JAX distributed service detected fatal errors" in line:
      told = (line + sys.stdin.buffer.read()).decode(errors="replace")
      match, said = next(
        (match, said)
        for pattern, said in faults.items()
        if (match := re.search(pattern, told))
      )
      line = f"error: {match.expand(said)}\n".encode()
    sys.stderr.buffer.write(line)
    sys.stderr.flush()
    if line.startswith(b"error: "):
      sys.stdin.buffer.read()


if __name__ == "__main__":
  relay(json.loads(sys.argv[1]))
