"""The loss of draft heads over their verifier.

Axes: B rows, T target length, K heads, V vocabulary, E model width.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.models.draft_heads import MEDUSA, HeadsNetwork
from speccascade.training import row_parts, states
from speccascade.training.verifier_tuning import HEADS, VERIFIER

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class HeadLesson:
  """What one head offers to a loss, in the place of a `Lesson`.

  Attributes:
    logits: [B, T, V] float32, the head's.
    targets: [B, T] int32, the targets that the head learns.
    step: [] int32, the training step.
    teacher_logits: [B, T, V] float32, the verifier's of the same targets; None
      where the loss reads none.
  """

  logits: Array
  targets: Array
  step: Array
  teacher_logits: Array | None


class LearningVerifier(NamedTuple):
  """A verifier that learns: unlike those of a `Teacher`, its arrays get a
  gradient.

  Attributes:
    module: the verifier's network.
    params: the verifier's parameters.
  """

  module: states.Network
  params: Any

  def hidden(self, batch: Mapping) -> Array:
    """Returns teacher-forced hidden states [B, T, E] float32."""
    hidden = states.apply(self.module, self.params, batch, method="hidden")
    return hidden.astype(jnp.float32)

  def project(self, hidden: Array) -> Array:
    """Returns the logits [B, T, V] of hidden states [B, T, E]."""
    variables = {"params": self.params}
    return self.module.apply(variables, hidden, method="logits")


Verifier = states.Teacher | LearningVerifier


def head_logits(
  module: HeadsNetwork, params: Any, verifier: Verifier, hidden: Array
) -> list[Array]:
  """Returns the logits of each head, [B, T, V] float32 each.

  Args:
    module: the heads.
    params: the parameters of the heads.
    verifier: the verifier; the parameters of a `Teacher` get no gradient.
    hidden: [B, T, E], the verifier's hidden states.
  """
  variables = {"params": params}
  num = module.config.num_heads
  vectors = module.apply(variables, hidden, num, method="states")
  if module.config.kind == MEDUSA:
    logits = module.apply(variables, vectors, method="logits")
    return [logits[:, :, k] for k in range(num)]
  return [verifier.project(vectors[:, :, k]) for k in range(num)]


def ahead(values: Array, num: int) -> Array:
  """Returns [B, T, ...] values that stand `num` places later; 0 after the end.

  >>> ahead(jnp.array([[5, 6, 7]]), 1).tolist()
  [[6, 7, 0]]
  """
  later = values[:, num:]
  pad = [(0, 0), (0, values.shape[1] - later.shape[1])]
  return jnp.pad(later, pad + [(0, 0)] * (values.ndim - 2))


def ahead_weights(batch: Mapping, weights: Array, num: int) -> Array:
  """Returns [B, T], the weight of the target `num` places after each target.

  A hidden state at a place without weight, inside a prompt, is read by no head,
  and a target of another text in the row is not the head's.

  Args:
    batch: may have `decoder_segment_ids`.
    weights: [B, T], of the targets.
    num: how many places later.
  """
  later = jnp.where(weights > 0, ahead(weights, num), 0)
  segments = batch.get("decoder_segment_ids")
  if segments is not None:
    later = jnp.where(ahead(segments, num) == segments, later, 0)
  return later


def summed(
  module: HeadsNetwork,
  params: Any,
  batch: Mapping,
  step: Array,
  weights: Array,
  verifier: states.Teacher,
  objective: states.Objective,
) -> states.Sums:
  """Returns the loss of a batch, summed over its target tokens.

  At each place head k learns the target k places after the target that the
  verifier itself predicts there. Its loss is that of `states.Objective`, whose
  teacher is the verifier, and counts `head_decay` ** k. The number of correct
  targets is that of head 1.

  Args:
    module: the heads.
    params: the parameters of the heads.
    batch: see the module `states`.
    step: [] int32, the training step.
    weights: [B, T], of the targets.
    verifier: the verifier.
    objective: what is minimised.

  Source: Cai et al., "Medusa" (arXiv 2401.10774), Eq. (1), whose lambda_k is
  0.8 ** k.
  """
  hidden = verifier.hidden(batch)
  if hidden.shape[1] <= row_parts.PART:
    p_logits = verifier.project(hidden) if objective.needs_teacher else None
    return _summed_over(
      *(module, params, batch, step, weights, verifier, objective),
      hidden,
      p_logits,
    )
  places = _places(module, batch, weights, hidden)
  fixed = _Fixed(step, verifier, None)
  if objective.needs_teacher:
    fixed = fixed._replace(teacher_logits=_projected(verifier, places))
  return row_parts.summed(
    functools.partial(_of_part, module, objective),
    params,
    fixed,
    (places.later, places),
  )


def summed_with_verifier(
  module: HeadsNetwork,
  params: Mapping,
  batch: Mapping,
  step: Array,
  weights: Array,
  teacher: states.Teacher,
  objective: states.Objective,
) -> states.Sums:
  """Returns the loss of heads and of the verifier that learns with them.

  It is the verifier's own loss plus `VerifierTuning.heads_weight` times what
  `summed` returns of the heads. The teacher of both losses, where they read
  one, is the verifier before training. The number of correct targets is that
  of head 1.

  Args:
    module: the heads.
    params: {HEADS: the heads' parameters, VERIFIER: the verifier's}.
    batch: see the module `states`.
    step: [] int32, the training step.
    weights: [B, T], of the targets.
    teacher: the verifier before training.
    objective: what is minimised, with its `tuning`.

  Source: Cai et al., "Medusa" (arXiv 2401.10774), Medusa-2.
  """
  network = teacher.module.clone(remat=objective.remat)
  verifier = LearningVerifier(network, params[VERIFIER])
  hidden = verifier.hidden(batch)
  p_logits = teacher.logits(batch) if objective.needs_teacher else None
  targets = batch["decoder_target_tokens"]
  logits = verifier.project(hidden)
  own, z = objective.whole(HeadLesson(logits, targets, step, p_logits))
  heads = _summed_over(
    *(module, params[HEADS], batch, step, weights, verifier, objective),
    hidden,
    p_logits,
  )
  share = objective.tuning.heads_weight
  return states.Sums(
    loss=jnp.sum(own * weights) + share * heads.loss,
    z_loss=jnp.sum(z * weights) + share * heads.z_loss,
    correct=heads.correct,
  )


def _summed_over(
  module, params, batch, step, weights, verifier, objective, hidden, p_logits
) -> states.Sums:
  """Returns the loss of heads over hidden states; see `summed`.

  Args:
    module: see `summed`, as the next six.
    params: the parameters of the heads.
    batch: see the module `states`.
    step: [] int32.
    weights: [B, T].
    verifier: the verifier.
    objective: what is minimised.
    hidden: [B, T, E], the verifier's hidden states.
    p_logits: [B, T, V], the teacher's logits, or None.
  """
  targets, each = batch["decoder_target_tokens"], _each(module)
  p_later = [None if p_logits is None else ahead(p_logits, k) for k in each]
  return _sums_of(
    head_logits(module, params, verifier, hidden),
    [ahead(targets, k) for k in each],
    [ahead_weights(batch, weights, k) for k in each],
    p_later.__getitem__,
    step,
    objective,
  )


def _each(module: HeadsNetwork) -> range:
  """Returns the numbers of the heads, which count from 1."""
  return range(1, module.config.num_heads + 1)


def _sums_of(each, wanted, later, p_later, step, objective) -> states.Sums:
  """Returns the loss of heads, summed over places.

  Args:
    each: K arrays [B, N, V] float32, the logits of the heads.
    wanted: K arrays [B, N] int32, the targets that the heads learn.
    later: K arrays [B, N], the weights of these targets.
    p_later: returns the teacher's logits [B, N, V] of the targets of the head
      with an index, or None.
    step: [] int32.
    objective: what is minimised.
  """
  loss = z_loss = correct = jnp.zeros((), jnp.float32)
  for k, logits in enumerate(each):
    lesson = HeadLesson(logits, wanted[k], step, p_later(k))
    by_token, z = objective.whole(lesson)
    factor = objective.head_decay ** (k + 1)
    loss += factor * jnp.sum(by_token * later[k])
    z_loss += factor * jnp.sum(z * later[k])
    if k == 0:
      correct = jnp.sum(states.is_correct(logits, wanted[k]) * later[k])
  return states.Sums(loss=loss, z_loss=z_loss, correct=correct)


class _Places(NamedTuple):
  """The places of a batch, cut into parts; see `row_parts`. All [P, B, N, ...].

  Attributes:
    hidden: [P, B, N, E], the verifier's hidden states.
    weights: [P, B, N], the weights of the verifier's own targets.
    wanted: [P, B, N, K] int32, the target that each head learns.
    later: [P, B, N, K], the weights of these targets.
    index: [P, B, N, K] int32, where the teacher's logits of these targets
      stand among the row's P N places.
  """

  hidden: Array
  weights: Array
  wanted: Array
  later: Array
  index: Array


class _Fixed(NamedTuple):
  """What the loss of heads reads and gives no gradient to.

  Attributes:
    step: [] int32, the training step.
    verifier: the verifier.
    teacher_logits: [B, P N, V], the verifier's logits; None where the loss
      reads none.
  """

  step: Array
  verifier: states.Teacher
  teacher_logits: Array | None


def _places(
  module: HeadsNetwork, batch: Mapping, weights: Array, hidden: Array
) -> _Places:
  """Returns the places of a batch, cut into parts.

  Args:
    module: the heads.
    batch: see the module `states`.
    weights: [B, T], of the targets.
    hidden: [B, T, E], the verifier's hidden states.
  """
  targets, each = batch["decoder_target_tokens"], _each(module)
  order = row_parts.order(weights)
  rank = jnp.argsort(order, axis=1)
  values = (
    hidden,
    weights,
    jnp.stack([ahead(targets, k) for k in each], -1),
    jnp.stack([ahead_weights(batch, weights, k) for k in each], -1),
    jnp.stack([ahead(rank, k) for k in each], -1),
  )
  return _Places(*(row_parts.cut(x, order) for x in values))


def _projected(verifier: states.Teacher, places: _Places) -> Array:
  """Returns the verifier's logits [B, P N, V]; 0 in parts without weight."""

  def project(part):
    hidden, weights = part
    shape = jax.eval_shape(verifier.project, hidden)
    return jax.lax.cond(
      jnp.any(weights > 0),
      verifier.project,
      lambda _: jnp.zeros(shape.shape, shape.dtype),
      hidden,
    )

  logits = jax.lax.map(project, (places.hidden, places.weights))
  logits = jnp.moveaxis(logits, 0, 1)
  return logits.reshape(logits.shape[0], -1, logits.shape[-1])


def _of_part(
  module, objective, params, fixed: _Fixed, part: _Places
) -> states.Sums:
  """Returns the loss of heads, summed over one part [B, N, ...] of places."""
  each = head_logits(module, params, fixed.verifier, part.hidden)

  def p_later(k):
    if fixed.teacher_logits is None:
      return None
    at = part.index[..., k][..., None]
    return jnp.take_along_axis(fixed.teacher_logits, at, axis=1)

  wanted, later = (jnp.moveaxis(x, -1, 0) for x in (part.wanted, part.later))
  return _sums_of(each, wanted, later, p_later, fixed.step, objective)
