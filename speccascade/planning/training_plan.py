"""Works out the memory of a training run, from its settings alone."""

import dataclasses
import itertools

from speccascade import checkpoints
from speccascade.models import layers
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA
from speccascade.planning import footprint
from speccascade.training import optimizers
from speccascade.training.finetune import TrainingData
from speccascade.training.states import Objective
from speccascade.training.trainer import TrainingRun


def plan(
  model: Config,
  data: TrainingData,
  optimizer: optimizers.Optimizer | None = None,
  objective: Objective | None = None,
  run: TrainingRun | None = None,
  **_,
) -> footprint.Footprint:
  """Returns the memory that each device needs.

  The arguments are settings of `finetune.train`; its other settings do not
  matter to the memory.

  Raises:
    CheckpointError: the settings name a teacher that does not exist.
  """
  optimizer = optimizer or optimizers.adafactor()
  objective = objective or Objective()
  lengths, models = data.task_feature_lengths, {"model": model}
  if data.teacher_checkpoint:
    teacher = checkpoints.load(data.teacher_checkpoint, lazy=True)
    models["teacher"] = teacher.require_config()

  def bytes_on(
    mesh: meshes.Mesh, objective: Objective = objective
  ) -> dict[str, float]:
    layout, rows = mesh.abstract(), data.batch_size // objective.microbatches
    layout.check_rows(BATCH_SIZE=data.batch_size)
    bytes_of = footprint.training(model, layout, optimizer.transform.init)
    if objective.microbatches > 1:
      # The gradients of a part of the batch, and the sum over the parts.
      bytes_of["gradients"] *= 2
    bytes_of["activations"] = footprint.activations(
      model, layout, rows, lengths, objective.remat
    )
    # The teacher's logits are alive while the model's are: the divergence reads
    # both.
    positions, bytes_of["logits"] = rows * lengths["targets"], 0.0
    for role, config in models.items():
      layout.check(config, role.upper())
      logits = footprint.laws(config, layout, positions, cut=True)
      bytes_of["logits"] += logits
      if role == "teacher":
        bytes_of[role] = footprint.weights(config, layout, None)
    return bytes_of

  mesh = run.mesh if run else meshes.ONE

  def advise(num_bytes: float) -> str | None:
    # Smaller parts are tried first: computing activations again takes time.
    rows = data.batch_size // mesh.abstract().sizes[DATA]
    divisors = [n for n in range(1, rows + 1) if rows % n == 0]
    remats = [objective.remat, *sorted(layers.REMAT, reverse=True)]
    for remat, num in itertools.product(dict.fromkeys(remats), divisors):
      if num < objective.microbatches:
        continue
      other = dataclasses.replace(objective, microbatches=num, remat=remat)
      if sum(bytes_on(mesh, other).values()) <= num_bytes:
        return f"MICROBATCHES = {num}, REMAT = {remat!r}"
    return None

  return footprint.Footprint(models, bytes_on, mesh, advise)
