"""What a training run will take of its devices, from its settings alone."""

from speccascade import footprint, meshes
from speccascade.models.params import Config
from speccascade.training import optimizers
from speccascade.training.finetune import TrainingData
from speccascade.training.state import Objective
from speccascade.training.trainer import TrainingRun


def planned(
  model: Config,
  data: TrainingData,
  optimizer: optimizers.Optimizer | None = None,
  objective: Objective | None = None,
  run: TrainingRun | None = None,
  **_,
) -> footprint.Footprint:
  """Returns what each device will hold; settings as in `train`."""
  optimizer = optimizer or optimizers.adafactor()
  parts = (objective or Objective()).microbatches
  length = data.task_feature_lengths["targets"]

  def held(mesh: meshes.Mesh) -> dict[str, float]:
    layout = mesh.abstract()
    layout.check(model, "MODEL")
    layout.check_rows(BATCH_SIZE=data.batch_size)
    positions = data.batch_size // parts * length
    return footprint.training(model, layout, optimizer.transform.init) | {
      "logits": footprint.laws(model, layout, positions, cut=True)
    }

  mesh = run.mesh if run else meshes.ONE
  return footprint.Footprint({"model": model}, held, mesh)
