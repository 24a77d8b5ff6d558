"""Keeps the chatter of TensorFlow and gin off the terminal, and off the GPU."""

import contextlib
import logging
import os
import re

from speccascade.runtime.standard_error import hold_back

# What TensorFlow's native code says while it loads, and its tokenizers while
# they are made, whatever the log level.
_NOISE = re.compile(
  rb"before absl::InitializeLog|oneDNN custom operations|cudart_stub\.cc"
  rb"|cuda_dnn\.cc|cuda_blas\.cc|cuda_fft\.cc|computation_placer\.cc"
  rb"|Unable to register cu|cpu_feature_guard\.cc|To enable the following"
  rb"|TF-TRT Warning|TensorRT|cuda_platform\.cc|cuInit|could not find cuda"
  rb"|google_auth_provider|precompiled_charsmap is empty",
  re.IGNORECASE,
)


@contextlib.contextmanager
def native_logs():
  """Holds back what native code writes to stderr; lets all but noise pass."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  with hold_back(lambda line: not _NOISE.search(line)):
    yield


@contextlib.contextmanager
def gin_search():
  """Holds back gin's errors on folders that have no file of a name.

  They come before it looks into the next folder; where no folder has the file,
  what gin raises says so.
  """

  def is_news(record):
    return not str(record.msg).startswith("Path not found")

  root = logging.getLogger()
  root.addFilter(is_news)
  try:
    yield
  finally:
    root.removeFilter(is_news)


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
