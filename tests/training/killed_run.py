"""A small run that kills itself at a step: python -m ... DIR STEP."""

import os
import signal
import sys

from speccascade.training import trainer
from speccascade.training.checkpointing import Checkpoints
from tests.training.conftest import (
  ADAFACTOR,
  TINY,
  quick_compiles,
  random_batch,
)

STEPS = 12


def run(folder, writer=None):
  """Trains to step 12 and saves after every fifth step; dropout is on."""
  return trainer.run(
    TINY,
    [random_batch(i) for i in range(5)],
    Checkpoints(folder, TINY),
    trainer.TrainingRun(
      STEPS, seed=3, checkpoint_period=5, log_period=1, progress=False
    ),
    optimizer=ADAFACTOR,
    writer=writer,
  )


class Killer:
  """A metric writer that sends this process a signal at a step."""

  def __init__(self, number, step):
    self.number, self.step = number, step

  def write_scalars(self, step, scalars):
    if step == self.step:
      os.kill(os.getpid(), self.number)

  def flush(self):
    pass


if __name__ == "__main__":
  folder, step = sys.argv[1:]
  with quick_compiles():
    run(folder, Killer(signal.SIGKILL, int(step)))
