"""Trains models: losses, optimizers, the training loop, runs that resume.

`fit` trains on any batches. `trainer.TrainingJob` adds checkpoints and
evaluation. `finetune.prepare` reads the models and the data of such a job, and
`finetune.train`, which `python -m speccascade.train` calls, runs it.
"""

from speccascade.training.meter import LossNotFiniteError
from speccascade.training.objectives import Objective
from speccascade.training.optimizers import (
  Optimizer,
  adafactor,
  adamw,
  constant,
  linear,
  rsqrt,
)
from speccascade.training.states import TrainState
from speccascade.training.trainer import Every, fit

__all__ = [
  "Every",
  "LossNotFiniteError",
  "Objective",
  "Optimizer",
  "TrainState",
  "adafactor",
  "adamw",
  "constant",
  "fit",
  "linear",
  "rsqrt",
]
