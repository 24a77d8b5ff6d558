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

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.fitted import (
  FittedAlpha,
  ParameterKind,
  with_parameters,
)
from speccascade.decoding.laws.interval import ANY, Interval
from speccascade.decoding.laws.numerics import check_shape
from speccascade.decoding.laws.phases import PlacedAlpha, like
from speccascade.decoding.laws.rules import Pair, Rule, defers

Array = jax.Array

# (q, p, *, alpha, sampled) -> (pi, left, right): `Target`.
TargetFunction = Callable[..., tuple[Array, Array | None, Array | None]]


@dataclasses.dataclass(frozen=True)
class Target:
  """A target function, and what is known about it before it is called.

  Attributes:
    function: `(q, p, *, alpha, sampled) -> (pi, left, right)`. left and right
      are the rule's sides, and None where there is no rule.
    name: as in error messages.
    interval: the range of alpha.
    is_lossless: whether pi is the sampled p itself. Alpha is ignored then.
    is_lossless_when_greedy: whether pi is the sampled p at temperature 0,
      whatever alpha. There all alphas count as one.
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
    alpha: Array | float | FittedAlpha | PlacedAlpha = 0.0,
    sampled: Pair | None = None,
  ) -> tuple[Array, Array | None, Array | None]:
    """Returns (pi [..., V], left, right).

    The sides are [...] for a position rule, [..., V] for a token rule, and None
    without a rule.

    Args:
      q: [..., V] drafter probabilities at temperature 1.
      p: [..., V] verifier probabilities at temperature 1.
      alpha: scalar in `interval`; or a `FittedAlpha` for a target with
        parameters, which is its plug-in at a scalar; or a `PlacedAlpha`, which
        gives each of [...] places the target at the alpha of its phase.
      sampled: the pair (q, p) that tokens are drawn from; None means q and p
        themselves.
    """
    sampled = (q, p) if sampled is None else sampled
    if isinstance(alpha, PlacedAlpha):
      return self._by_phase(q, p, alpha, sampled)
    alpha = with_parameters(alpha, self.kind, sampled[1].dtype)
    return self.function(q, p, alpha=alpha, sampled=sampled)

  def _by_phase(
    self, q: Array, p: Array, alpha: PlacedAlpha, sampled: Pair
  ) -> tuple[Array, Array | None, Array | None]:
    """Does the work of a call where the alpha is that of each place's phase."""
    pi, left, right = alpha.choose(
      lambda each: self(q, p, alpha=each, sampled=sampled)
    )
    pi = jnp.where(like(alpha.is_exact, pi), sampled[1], pi)
    if left is None or right is None:
      return pi, left, right
    # An exact phase is a rule that defers whatever the token.
    return pi, *alpha.deferring((left, right))

  def __repr__(self) -> str:
    return f"<Target {self.name}>"

  def probs(
    self,
    q: Array,
    p: Array,
    *,
    alpha: Array | float | FittedAlpha | PlacedAlpha = 0.0,
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
    alpha: Array | float | FittedAlpha | PlacedAlpha,
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
    self, q: Array, alpha: Array | float | FittedAlpha | PlacedAlpha
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
    if isinstance(alpha, PlacedAlpha):
      return alpha.deferring(alpha.choose(lambda each: self.early(q, each)))
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
    def without_sides(
      q: Array, p: Array, *, alpha: Array, sampled: Pair
    ) -> tuple[Array, None, None]:
      return function(q, p, alpha=alpha, sampled=sampled), None, None

    return Target(without_sides, **({"name": function.__name__} | fields))

  return decorate


@target(uses_q=False, is_lossless=True)
def lossless(q: Array, p: Array, *, alpha: Array, sampled: Pair) -> Array:
  """The verifier itself: pi = p. Alpha is not used.

  Source: Leviathan et al. (arXiv 2211.17192); Narasimhan et al. (arXiv
  2405.19261), Algorithm 1.
  """
  return sampled[1]


@functools.cache
def defer(rule: Rule) -> Target:
  """Returns the target of a position rule: p where it defers, else q.

  Chow's rule at alpha .4 defers, since max q = .5 is below .6: pi is p. At
  alpha .6 it does not: pi is q.

  Source: Narasimhan et al. (arXiv 2405.19261), Eq. (3): pi = (1 - r) q + r p.
  """

  def choose(deferred: Array, q: Array, p: Array) -> Array:
    return jnp.where(deferred[..., None], p, q)

  return _lift(rule, choose)


@functools.cache
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

  def function(
    q: Array, p: Array, *, alpha: Array | FittedAlpha, sampled: Pair
  ) -> tuple[Array, Array, Array]:
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
