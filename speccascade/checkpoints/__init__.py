"""Files to parameter trees and back: T5X, Orbax, Hugging Face.

`load` reads every layout; `orbax_io.save` and `t5x_native.save` write. Orbax,
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
