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
# Bisections of (0, 1]: 2^-30 is below what float32 tells apart there.
_BUDGET_STEPS = 30

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
  fixed_q, fixed_p, fixed_rejected = jax.lax.stop_gradient((q, p, rejected))

  def moves(carry: tuple[Array, Array, Array]) -> Array:
    step, _, has_moved = carry
    return (step < _BETA_STEPS) & has_moved

  def newton(
    carry: tuple[Array, Array, Array],
  ) -> tuple[Array, Array, Array]:
    step, s, _ = carry
    # With s = 1 / beta, the balance f(s) = sum max(0, s p - q) - R is convex
    # and piecewise linear: on the tokens with s p > q it is s P - Q - R, where
    # P and Q are their masses under p and q. So Newton's next point is
    # (R + Q) / P. From s = 1, where f is 0 or more, the points fall to the
    # root monotonically.
    raised = fixed_p * s > fixed_q
    mass_p = jnp.sum(jnp.where(raised, fixed_p, 0), axis=-1, keepdims=True)
    mass_q = jnp.sum(jnp.where(raised, fixed_q, 0), axis=-1, keepdims=True)
    lower = numerics.ratio(fixed_rejected + mass_q, mass_p, s)
    return step + 1, lower, jnp.any(lower != s)

  start = (0, jnp.ones_like(fixed_rejected), jnp.array(True))
  _, s, _ = jax.lax.while_loop(moves, newton, start)
  # At the root the raised part has the mass `rejected`. It is normalised, so
  # that pi sums to 1 also where steps or rounding end beside the root.
  raised = numerics.normalise(jnp.maximum(p * s - q, 0), p)
  return accepted + rejected * raised


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
  exact root, by bisection on his alpha (1 - alpha of `lossy_star`).
  """
  q, p = sampled
  # The budget's root has no gradient, as beta has none in `optimal_lossy`.
  fixed_q, fixed_p = jax.lax.stop_gradient((q, p))
  within = numerics.kl(fixed_p, fixed_q)[..., None] <= alpha

  # KL(p || pi) falls as `keep` grows to 1, where pi is p: the root lies between
  # a `keep` that spends too much and one that does not. The latter is returned.
  def halve(_, bounds):
    low, high = bounds
    middle = (low + high) / 2
    pi = optimal_lossy(fixed_q, fixed_p, middle)
    too_far = numerics.kl(fixed_p, pi)[..., None] > alpha
    return jnp.where(too_far, middle, low), jnp.where(too_far, high, middle)

  ends = (jnp.zeros_like(fixed_p[..., :1]), jnp.ones_like(fixed_p[..., :1]))
  _, keep = jax.lax.fori_loop(0, _BUDGET_STEPS, halve, ends)
  return jnp.where(within, q, optimal_lossy(q, p, keep))


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
