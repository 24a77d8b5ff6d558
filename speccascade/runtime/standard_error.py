"""Holds back standard error while a block runs, or keeps it writable.

Native code writes to the descriptor of standard error, past Python's own
`sys.stderr`. So the descriptor itself is redirected here.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import re
import sys
import tempfile
import time
from typing import Any, TextIO, cast

# Lines that TensorFlow's native code writes while it loads, and its tokenizers
# while they are created, whatever the log level is.
_NOISE = re.compile(
  rb"before absl::InitializeLog|oneDNN custom operations|cudart_stub\.cc"
  rb"|cuda_dnn\.cc|cuda_blas\.cc|cuda_fft\.cc|computation_placer\.cc"
  rb"|Unable to register cu|cpu_feature_guard\.cc|To enable the following"
  rb"|TF-TRT Warning|TensorRT|cuda_platform\.cc|cuInit|could not find cuda"
  rb"|google_auth_provider|precompiled_charsmap is empty",
  re.IGNORECASE,
)


class _Tolerant:
  """A text stream that drops what it cannot write."""

  def __init__(self, stream: TextIO) -> None:
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a string, if its reader still reads."""
    with contextlib.suppress(OSError, ValueError):
      self._stream.write(text)
    return len(text)

  def flush(self) -> None:
    """Flushes the stream."""
    with contextlib.suppress(OSError, ValueError):
      self._stream.flush()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def make_safe() -> None:
  """Lets a process work on whose standard streams are closed.

  A descriptor that is closed is opened on /dev/null. The next file that is
  opened would otherwise get its number, and what native code says would be
  written into that file. What is said on stderr is dropped where nothing reads
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
    sys.stderr = cast(TextIO, _Tolerant(sys.stderr))


@contextlib.contextmanager
def hide_failing_threads() -> Iterator[None]:
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
def hold_back(passes: Callable[[bytes], bool]) -> Iterator[None]:
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
      passed = b"".join(line for line in held if passes(line))
      if passed:
        with contextlib.suppress(OSError):  # Nothing reads stderr any more.
          os.write(2, passed)


@contextlib.contextmanager
def native_logs() -> Iterator[None]:
  """Holds back what native code writes to stderr, and drops the known noise.

  All other lines are written when the block ends.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  with hold_back(lambda line: not _NOISE.search(line)):
    yield
