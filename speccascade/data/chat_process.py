"""Asks the process of `chat_sandbox` to render a chat template."""

import atexit
from collections.abc import Mapping
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

from speccascade.data import chat_sandbox

# The process ends itself after its own bound on time. This wait is for one that
# the system does not let work at all.
_MOST_WAIT_S = 120.0
_ENDED_BY_TIMER = -signal.SIGPROF
_LOCK = threading.Lock()
_running: "_Process | None" = None


class TemplateError(ValueError):
  """Why a template cannot be rendered.

  Attributes:
    line: the line of the template at fault, or None.
  """

  def __init__(self, reason: str, line: int | None = None):
    super().__init__(reason)
    self.line = line


def render(source: str, context: Mapping) -> str:
  """Returns what a template writes.

  Args:
    source: the template in jinja.
    context: its variables, as JSON values.

  Raises:
    TemplateError: the template is broken, refuses its variables, does what the
      sandbox forbids, or takes more time or memory than it may.
    TypeError: a variable is no value of JSON.
  """
  global _running
  request = json.dumps({"source": source, "context": dict(context)})
  with _LOCK:
    # A process that was forked from this one has pipes that it must not share.
    if _running is None or not _running.is_usable:
      _running = _Process()
    answer = _running.ask(request.encode())
  if "error" in answer:
    raise TemplateError(answer["error"], answer["line"])
  return answer["text"]


class _Process:
  """A running process of `chat_sandbox`. It ends where its stdin is closed."""

  def __init__(self):
    file = pathlib.Path(chat_sandbox.__file__)
    self._owner = os.getpid()
    self._most_s = chat_sandbox.MOST_S
    arguments = (sys.path, self._most_s, chat_sandbox.MOST_BYTES)
    self._process = subprocess.Popen(
      [sys.executable, "-I", str(file), *map(json.dumps, arguments)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
    )
    atexit.register(self._end)

  @property
  def is_usable(self) -> bool:
    """Whether the process runs, and is this process's own."""
    return self._owner == os.getpid() and self._process.poll() is None

  def ask(self, request: bytes) -> dict:
    """Returns the answer to a request.

    Raises:
      TemplateError: the process ended before it answered, or was ended.
    """
    pipes = self._process.stdin, self._process.stdout
    try:
      pipes[0].write(request + b"\n")
      pipes[0].flush()
      if (line := self._read_line()) is not None:
        return json.loads(line)
    except OSError:
      pass  # It has ended.
    except BaseException:  # Ctrl-C; the answer must not be the next request's.
      self._end()
      raise
    code = self._end()
    if code == _ENDED_BY_TIMER:
      reason = f"takes over {self._most_s} s"
    else:
      reason = f"the process that renders it ended with exit code {code}"
    raise TemplateError(reason)

  def _end(self) -> int:
    """Ends the process, if it runs; returns its exit code."""
    atexit.unregister(self._end)
    if self._owner != os.getpid():
      return 0
    self._process.kill()
    for pipe in (self._process.stdin, self._process.stdout):
      with contextlib.suppress(OSError):  # What it did not take is given up.
        pipe.close()
    return self._process.wait()

  def _read_line(self) -> bytes | None:
    """Returns the next line of the process; None where there is none."""
    deadline, parts = time.monotonic() + _MOST_WAIT_S, []
    pipe = self._process.stdout.fileno()
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
