"""Targets of published acceptance rules that are not deferral rules.

A published rule accepts a draft x with a probability a(x), and replaces a
rejected x by a draw of a distribution R_x. If a and R_x depend on q and p
alone, each emitted token has the distribution

  pi(v) = q(v) a(v) + sum_x q(x) (1 - a(x)) R_x(v).

A target below is that pi. The exact verifier step then accepts a draft of q
with probability sum min(q, pi), which is at least sum q a. So no rule is slower
as a target than as it was published, and it can be combined with block
verification, trees and the exact bonus. The test of this module enumerates each
rule as it was published, and draws from it.

The numbers in the docstrings are for the pair of `targets`:

  q = [.5, .3, .15, .05],  p = [.2, .4, .3, .1]
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.interval import LOG, Interval
from speccascade.decoding.laws.lossy_targets import (
  lenient_target,
  optimal_lossy,
)
from speccascade.decoding.laws.rules import Pair
from speccascade.decoding.laws.targets import target

Array = jax.Array

# Newton's method ends once nothing moves, which takes fewer steps than these.
_SHARE_STEPS = 30
# Sorting a row takes as long as some hundred of these steps.
_REPLACEMENT_STEPS = 32


@target(
  interval=Interval(
    0,
    default=0.75,
    grid=(0.003, 0.01, 0.03, 0.1, 0.3, 0.75, 2.0),
    scale=LOG,
  ),
  is_lossless_when_greedy=True,
)
def cactus(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """What Cactus samples from.

  Cactus accepts a draft x with probability min(1, h(x) / q(x)), where

    h(x) = min(1, p(x) + sqrt(2 alpha p(x) (1 - p(x))))

  It replaces a rejected x by a draw of norm(max(0, c(x) p - q)), where c(x) =
  (1 - h(x)) / (1 - p(x)): the probability that is left for the other tokens if
  x has h(x).

  At alpha .05 only token 1 can be rejected: h(1) = .326 and c(1) = .842. A
  rejected draft is replaced from [0, .212, .591, .197], and pi = [.326, .337,
  .253, .084].

  Each rejected token x has its own factor c(x), so its own replacement. The
  target adds up the replacements in order of c, the largest c first, in one
  pass for each value of c. Where a row has more than 32 values of c, the row is
  sorted by c and the other values are added up in a single pass.

  Args:
    alpha: scalar, 0 or more: the delta of the paper. 0 is lossless. The paper
      uses .75 and 1.

  Source: Hao and Mou, Cactus (arXiv 2604.04987). The distribution of the output
  is derived here.
  """
  q, p = sampled
  raised = jnp.minimum(p + jnp.sqrt(2 * alpha * p * (1 - p)), 1)
  accepted = jnp.minimum(q, raised)
  # A loop of unknown length has no gradient: what replaces is held fixed.
  fixed = jax.lax.stop_gradient((q, p, raised, accepted))
  return accepted + _cactus_replacements(*fixed)


def _cactus_replacements(
  q: Array, p: Array, raised: Array, accepted: Array
) -> Array:
  """Returns [..., V], what `cactus` adds for rejected drafts.

  Args:
    q: [..., V], as sampled.
    p: [..., V], as sampled.
    raised: [..., V], h of `cactus`.
    accepted: [..., V], min(q, h).
  """
  rejected = q - accepted
  # A token with q > h has h < 1, so that its c is above 0.
  left = jnp.where(rejected > 0, numerics.ratio(1 - raised, 1 - p, 1), 0)

  def replace(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Adds the replacements of the tokens with the largest c."""
    step, left, added = carry
    scale = jnp.max(left, axis=-1, keepdims=True)
    is_next = (left == scale) & (left > 0)
    mass = jnp.sum(jnp.where(is_next, rejected, 0), axis=-1, keepdims=True)
    # For a rejected x itself c(x) p(x) is below q(x): it is never drawn again.
    replacement = numerics.normalise(jnp.maximum(scale * p - q, 0), p)
    added = added + mass * replacement
    return step + 1, jnp.where(is_next, 0, left), added

  def is_open(carry: tuple[Array, Array, Array]) -> Array:
    step, left, _ = carry
    return (step < _REPLACEMENT_STEPS) & jnp.any(left > 0)

  begin = (jnp.array(0), left, jnp.zeros_like(q))
  _, left, added = jax.lax.while_loop(is_open, replace, begin)
  return jax.lax.cond(
    jnp.any(left > 0),
    lambda: added + _sorted_replacements(q, p, rejected, left),
    lambda: added,
  )


