"""What a run logs, for TensorBoard."""

from collections.abc import Mapping
import contextlib
import functools

from speccascade.training.checkpointing import cause


class EventFiles:
  """TensorBoard's event files, begun when there is something to write."""

  def __init__(self, folder: str):
    self._folder = folder

  @functools.cached_property
  def _writer(self):
    from clu import metric_writers

    return metric_writers.SummaryWriter(self._folder)

  @contextlib.contextmanager
  def _checked(self):
    from speccascade.cli import quiet

    tf = quiet.import_tensorflow()
    try:
      with quiet.native_logs():
        yield
    except tf.errors.OpError as error:
      raise OSError(
        f"no event file can be written to {self._folder}: {cause(error)}"
      ) from error

  def write_scalars(self, step: int, scalars: Mapping[str, float]):
    with self._checked():
      self._writer.write_scalars(step, scalars)

  def flush(self):
    with self._checked():
      self._writer.flush()
