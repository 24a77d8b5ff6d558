"""Targets of lossy speculative decoding, and the plain mixture of two models.

`acceptance_rules` has the targets of other published acceptance rules, and
`targets` says what a target is. The numbers in the docstrings are for one pair
at temperature 1:

  q = [.5, .3, .15, .05],  p = [.2, .4, .3, .1]
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.interval import LOG, Interval
from speccascade.decoding.laws.numerics import residual
from speccascade.decoding.laws.rules import Pair
from speccascade.decoding.laws.targets import target

Array = jax.Array

# Newton's method ends once nothing moves: after 7 steps at most on made-up rows
# of 300 and of 32,128 tokens.
_BETA_STEPS = 30
# Newton's method takes some 6 steps. Where it has led nowhere, 30 bisections of
# the logarithm follow, which leave 10^-7 of it.
_BUDGET_NEWTON_STEPS = 12
_BUDGET_STEPS = 42

_LENIENT = Interval(
  0,
  1,
  default=0.3,
  high_open=True,
  grid=(0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97),
)


# Makes a target of a lenience of 1 - alpha.
lenient_target = target(interval=_LENIENT, is_lossless_when_greedy=True)


@lenient_target
def lossy(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """What lossy speculative decoding with beta = 1 really samples from.

    pi = min(q, p / (1 - alpha)) + R norm(max(0, p - q))

  R is the rejected mass. Lossy speculative decoding accepts x with probability
  min(1, p / ((1 - alpha) q)), and replaces a rejected draft by a draw of
  norm(max(0, p - q)). The exact verifier step with this pi has the same accept
  probability and the same residual. The paper's formula with beta = 1,
  max{min{q, p / (1 - alpha)}, p}, is not a distribution: it sums to more than
  1.

  At alpha .4 the accepted part is [.333, .3, .15, .05], R = .167, the residual
  is [0, .333, .5, .167], and pi = [.333, .356, .233, .078].

  Args:
    alpha: scalar in [0, 1); 0 is lossless.

  Source: Narasimhan et al. (arXiv 2405.19261), Lemma 2 and section 2, with
  beta = 1.
  """
  q, p = sampled
  accepted = jnp.minimum(q, p / (1 - alpha))
  rejected = jnp.sum(q - accepted, axis=-1, keepdims=True)
  return accepted + rejected * residual(p, q)


@lenient_target
def lossy_star(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """Lossy speculative decoding with the beta at which pi sums to 1.

    pi = max{min{q, p / (1 - alpha)}, p / beta}

  beta solves the mass balance sum max(0, p / beta - q) = R, where R is the
  rejected mass. At alpha .4, R = .167, beta = 1.2, and pi = [.333, .333, .25,
  .083].

  Args:
    alpha: scalar in [0, 1); 0 is lossless.

  Source: Narasimhan et al. (arXiv 2405.19261), Table 1; Tran-Thien (mentored
  decoding), whose alpha is 1 - alpha here.
  """
  q, p = sampled
  return optimal_lossy(q, p, 1 - alpha)


def optimal_lossy(q: Array, p: Array, keep: Array) -> Array:
  """Returns max{min{q, p / keep}, p / beta} with the beta that sums it to 1.

  Args:
    q: [..., V] sampled drafter.
    p: [..., V] sampled verifier.
    keep: scalar, or [..., 1], in (0, 1]: 1 - alpha of `lossy_star`.
  """
  accepted = jnp.minimum(q, p / keep)
  rejected = jnp.sum(q - accepted, axis=-1, keepdims=True)
  # The search for beta has no gradient: a loop whose length is not known cannot
  # be differentiated backwards. Training holds beta fixed.
  fixed = jax.lax.stop_gradient((q, p, rejected))
  s = _inverse_beta(*fixed, jnp.ones_like(rejected))
  # At the root the raised part has the mass `rejected`. It is normalised, so
  # that pi sums to 1 also where steps or rounding end next to the root.
  raised = numerics.normalise(jnp.maximum(p * s - q, 0), p)
  return accepted + rejected * raised


def _inverse_beta(q: Array, p: Array, rejected: Array, start: Array) -> Array:
  """Returns the s = 1 / beta with sum max(0, s p - q) = rejected, [..., 1].

  Args:
    q: [..., V].
    p: [..., V].
    rejected: [..., 1], at most TV(p, q).
    start: [..., 1], where Newton's method begins: 1, or the s of a rejected
      mass that is nearby.
  """

  # One token alone bounds the root from above: f of the next comment is at
  # least s p - q - R of any token.
  bound = numerics.ratio(rejected + q, p, 1)
  bound = jnp.minimum(jnp.min(bound, axis=-1, keepdims=True), 1)

  def moves(carry: tuple[Array, Array, Array]) -> Array:
    step, _, has_moved = carry
    return (step < _BETA_STEPS) & has_moved

  def newton(
    carry: tuple[Array, Array, Array],
  ) -> tuple[Array, Array, Array]:
    step, s, _ = carry
    # The balance f(s) = sum max(0, s p - q) - R is convex and piecewise linear:
    # on the tokens with s p > q it is s P - Q - R, where P and Q are their
    # masses under p and q. So Newton's next point is (R + Q) / P. It is at the
    # root or above it, and from there the points fall to the root. The first
    # point may be below the root, and may have no token with s p > q.
    raised = p * s > q
    mass_p = jnp.sum(jnp.where(raised, p, 0), axis=-1, keepdims=True)
    mass_q = jnp.sum(jnp.where(raised, q, 0), axis=-1, keepdims=True)
    following = numerics.ratio(rejected + mass_q, mass_p, 1)
    following = jnp.minimum(following, jnp.where(step == 0, bound, s))
    return step + 1, following, jnp.any(following != s)

  begin = (jnp.array(0), start, jnp.array(True))
  return jax.lax.while_loop(moves, newton, begin)[1]


@target(
  interval=Interval(
    0, default=0.05, grid=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0), scale=LOG
  ),
  is_lossless_when_greedy=True,
)
def mentored(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """The distribution that accepts most drafts within a budget of divergence.

  pi is `lossy_star` at the alpha at which KL(p || pi) is the budget, in nats.
  At a budget of .1 that alpha is .488, and pi = [.410, .3, .218, .073].

  Args:
    alpha: scalar, the budget D >= 0. A budget of 0 is lossless; with KL(p || q)
      or more, pi is q.

  Source: Tran-Thien, "An optimal lossy variant of speculative decoding"; the
  exact root, by Newton's method on his alpha (1 - alpha of `lossy_star`).
  """
  q, p = sampled
  # The budget's root has no gradient, as beta has none in `optimal_lossy`.
  fixed_q, fixed_p = jax.lax.stop_gradient((q, p))
  within, keep = _keep_of_budget(fixed_q, fixed_p, alpha)
  return jnp.where(within, q, optimal_lossy(q, p, keep))


def _keep_of_budget(q: Array, p: Array, budget: Array) -> tuple[Array, Array]:
  """Finds the `keep` at which `optimal_lossy` spends a budget of KL(p || pi).

  Args:
    q: [..., V].
    p: [..., V].
    budget: scalar, in nats.

  Returns:
    Whether the budget is enough for pi = q, [..., 1] bool, and the `keep`
    otherwise, [..., 1]. What it spends is the budget to a part in 10^5, in
    float32.
  """
  terms = numerics.kl_terms(p, q)
  within = jnp.sum(terms, axis=-1, keepdims=True) <= budget
  # Newton's method ends next to the root by far less than a budget matters.
  enough = budget * jnp.finfo(p.dtype).eps ** 0.75

  def spend(lift: Array, s: Array) -> tuple[Array, Array, Array]:
    """Returns KL(p || pi) at 1 / lift, its derivative and the s there."""
    is_cut = p * lift < q
    cut_p = jnp.sum(jnp.where(is_cut, p, 0), axis=-1, keepdims=True)
    cut_q = jnp.sum(jnp.where(is_cut, q, 0), axis=-1, keepdims=True)
    s = _inverse_beta(q, p, jnp.maximum(cut_q - cut_p * lift, 0), s)
    is_raised = p * s > q
    raised_p = jnp.sum(jnp.where(is_raised, p, 0), axis=-1, keepdims=True)
    others = jnp.where(is_cut | is_raised, 0, terms)
    # pi is p lift where that is below q, s p where that is above q, and q
    # elsewhere. So no logarithm of a vector is needed.
    kl = (
      cut_p * numerics.kl_of_factor(lift)
      + raised_p * numerics.kl_of_factor(jnp.where(s > 0, s, 1))
      + jnp.sum(others, axis=-1, keepdims=True)
    )
    # The mass balance gives ds / dlift = -cut_p / raised_p.
    slope = cut_p * (numerics.ratio(jnp.ones_like(s), s) - 1 / lift)
    return kl, slope, s

  def is_open(carry: tuple[Array, ...]) -> Array:
    step, *_, is_done = carry
    return (step < _BUDGET_STEPS) & ~jnp.all(is_done)

  # The search is for lift = 1 / keep, in which pi is straight: where p is
  # nearly 0 for what q drafts, `keep` is as small as 10^-9. KL(p || pi) grows
  # from 0 at a lift of 1, and near 1 it is nearly the square of the distance.
  # So its square root is nearly straight, and Newton's method works on that. A
  # point outside the bounds so far is replaced by their geometric mean. The
  # first point is the largest: the budget may be enough there, where p is 0
  # for a part of q.
  def narrow(carry: tuple[Array, ...]) -> tuple[Array, ...]:
    step, low, high, lift, s, _ = carry
    kl, slope, s = spend(lift, s)
    low = jnp.where(kl > budget, low, lift)
    high = jnp.where(kl > budget, lift, high)
    root = jnp.sqrt(kl)
    following = lift + numerics.ratio(
      2 * root * (jnp.sqrt(budget) - root), slope
    )
    is_inside = (following > low) & (following < high)
    is_inside &= step < _BUDGET_NEWTON_STEPS
    middle = jnp.sqrt(low) * jnp.sqrt(high)
    following = jnp.where(is_inside, following, middle)
    following = jnp.where(step == 0, 2, following)
    is_done = (
      within
      | (jnp.abs(kl - budget) <= enough)
      | (low == numerics.LARGEST_FACTOR)
    )
    return step + 1, low, high, jnp.where(is_done, lift, following), s, is_done

  ones = jnp.ones_like(p[..., :1])
  begin: tuple[Array, ...] = (
    jnp.array(0),
    ones,
    ones * numerics.LARGEST_FACTOR,
    ones * numerics.LARGEST_FACTOR,
    ones,
    within,
  )
  _, low, _, lift, _, is_done = jax.lax.while_loop(is_open, narrow, begin)
  # `low` spends no more than the budget.
  return within, 1 / jnp.where(is_done, lift, low)


@target(
  interval=Interval(
    0, 1, default=0.3, grid=(0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
  )
)
def ensemble(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """The mixture alpha q + (1 - alpha) p of the sampled pair.

  At alpha .25, pi = [.275, .375, .263, .088]. At temperature 0 it mixes two
  one-hot distributions and is still drawn from: where the two arg-maxes differ
  the output is random.

  Args:
    alpha: scalar in [0, 1]. Alpha 0 is the verifier, alpha 1 the drafter.

  Source: ours; the simplest mix of two models, as a baseline.
  """
  q, p = sampled
  return alpha * q + (1 - alpha) * p
