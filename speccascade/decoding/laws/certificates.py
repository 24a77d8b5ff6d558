"""Divergences of q from p below which no greedy draft is rejected.

At temperature 0 a draft is the arg-max of q, and the rule rejects it or not.
Where the tokens that it accepts are a function of p alone, a rejection needs a
token r outside them with q(r) at least q(v) for every accepted v. The q nearest
to p with this property has a closed form: it is p but for one level m, to which
the accepted tokens above m sink and r rises. The divergence of that q is a
certificate: a drafter that is nearer to p than it has its draft accepted.

  divergence      the level m                        other tokens
  KL(p || q)      the mean of the levelled p         keep p
  TV(p, q)        the same                           keep p
  KL(q || p)      the geometric mean of them         grow alike, to a sum of 1

Of the tokens outside, r is the likeliest of p: exchanging q(r) and q(r') takes
no q further from p that gives the likelier token more. Where the K likeliest
tokens of q are drafted, the K likeliest tokens outside rise, those that are
below m.

Source: Sharma (arXiv 2606.30265), for rejection regions that are lower level
sets of p, and KL. The derivation here is ours: it takes any set that depends on
p alone, both directions of KL, TV, and K drafts of a set.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.laws.targets import Target

Array = jax.Array


class Divergences(NamedTuple):
  """How far q is from p at each position, or how far it has to be; [...] each.

  Attributes:
    kl: KL(p || q) in nats.
    reverse_kl: KL(q || p) in nats.
    tv: the total variation, in [0, 1].
  """

  kl: Array
  reverse_kl: Array
  tv: Array

  def certify(self, bounds: "Divergences") -> Array:
    """Returns whether any of these lies below its bound, [...] bool."""
    kl, reverse_kl, tv = (mine < least for mine, least in zip(self, bounds))
    return kl | reverse_kl | tv


def divergences(p: Array, q: Array) -> Divergences:
  """Returns how far the drafter's q is from the verifier's p, [..., V] each."""
  p, q = numerics.at_least_float32(p), numerics.at_least_float32(q)
  return Divergences(
    numerics.kl(p, q), numerics.kl(q, p), numerics.total_variation(q, p)
  )


def is_of_p(target: Target) -> bool:
  """Returns whether a rule of p alone accepts tokens besides p's arg-max."""
  rule = target.rule
  return rule is not None and rule.per_token and not rule.needs_confidence


def accepted_drafts(
  target: Target, p: Array, alpha: Array | float | FittedAlpha
) -> Array:
  """Returns the greedy drafts that a target accepts whatever q is, [..., V].

  Every target accepts the arg-max of p. A token rule of p alone accepts the
  tokens that it keeps, too, and no others. What a rule of q accepts besides
  depends on q: bounds for the arg-max hold for it, and may not be sharp.

  Args:
    target: what tokens are drawn from.
    p: [..., V], the verifier at temperature 1.
    alpha: as the target takes it.
  """
  best = numerics.first_argmax(p)[..., None]
  is_best = jax.lax.broadcasted_iota(jnp.int32, p.shape, p.ndim - 1) == best
  rule = target.rule
  if rule is None or not is_of_p(target):
    return is_best
  left, right = rule(p, p, alpha=alpha)
  return is_best | ~defers(left, right)


@functools.partial(jax.jit, static_argnames="num_drafts")
def least_rejected(
  p: Array, accepted: Array, num_drafts: int = 1
) -> Divergences:
  """Returns the least divergences of a q whose drafts are all rejected.

  They are infima: the nearest q has a tie, of which the lower id is drafted.

  Args:
    p: [..., V], the verifier at temperature 1.
    accepted: [..., V] bool, the tokens that are accepted. They do not depend on
      q.
    num_drafts: K, static; the K likeliest tokens of q are drafted.

  Returns:
    The bounds, infinite where K tokens cannot all be rejected.
  """
  p = numerics.at_least_float32(p)
  if num_drafts > p.shape[-1]:
    never = jnp.full(p.shape[:-1], jnp.inf, p.dtype)
    return Divergences(never, never, never)
  above = jnp.where(accepted, p, 0)
  rising, _ = jax.lax.top_k(jnp.where(accepted, -1, p), num_drafts)
  is_possible = rising[..., -1] >= 0
  rising = jnp.maximum(rising, 0)

  level = _level(above, rising)[..., None]
  sunk, risen = jnp.minimum(above, level), jnp.maximum(rising, level)
  kl = numerics.kl(above, sunk) + numerics.kl(rising, risen)
  tv = jnp.sum(risen - rising, axis=-1)

  level = jnp.exp(_level(jnp.log(above), jnp.log(rising)))[..., None]
  sunk, risen = jnp.minimum(above, level), jnp.maximum(rising, level)
  # What the levelled tokens lose in sum is what all tokens then grow by. The
  # terms have that sum, since the logarithms of the factors add up to 0.
  lost = numerics.kl(sunk, above) + numerics.kl(risen, rising)
  reverse_kl = -jnp.log1p(-jnp.minimum(lost, 1))

  return Divergences(
    *(jnp.where(is_possible, each, jnp.inf) for each in (kl, reverse_kl, tv))
  )


def _level(above: Array, rising: Array) -> Array:
  """Returns m with sum (above - m)+ = sum (m - rising)+, [...].

  `above` is [..., V], and `rising` [..., K], the largest first.
  """
  # With j of the rising values, whether or not they are below m, the sum over
  # them is j m - sum rising. The m of all is the least m of the j smallest.
  levels = [
    _level_of_all(above, rising[..., -num:])
    for num in range(1, rising.shape[-1] + 1)
  ]
  return jnp.min(jnp.stack(levels), axis=0)


def _level_of_all(above: Array, rising: Array) -> Array:
  """Returns m with sum (above - m)+ = sum (m - rising), [...]."""
  # Newton's method from the left on a convex function of lines. It ends where
  # the values above m are those of the step before.
  total, num = jnp.sum(rising, axis=-1), rising.shape[-1]

  def improve(state: tuple[Array, Array]) -> tuple[Array, Array]:
    level, _ = state
    is_above = above > level[..., None]
    count = jnp.sum(is_above.astype(above.dtype), axis=-1)
    sums = jnp.sum(jnp.where(is_above, above, 0), axis=-1) + total
    return sums / (count + num), count

  def is_open(state: tuple[Array, Array]) -> Array:
    level, count = state
    is_above = (above > level[..., None]).astype(above.dtype)
    return jnp.any(jnp.sum(is_above, axis=-1) < count)

  start = total / num, jnp.full_like(total, jnp.inf)
  return jax.lax.while_loop(is_open, improve, start)[0]
