"""Target distributions: what the emitted tokens are drawn from.

A target is one pure function `target(q, p, *, alpha, sampled)` that returns
(pi, left, right). pi [..., V] is a distribution made of `sampled`, the pair
(q, p) that tokens are drawn from; q and p are the models' confidences, at
temperature 1. left and right are the two sides of the deferral rule inside the
target, which say where it deferred. Any exact verifier step turns drafts of the
sampled q into draws of pi. `Target.__call__` documents the arguments, which are
the same for all targets; the docstring of a target says what its alpha means.

The numbers in the docstrings are for one pair at temperature 1:

  q = [.5, .3, .15, .05],  p = [.2, .4, .3, .1]

of which plain speculative decoding accepts sum min(q, p) = .7 of the drafts.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.fitted import (
  FittedAlpha,
  ParameterKind,
  with_parameters,
)
from speccascade.decoding.laws.interval import ANY, LOG, Interval
from speccascade.decoding.laws.numerics import residual
from speccascade.decoding.laws.rules import Rule, defers
from speccascade.decoding.types import TargetFunction, check_shape

Array = jax.Array
Pair = tuple[Array, Array]  # the drafter's q and the verifier's p

# Newton's method needs at most 4 steps on small random pairs and up to 15 at
# V = 32128, where 10 steps leave an error of 4e-10.
_BETA_STEPS = 10
# Bisections of (0, 1]: 2^-30 is below what float32 tells apart there.
_BUDGET_STEPS = 30


@dataclasses.dataclass(frozen=True)
class Target:
  """A target function, and what is known about it before it is called.

  Attributes:
    function: `(q, p, *, alpha, sampled) -> (pi, left, right)`. left and right
      are the rule's sides, and None where there is no rule.
    name: as in error messages.
    interval: the range of alpha.
    is_lossless: whether pi is the sampled p itself. Alpha means nothing then.
    is_lossless_when_greedy: whether pi is the sampled p at temperature 0,
      whatever alpha. One alpha stands for all of them there.
    uses_q: whether pi depends on the drafter at all. The bonus position of a
      target that does needs one more drafter step.
    needs_confidence: whether the target reads q at temperature 1, and so
      refuses a drafter without a confidence (a one-hot proposal).
    rule: the deferral rule inside, or None.
    kind: the kind of the parameters that were fitted to text, which the
      function gets as a part of alpha; None for a target without parameters.
  """

  function: TargetFunction
  name: str
  interval: Interval = ANY
  is_lossless: bool = False
  is_lossless_when_greedy: bool = False
  uses_q: bool = True
  needs_confidence: bool = False
  rule: Rule | None = None
  kind: ParameterKind | None = None

  def __call__(
    self,
    q: Array,
    p: Array,
    *,
    alpha: Array | float | FittedAlpha = 0.0,
    sampled: Pair | None = None,
  ) -> tuple[Array, Array | None, Array | None]:
    """Returns (pi [..., V], left, right).

    The sides are [...] for a position rule, [..., V] for a token rule, and None
    without a rule.

    Args:
      q: [..., V] drafter probabilities at temperature 1.
      p: [..., V] verifier probabilities at temperature 1.
      alpha: scalar in `interval`; or a `FittedAlpha` for a target with
        parameters, which is its plug-in at a scalar.
      sampled: the pair (q, p) that tokens are drawn from; None means q and p
        themselves.
    """
    sampled = (q, p) if sampled is None else sampled
    alpha = with_parameters(alpha, self.kind, sampled[1].dtype)
    return self.function(q, p, alpha=alpha, sampled=sampled)

  def probs(
    self,
    q: Array,
    p: Array,
    *,
    alpha: Array | float | FittedAlpha = 0.0,
    sampled: Pair | None = None,
  ) -> Array:
    """Returns pi alone, [..., V]. The arguments are those of a call."""
    return self(q, p, alpha=alpha, sampled=sampled)[0]

  def at(
    self,
    q: Array,
    p: Array,
    tokens: Array | Callable[[Array], Array],
    *,
    alpha: Array | float | FittedAlpha,
    sampled: Pair,
  ) -> tuple[Array, Array, Array]:
    """Returns (pi [..., V], left [...], right [...]), the sides at the tokens.

    Args:
      q: [..., V] as in a call, like the other arguments.
      p: [..., V].
      tokens: [...] int32, where the sides of a token rule are read; or a
        function of pi that returns such tokens, for executions that draw from
        pi first. Without a rule the sides are NaN.
      alpha: as in a call.
      sampled: the pair (q, p) that tokens are drawn from.

    Raises:
      ValueError: pi has a wrong shape.
    """
    pi, left, right = self(q, p, alpha=alpha, sampled=sampled)
    tokens = tokens(pi) if callable(tokens) else tokens
    check_shape(f"pi of target {self.name}", pi, sampled[1].shape)
    if left is None or right is None:
      left = right = jnp.full(tokens.shape, jnp.nan, pi.dtype)
    elif self.reads_tokens:
      left = numerics.of_token(left, tokens)
      right = numerics.of_token(right, tokens)
    return pi, left, right

  def early(
    self, q: Array, alpha: Array | float | FittedAlpha
  ) -> tuple[Array, Array]:
    """Returns the sides [...] of a rule of q alone, before p exists.

    Raises:
      TypeError: there is no rule, or the rule needs p.
    """
    if self.rule is None:
      raise TypeError(
        f"target {self.name} has no rule; a sequential cascade asks a rule of"
        " the drafter's q before it asks the verifier"
      )
    return self.rule(q, alpha=with_parameters(alpha, self.kind, q.dtype))

  @property
  def reads_tokens(self) -> bool:
    """Whether there is a rule, and it is a token rule."""
    return self.rule is not None and self.rule.per_token


def target(**fields: Any) -> Callable[[Callable[..., Array]], Target]:
  """Returns a decorator that makes a function a `Target` without a rule.

  The function is `(q, p, *, alpha, sampled) -> pi`.

  Args:
    **fields: fields of `Target`. `name` is the function's own unless given.
  """

  def decorate(function: Callable[..., Array]) -> Target:
    @functools.wraps(function)
    def without_sides(q, p, *, alpha, sampled):
      return function(q, p, alpha=alpha, sampled=sampled), None, None

    return Target(without_sides, **({"name": function.__name__} | fields))

  return decorate


@target(uses_q=False, is_lossless=True)
def lossless(q, p, *, alpha, sampled):
  """The verifier itself: pi = p. Alpha is not used.

  Source: Leviathan et al. (arXiv 2211.17192); Narasimhan et al. (arXiv
  2405.19261), Algorithm 1.
  """
  return sampled[1]


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


def defer(rule: Rule) -> Target:
  """Returns the target of a position rule: p where it defers, else q.

  Chow's rule at alpha .4 defers, since max q = .5 is below .6: pi is p. At
  alpha .6 it does not: pi is q.

  Source: Narasimhan et al. (arXiv 2405.19261), Eq. (3): pi = (1 - r) q + r p.
  """

  def choose(deferred: Array, q: Array, p: Array) -> Array:
    return jnp.where(deferred[..., None], p, q)

  return _lift(rule, choose)


def defer_tokens(rule: Rule) -> Target:
  """Returns the target of a token rule: pi(v) = q(v) [v is kept] + eta p(v).

  eta is the mass of q on the tokens that the rule drops. The term eta p(v)
  stands for every v, kept or dropped.

  Rule V3 at alpha .3 keeps the tokens with p >= .7 max p = .28, which are 1 and
  2. So eta = .5 + .05 = .55, and pi = [.11, .52, .315, .055].

  Source: Narasimhan et al. (ICLR 2025), Eq. (11).
  """

  def mix(dropped: Array, q: Array, p: Array) -> Array:
    eta = jnp.sum(jnp.where(dropped, q, 0), axis=-1, keepdims=True)
    return jnp.where(dropped, 0, q) + eta * p

  return _lift(rule, mix)


def _lift(rule: Rule, mix: Callable[[Array, Array, Array], Array]) -> Target:
  """Returns the target of a rule.

  Args:
    rule: reads the confidences.
    mix: `(defers, q, p) -> pi`, of the sampled pair and of where the rule
      defers.
  """

  def function(q, p, *, alpha, sampled):
    left, right = rule(q, p, alpha=alpha, sampled=sampled)
    return mix(defers(left, right), *sampled), left, right

  return Target(
    function,
    name=rule.name,
    interval=rule.interval,
    needs_confidence=rule.needs_confidence,
    rule=rule,
    kind=rule.kind,
  )


def as_target(function: Callable[..., Array], **fields: Any) -> Target:
  """Returns a user's function `(q, p) -> pi` as a `Target`, after trying it.

  Args:
    function: gets the sampled pair, [..., V] each, and returns pi [..., V].
    **fields: further fields of `Target`.

  Raises:
    ValueError: pi is no distribution; see `check`.

  >>> mix = as_target(lambda q, p: (q + p) / 2)
  >>> float(mix.probs(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))[0])
  0.75
  """
  name = getattr(function, "__name__", "target")

  def pi_of_sampled(q, p, *, alpha, sampled):
    return function(*sampled)

  result = target(**({"name": name} | fields))(pi_of_sampled)
  check(result)
  return result


def check(
  candidate: Target, *, alpha: float | None = None, vocab_size: int = 7
) -> None:
  """Tries a target on fixed random pairs, and raises if pi is no distribution.

  The pairs hold zeros, ties, one-hot rows and q = p.

  Args:
    candidate: the target.
    alpha: where to try it; None tries three numbers of its range.
    vocab_size: V of the pairs.

  Raises:
    ValueError: a pi has a wrong shape, a negative entry, or a sum other than 1.
      The message gives the sum.
  """
  q, p = trial_pairs(vocab_size)
  low, high = np.clip(candidate.interval.ends(vocab_size), -2, 2)
  alphas = (low + (high - low) * x for x in (0.1, 0.5, 0.9))
  for a in alphas if alpha is None else [alpha]:
    pi = np.asarray(candidate.probs(q, p, alpha=a))
    where = f"target {candidate.name} at alpha {a:g}"
    if pi.shape != p.shape:
      raise ValueError(
        f"{where} returns shape {pi.shape} for pairs of shape {p.shape}; it"
        " must return a distribution over the same V tokens"
      )
    sums = pi.sum(-1)
    worst = int(np.argmax(np.abs(sums - 1)))
    if not abs(sums[worst] - 1) <= 1e-4:
      raise ValueError(
        f"{where} is not a distribution: it sums to {sums[worst]:.4g} on a"
        " trial pair; make every row sum to 1"
      )
    if not pi.min() >= -1e-6:
      raise ValueError(
        f"{where} is not a distribution: it gives a token probability"
        f" {pi.min():.4g}; wanted none below 0"
      )


def trial_pairs(vocab_size: int = 7, dtype: Any = np.float32) -> Pair:
  """Returns fixed pairs (q, p), [N, V] each: random, and the awkward ones.

  There are zeros, ties, one-hot rows, rows with q = p, and rows whose q and p
  have no token in common, as all happen in sampled pairs.
  """
  rng = np.random.default_rng(0)
  q, p = rng.dirichlet(np.full(vocab_size, 0.5), (2, 24))
  q[4:8, ::2] = 0
  p[6:10, 1::2] = 0
  q[10] = p[11] = 1 / vocab_size
  q[12:15] = np.eye(vocab_size)[:3]
  p[14:17] = np.eye(vocab_size)[2]
  p[17:19] = q[17:19]
  q, p = (x / x.sum(-1, keepdims=True) for x in (q, p))
  return jnp.asarray(q, dtype), jnp.asarray(p, dtype)
