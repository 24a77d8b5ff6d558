"""Target distributions: what the emitted tokens are drawn from.

A target is one pure function `target(q, p, *, alpha, sampled)` that returns
(pi, left, right): pi [..., V] is a mix of `sampled`, the pair that is drawn
from, and left and right are the two sides of the rule that made it, which says
who deferred. `q`, `p` are at temperature 1 (confidences). Any exact verifier
step turns drafts of the sampled q into draws of pi. The arguments are those of
`Target`; a target's own docstring says what alpha is to it.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.deferral import Rule, defers
from speccascade.decoding.laws.interval import ANY, LOG, Interval
from speccascade.decoding.laws.numerics import residual
from speccascade.decoding.types import TargetFunction, check_shape

Array = jax.Array
Pair = tuple[Array, Array]  # the drafter's q and the verifier's p

# Newton needs at most 4 steps on small random pairs, up to 15 at V = 32128,
# where 10 of them leave an error of 4e-10.
_BETA_STEPS = 10
_BUDGET_STEPS = 30  # bisections of (0, 1]


@dataclasses.dataclass(frozen=True)
class Target:
  """A target function with what is known of it before it is called.

  Attributes:
    function: `(q, p, *, alpha, sampled) -> (pi, left, right)`; the last two
      are the rule's sides, None where there is no rule.
    name: as in error messages.
    interval: the range of alpha.
    is_lossless: whether pi is the sampled p itself; alpha then means nothing.
    is_lossless_when_greedy: whether pi is the sampled p at temperature 0,
      whatever alpha: there one alpha stands for all of them.
    uses_q: whether pi depends on the drafter at all; the bonus position of such
      a target needs one more drafter step.
    needs_confidence: whether it reads q at temperature 1, and so refuses a
      drafter that has none (a one-hot proposal).
    rule: the deferral rule inside, or None.
  """

  function: TargetFunction
  name: str
  interval: Interval = ANY
  is_lossless: bool = False
  is_lossless_when_greedy: bool = False
  uses_q: bool = True
  needs_confidence: bool = False
  rule: Rule | None = None

  def __call__(
    self,
    q: Array,
    p: Array,
    *,
    alpha: Array | float = 0.0,
    sampled: Pair | None = None,
  ) -> tuple[Array, Array | None, Array | None]:
    """Returns (pi [..., V], left, right), the sides [...] or [..., V] or None.

    Args:
      q: [..., V] drafter probabilities at temperature 1.
      p: [..., V] verifier probabilities at temperature 1.
      alpha: scalar.
      sampled: the pair (q, p) that is drawn from; None means q and p.
    """
    sampled = (q, p) if sampled is None else sampled
    alpha = jnp.asarray(alpha, sampled[1].dtype)
    return self.function(q, p, alpha=alpha, sampled=sampled)

  def probs(
    self,
    q: Array,
    p: Array,
    *,
    alpha: Array | float = 0.0,
    sampled: Pair | None = None,
  ) -> Array:
    """Returns pi alone, [..., V]; arguments as of a call."""
    return self(q, p, alpha=alpha, sampled=sampled)[0]

  def at(
    self,
    q: Array,
    p: Array,
    tokens: Array | Callable[[Array], Array],
    *,
    alpha: Array | float,
    sampled: Pair,
  ) -> tuple[Array, Array, Array]:
    """Returns (pi [..., V], left [...], right [...]), the sides at the tokens.

    A token rule is read at `tokens` [...], or at what this function of pi
    gives; without a rule the sides are NaN.
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

  def early(self, q: Array, alpha: Array | float) -> tuple[Array, Array]:
    """Returns the sides [...] of a rule of q alone, before p exists."""
    if self.rule is None:
      raise TypeError(
        f"target {self.name} has no rule; a sequential cascade asks a rule of"
        " the drafter's q before it asks the verifier"
      )
    return self.rule(q, alpha=jnp.asarray(alpha, q.dtype))

  @property
  def reads_tokens(self) -> bool:
    """Whether it has a rule that is read at a token."""
    return self.rule is not None and self.rule.per_token


