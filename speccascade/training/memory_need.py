"""Adds up the memory that a training run needs at least, before it starts.

A run that cannot fit fails in a line that names settings, before it reads data
and before XLA fails in many lines.
"""

import dataclasses

from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.runtime import memory
from speccascade.training.kinds import kind_of
from speccascade.training.objectives import Objective
from speccascade.training.states import Teacher


@dataclasses.dataclass
class MemoryNeed:
  """The memory that each device needs at least, and the settings that cause it.

  Attributes:
    num_parts: into how many parts a mesh splits the arrays; 1 on one device.
    num_bytes: bytes of each device, so far.
    settings: the settings that cause them, by the names that a message gives.
  """

  num_parts: int
  num_bytes: float = 0.0
  settings: dict[str, str] = dataclasses.field(default_factory=dict)

  def add_model(self, model: Config):
    """Adds the model: parameters, their gradients and an update, in float32."""
    self._add("MODEL", model, 3)

  def add_teacher(self, teacher: Teacher, *, is_tuned: bool):
    """Adds a teacher and its earlier drafters, all in float32.

    Args:
      teacher: the teacher, or the verifier of draft heads.
      is_tuned: whether a copy of the verifier learns too, and so has a gradient
        and an update.
    """
    num_arrays = 4 if is_tuned else 1
    self._add("TEACHER_CHECKPOINT", teacher.module.config, num_arrays)
    for drafter in teacher.earlier:
      self._add("EARLIER_DRAFTERS", drafter.module.config, 1)

  def _add(self, setting: str, config: Config, num_arrays: int):
    """Adds arrays of the shapes of a model's parameters."""
    count = parameters.num_parameters(config)
    self.num_bytes += 4 * num_arrays * count / self.num_parts
    self.settings[setting] = f"of {count:,} parameters"

  def add_logits(
    self,
    batches,
    model: Config,
    objective: Objective,
    num_tokens: int | None = None,
  ):
    """Adds the float32 logits of the largest batch, or of its microbatch.

    A teacher's logits are added too, where the objective's loss reads one.

    Args:
      batches: a `TrainBatches`.
      model: the architecture.
      objective: has the number of microbatches, and the loss.
      num_tokens: how many logits a vector has; None is one for each token.

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
    num_bytes = 4 * vectors * (num_tokens or model.vocab_size)
    self.num_bytes += num_bytes / self.num_parts

  def check(self, **settings):
    """Raises ValueError where a device has less memory than is needed.

    Args:
      **settings: further settings that the message names.
    """
    memory.check(self.num_bytes, **self.settings, **settings)
