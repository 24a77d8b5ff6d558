"""Reads files into parameter trees, and writes parameter trees into files.

`load` reads every layout: this package's, T5X's, Hugging Face's and GGUF.
`orbax_io.save`, `t5x_native.save` and `hugging_face.save` write. Orbax,
tensorstore and flax are imported when they are first needed.
"""

from speccascade.checkpoints.architecture import check_params
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.checkpoints.restore import Checkpoint, load

__all__ = [
  "Checkpoint",
  "CheckpointError",
  "CheckpointNotFoundError",
  "check_params",
  "load",
]
