"""TensorBoard's event files of a training run."""

from collections.abc import Mapping
import contextlib
import functools

from speccascade.runtime.standard_error import native_logs
from speccascade.training.checkpointing import fault_of


class EventFiles:
  """TensorBoard's event files, begun when there is something to write.

  TensorFlow is imported only then.
  """

  def __init__(self, folder: str):
    self._folder = folder

  @functools.cached_property
  def _writer(self):
    from clu import metric_writers

    return metric_writers.SummaryWriter(self._folder)

  @contextlib.contextmanager
  def _one_line_errors(self):
    """Turns TensorFlow's errors into OSErrors of one line."""
    from speccascade.cli import quiet

    tf = quiet.import_tensorflow()
    try:
      with native_logs():
        yield
    except tf.errors.OpError as error:
      raise OSError(
        f"no event file can be written to {self._folder}: {fault_of(error)}"
      ) from error

  def write_scalars(self, step: int, scalars: Mapping[str, float]):
    """Adds scalars of a step; OSError where the file cannot be written."""
    with self._one_line_errors():
      self._writer.write_scalars(step, scalars)

  def flush(self):
    """Writes what was added to the file; OSError where it cannot be."""
    with self._one_line_errors():
      self._writer.flush()
