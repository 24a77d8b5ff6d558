"""Adds up the memory that a training run needs at least, before it starts.

A run that cannot fit fails in a line that names settings, before it reads data
and before XLA fails in many lines.
"""

import dataclasses

from speccascade.models import parameters
from speccascade.models.draft_heads import LOOKAHEAD, HeadsConfig
from speccascade.models.parameters import Config
from speccascade.runtime import memory
from speccascade.training.states import Objective


@dataclasses.dataclass
class MemoryNeed:
  """The memory that each device needs at least, and the settings that cause it.

  Attributes:
    num_parts: into how many parts a mesh cuts the arrays; 1 on one device.
    num_bytes: bytes of each device, so far.
    settings: the settings that cause them, by the names that a message gives.
  """

  num_parts: int
  num_bytes: float = 0.0
  settings: dict[str, str] = dataclasses.field(default_factory=dict)

  def add_parameters(self, name: str, config: Config, bytes_each: int):
    """Adds a model's parameters, or several arrays of their shapes.

    Args:
      name: the setting that brings the model.
      config: the architecture.
      bytes_each: bytes for each parameter.
    """
    count = parameters.num_parameters(config)
    self.num_bytes += bytes_each * count / self.num_parts
    self.settings[name] = f"of {count:,} parameters"

  def add_logits(self, batches, model: Config, objective: Objective):
    """Adds the float32 logits of the largest batch, or of its microbatch.

    A teacher's logits are added too, where the objective's loss reads one.

    Args:
      batches: a `TrainBatches`.
      model: the architecture.
      objective: has the number of microbatches, and the loss.

    Raises:
      ValueError: the number of microbatches does not divide a batch's rows.
    """
    count = objective.microbatches
    for bucket in batches.buckets:
      if bucket.batch_size % count:
        raise ValueError(
          f"MICROBATCHES is {count}, which does not divide a batch of"
          f" {bucket.batch_size} rows"
        )
    positions = max(
      # The last width is the targets'; of decoder-only models, a whole row's.
      bucket.batch_size // count * bucket.widths[-1]
      for bucket in batches.buckets
    )
    num_models = 2 if objective.needs_teacher else 1
    if isinstance(model, HeadsConfig) and model.kind == LOOKAHEAD:
      # Logits of look-ahead embeddings are computed at one cut of each row.
      rows = max(bucket.batch_size // count for bucket in batches.buckets)
      positions = rows * model.num_heads
    elif isinstance(model, HeadsConfig):
      num_models += model.num_heads - 1
      # A verifier that is tuned has a loss of its own.
      num_models += objective.tuning is not None
    num_bytes = 4 * num_models * positions * model.vocab_size
    self.num_bytes += num_bytes / self.num_parts

  def check(self, **settings):
    """Raises ValueError where a device has less memory than is needed.

    Args:
      **settings: further settings that the message names.
    """
    memory.check(self.num_bytes, **self.settings, **settings)
