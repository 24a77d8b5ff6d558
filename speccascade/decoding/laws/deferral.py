"""The deferral rules: when to take the verifier's token.

A rule is one pure function `rule(q, p, *, alpha, sampled) -> (left, right)`; it
defers where `left < right`, strictly. Position rules return [...], token rules
[..., V]: those defer (drop) some tokens and keep the others. The arguments are
those of `Rule`; a rule's own docstring says what alpha is to it.

A larger alpha defers less in every rule except those that say otherwise.
Narasimhan et al. are arXiv 2405.19261, whose ICLR 2025 version has the token
rules.
"""

from collections.abc import Callable
import dataclasses
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.interval import LOG, Interval
from speccascade.decoding.laws.numerics import (
  entropy,
  first_argmax,
  jensen_shannon,
  kl,
  max_prob,
  of_token,
  total_variation,
)
from speccascade.decoding.types import RuleFunction, check_shape

Array = jax.Array


def defers(left: Array, right: Array) -> Array:
  """Whether a rule defers, from its two sides: strictly below; [...] bool."""
  return left < right


@dataclasses.dataclass(frozen=True)
class Rule:
  """A rule function with what is known of it before it is called.

  Attributes:
    function: `(q, p, *, alpha, sampled) -> (left, right)`. A rule of q alone
      gives p the default None: a sequential cascade calls it before p exists.
    interval: the range of alpha.
    per_token: whether it returns [..., V] (a keep-set) and not [...].
    needs_confidence: whether it reads q, and so needs a drafter whose q is a
      real confidence (not a one-hot proposal).
  """

  function: RuleFunction
  interval: Interval
  per_token: bool = False
  needs_confidence: bool = True

  def __call__(
    self,
    q: Array,
    p: Array | None = None,
    *,
    alpha: Array | float,
    sampled: tuple[Array, Array] | None = None,
  ) -> tuple[Array, Array]:
    """Returns (left, right): [...] each, or [..., V] of a token rule.

    Args:
      q: [..., V] drafter probabilities at temperature 1, its confidence.
      p: [..., V] verifier probabilities at temperature 1.
      alpha: scalar in `interval`.
      sampled: the pair (q, p) that is drawn from (Narasimhan et al., Remark 3);
        None means q and p themselves.

    Raises:
      TypeError: the rule needs p, and there is none.
      ValueError: a side has another shape.
    """
    if p is None and self.needs_verifier:
      raise TypeError(f"rule {self.name} needs the verifier's p")
    sides = self.function(q, p, alpha=alpha, sampled=sampled)
    for side, values in zip(("left", "right"), sides):
      wanted = q.shape if self.per_token else q.shape[:-1]
      check_shape(f"the {side} side of rule {self.name}", values, wanted)
    return sides

  @property
  def needs_verifier(self) -> bool:
    """Whether it needs p."""
    p = inspect.signature(self.function).parameters["p"]
    return p.default is inspect.Parameter.empty

  @property
  def name(self) -> str:
    return self.function.__name__

  @property
  def __doc__(self):
    return self.function.__doc__


def rule(
  *, per_token: bool = False, needs_confidence: bool = True, **interval: Any
) -> Callable[[RuleFunction], Rule]:
  """Returns a decorator that makes a function a `Rule`.

  Args:
    per_token: as in `Rule`.
    needs_confidence: as there.
    **interval: fields of `Interval`: the range of alpha, its default, and the
      alphas that a sweep tries.
  """

  def decorate(function: RuleFunction) -> Rule:
    return Rule(function, Interval(**interval), per_token, needs_confidence)

  return decorate


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
)
def chow(q, p=None, *, alpha, sampled=None):
  """Chow's rule: defers where the drafter is unsure, max q < 1 - alpha.

  Args:
    alpha: scalar in [0, 1]; 1 never defers, 0 defers unless max q is 1.

  Source: Narasimhan et al., Eq. (2).
  >>> left, right = chow(jnp.array([0.6, 0.4]), alpha=0.3)
  >>> bool(left < right)
  True
  """
  return max_prob(q), jnp.full_like(max_prob(q), 1 - alpha)


@rule(
  low=-1,
  high=1,
  grid=(-0.6, -0.3, -0.1, 0.0, 0.1, 0.3, 0.6),
)
def diff(q, p, *, alpha, sampled=None):
  """Difference of confidences: defers where the verifier is surer by alpha.

  Args:
    alpha: scalar in [-1, 1]; 1 never defers, -1 always (unless p(argmax) = 0).

  Source: Narasimhan et al., Eq. (5).
  """
  return max_prob(q), max_prob(p) - alpha


