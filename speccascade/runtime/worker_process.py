"""Asks a process of its own, with bounds on its time and memory.

What models and users bring, such as templates and expressions, may take any
time and memory. A `Worker` answers requests in a process that is started once
and ends where an answer takes too much; Ctrl-C ends it, too.
"""

import atexit
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from typing import IO, Any, cast

from speccascade.runtime import worker_main

# The process ends itself after its own bound on time. This wait is for one that
# the system does not let work at all.
_MOST_WAIT_S = 120.0
_ENDED_BY_TIMER = -signal.SIGPROF


class WorkerError(ValueError):
  """The process ended before it answered, or was ended."""


class Worker:
  """A running process of `worker_main`. It ends where its stdin is closed.

  Args:
    file: path of the Python file that answers; see `worker_main`.
    most_s: seconds of a processor's time for one answer.
    most_bytes: bytes of memory for the whole process.
  """

  def __init__(self, file: str, most_s: float, most_bytes: int):
    self._owner, self._most_s = os.getpid(), most_s
    main = pathlib.Path(worker_main.__file__)
    arguments = (sys.path, most_s, most_bytes, str(file))
    self._process = subprocess.Popen(
      [sys.executable, "-I", str(main), *map(json.dumps, arguments)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
    )
    # (Both are pipes.)
    self._stdin = cast(IO[bytes], self._process.stdin)
    self._stdout = cast(IO[bytes], self._process.stdout)
    atexit.register(self._end)

  @property
  def is_usable(self) -> bool:
    """Whether the process runs, and is this process's own."""
    # A process that was forked from this one has pipes that it must not share.
    return self._owner == os.getpid() and self._process.poll() is None

  def ask(self, request: bytes) -> dict[str, Any]:
    """Returns the answer to a request.

    Args:
      request: a value of JSON, in one line.

    Raises:
      WorkerError: the process ended before it answered, or was ended.
    """
    try:
      self._stdin.write(request + b"\n")
      self._stdin.flush()
      if (line := self._read_line()) is not None:
        return json.loads(line)
    except OSError:
      pass  # It has ended.
    except BaseException:  # Ctrl-C; the answer must not be the next request's.
      self._end()
      raise
    code = self._end()
    if code == _ENDED_BY_TIMER:
      raise WorkerError(f"takes over {self._most_s} s")
    raise WorkerError(f"ended its process with exit code {code}")

  def _end(self) -> int:
    """Ends the process, if it runs; returns its exit code."""
    atexit.unregister(self._end)
    if self._owner != os.getpid():
      return 0
    self._process.kill()
    for pipe in (self._stdin, self._stdout):
      with contextlib.suppress(OSError):  # What it did not take is given up.
        pipe.close()
    return self._process.wait()

  def _read_line(self) -> bytes | None:
    """Returns the next line of the process; None where there is none."""
    deadline, parts = time.monotonic() + _MOST_WAIT_S, []
    pipe = self._stdout.fileno()
    while True:
      left = deadline - time.monotonic()
      if left <= 0 or not select.select([pipe], [], [], left)[0]:
        return None
      part = os.read(pipe, 1 << 16)
      if not part:
        return None
      parts.append(part)
      if part.endswith(b"\n"):
        return b"".join(parts)
