"""The loss of draft heads over a frozen verifier, and what is measured of them.

Axes: B rows, T target length, K heads, V vocabulary, E model width.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models.draft_heads import MEDUSA, HeadsNetwork
from speccascade.training import losses, states

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


def head_logits(
  module: HeadsNetwork, params: Any, verifier: states.Teacher, hidden: Array
) -> list[Array]:
  """Returns the logits of each head, [B, T, V] float32 each.

  Args:
    module: the heads.
    params: the parameters of the heads.
    verifier: the verifier, whose parameters get no gradient.
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
  hidden, targets = verifier.hidden(batch), batch["decoder_target_tokens"]
  p_logits = verifier.project(hidden) if objective.needs_teacher else None
  loss = z_loss = correct = jnp.zeros((), jnp.float32)
  each = head_logits(module, params, verifier, hidden)
  for k, logits in enumerate(each, 1):
    later, wanted = ahead_weights(batch, weights, k), ahead(targets, k)
    p_later = None if p_logits is None else ahead(p_logits, k)
    by_token, z = objective.whole(HeadLesson(logits, wanted, step, p_later))
    factor = objective.head_decay**k
    loss += factor * jnp.sum(by_token * later)
    z_loss += factor * jnp.sum(z * later)
    if k == 1:
      correct = jnp.sum(states.is_correct(logits, wanted) * later)
  return states.Sums(loss=loss, z_loss=z_loss, correct=correct)


def measure(
  module: HeadsNetwork, params: Any, batch: Mapping, verifier: states.Teacher
) -> dict[str, tuple[Array, Array]]:
  """Returns what is measured of heads: by name, a sum and its weight, [] each.

  Of head k there are the cross-entropy "loss_k", the share "accuracy_k" of
  targets that have its highest logit, and "acceptance_k", the mean of
  sum_v min(p, q) over the verifier's distribution of the same target. "loss"
  and "accuracy" are those of head 1.

  Args:
    module: the heads.
    params: the parameters of the heads.
    batch: see the module `states`.
    verifier: the verifier.
  """
  hidden, targets = verifier.hidden(batch), batch["decoder_target_tokens"]
  weights, _ = losses.normalize(batch, None)
  p_logits, metrics = verifier.project(hidden), {}
  each = head_logits(module, params, verifier, hidden)
  for k, logits in enumerate(each, 1):
    later, wanted = ahead_weights(batch, weights, k), ahead(targets, k)
    loss, _ = losses.cross_entropy(logits, wanted)
    by_token = {
      "loss": loss,
      "accuracy": states.is_correct(logits, wanted),
      "acceptance": losses.overlap(ahead(p_logits, k), logits),
    }
    for name, values in by_token.items():
      metrics[f"{name}_{k}"] = jnp.sum(values * later), jnp.sum(later)
  return {
    "loss": metrics["loss_1"],
    "accuracy": metrics["accuracy_1"],
  } | metrics


def metric_names(num_heads: int) -> tuple[str, ...]:
  """Returns the names of what `measure` measures."""
  names = ["loss", "accuracy"]
  for k in range(1, num_heads + 1):
    names += [f"loss_{k}", f"accuracy_{k}", f"acceptance_{k}"]
  return tuple(names)