def _sorted_replacements(
  q: Array, p: Array, rejected: Array, scale: Array
) -> Array:
  """Returns what `cactus` adds for all tokens with a `scale` above 0, [..., V].

    sum_x r(x) max(0, c(x) p - q) / Z(c(x)),  Z(c) = sum max(0, c p - q)

  A token v gets a part of each x with c(x) > q(v) / p(v), so these are sums
  over the tokens in the order of c(x) and q(v) / p(v). A rejected x has q > p,
  and a token that gets something has q < p: each token is in that order once.

  Args:
    q: [..., V], as sampled.
    p: [..., V], as sampled.
    rejected: [..., V], the mass r of rejected drafts.
    scale: [..., V], c where the rejected mass is to be replaced, else 0.
  """
  is_rejected, gets = scale > 0, q < p
  key = jnp.where(gets, numerics.ratio(q, p), 2)
  key = jnp.where(is_rejected, scale, key)
  order = jnp.argsort(key, axis=-1)

  def sort(x: Array) -> Array:
    return jnp.take_along_axis(x, order, axis=-1)

  def below(x: Array) -> Array:
    return jnp.cumsum(sort(jnp.where(gets, x, 0)), axis=-1)

  def above(x: Array) -> Array:
    return jnp.cumsum(x[..., ::-1], axis=-1)[..., ::-1]

  scale, mass = sort(scale), sort(jnp.where(is_rejected, rejected, 0))
  # Z(c(x)) is at least r(x), since q(x) - c(x) p(x) is r(x) + 1 - c(x) or more.
  # The difference of two sums can be less by rounding.
  weight = numerics.ratio(mass, jnp.maximum(scale * below(p) - below(q), mass))
  added = sort(p) * above(weight * scale) - sort(q) * above(weight)
  added = jnp.where(sort(gets), jnp.maximum(added, 0), 0)
  added = jnp.put_along_axis(q, order, added, axis=-1, inplace=False)
  total = jnp.sum(mass, axis=-1, keepdims=True)
  return total * numerics.normalise(added, p)


@lenient_target
def lossy_from_p(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """Lossy speculative decoding that replaces a rejected draft from p.

    pi = min(q, p / (1 - alpha)) + R p

  R is the rejected mass. The acceptance is that of `lossy`. The replacement is
  a draw of p itself: no residual is needed, and the sampler of the large model
  can run unchanged. At alpha 0 the distribution is not p, since a likely token
  gets a part of R although q drafts it often enough.

  At alpha .4, R = .167 and pi = [.367, .367, .2, .067].

  Args:
    alpha: scalar in [0, 1).

  Source: Liu et al., SPEC-RL (arXiv 2509.23232), whose code accepts with
  probability min(1, exp(s (log p - log q - b))) and then continues with the
  verifier; alpha is 1 - exp(b), and s is 1 here.
  """
  q, p = sampled
  accepted = jnp.minimum(q, p / (1 - alpha))
  rejected = jnp.sum(q - accepted, axis=-1, keepdims=True)
  return accepted + rejected * p


@target(
  interval=Interval(
    0, 1, default=0.1, grid=(0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.8)
  ),
  is_lossless_when_greedy=True,
)
def mentored_tv(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """The distribution that accepts most drafts within a budget of TV(p, pi).

  The largest acceptance is 1 - TV(p, q) + alpha. Every distribution between p
  and q with TV(p, pi) = alpha has it; pi is the one of them with the least max
  pi / p, which is `lossy_star` at some alpha of its own. Tokens that p never
  draws get nothing, unless the budget is more than TV(p, q).

  At a budget of .1 the acceptance is .8, and pi = [.3, .35, .263, .088].

  Args:
    alpha: scalar in [0, 1], the budget. 0 is lossless; with more than
      TV(p, q), pi is q.

  Source: arXiv 2609.30474 for the budget in TV. Several distributions have the
  largest acceptance; we do not know which of them that paper uses;
  the one taken is named above. Tran-Thien has the budget in KL.
  """
  q, p = sampled
  # The factor s of the search has no gradient.
  fixed_q, fixed_p = jax.lax.stop_gradient((q, p))
  tv = numerics.total_variation(fixed_q, fixed_p)[..., None]
  # A budget of TV(p, q) or more is enough for q.
  wanted = 1 - jnp.maximum(tv - alpha, 0)

  Carry = tuple[Array | int, Array, Array]

  def moves(carry: Carry) -> Array:
    step, _, has_moved = carry
    return (step < _SHARE_STEPS) & has_moved

  def newton(carry: Carry) -> Carry:
    step, s, _ = carry
    # The acceptance sum min(q, s p) is concave in s, and straight while the
    # same tokens have s p < q: it is s P + Q there. From s = 1, where it is 1 -
    # TV, Newton's points rise to the root and never pass it.
    is_cut = s * fixed_p < fixed_q
    mass_p = jnp.sum(jnp.where(is_cut, fixed_p, 0), axis=-1, keepdims=True)
    mass_q = jnp.sum(jnp.where(is_cut, 0, fixed_q), axis=-1, keepdims=True)
    higher = numerics.ratio(wanted - mass_q, mass_p, s)
    higher = jnp.clip(higher, s, numerics.LARGEST_FACTOR)
    return step + 1, higher, jnp.any(higher != s)

  start: Carry = (0, jnp.ones_like(tv), jnp.array(True))
  _, s, _ = jax.lax.while_loop(moves, newton, start)
  return jnp.where(tv < alpha, q, optimal_lossy(q, p, 1 / s))