# |max p - max q| <= TV(p, q): at temperature 1 the rule defers wherever the
# models differ at alpha <= -1, and nowhere at alpha >= 1.
@rule(grid=(-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9))
def opt(q, p, *, alpha, sampled=None):
  """Rule of SpecCascade [OPT].

  Defers where the verifier is surer than the drafter by more than the price of
  deferring. Under speculative execution that price is the chance of cutting the
  block short, TV(p, q), times alpha.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar, price per unit of total variation; any finite number.
    sampled: the pair (q, p) drawn from; None means q and p themselves.

  Returns:
    ([...], [...]): defers where left < right.

  Source: Narasimhan et al., Eq. (10) and Remark 3; same sign as printed.
  >>> left, right = opt(jnp.array([0.6, 0.4]), jnp.array([0.9, 0.1]), alpha=0.5)
  >>> bool(left < right)
  True
  """
  tv = total_variation(*(sampled or (q, p)))
  return max_prob(q), max_prob(p) - alpha * tv


def _exceeds(value, alpha):
  """Returns the sides of a rule that defers where a value exceeds alpha."""
  return jnp.full_like(value, alpha), value


@rule(
  low=0,
  high=math.log,
  default=1.0,
  grid=(0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0),
)
def chow_log(q, p=None, *, alpha, sampled=None):
  """Chow's rule for the log loss: defers where H(q) > alpha.

  Args:
    alpha: scalar in [0, ln V], nats.

  Source: derived; the paper names the log-loss plug-ins without a formula.
  """
  return _exceeds(entropy(q), alpha)


@rule(
  low=lambda size: -math.log(size),
  high=math.log,
  grid=(-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0),
)
def diff_log(q, p, *, alpha, sampled=None):
  """Difference of entropies: defers where H(q) > H(p) + alpha.

  Args:
    alpha: scalar in [-ln V, ln V], nats.

  Source: derived, the plug-in of the log loss in Eq. (5).
  """
  return entropy(p) + alpha, entropy(q)


@rule(grid=(-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0))
def opt_log(q, p, *, alpha, sampled=None):
  """OPT for the log loss: defers where H(q) > H(p) + alpha TV(sampled).

  Args:
    alpha: scalar, nats per unit of total variation; any finite number.

  Source: derived, the plug-in of the log loss in Eq. (10).
  """
  tv = total_variation(*(sampled or (q, p)))
  return entropy(p) + alpha * tv, entropy(q)


# BiLD*: defer where a divergence exceeds alpha. Which divergence the paper's
# Table 1 used is not stated; all are measured on the temperature-1 pair (our
# choice: on one-hot pairs the curve would be two points).


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
)
def bild_tv(q, p, *, alpha, sampled=None):
  """BiLD* with D = TV(q, p): defers where it exceeds alpha, in [0, 1]."""
  return _exceeds(total_variation(q, p), alpha)


@rule(
  low=0,
  default=0.3,
  grid=(0.02, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0),
  scale=LOG,
)
def bild_kl(q, p, *, alpha, sampled=None):
  """BiLD* with D = KL(q || p) in nats: defers where it exceeds alpha >= 0.

  This direction is BiLD's own metric, -log p(x), averaged over x ~ q, less the
  entropy of q.
  """
  return _exceeds(kl(q, p), alpha)


@rule(
  low=0,
  high=math.log(2),
  default=0.1,
  grid=(0.01, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6),
)
def bild_js(q, p, *, alpha, sampled=None):
  """BiLD* with D = JS(q, p) in nats: defers where it exceeds alpha."""
  return _exceeds(jensen_shannon(q, p), alpha)


@rule(
  low=0,
  default=2.0,
  grid=(0.1, 0.3, 0.7, 1.5, 2.5, 4.0, 6.0),
  scale=LOG,
)
def bild_nll(q, p, *, alpha, sampled=None):
  """BiLD* with D = -log p(argmax q): BiLD's own metric. alpha >= 0."""
  token = first_argmax(q)  # ties to the lowest id
  return _exceeds(-jnp.log(of_token(p, token)), alpha)


# Token rules.


def _like(value, p):
  """Broadcasts a value [...] against [..., V]."""
  return jnp.broadcast_to(value[..., None], p.shape)


