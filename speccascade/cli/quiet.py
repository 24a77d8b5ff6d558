"""Keeps TensorFlow's start-up chatter off the terminal, and off the GPU."""

from collections.abc import Callable
import contextlib
import os
import re
import sys
import tempfile
import time

# What TensorFlow's native code says while it loads, whatever the log level.
_NOISE = re.compile(
  rb"before absl::InitializeLog|oneDNN custom operations|cudart_stub\.cc"
  rb"|cuda_dnn\.cc|cuda_blas\.cc|cuda_fft\.cc|computation_placer\.cc"
  rb"|Unable to register cu|cpu_feature_guard\.cc|To enable the following"
  rb"|TF-TRT Warning|TensorRT|cuda_platform\.cc|cuInit|could not find cuda"
  rb"|google_auth_provider",
  re.IGNORECASE,
)


@contextlib.contextmanager
def native_logs():
  """Holds back what native code writes to stderr; lets all but noise pass."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  with _held_back(lambda line: not _NOISE.search(line)):
    yield


@contextlib.contextmanager
def failing_threads():
  """Holds back stderr, and drops it where the block fails: its error says it.

  For blocks whose threads each print a traceback of the same fault.
  """
  failed = False
  with _held_back(lambda line: not failed):
    try:
      yield
    except BaseException:
      failed = True
      time.sleep(0.2)  # threads that are still at work have their say
      raise


@contextlib.contextmanager
def _held_back(passes: Callable[[bytes], bool]):
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


def import_tensorflow():
  """Returns TensorFlow, imported in silence and without any accelerator.

  TensorFlow only reads and tokenises text here; on a GPU it would take the
  memory that JAX needs.
  """
  with native_logs():
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # devices are already in use
      tf.config.set_visible_devices([], "GPU")
      tf.config.set_visible_devices([], "TPU")
  return tf
