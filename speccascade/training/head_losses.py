"""What draft heads learn from the hidden states of their verifier.

Axes: B rows, T target length, K heads, V vocabulary, E model width.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.models.draft_heads import MEDUSA, HeadsNetwork
from speccascade.training import lesson, row_parts, states
from speccascade.training.lesson import Lesson, Reading, ahead, ahead_weights
from speccascade.training.verifier_tuning import HEADS, VERIFIER, is_joint

Array = jax.Array

# What is measured of a verifier that is tuned.
VERIFIER_NAMES = ("verifier_loss", "verifier_accuracy", "verifier_divergence")


def head_logits(
  module: HeadsNetwork, params: Any, verifier: states.Teacher, hidden: Array
) -> list[Array]:
  """Returns the logits of each head, [B, T, V] float32 each.

  Args:
    module: the heads.
    params: the parameters of the heads.
    verifier: the verifier.
    hidden: [B, T, E], the verifier's hidden states.
  """
  variables = {"params": params}
  num = module.config.num_heads
  vectors = module.apply(variables, hidden, num, method="states")
  if module.config.kind == MEDUSA:
    logits = module.apply(variables, vectors, method="logits")
    return [logits[:, :, k] for k in range(num)]
  return [verifier.project(vectors[:, :, k]) for k in range(num)]


def _depths(module: HeadsNetwork) -> range:
  """Returns the depths of the heads, which are their numbers from 1 on."""
  return range(1, module.config.num_heads + 1)


def lessons(
  reading: Reading,
  verifier: states.Teacher,
  hidden: Array,
  p_logits: Array | None,
) -> list[Lesson]:
  """Returns what the heads learn at all places: head k learns at depth k.

  Args:
    reading: the heads, their parameters and a batch.
    verifier: the verifier.
    hidden: [B, T, E], the verifier's hidden states.
    p_logits: [B, T, V], the teacher's logits, or None.
  """
  depths = _depths(reading.module)
  each = head_logits(reading.module, reading.params, verifier, hidden)
  return [
    Lesson(
      logits,
      ahead(reading.targets, k),
      ahead_weights(reading.batch, reading.weights, k),
      reading.step,
      None if p_logits is None else ahead(p_logits, k),
      depth=k,
    )
    for k, logits in zip(depths, each)
  ]


def summed(reading: Reading) -> states.Sums:
  """Returns the loss of a batch, summed over its target tokens.

  At each place head k learns the target k places after the target that the
  verifier itself predicts there. The teacher of its loss is the verifier. Long
  rows are computed part by part.

  With a verifier that learns too, the loss is the verifier's own plus
  `VerifierTuning.heads_weight` times that of the heads. The teacher of both,
  where they read one, is the verifier before training. The number of correct
  targets is that of head 1.

  Source: Cai et al., "Medusa" (arXiv 2401.10774), Medusa-1 and Medusa-2.
  """
  if is_joint(reading.params):
    return _summed_with_verifier(reading)
  verifier = reading.teacher
  hidden = verifier.hidden(reading.batch)
  if hidden.shape[1] <= row_parts.PART:
    p_logits = verifier.project(hidden) if reading.needs_teacher else None
    each = lessons(reading, verifier, hidden, p_logits)
    return lesson.summed(each, reading.objective)
  places = _places(reading, hidden)
  fixed = _Fixed(reading.step, verifier, None)
  if reading.needs_teacher:
    fixed = fixed._replace(teacher_logits=_projected(verifier, places))
  return row_parts.summed(
    functools.partial(_of_part, reading.module, reading.objective),
    reading.params,
    fixed,
    (places.later, places),
  )


def _summed_with_verifier(reading: Reading) -> states.Sums:
  """Returns the loss of heads and of the verifier that learns with them."""
  objective, before = reading.objective, reading.teacher
  verifier = states.Teacher(
    reading.params[VERIFIER], before.module.clone(remat=objective.remat)
  )
  hidden = verifier.hidden(states.without_stored(reading.batch))
  p_logits = before.logits(reading.batch) if reading.needs_teacher else None
  logits, targets = verifier.project(hidden), reading.targets
  own = Lesson(logits, targets, reading.weights, reading.step, p_logits)
  of_verifier = lesson.summed([own], objective)
  alone = dataclasses.replace(reading, params=reading.params[HEADS])
  each = lessons(alone, verifier, hidden, p_logits)
  of_heads = lesson.summed(each, objective)
  share = objective.tuning.heads_weight
  return states.Sums(
    loss=of_verifier.loss + share * of_heads.loss,
    z_loss=of_verifier.z_loss + share * of_heads.z_loss,
    correct=of_heads.correct,
  )


def measure(reading: Reading) -> lesson.Metrics:
  """Returns what is measured of heads, see `lesson.by_depth`.

  The acceptance is that of drafts by the verifier's distribution of the same
  target. Of a verifier that is tuned there are `VERIFIER_NAMES` too: its
  cross-entropy, its accuracy, and the divergence of its distribution from the
  distribution that it had before.
  """
  verifier, params = reading.teacher, reading.params
  if not is_joint(params):
    hidden = verifier.hidden(reading.batch)
    return lesson.by_depth(
      lessons(reading, verifier, hidden, verifier.project(hidden))
    )
  tuned = states.Teacher(params[VERIFIER], verifier.module)
  alone = dataclasses.replace(reading, params=params[HEADS], teacher=tuned)
  itself = dataclasses.replace(
    reading, module=verifier.module, params=params[VERIFIER]
  )
  own = lesson.measured(lesson.next_tokens(itself))
  return measure(alone) | {
    name: own[name.removeprefix("verifier_")] for name in VERIFIER_NAMES
  }


class _Places(NamedTuple):
  """The places of a batch, in parts; see `row_parts`."""

  hidden: Array  # [P, B, N, E], the verifier's hidden states
  weights: Array  # [P, B, N], of the verifier's own targets
  wanted: Array  # [P, B, N, K] int32, the target that each head learns
  later: Array  # [P, B, N, K], the weights of these targets
  # [P, B, N, K] int32: where the teacher's logits of these targets are among
  # the row's P N places.
  index: Array


class _Fixed(NamedTuple):
  """What the loss of heads reads and gives no gradient to."""

  step: Array  # [] int32
  verifier: states.Teacher
  teacher_logits: Array | None  # [B, P N, V]; None where the loss reads none


def _places(reading: Reading, hidden: Array) -> _Places:
  """Returns the places of a batch, in parts."""
  weights, depths = reading.weights, _depths(reading.module)
  order = row_parts.order(weights)
  rank = jnp.argsort(order, axis=1)
  later = [ahead_weights(reading.batch, weights, k) for k in depths]
  values = (
    hidden,
    weights,
    jnp.stack([ahead(reading.targets, k) for k in depths], -1),
    jnp.stack(later, -1),
    jnp.stack([ahead(rank, k) for k in depths], -1),
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

  def p_logits(k):
    if fixed.teacher_logits is None:
      return None
    at = part.index[..., k][..., None]
    return jnp.take_along_axis(fixed.teacher_logits, at, axis=1)

  each = [
    Lesson(
      logits,
      part.wanted[..., k],
      part.later[..., k],
      fixed.step,
      p_logits(k),
      depth=k + 1,
    )
    for k, logits in enumerate(
      head_logits(module, params, fixed.verifier, part.hidden)
    )
  ]
  return lesson.summed(each, objective)
