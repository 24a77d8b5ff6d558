"""The training losses: cross-entropy, and divergences from a teacher.

p is the teacher's distribution and q the distribution of the model that learns,
the pair of speculative decoding. `objectives` makes settings of these losses.

Axes: B rows, T target length, V vocabulary.

Source: Raffel et al., arXiv:1910.10683. The cross-entropy gives the numbers of
T5X's `losses.py`.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

Normalizer = Literal[
  "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"
]


def cross_entropy(logits, targets, *, label_smoothing=0.0, z_loss=0.0):
  """Returns the cross-entropy against smoothed labels, and its z-loss part.

  The smoothed label is a distribution with 1 - label_smoothing on the target;
  the rest is shared among the V - 1 other tokens. The label's entropy is
  subtracted, so a perfect model has loss 0. The z-loss z_loss * log(Z) ** 2 is
  added, Z being the softmax's normaliser.

  Args:
    logits: [..., V] float32.
    targets: [...] int32, token ids.
    label_smoothing: scalar in [0, 1), may be traced.
    z_loss: scalar, may be traced.

  Returns:
    (loss [...], z [...]) float32 in nats. The loss includes z; z is returned
    for logging, and has no gradient.

  >>> loss, z = cross_entropy(jnp.zeros((1, 4)), jnp.array([2]), z_loss=0.5)
  >>> print(loss, z)  # log 4 + log(4) ** 2 / 2, log(4) ** 2 / 2
  [2.3472...] [0.9609...]
  """
  # optax's cross-entropies give no log Z, which z-loss needs, and smooth over
  # all V tokens.
  log_z = jax.nn.logsumexp(logits, axis=-1)
  z = z_loss * jnp.square(log_z)
  loss = log_z - at_target(logits, targets) + z
  # Without smoothing the sum over all V logits is left out of the program. A
  # traced smoothing may be other than 0, so it always takes the sum.
  if isinstance(label_smoothing, jax.Array) or label_smoothing:
    high, low = 1 - label_smoothing, label_smoothing / (logits.shape[-1] - 1)
    # The label is `low` everywhere, and `high - low` more at the target. It
    # sums to 1, so log Z enters the loss as it does without smoothing. The
    # target's logit was subtracted whole; 1 - (high - low) of it is given back.
    loss += (label_smoothing + low) * at_target(logits, targets)
    loss -= low * logits.sum(-1)
    loss += xlogy(high, high) + xlogy(label_smoothing, low)
  return loss, jax.lax.stop_gradient(z)


def divergence(teacher_logits, logits):
  """Returns the forward divergence KL(p || q) at each position.

  On text that p wrote, the gradient of KL(p || q) is the cross-entropy's
  gradient averaged over the tokens that p could have written at the position.
  The total variation TV(p, q), which is the chance that speculative decoding
  rejects a draft, is at most sqrt(KL / 2).

  Args:
    teacher_logits: [..., V] float32, logits of the teacher's distribution p.
    logits: [..., V] float32, logits of the learner's distribution q.

  Returns:
    [...] float32, in nats.

  Source: Hinton et al., arXiv:1503.02531, at temperature 1; Zhou et al.
  (DistillSpec), arXiv:2310.08461, its "FKL".

  >>> half, sure = jnp.log(jnp.array([[0.5, 0.5], [0.75, 0.25]]))
  >>> print(f"{divergence(half, sure):.4f}")  # log(4 / 3) / 2
  0.1438
  """
  log_p, log_q = map(jax.nn.log_softmax, (teacher_logits, logits))
  return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def reverse_divergence(teacher_logits, logits):
  """Returns the reverse divergence KL(q || p) at each position.

  It is large where q has probability that p lacks, and lets q leave out what p
  may say. The arguments and the result are those of `divergence`.

  Source: Zhou et al. (DistillSpec), arXiv:2310.08461, its "RKL".

  >>> half, sure = jnp.log(jnp.array([[0.5, 0.5], [0.75, 0.25]]))
  >>> print(f"{reverse_divergence(half, sure):.4f}")  # log(27 / 16) / 4
  0.1308
  """
  return divergence(logits, teacher_logits)


def jensen_shannon(teacher_logits, logits, *, beta):
  """Returns the generalised Jensen-Shannon divergence at each position.

    beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q

  Divided by beta it becomes KL(p || q) as beta falls to 0; divided by 1 - beta
  it becomes KL(q || p) as beta rises to 1.

  Args:
    teacher_logits: [..., V] float32, logits of p.
    logits: [..., V] float32, logits of q.
    beta: scalar in (0, 1), the weight of p; 1/2 is the symmetric divergence.

  Returns:
    [...] float32, in nats.

  Source: Agarwal et al. (GKD), arXiv:2306.13649, its JSD(beta); the JSD of Zhou
  et al. (DistillSpec), arXiv:2310.08461.

  >>> half, sure = jnp.log(jnp.array([[0.5, 0.5], [0.75, 0.25]]))
  >>> print(f"{jensen_shannon(half, sure, beta=0.5):.4f}")
  0.0338
  """
  log_p, log_q = map(jax.nn.log_softmax, (teacher_logits, logits))
  log_m = jnp.logaddexp(log_p + jnp.log(beta), log_q + jnp.log1p(-beta))
  of_p = jnp.sum(jnp.exp(log_p) * (log_p - log_m), axis=-1)
  of_q = jnp.sum(jnp.exp(log_q) * (log_q - log_m), axis=-1)
  return beta * of_p + (1 - beta) * of_q


def variation(teacher_logits, logits):
  """Returns the total variation TV(p, q) at each position, [...] in [0, 1].

  It is half the sum of |p - q|, and the chance that speculative sampling from p
  rejects a draft of q. The arguments are those of `divergence`.

  Source: Zhou et al. (DistillSpec), arXiv:2310.08461, its "TVD"; Leviathan et
  al., arXiv:2211.17192, Theorem 3.5.

  >>> half, sure = jnp.log(jnp.array([[0.5, 0.5], [0.75, 0.25]]))
  >>> print(f"{variation(half, sure):.4f}")
  0.2500
  """
  p, q = map(jax.nn.softmax, (teacher_logits, logits))
  return jnp.sum(jnp.abs(p - q), axis=-1) / 2


def rejection(teacher_logits, logits, target, *, alpha):
  """Returns the chance that a draft of q is rejected under a target.

    1 - sum_v min(q, T(q, p))

  The gradient goes through T too: a draft is accepted more often where q moves
  to the target, and where the target moves to q. What a rule decides is held
  fixed: the comparison of a rule's sides has no gradient. The roots that
  `lossy_star` and `mentored` search for are held fixed too.

  Args:
    teacher_logits: [..., V] float32, logits of p.
    logits: [..., V] float32, logits of q.
    target: a `laws.targets.Target`. For `lossless` the result is TV(p, q).
    alpha: scalar in the target's range.

  Returns:
    [...] float32, in [0, 1]. Temperature 1.

  Source: the accept probability is Narasimhan et al. (arXiv 2405.19261),
  Algorithm 4; to train on it is ours.
  """
  p, q = map(jax.nn.softmax, (teacher_logits, logits))
  return 1 - jnp.sum(jnp.minimum(q, target.probs(q, p, alpha=alpha)), axis=-1)


def overlap(teacher_logits, logits):
  """Returns [...], the sum over tokens of min(p, q).

  It is the chance that speculative sampling from p accepts a draft of q.

  Args:
    teacher_logits: [..., V] float32, logits of p.
    logits: [..., V] float32, logits of q.

  Source: Leviathan et al., arXiv:2211.17192, Theorem 3.5.

  >>> half, sure = jnp.log(jnp.array([[0.5, 0.5], [0.75, 0.25]]))
  >>> print(f"{overlap(half, sure):.4f}")
  0.7500
  """
  p, q = map(jax.nn.softmax, (teacher_logits, logits))
  return jnp.minimum(p, q).sum(-1)


def at_target(logits, targets):
  """Returns [...], the logit of each target, from logits [..., V]."""
  return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def normalize(batch, loss_normalizing_factor):
  """Returns the weight of each target token, and the divisor of their sum.

  Args:
    batch: holds `decoder_target_tokens` [B, T]. It may hold
      `decoder_loss_weights` [B, T]; without them every target but the padding 0
      has weight 1. It may hold `decoder_segment_ids` [B, T].
    loss_normalizing_factor: None leaves the sum as it is, as T5X does by
      default. A number divides the sum. "NUM_REAL_TARGET_TOKENS" divides by the
      sum of weights, "NUM_TOTAL_TARGET_TOKENS" by B T, padding included.
      "AVERAGE_PER_SEQUENCE" gives each sequence one total weight.

  Returns:
    (weights [B, T] float32, divisor [] float32).
  """
  targets = batch["decoder_target_tokens"]
  weights = batch.get("decoder_loss_weights")
  weights = (targets > 0 if weights is None else weights).astype(jnp.float32)
  factor = loss_normalizing_factor
  if factor is None:
    return weights, jnp.float32(1.0)
  if factor == "NUM_REAL_TARGET_TOKENS":
    return weights, jnp.maximum(weights.sum(), 1.0)
  if factor == "NUM_TOTAL_TARGET_TOKENS":
    return weights, jnp.float32(targets.size)
  if factor == "AVERAGE_PER_SEQUENCE":
    # `total` is the weight of the sequence that a token belongs to: of its
    # whole row, or in packed rows of the tokens with the same segment id.
    if "decoder_segment_ids" in batch:
      ids = batch["decoder_segment_ids"]
      same = (ids[:, :, None] == ids[:, None, :]).astype(jnp.float32)
      total = jnp.einsum("btu,bu->bt", same, weights)
    else:
      total = weights.sum(-1, keepdims=True)
    weights = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 0)
    return weights, jnp.maximum(weights.sum(), 1.0)
  return weights, jnp.float32(factor)
