"""A small training run for several processes: JOB holds its settings as JSON.

It prints a line of JSON when it starts, saves and ends.
"""

import hashlib
import json
import os
import signal
import sys
import time

import jax

from speccascade import cli
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import fetch
from speccascade.runtime import folders, processes
from speccascade.training import states, trainer
from speccascade.training.checkpointing import Checkpoints
from tests import eight_devices


def print_state(name: str, state):
  """Prints the step of a state, and a digest of all its arrays."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(fetch((state.params, state.opt_state))):
    digest.update(leaf.tobytes())
  line = {name: int(state.step), "sha256": digest.hexdigest()}
  print(json.dumps(line), flush=True)


class PrintingCheckpoints(Checkpoints):
  """Checkpoints that print the states that they read and write."""

  def start(self, *args, **options):
    state, *rest = super().start(*args, **options)
    print_state("start", state)
    return state, *rest

  def save(self, state, **options):
    print_state("save", state)
    return super().save(state, **options)


def main():
  """Trains; the process that JOB names sends itself a signal at step 7."""
  settings = {"steps": 20, "signal": None, "who": 1, "optimizer": "adafactor"}
  settings |= json.loads(os.environ["JOB"])
  model, losses = eight_devices.config("t5", 16), {}

  class Writer:
    def write_scalars(self, step, scalars):
      losses[step] = scalars["train/loss"]
      if settings["signal"]:
        time.sleep(0.2)
        if step == 7 and processes.index() == settings["who"]:
          os.kill(os.getpid(), signal.Signals[settings["signal"]])

    def flush(self):
      pass

  layout = meshes.Mesh(settings["mesh"]).layout()
  with folders.sole_writer(settings["folder"]):
    outcome = trainer.TrainingJob(
      model,
      eight_devices.texts("t5"),
      PrintingCheckpoints(settings["folder"], model, layout=layout),
      trainer.TrainingRun(
        train_steps=settings["steps"],
        checkpoint_period=5,
        log_period=1,
        progress=False,
      ),
      optimizer=eight_devices.OPTIMIZERS[settings["optimizer"]],
      objective=states.Objective(microbatches=2),
      writer=Writer(),
      say=lambda text: None,
    ).run()
  print(json.dumps({"losses": losses, "step": outcome.step}))
  if outcome.stop:
    sys.exit(outcome.stop.exit_code)


if __name__ == "__main__":
  cli.run(main, __doc__)