@rule(
  low=-1,
  high=1,
  default=0.3,
  grid=(-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8),
  per_token=True,
)
def token_v1(q, p, *, alpha, sampled=None):
  """Token-specific rule V1: keeps v where q(v) >= max p - alpha.

  Thresholds are at temperature 1, as in all token rules.

  Args:
    alpha: scalar in [-1, 1]; 1 keeps every token.

  Source: Narasimhan et al. (ICLR 2025), Eq. (13).
  """
  return q, _like(max_prob(p) - alpha, q)


@rule(
  low=-1,
  high=1,
  default=0.3,
  # Below 0 no token is kept, whatever alpha: the method is lossless.
  grid=(-0.1, 0.0, 0.05, 0.1, 0.2, 0.4, 0.7),
  per_token=True,
  needs_confidence=False,
)
def token_v2(q, p, *, alpha, sampled=None):
  """Token-specific rule V2: keeps v where p(v) >= max p - alpha.

  Args:
    alpha: scalar in [-1, 1]; 1 keeps every token.

  Source: Narasimhan et al. (ICLR 2025), Eq. (14).
  """
  return p, _like(max_prob(p) - alpha, p)


@rule(
  low=0,
  high=1,
  default=0.3,
  # 1 - alpha is a ratio of probabilities: close to 1 it still matters.
  grid=(0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97),
  per_token=True,
  needs_confidence=False,
)
def token_v3(q, p, *, alpha, sampled=None):
  """Token-specific rule V3: keeps v where p(v) >= (1 - alpha) max p.

  At alpha 0 the verifier's arg-max is still kept whenever the drafter draws it,
  so alpha 0 is lossless only at temperature 0.

  Args:
    alpha: scalar in [0, 1]; 1 keeps every token.

  Source: Narasimhan et al. (ICLR 2025), Eq. (15).
  """
  return p, _like((1 - alpha) * max_prob(p), p)


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
def typical(q, p, *, alpha, sampled=None):
  """Typical acceptance as a keep-set: p(v) > min(e, d exp(-H(p))).

  Medusa keeps on ">", so right is the next number above the threshold.

  Args:
    alpha: e in (0, 1]; d is its square root, the relation of Medusa's own
      defaults (.09 and .3). A smaller alpha keeps more, unlike elsewhere.

  Source: Cai et al., Medusa (arXiv 2401.10774), section 2.3.1.
  """
  alpha = jnp.asarray(alpha, p.dtype)
  bound = jnp.minimum(alpha, jnp.sqrt(alpha) * jnp.exp(-entropy(p)))
  return p, _like(jnp.nextafter(bound, jnp.full_like(bound, 2)), p)


# Greedy lenience: three rules (a fourth is V3). At temperature 0 the draft
# is the drafter's arg-max; the rule says whether it may stay.


def _or_argmax(left, p):
  """Raises `left` to infinity at p's arg-max: it is always kept."""
  best = jax.nn.one_hot(first_argmax(p), p.shape[-1], dtype=bool)
  return jnp.where(best, jnp.inf, left)


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97),
  per_token=True,
  needs_confidence=False,
)
def lenient_leviathan(q, p, *, alpha, sampled=None):
  """Keeps v where p(v) >= l max p, with l = 1 - alpha.

  The text prints "<=", a sign error: with it the arg-max itself would go.

  Source: Leviathan et al. (arXiv 2211.17192), appendix A.5.
  """
  return p, _like((1 - alpha) * max_prob(p), p)


@rule(
  low=0,
  high=1,
  high_open=True,
  default=0.3,
  grid=(0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97),
  per_token=True,
)
def lenient_cs_paper(q, p, *, alpha, sampled=None):
  """Keeps v if it is p's arg-max, or q(v) <= l p(v), with l = 1 / (1 - alpha).

  Source: Chen et al., Cascade Speculative Drafting (arXiv 2312.11462), section
  on lenience.
  """
  return _or_argmax(p, p), (1 - alpha) * q


@rule(
  low=0,
  high=1,
  high_open=True,
  default=0.3,
  # Of two tokens one has p <= 0.5: up to alpha 0.5 only the arg-max is kept.
  grid=(0.0, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97),
  per_token=True,
  needs_confidence=False,
)
def lenient_cs_code(q, p, *, alpha, sampled=None):
  """Keeps v if it is p's arg-max, or p(v) > 1 / l, with l = 1 / (1 - alpha).

  What the authors' code does: there the drafter's probability in the test is in
  effect always 1.

  Source: the code of Chen et al. (review of a drafted block).
  """
  bound = jnp.full_like(p, 1 - alpha)
  return _or_argmax(p, p), jnp.nextafter(bound, jnp.full_like(p, 2))


RULES = {
  known.name: known
  for known in list(globals().values())
  if isinstance(known, Rule)
}
