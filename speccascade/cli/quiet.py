"""Keeps messages of TensorFlow and gin off the terminal.

TensorFlow is also kept off the accelerators.
"""

import contextlib
import logging
import os
import re

from speccascade.cli import gin_internals
from speccascade.runtime.standard_error import hold_back

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


@contextlib.contextmanager
def native_logs():
  """Holds back what native code writes to stderr, and drops the known noise.

  All other lines are written when the block ends.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  with hold_back(lambda line: not _NOISE.search(line)):
    yield


@contextlib.contextmanager
def gin_search():
  """Drops the errors that gin logs for folders that have not a file.

  gin looks into one folder after the other. If no folder has the file, gin
  raises an error, which says so.
  """

  def is_kept(record):
    return not gin_internals.is_search_message(str(record.msg))

  root = logging.getLogger()
  root.addFilter(is_kept)
  try:
    yield
  finally:
    root.removeFilter(is_kept)


def import_tensorflow():
  """Returns TensorFlow, imported in silence and without any accelerator.

  TensorFlow only reads and tokenizes text here. On a GPU it would take the
  memory that JAX needs.
  """
  with native_logs():
    import tensorflow as tf

    # If TensorFlow uses its devices already, it is too late to hide them.
    with contextlib.suppress(RuntimeError):
      tf.config.set_visible_devices([], "GPU")
      tf.config.set_visible_devices([], "TPU")
  return tf
