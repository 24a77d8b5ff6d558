"""What goes wrong with a checkpoint, each said in one line."""


class CheckpointError(ValueError):
  """A checkpoint that cannot be read, or does not fit what is asked of it."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
  """A checkpoint, or a file of one, that is not there."""

  def __str__(self):
    return ValueError.__str__(self)  # OSError would print its own format
