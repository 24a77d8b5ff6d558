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
from speccascade.decoding.laws.targets import target

Array = jax.Array

# Newton's method needs at most 4 steps on small random pairs and up to 15 at
# V = 32128, where 10 steps leave an error of 4e-10.
_BETA_STEPS = 10
# Newton's method takes some 6 steps. Where it has led nowhere, 30 bisections of
# (0, 1] follow: 2^-30 is below what float32 tells apart there.
_BUDGET_NEWTON_STEPS = 10
_BUDGET_STEPS = 40

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
def lossy(q, p, *, alpha, sampled):
  """What lossy speculative decoding with beta = 1 really samples from.

    pi = min(q, p / (1 - alpha)) + R norm(max(0, p - q))

  R is the rejected mass. Lossy speculative decoding accepts x with probability
  min(1, p / ((1 - alpha) q)), and replaces a rejected draft by a draw of
  norm(max(0, p - q)). The exact verifier step with this pi has the same accept
  probability and the same residual. The paper's formula with beta = 1,
  max{min{q, p / (1 - alpha)}, p}, is no distribution: it sums to more than 1.

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
def lossy_star(q, p, *, alpha, sampled):
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


def optimal_lossy(q, p, keep):
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
  # that pi sums to 1 also where steps or rounding end beside the root.
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
    # root or above it, and from there the points fall to the root
    # monotonically. Where no token has s p > q, the root is 0 or they begin
    # again, at 1.
    raised = p * s > q
    mass_p = jnp.sum(jnp.where(raised, p, 0), axis=-1, keepdims=True)
    mass_q = jnp.sum(jnp.where(raised, q, 0), axis=-1, keepdims=True)
    restart = jnp.where(rejected > 0, 1.0, 0.0)
    following = numerics.ratio(rejected + mass_q, mass_p, restart)
    following = jnp.minimum(following, 1)
    return step + 1, following, jnp.any(following != s)

  begin = (jnp.array(0), start, jnp.array(True))
  return jax.lax.while_loop(moves, newton, begin)[1]


@target(
  interval=Interval(
    0, default=0.05, grid=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0), scale=LOG
  ),
  is_lossless_when_greedy=True,
)
def mentored(q, p, *, alpha, sampled):
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
  # Newton's method ends beside the root by far less than a budget matters.
  enough = budget * jnp.finfo(p.dtype).eps ** 0.75

  def spend(keep: Array, s: Array) -> tuple[Array, Array, Array]:
    """Returns KL(p || pi) at `keep`, its derivative, and the s that belongs."""
    is_cut = p < q * keep
    cut_p = jnp.sum(jnp.where(is_cut, p, 0), axis=-1, keepdims=True)
    cut_q = jnp.sum(jnp.where(is_cut, q, 0), axis=-1, keepdims=True)
    s = _inverse_beta(q, p, jnp.maximum(cut_q - cut_p / keep, 0), s)
    is_raised = p * s > q
    raised_p = jnp.sum(jnp.where(is_raised, p, 0), axis=-1, keepdims=True)
    others = jnp.where(is_cut | is_raised, 0, terms)
    # pi is p / keep where that is below q, s p where that is above q, and q
    # elsewhere. So no logarithm of a vector is needed.
    kl = (
      cut_p * numerics.kl_of_excess(1 / keep - 1)
      + raised_p * numerics.kl_of_excess(jnp.where(s > 0, s, 1) - 1)
      + jnp.sum(others, axis=-1, keepdims=True)
    )
    # The mass balance gives ds / dkeep = cut_p / (raised_p keep^2).
    slope = cut_p / keep * (1 - numerics.ratio(jnp.ones_like(s), s * keep))
    return kl, slope, s

  def is_open(carry: tuple[Array, ...]) -> Array:
    step, *_, is_done = carry
    return (step < _BUDGET_STEPS) & ~jnp.all(is_done)

  # KL(p || pi) falls as `keep` grows to 1, where pi is p. Near 1 it is nearly
  # the square of the distance to 1. So its square root is nearly straight, and
  # Newton's method works on that. A point outside the bounds so far is replaced
  # by their middle.
  def narrow(carry: tuple[Array, ...]) -> tuple[Array, ...]:
    step, low, high, keep, s, _ = carry
    kl, slope, s = spend(keep, s)
    low = jnp.where(kl > budget, keep, low)
    high = jnp.where(kl > budget, high, keep)
    root = jnp.sqrt(kl)
    step_size = numerics.ratio(2 * root * (root - jnp.sqrt(budget)), -slope)
    following = keep + step_size
    is_inside = (following > low) & (following < high)
    is_inside &= step < _BUDGET_NEWTON_STEPS
    following = jnp.where(is_inside, following, (low + high) / 2)
    is_done = within | (jnp.abs(kl - budget) <= enough)
    return step + 1, low, high, jnp.where(is_done, keep, following), s, is_done

  ones = jnp.ones_like(p[..., :1])
  begin: tuple[Array, ...] = (
    jnp.array(0),
    jnp.zeros_like(ones),
    ones,
    ones / 2,
    ones,
    within,
  )
  _, _, high, keep, _, is_done = jax.lax.while_loop(is_open, narrow, begin)
  # `high` spends no more than the budget.
  return within, jnp.where(is_done, keep, high)


@target(
  interval=Interval(
    0, 1, default=0.3, grid=(0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
  )
)
def ensemble(q, p, *, alpha, sampled):
  """The mixture alpha q + (1 - alpha) p of the sampled pair.

  At alpha .25, pi = [.275, .375, .263, .088]. At temperature 0 it mixes two
  one-hot distributions and is still drawn from: where the two arg-maxes differ
  the output is random.

  Args:
    alpha: scalar in [0, 1]. Alpha 0 is the verifier, alpha 1 the drafter.

  Source: ours; the plainest mix of two models, to compare the others with.
  """
  q, p = sampled
  return alpha * q + (1 - alpha) * p
