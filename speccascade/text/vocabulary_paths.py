"""Where the vocabulary of a model lies, as a path."""

import os

from speccascade.checkpoints import CheckpointError, restore
from speccascade.settings import fields


def check_vocabulary_path(value):
  """Raises ValueError unless a value is the path of a vocabulary, or None."""
  path = os.fspath(value) if isinstance(value, fields.Path) else ""
  if value is not None and not (path.strip() and fields.is_text(path)):
    raise ValueError(
      "wanted the path of a SentencePiece model or of a Hugging Face"
      f" directory, or None, not {value!r:.60}"
    )


def vocabulary_path_of(checkpoint: str | os.PathLike | None) -> str | None:
  """Returns the directory beside a checkpoint that holds its vocabulary.

  Args:
    checkpoint: the path of a checkpoint, or None.

  Returns:
    The checkpoint's Hugging Face directory, or the MODEL_DIR of its training
    run. None where neither holds a vocabulary.
  """
  try:
    directory = restore.vocabulary_directory(checkpoint or "")
    return str(directory) if directory else None
  except CheckpointError:
    return None  # Reading the checkpoint will raise it with a message.
