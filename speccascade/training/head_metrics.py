"""What is measured of draft heads, and of a verifier that is tuned with them.

Axes: B rows, T target length.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models.draft_heads import HeadsNetwork
from speccascade.training import head_losses, losses, states
from speccascade.training.verifier_tuning import HEADS, VERIFIER, is_joint

Array = jax.Array

# What is measured of a verifier that is tuned.
VERIFIER_NAMES = ("verifier_loss", "verifier_accuracy", "verifier_divergence")


def measure(
  module: HeadsNetwork, params: Any, batch: Mapping, verifier: states.Teacher
) -> dict[str, tuple[Array, Array]]:
  """Returns what is measured of heads: by name, a sum and its weight, [] each.

  Of head k there are the cross-entropy "loss_k", the share "accuracy_k" of
  targets that have its highest logit, and "acceptance_k", the mean of
  sum_v min(p, q) over the verifier's distribution of the same target. "loss"
  and "accuracy" are those of head 1. Of a verifier that is tuned there are
  `VERIFIER_NAMES` too: its cross-entropy, its accuracy, and the divergence of
  its distribution from the distribution that it had before.

  Args:
    module: the heads.
    params: the parameters of the heads; or those of heads and verifier, see
      `verifier_tuning`.
    batch: see the module `states`.
    verifier: the verifier, before training.
  """
  if is_joint(params):
    tuned = states.Teacher(params[VERIFIER], verifier.module)
    return measure(module, params[HEADS], batch, tuned) | _measure_verifier(
      batch, verifier, tuned
    )
  hidden, targets = verifier.hidden(batch), batch["decoder_target_tokens"]
  weights, _ = losses.normalize(batch, None)
  p_logits, metrics = verifier.project(hidden), {}
  each = head_losses.head_logits(module, params, verifier, hidden)
  for k, logits in enumerate(each, 1):
    later = head_losses.ahead_weights(batch, weights, k)
    wanted = head_losses.ahead(targets, k)
    loss, _ = losses.cross_entropy(logits, wanted)
    by_token = {
      "loss": loss,
      "accuracy": states.is_correct(logits, wanted),
      "acceptance": losses.overlap(head_losses.ahead(p_logits, k), logits),
    }
    for name, values in by_token.items():
      metrics[f"{name}_{k}"] = jnp.sum(values * later), jnp.sum(later)
  return {
    "loss": metrics["loss_1"],
    "accuracy": metrics["accuracy_1"],
  } | metrics


def _measure_verifier(
  batch: Mapping, before: states.Teacher, tuned: states.Teacher
) -> dict[str, tuple[Array, Array]]:
  """Returns what `measure` returns of a verifier that is tuned."""
  logits, targets = tuned.logits(batch), batch["decoder_target_tokens"]
  weights, _ = losses.normalize(batch, None)
  loss, _ = losses.cross_entropy(logits, targets)
  by_token = (
    loss,
    states.is_correct(logits, targets),
    losses.divergence(before.logits(batch), logits),
  )
  return {
    name: (jnp.sum(values * weights), jnp.sum(weights))
    for name, values in zip(VERIFIER_NAMES, by_token)
  }


def metric_names(num_heads: int, *, is_tuned: bool = False) -> tuple[str, ...]:
  """Returns the names of what `measure` measures.

  Args:
    num_heads: the number of heads.
    is_tuned: whether the verifier is tuned.
  """
  names = ["loss", "accuracy"]
  for k in range(1, num_heads + 1):
    names += [f"loss_{k}", f"accuracy_{k}", f"acceptance_{k}"]
  return (*names, *(VERIFIER_NAMES if is_tuned else ()))