def target(**known: Any) -> Callable[[Callable[..., Array]], Target]:
  """Returns a decorator that makes `(q, p, ...) -> pi` a `Target` without rule.

  Args:
    **known: fields of `Target`.
  """

  def decorate(function: Callable[..., Array]) -> Target:
    @functools.wraps(function)
    def without_sides(q, p, *, alpha, sampled):
      return function(q, p, alpha=alpha, sampled=sampled), None, None

    return Target(without_sides, **{"name": function.__name__, **known})

  return decorate


@target(uses_q=False, is_lossless=True)
def lossless(q, p, *, alpha, sampled):
  """The verifier itself: pi = p. alpha is not used.

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


@target(interval=_LENIENT, is_lossless_when_greedy=True)
def lossy(q, p, *, alpha, sampled):
  """What lossy speculative decoding with beta = 1 really samples from.

  It accepts x with probability min(1, p / ((1 - alpha) q)) and replaces from
  norm(max(0, p - q)). That is not max{min{q, p/(1-alpha)}, p}, which sums to
  more than 1, but min(q, p/(1-alpha)) + R norm(max(0, p - q)) with R the
  rejected mass; this pi under the exact verifier step has the very same accept
  probability and residual.

  Args:
    alpha: scalar in [0, 1).

  Source: Narasimhan et al. (arXiv 2405.19261), Lemma 2 and section 2, with
  beta = 1.
  """
  q, p = sampled
  kept = jnp.minimum(q, p / (1 - alpha))
  rejected = jnp.sum(q - kept, axis=-1, keepdims=True)
  return kept + rejected * residual(p, q)


@target(interval=_LENIENT, is_lossless_when_greedy=True)
def lossy_star(q, p, *, alpha, sampled):
  """Lossy with beta solved: max{min{q, p/(1-alpha)}, p/beta}, summing to 1.

  beta solves the mass balance sum max(0, p/beta - q) = R, R the rejected mass,
  by Newton steps on s = 1/beta from s = 1: s falls monotonically to the root.

  Args:
    alpha: scalar in [0, 1).

  Source: Narasimhan et al. (arXiv 2405.19261), Table 1; Tran-Thien (mentored
  decoding), whose alpha is 1 - alpha here.
  """
  q, p = sampled
  return _optimal_lossy(q, p, 1 - alpha)


def _optimal_lossy(q, p, keep):
  """Returns the law that keeps most drafts at p <= keep * q cut to p / keep."""
  kept = jnp.minimum(q, p / keep)
  rejected = jnp.sum(q - kept, axis=-1, keepdims=True)

  def moves(carry):
    step, _, moved = carry
    return (step < _BETA_STEPS) & moved

  def newton(carry):
    step, s, _ = carry
    raised = p * s > q
    mass_p = jnp.sum(jnp.where(raised, p, 0), axis=-1, keepdims=True)
    mass_q = jnp.sum(jnp.where(raised, q, 0), axis=-1, keepdims=True)
    lower = numerics.ratio(rejected + mass_q, mass_p, s)
    return step + 1, lower, jnp.any(lower != s)

  start = (0, jnp.ones_like(rejected), jnp.array(True))
  _, s, _ = jax.lax.while_loop(moves, newton, start)
  # The raised part has mass `rejected` by construction; normalising it keeps
  # pi a distribution where rounding would not.
  raised = numerics.normalise(jnp.maximum(p * s - q, 0), p)
  return kept + rejected * raised


@target(
  interval=Interval(
    0, default=0.05, grid=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0), scale=LOG
  ),
  is_lossless_when_greedy=True,
)
def mentored(q, p, *, alpha, sampled):
  """Most accepting law within a KL budget: KL(p || pi) <= alpha, in nats.

  Args:
    alpha: scalar, the budget D >= 0; 0 is lossless, KL(p || q) or more is q.

  Source: Tran-Thien, "An optimal lossy variant of speculative decoding"; the
  exact root by bisection on his alpha (1 - alpha of `lossy_star`).
  """
  q, p = sampled
  within = numerics.kl(p, q)[..., None] <= alpha

  def halve(_, bounds):
    low, high = bounds
    middle = (low + high) / 2
    too_far = numerics.kl(p, _optimal_lossy(q, p, middle))[..., None] > alpha
    return jnp.where(too_far, middle, low), jnp.where(too_far, high, middle)

  ends = (jnp.zeros_like(p[..., :1]), jnp.ones_like(p[..., :1]))
  _, keep = jax.lax.fori_loop(0, _BUDGET_STEPS, halve, ends)
  return jnp.where(within, q, _optimal_lossy(q, p, keep))


@target(
  interval=Interval(
    0, 1, default=0.3, grid=(0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
  )
)
def ensemble(q, p, *, alpha, sampled):
  """The mixture alpha q + (1 - alpha) p of the sampled pair.

  At temperature 0 it mixes two one-hot laws, and is still drawn from: where the
  two arg-maxes differ the output is random.

  Args:
    alpha: scalar in [0, 1]; 0 is the verifier, 1 the drafter.
  """
  q, p = sampled
  return alpha * q + (1 - alpha) * p


def defer(rule: Rule) -> Target:
  """Lifts a position rule: pi = p where it defers, q where it does not.

  Source: Narasimhan et al. (arXiv 2405.19261), Eq. (3): pi = (1 - r) q + r p.
  """
  return _lift(rule, lambda defer, q, p: jnp.where(defer[..., None], p, q))


def defer_tokens(rule: Rule) -> Target:
  """Lifts a token rule: pi(v) = q(v) [v kept] + eta p(v).

  eta is the mass of q on the tokens that are not kept; the eta p(v) term is for
  every v, kept or not.

  Source: Narasimhan et al. (ICLR 2025), Eq. (11).
  """

  def mix(dropped, q, p):
    eta = jnp.sum(jnp.where(dropped, q, 0), axis=-1, keepdims=True)
    return jnp.where(dropped, 0, q) + eta * p

  return _lift(rule, mix)


def _lift(rule: Rule, mix: Callable) -> Target:
  """Returns the target of a rule and `(defers, sampled q, sampled p) -> pi`."""

  def function(q, p, *, alpha, sampled):
    left, right = rule(q, p, alpha=alpha, sampled=sampled)
    return mix(defers(left, right), *sampled), left, right

  return Target(
    function,
    name=rule.name,
    interval=rule.interval,
    needs_confidence=rule.needs_confidence,
    rule=rule,
  )


def as_target(function: Callable[..., Array], **known: Any) -> Target:
  """Returns a user's `(q, p) -> pi` as a `Target`, after trying it.

  The function gets the sampled pair, [..., V] each. See `check` for the trial;
  further keywords are fields of `Target`.

  >>> mix = as_target(lambda q, p: (q + p) / 2)
  >>> float(mix.probs(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))[0])
  0.75
  """
  name = getattr(function, "__name__", "target")
  pi_of = lambda q, p, *, alpha, sampled: function(*sampled)
  result = target(**{"name": name, **known})(pi_of)
  check(result)
  return result


def check(
  candidate: Target, *, alpha: float | None = None, vocab_size: int = 7
) -> None:
  """Tries a target on fixed random pairs, and raises if pi is no distribution.

  The pairs hold zeros, ties, one-hot rows and q = p.

  Args:
    candidate: the target.
    alpha: where to try it; None takes a few numbers of its range.
    vocab_size: of the pairs.

  Raises:
    ValueError: a pi has a wrong shape, a negative entry, or a sum other than 1;
      the message gives the sum.
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
  """Returns fixed pairs (q, p), [N, V]: random, zeros, ties, one-hot, q = p.

  Every q shares support with its p or not, as sampled pairs may.
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
