"""Adds up the memory that a training run needs at least, before it starts.

A run that cannot fit fails in a line that names settings, before it reads data
and before XLA fails in many lines.
"""

import dataclasses

from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.runtime import memory
from speccascade.training.kinds import kind_of
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
    # The last width is the targets'; of decoder-only models, a whole row's.
    num_vectors = kind_of(model).num_vectors
    vectors = max(
      bucket.batch_size
      // count
      * num_vectors(bucket.widths[-1], model, objective)
      for bucket in batches.buckets
    )
    num_bytes = 4 * vectors * model.vocab_size
    self.num_bytes += num_bytes / self.num_parts

  def check(self, **settings):
    """Raises ValueError where a device has less memory than is needed.

    Args:
      **settings: further settings that the message names.
    """
    memory.check(self.num_bytes, **self.settings, **settings)
