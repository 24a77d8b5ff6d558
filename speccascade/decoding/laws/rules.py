"""The interface of a deferral rule: when to take the verifier's token.

A rule is one pure function `rule(q, p, *, alpha, sampled) -> (left, right)`. It
defers where `left < right`, strictly. There are two kinds of rule:
- a position rule returns [...]: it defers at a position, whatever the token;
- a token rule returns [..., V]: it keeps some tokens of a position and drops
  (defers) the others.
`Rule.__call__` documents the arguments, which are the same for all rules. The
docstring of a rule says what its alpha means. A larger alpha defers less, in
every rule whose docstring does not say otherwise.

To add a rule, write the function in `deferral` (a position rule) or in
`token_rules`, with its range and its grid of alphas in the decorator, and add
its line to the table of methods.
"""

from collections.abc import Callable
import dataclasses
import inspect
from typing import Any

import jax

from speccascade.decoding.laws.fitted import (
  FittedAlpha,
  ParameterKind,
  with_parameters,
)
from speccascade.decoding.laws.interval import Interval
from speccascade.decoding.laws.numerics import check_shape

Array = jax.Array
Pair = tuple[Array, Array]  # the drafter's q and the verifier's p
Sides = tuple[Array, Array]  # left and right

# (q, p, *, alpha, sampled) -> (left, right): `Rule`.
RuleFunction = Callable[..., Sides]


def defers(left: Array, right: Array) -> Array:
  """Returns whether a rule with these two sides defers; [...] bool.

  The comparison is strict: at a tie the drafter's token stays.
  """
  return left < right


@dataclasses.dataclass(frozen=True)
class Rule:
  """A rule function, and what is known about it before it is called.

  Attributes:
    function: `(q, p, *, alpha, sampled) -> (left, right)`. A rule of q alone
      gives p the default None, because a sequential cascade calls it before p
      exists.
    interval: the range of alpha.
    per_token: whether the rule returns [..., V] (a keep-set) and not [...].
    needs_confidence: whether the rule reads q. Such a rule needs a drafter
      whose q is a confidence, and not a one-hot proposal.
    kind: the kind of the parameters that were fitted to text, which the
      function gets as a part of alpha; None for a rule without parameters.
  """

  function: RuleFunction
  interval: Interval
  per_token: bool = False
  needs_confidence: bool = True
  kind: ParameterKind | None = None

  def __call__(
    self,
    q: Array,
    p: Array | None = None,
    *,
    alpha: Array | float | FittedAlpha,
    sampled: Pair | None = None,
  ) -> Sides:
    """Returns (left, right): [...] each, or [..., V] each for a token rule.

    Args:
      q: [..., V] drafter probabilities at temperature 1: its confidence.
      p: [..., V] verifier probabilities at temperature 1.
      alpha: scalar in `interval`; or a `FittedAlpha` for a rule with
        parameters, which is its plug-in at a scalar.
      sampled: the pair (q, p) that tokens are drawn from, at the sampling
        temperature (Narasimhan et al., Remark 3). None means q and p
        themselves.

    Raises:
      TypeError: the rule needs p, and p is None.
      ValueError: a side has a wrong shape.
    """
    if p is None and self.needs_verifier:
      raise TypeError(f"rule {self.name} needs the verifier's p")
    if self.kind is not None:
      alpha = with_parameters(alpha, self.kind, q.dtype)
    sides = self.function(q, p, alpha=alpha, sampled=sampled)
    for side, values in zip(("left", "right"), sides):
      wanted = q.shape if self.per_token else q.shape[:-1]
      check_shape(f"the {side} side of rule {self.name}", values, wanted)
    return sides

  def __repr__(self) -> str:
    kind = "token" if self.per_token else "position"
    reads = "q and p" if self.needs_verifier else "q"
    return f"<Rule {self.name}: of a {kind}, reads {reads}>"

  @property
  def needs_verifier(self) -> bool:
    """Whether the rule needs p: whether its function has no default for p."""
    p = inspect.signature(self.function).parameters["p"]
    return p.default is inspect.Parameter.empty

  @property
  def name(self) -> str:
    return self.function.__name__

  @property
  def __doc__(self) -> str | None:  # type: ignore[override]  # each rule's own
    return self.function.__doc__


def rule(
  *,
  per_token: bool = False,
  needs_confidence: bool = True,
  kind: ParameterKind | None = None,
  **interval: Any,
) -> Callable[[RuleFunction], Rule]:
  """Returns a decorator that makes a function a `Rule`.

  Args:
    per_token: as in `Rule`.
    needs_confidence: as in `Rule`.
    kind: as in `Rule`.
    **interval: fields of `Interval`: the range of alpha, its default, and the
      alphas that a sweep tries.
  """

  def decorate(function: RuleFunction) -> Rule:
    return Rule(
      function, Interval(**interval), per_token, needs_confidence, kind
    )

  return decorate
