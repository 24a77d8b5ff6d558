"""What a training run will take of its devices, from its settings alone."""

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
  """Returns what each device will hold; settings as in `train`.

  Raises:
    CheckpointError: there is no teacher where one is said to be.
  """
  optimizer, asked = (
    optimizer or optimizers.adafactor(),
    objective or Objective(),
  )
  lengths, models = data.task_feature_lengths, {"model": model}
  if data.teacher_checkpoint:
    teacher = checkpoints.load(data.teacher_checkpoint, lazy=True)
    models["teacher"] = teacher.require_config()

  def bytes_on(
    mesh: meshes.Mesh, objective: Objective = asked
  ) -> dict[str, float]:
    layout, rows = mesh.abstract(), data.batch_size // objective.microbatches
    layout.check_rows(BATCH_SIZE=data.batch_size)
    bytes_of = footprint.training(model, layout, optimizer.transform.init)
    if objective.microbatches > 1:  # those of a part, and their sum
      bytes_of["gradients"] *= 2
    bytes_of["activations"] = footprint.activations(
      model, layout, rows, lengths, objective.remat
    )
    positions, bytes_of["logits"] = rows * lengths["targets"], 0.0
    for role, config in models.items():
      layout.check(config, role.upper())
      logits = footprint.laws(config, layout, positions, cut=True)
      bytes_of["logits"] += logits
      if role == "teacher":
        bytes_of[role] = footprint.weights(config, layout, None)
    return bytes_of

  mesh = run.mesh if run else meshes.ONE

  def advise(most: float) -> str | None:
    """Smaller parts first: to compute again takes time."""
    rows = data.batch_size // mesh.abstract().sizes[DATA]
    parts = [n for n in range(1, rows + 1) if rows % n == 0]
    kinds = [asked.remat, *sorted(layers.REMAT, reverse=True)]
    for remat, num in itertools.product(dict.fromkeys(kinds), parts):
      other = dataclasses.replace(asked, microbatches=num, remat=remat)
      if (
        num >= asked.microbatches
        and sum(bytes_on(mesh, other).values()) <= most
      ):
        return f"MICROBATCHES = {num}, REMAT = {remat!r}"
    return None

  return footprint.Footprint(models, bytes_on, mesh, advise)
