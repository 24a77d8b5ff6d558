"""Keeps messages of TensorFlow and gin off the terminal.

TensorFlow is also kept off the accelerators.
"""

import contextlib
import logging

from speccascade.cli import gin_internals
from speccascade.runtime.standard_error import native_logs


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
