"""The token rules, which keep some tokens of a position and drop the others.

The sides are probabilities and thresholds at temperature 1; the target that
`targets.defer_tokens` makes of a keep-set mixes the sampled pair.

The rules of Narasimhan et al. are in the ICLR 2025 version of arXiv 2405.19261.
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.interval import LOG
from speccascade.decoding.laws.numerics import (
  bisect,
  bits_of,
  entropy,
  first_argmax,
  max_prob,
)
from speccascade.decoding.laws.rules import Pair, Sides, rule

Array = jax.Array

# Alphas where 1 - alpha is a ratio of probabilities: close to 1 it still
# matters.
RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97)


def for_each_token(value: Array, p: Array) -> Array:
  """Returns a value [...] of each position as [..., V], once for each token."""
  return jnp.broadcast_to(value[..., None], p.shape)


@rule(
  low=-1,
  high=1,
  default=0.3,
  grid=(-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8),
  per_token=True,
)
def token_v1(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Token-specific rule V1: keeps v where q(v) >= max p - alpha.

  Args:
    alpha: scalar in [-1, 1]. Alpha 1 keeps every token.

  Source: Narasimhan et al. (ICLR 2025), Eq. (13).
  """
  return q, for_each_token(max_prob(p) - alpha, q)


@rule(
  low=-1,
  high=1,
  default=0.3,
  # Below 0 no token is kept, whatever alpha: the method is lossless.
  grid=(-0.1, 0.0, 0.05, 0.1, 0.2, 0.4, 0.7),
  per_token=True,
  needs_confidence=False,
)
def token_v2(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Token-specific rule V2: keeps v where p(v) >= max p - alpha.

  Args:
    alpha: scalar in [-1, 1]. Alpha 1 keeps every token.

  Source: Narasimhan et al. (ICLR 2025), Eq. (14).
  """
  return p, for_each_token(max_prob(p) - alpha, p)


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=RATIOS,
  per_token=True,
  needs_confidence=False,
)
def token_v3(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Token-specific rule V3: keeps v where p(v) >= (1 - alpha) max p.

  At alpha 0 the verifier's arg-max is still kept, so its probability in the
  target is more than p wherever q gives it mass: alpha 0 is lossless only at
  temperature 0.

  Args:
    alpha: scalar in [0, 1]. Alpha 1 keeps every token.

  Source: Narasimhan et al. (ICLR 2025), Eq. (15).
  """
  return p, for_each_token((1 - alpha) * max_prob(p), p)


@rule(
  low=0,
  high=1,
  low_open=True,
  default=0.09,
  grid=(0.001, 0.01, 0.03, 0.09, 0.3, 0.6, 1.0),
  scale=LOG,
  per_token=True,
  needs_confidence=False,
)
def typical(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Typical acceptance as a keep-set: keeps v where p(v) > min(e, d exp(-H)).

  H is the entropy of p. The comparison is ">" in Medusa, and a rule keeps on
  ">=", so the right side is the next float above the threshold.

  Args:
    alpha: e in (0, 1]. d is the square root of e, as in Medusa's own defaults
      (e = .09, d = .3). A smaller alpha keeps more tokens, unlike in other
      rules.

  Source: Cai et al., Medusa (arXiv 2401.10774), section 2.3.1.
  """
  alpha = jnp.asarray(alpha, p.dtype)
  bound = jnp.minimum(alpha, jnp.sqrt(alpha) * jnp.exp(-entropy(p)))
  return p, for_each_token(jnp.nextafter(bound, jnp.full_like(bound, 2)), p)


@rule(
  low=1,
  high=lambda size: size,
  default=2,
  grid=(1, 2, 3, 5, 8, 12, 20),
  scale=LOG,
  per_token=True,
  needs_confidence=False,
)
def top_k(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Top-k acceptance: keeps the alpha likeliest tokens of p.

  Tokens as likely as the last of them are kept, too.

  Args:
    alpha: k, from 1 to V; a fraction counts as the next whole number.

  Source: a baseline of Hao and Mou, Cactus (arXiv 2604.04987). Their code
  replaces a rejected draft from norm(max(0, [v is kept] - q)), in which p has
  no part; here it is replaced from p, as in all token rules.
  """
  bits, most = bits_of(p)

  def holds(threshold: Array) -> Array:
    """Whether alpha tokens or more are as likely as a threshold."""
    is_likely = (bits >= threshold).astype(p.dtype)
    return jnp.sum(is_likely, axis=-1, keepdims=True) >= alpha

  # Probabilities order as their bit patterns do, and the threshold is one of
  # them.
  last = jnp.max(bits, axis=-1, keepdims=True) + 1
  threshold = bisect(holds, jnp.zeros_like(last), last, most)
  bound = jax.lax.bitcast_convert_type(threshold, p.dtype)
  return p, jnp.broadcast_to(bound, p.shape)


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=RATIOS,
  per_token=True,
  needs_confidence=False,
)
def min2(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Keeps p's arg-max, and the second v where p(v) >= (1 - alpha) max p.

  It is rule V3 with at most two tokens. Of equal tokens the lower ids come
  first.

  Args:
    alpha: scalar in [0, 1]. 1 - alpha is exp(-m), where m is the margin of the
      two logits in nats.

  Source: Song et al., MARS (arXiv 2601.15498). MARS compares the ratio of the
  two logits with a threshold, which changes when all logits are shifted; the
  difference of the logits, which is a ratio of probabilities, does not.
  """
  ids = jax.lax.broadcasted_iota(jnp.int32, p.shape, p.ndim - 1)
  is_first = ids == first_argmax(p)[..., None]
  others = jnp.where(is_first, -1, p)
  is_second = ids == first_argmax(others)[..., None]
  # No threshold is as low as -1.
  left = jnp.where(is_first | is_second, p, -1)
  return left, for_each_token((1 - alpha) * max_prob(p), p)
