"""What a batch teaches: distributions at depths, their loss, their measures.

Depth 0 is the next token, which a language model predicts. Draft head k and
look-ahead embedding k predict the token k places after it, at depth k. Each
kind of model (`kinds.KINDS`) turns a `Reading` of a batch into lessons, one for
each depth. What follows is the same for all of them: `summed` makes a loss of
lessons, `measured` and `by_depth` make metrics of them.

Axes: B rows, T target length, V vocabulary.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models.sharding.partitioning import Layout
from speccascade.training import losses, states
from speccascade.training.objectives import Objective

Array = jax.Array
# What is measured of a metric: its sum over target tokens by their weights, and
# the weight that the sum is to be divided by, [] float32 each.
Metrics = dict[str, tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Reading:
  """A batch, with the models that read it.

  Attributes:
    module: the network that learns, static.
    params: its parameters, with respect to which a loss is differentiated.
    batch: see the module `states`.
    weights: [B, T] float32, the weights of the target tokens.
    step: [] int32, the training step.
    objective: what is minimised; None where the model is only measured.
    rng: a key for what a step draws at random; None turns dropout off.
    teacher: the teacher, or None. The teacher of draft heads is their verifier.
    layout: where the parameters lie; None on one device.
  """

  module: states.Network
  params: Any
  batch: Mapping[str, Array]
  weights: Array
  step: Array | int = 0
  objective: Objective | None = None
  rng: Array | None = None
  teacher: states.Teacher | None = None
  layout: Layout | None = None

  @property
  def needs_teacher(self) -> bool:
    """Whether the teacher's distributions are read: those of the same tokens.

    A loss says so; measures read them wherever there is a teacher.
    """
    if self.objective is None:
      return self.teacher is not None
    return self.objective.needs_teacher

  @property
  def targets(self) -> Array:
    """The target tokens [B, T] int32."""
    return self.batch["decoder_target_tokens"]


@dataclasses.dataclass(frozen=True)
class Lesson:
  """Distributions at one depth, with what they are to become.

  A loss is called with a lesson, and returns one number for each target. The
  axes before V are those of the places at which the model predicts.

  Attributes:
    logits: [..., V] float32, the model's.
    targets: [...] int32, the tokens at this depth.
    weights: [...] float32, the weights of these targets.
    step: [] int32, the training step.
    teacher_logits: [..., V] float32, the teacher's of the same tokens, without
      a gradient; None where nothing reads them.
    depth: how many places after the next token the targets are.
  """

  logits: Array
  targets: Array
  weights: Array
  step: Array | int
  teacher_logits: Array | None
  depth: int = 0


def next_tokens(reading: Reading) -> Lesson:
  """Returns the lesson of a language model, at depth 0."""
  logits = states.forward(
    reading.module, reading.params, reading.batch, reading.rng, reading.layout
  )
  teacher_logits = None
  if reading.needs_teacher:
    teacher_logits = reading.teacher.logits(reading.batch, reading.layout)
  return Lesson(
    logits, reading.targets, reading.weights, reading.step, teacher_logits
  )


def ahead(values: Array, depth: int) -> Array:
  """Returns [B, T, ...] values from `depth` places later; 0 at the end.

  >>> ahead(jnp.array([[5, 6, 7]]), 1).tolist()
  [[6, 7, 0]]
  """
  later = values[:, depth:]
  pad = [(0, 0), (0, values.shape[1] - later.shape[1])]
  return jnp.pad(later, pad + [(0, 0)] * (values.ndim - 2))


def ahead_weights(batch: Mapping, weights: Array, depth: int) -> Array:
  """Returns [B, T], the weight of the target `depth` places after each target.

  At a place without weight, inside a prompt, nothing is predicted, and a target
  of another text in the row is not one of this text.

  Args:
    batch: may have `decoder_segment_ids`.
    weights: [B, T], of the targets.
    depth: how many places later.
  """
  later = jnp.where(weights > 0, ahead(weights, depth), 0)
  segments = batch.get("decoder_segment_ids")
  if segments is not None:
    later = jnp.where(ahead(segments, depth) == segments, later, 0)
  return later


def is_correct(logits: Array, targets: Array) -> Array:
  """Returns [...] bool, whether the target has the highest logit.

  A target that shares the highest logit with other tokens counts as correct:
  on a CPU an arg max costs more than the softmax of a training step.
  """
  return losses.at_target(logits, targets) >= logits.max(-1)


def summed(lessons: Sequence[Lesson], objective: Objective) -> states.Sums:
  """Returns the loss of lessons, summed over depths and targets.

  A lesson at depth k counts `head_decay` ** k. The number of correct targets is
  that of the first lesson.

  Args:
    lessons: a lesson for each depth.
    objective: what is minimised.

  Source: Cai et al., "Medusa" (arXiv 2401.10774), Eq. (1), whose lambda_k is
  0.8 ** k.
  """
  loss = z_loss = jnp.zeros((), jnp.float32)
  for lesson in lessons:
    by_token, z = objective.whole(lesson)
    factor = objective.head_decay**lesson.depth
    loss += factor * jnp.sum(by_token * lesson.weights)
    z_loss += factor * jnp.sum(z * lesson.weights)
  first = lessons[0]
  correct = is_correct(first.logits, first.targets)
  return states.Sums(loss, z_loss, jnp.sum(correct * first.weights))


def measured(lesson: Lesson) -> Metrics:
  """Returns the metrics of one depth.

  They are the cross-entropy "loss" and the share "accuracy" of targets that
  have the highest logit. With a teacher there are its "divergence" from the
  model, and the "acceptance", the sum over tokens of min(p, q).
  """
  logits, targets = lesson.logits, lesson.targets
  loss, _ = losses.cross_entropy(logits, targets)
  by_token = {"loss": loss, "accuracy": is_correct(logits, targets)}
  if lesson.teacher_logits is not None:
    by_token["divergence"] = losses.divergence(lesson.teacher_logits, logits)
    by_token["acceptance"] = losses.overlap(lesson.teacher_logits, logits)
  weight = lesson.weights.sum()
  return {
    name: (jnp.sum(values * lesson.weights), weight)
    for name, values in by_token.items()
  }


# What is measured of each depth of a draft model that drafts several tokens.
DEPTH_NAMES = ("loss", "accuracy", "acceptance")


def by_depth(lessons: Sequence[Lesson]) -> Metrics:
  """Returns `DEPTH_NAMES` of each depth, e.g. "loss_2".

  "loss" and "accuracy" are those of the first depth.
  """
  metrics = {}
  for lesson in lessons:
    values = measured(lesson)
    for name in DEPTH_NAMES:
      metrics[f"{name}_{lesson.depth}"] = values[name]
  return {
    "loss": metrics["loss_1"],
    "accuracy": metrics["accuracy_1"],
  } | metrics


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
  batch = states.without_stored(batch)
  for drafter in teacher.earlier:
    differs &= drafter.logits(batch, layout).argmax(-1) != best
  return differs.astype(jnp.float32)
