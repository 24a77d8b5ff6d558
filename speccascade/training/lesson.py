"""What one batch offers to a loss."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models.sharding.partitioning import Layout
from speccascade.training import states

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Lesson:
  """A batch, with the models that read it.

  An array is computed when a loss first asks for it, and only once, so a loss
  costs what it reads. A loss of another kind, say of heads on hidden states,
  finds here what it needs: the network, its parameters and the batch.

  Attributes:
    module: the network that learns, static.
    params: its parameters, with respect to which the loss is differentiated.
    batch: see the module `states`.
    step: [] int32, the training step.
    rng: dropout's key; None turns dropout off.
    teacher: a `states.Teacher`, or None.
    layout: where the parameters lie; None on one device.
  """

  module: states.Network
  params: Any
  batch: Mapping[str, Array]
  step: Array
  rng: Array | None = None
  teacher: states.Teacher | None = None
  layout: Layout | None = None

  @functools.cached_property
  def logits(self) -> Array:
    """The model's logits [B, T, V] float32, with dropout where it is on."""
    return states.forward(
      self.module, self.params, self.batch, self.rng, self.layout
    )

  @functools.cached_property
  def teacher_logits(self) -> Array:
    """The teacher's logits [B, T, V] float32, which have no gradient.

    Raises:
      ValueError: there is no teacher.
    """
    if self.teacher is None:
      raise ValueError("the loss reads a teacher, and there is none")
    return self.teacher.logits(self.batch, self.layout)

  @property
  def targets(self) -> Array:
    """The target tokens [B, T] int32."""
    return self.batch["decoder_target_tokens"]


def disagreement(
  teacher: states.Teacher, batch: Mapping, layout: Layout | None = None
) -> Array:
  """Returns where no earlier drafter agrees with the teacher, [B, T] float32.

  A drafter agrees at a position if its most likely token is the teacher's. The
  position is 1 where none of `Teacher.earlier` agrees, and 0 elsewhere.

  Source: Miao et al. (SpecInfer), arXiv:2305.09781, collective boost-tuning.
  There a whole prompt is an example, which is dropped where a drafter writes
  the verifier's text; here each position is an example.
  """
  best = teacher.logits(batch, layout).argmax(-1)
  differs = jnp.ones(best.shape, bool)
  # Stored hidden states are the teacher's, and no drafter must read them.
  batch = {k: v for k, v in batch.items() if k != "teacher_hidden"}
  for drafter in teacher.earlier:
    differs &= drafter.logits(batch, layout).argmax(-1) != best
  return differs.astype(jnp.float32)
