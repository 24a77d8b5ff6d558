"""Works out the memory of a training run, from its settings alone."""

import dataclasses
import itertools

from speccascade import checkpoints
from speccascade.checkpoints import hub_headers
from speccascade.models import layers
from speccascade.models.architectures import drafts_alone, is_prompted
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA
from speccascade.tools.planning import footprint, model_bytes
from speccascade.tools.planning.model_bytes import BatchSizes
from speccascade.training import optimizers, training_checks
from speccascade.training.objectives import Objective
from speccascade.training.trainer import TrainingRun
from speccascade.training.training_data import TrainingData


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
    SettingError: a setting is for another kind of model.
    CheckpointError: the settings name a teacher that does not exist.
    ValueError: draft heads have no verifier.
  """
  optimizer = optimizer or optimizers.adafactor()
  objective = objective or Objective()
  training_checks.check_kind(model, data, objective)
  teacher = None
  if data.teacher_checkpoint:
    with hub_headers.outline(data.teacher_checkpoint) as place:
      teacher = checkpoints.load(place, lazy=True).require_config()
  row = model_bytes.row_of(model)
  model = model_bytes.shaped(model, teacher)
  models = {"model": model} | ({} if teacher is None else {"teacher": teacher})
  lengths = data.task_feature_lengths
  # The prompt and the output of a decoder-only model are one text.
  width = lengths["targets"]
  if is_prompted(model):
    width += lengths["inputs"]

  def bytes_on(
    mesh: meshes.Mesh, objective: Objective = objective
  ) -> dict[str, float]:
    layout, rows = mesh.abstract(), data.batch_size // objective.microbatches
    layout.check_rows(BATCH_SIZE=data.batch_size)
    init = optimizer.transform.init
    bytes_of = footprint.training(model, layout, init)
    is_tuned = objective.tuning is not None
    if is_tuned:
      for name, size in footprint.training(teacher, layout, init).items():
        bytes_of[name] += size
    if objective.microbatches > 1:
      # The gradients of a part of the batch, and the sum over the parts.
      bytes_of["gradients"] *= 2
    model_bytes.check_layout(model, layout)
    batch = BatchSizes(teacher, layout, rows, width, lengths, objective.remat)
    step = row.step(model, batch)

    def laws(config: Config, num: int) -> float:
      return footprint.laws(config, layout, num, cut=True)

    bytes_of["activations"] = step.activations
    bytes_of["logits"] = laws(model, step.num_laws)
    if is_tuned:
      bytes_of["activations"] += batch.activations(teacher)
      bytes_of["logits"] += laws(teacher, step.num_verified)
    layout.check(model, "MODEL")
    if teacher is not None:
      layout.check(teacher, "TEACHER")
      # The teacher's logits are alive while the model's are: the divergence
      # reads both.
      if drafts_alone(model) or objective.needs_teacher:
        bytes_of["logits"] += laws(teacher, step.num_taught)
      bytes_of["teacher"] = footprint.weights(teacher, layout, None)
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
