"""The errors of reading and writing checkpoints; each message is one line."""


class CheckpointError(ValueError):
  """A checkpoint that cannot be read or written, or does not fit a setting."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
  """A checkpoint, or a file of a checkpoint, that does not exist."""

  def __str__(self):
    # OSError prints an error number and a name of a file, which are not given.
    return ValueError.__str__(self)
