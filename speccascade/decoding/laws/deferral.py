"""The deferral rules: when to take the verifier's token.

A rule is one pure function `rule(q, p, *, alpha, sampled) -> (left, right)`. It
defers where `left < right`, strictly. There are two kinds of rule:
- a position rule returns [...]: it defers at a position, whatever the token;
- a token rule returns [..., V]: it keeps some tokens of a position and drops
  (defers) the others.
`Rule.__call__` documents the arguments, which are the same for all rules. The
docstring of a rule says what its alpha means. A larger alpha defers less, in
every rule whose docstring does not say otherwise.

To add a rule, write the function here, with its range and its grid of alphas in
the decorator, and add its line to the table of methods.

Narasimhan et al. are arXiv 2405.19261; the ICLR 2025 version of their paper has
the token rules.
"""

from collections.abc import Callable
import dataclasses
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.fitted import (
  FittedAlpha,
  ParameterKind,
  with_parameters,
)
from speccascade.decoding.laws.interval import LOG, Interval
from speccascade.decoding.laws.numerics import (
  bisect,
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
    sampled: tuple[Array, Array] | None = None,
  ) -> tuple[Array, Array]:
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

  @property
  def needs_verifier(self) -> bool:
    """Whether the rule needs p: whether its function has no default for p."""
    p = inspect.signature(self.function).parameters["p"]
    return p.default is inspect.Parameter.empty

  @property
  def name(self) -> str:
    return self.function.__name__

  @property
  def __doc__(self):
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


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
)
def chow(q, p=None, *, alpha, sampled=None):
  """Chow's rule: defers where the drafter is unsure, max q < 1 - alpha.

  Args:
    alpha: scalar in [0, 1]. Alpha 1 never defers; alpha 0 defers unless max q
      is 1.

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
  """Difference of confidences: defers where max q < max p - alpha.

  Args:
    alpha: scalar in [-1, 1]. Alpha 1 never defers; alpha -1 always defers.

  Source: Narasimhan et al., Eq. (5).
  """
  return max_prob(q), max_prob(p) - alpha


# |max p - max q| <= TV(p, q): at temperature 1 the rule defers wherever the
# models differ at alpha <= -1, and nowhere at alpha >= 1.
@rule(grid=(-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9))
def opt(q, p, *, alpha, sampled=None):
  """Deferral rule of SpecCascade [OPT]: max q < max p - alpha TV(p, q).

  Defers where the verifier is surer than the drafter by more than the price of
  deferring. Under speculative execution that price is the chance of cutting the
  block short, TV(p, q), times alpha.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar, price per unit of total variation; any finite number.
    sampled: the pair (q, p) that tokens are drawn from; TV is measured on it.
      None means q and p themselves.

  Returns:
    ([...], [...]): the rule defers where left < right.

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
  """Chow's rule for the log loss: defers where the entropy H(q) > alpha.

  Args:
    alpha: scalar in [0, ln V], nats.

  Source: derived here. The paper names the log-loss plug-ins, and prints no
  formula for them.
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

  Source: derived here: the plug-in of the log loss in Narasimhan et al.,
  Eq. (5).
  """
  return entropy(p) + alpha, entropy(q)


@rule(grid=(-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0))
def opt_log(q, p, *, alpha, sampled=None):
  """OPT for the log loss: defers where H(q) > H(p) + alpha TV(sampled).

  Args:
    alpha: scalar, nats per unit of total variation; any finite number.

  Source: derived here: the plug-in of the log loss in Narasimhan et al.,
  Eq. (10).
  """
  tv = total_variation(*(sampled or (q, p)))
  return entropy(p) + alpha * tv, entropy(q)


# BiLD*: defer where a divergence of q and p exceeds alpha. The paper does not
# state which divergence its Table 1 used, so there are four. All are measured
# on the temperature-1 pair, which is our choice: at temperature 0 both models
# are one-hot, a divergence of one-hot pairs has two values, and the curve over
# alpha would have two points.


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
)
def bild_tv(q, p, *, alpha, sampled=None):
  """BiLD* with D = TV(q, p): defers where D exceeds alpha, in [0, 1]."""
  return _exceeds(total_variation(q, p), alpha)


@rule(
  low=0,
  default=0.3,
  grid=(0.02, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0),
  scale=LOG,
)
def bild_kl(q, p, *, alpha, sampled=None):
  """BiLD* with D = KL(q || p) in nats: defers where D exceeds alpha >= 0.

  KL in this direction is BiLD's own metric, -log p(x), averaged over x ~ q,
  minus the entropy of q.
  """
  return _exceeds(kl(q, p), alpha)


@rule(
  low=0,
  high=math.log(2),
  default=0.1,
  grid=(0.01, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6),
)
def bild_js(q, p, *, alpha, sampled=None):
  """BiLD* with D = JS(q, p) in nats: defers where D exceeds alpha."""
  return _exceeds(jensen_shannon(q, p), alpha)


@rule(
  low=0,
  default=2.0,
  grid=(0.1, 0.3, 0.7, 1.5, 2.5, 4.0, 6.0),
  scale=LOG,
)
def bild_nll(q, p, *, alpha, sampled=None):
  """BiLD* with D = -log p(argmax q) in nats, BiLD's own metric.

  Defers where D exceeds alpha >= 0. Ties of q go to the lowest id.
  """
  token = first_argmax(q)
  return _exceeds(-jnp.log(of_token(p, token)), alpha)


# Token rules. The sides are probabilities and thresholds at temperature 1; the
# target that `targets.defer_tokens` makes of a keep-set mixes the sampled pair.


def _like(value, p):
  """Returns a value [...] of each position as [..., V], once for each token."""
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

  Args:
    alpha: scalar in [-1, 1]. Alpha 1 keeps every token.

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
    alpha: scalar in [-1, 1]. Alpha 1 keeps every token.

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

  At alpha 0 the verifier's arg-max is still kept, so its probability in the
  target is more than p wherever q gives it mass: alpha 0 is lossless only at
  temperature 0.

  Args:
    alpha: scalar in [0, 1]. Alpha 1 keeps every token.

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
  """Typical acceptance as a keep-set: keeps v where p(v) > min(e, d exp(-H)).

  H is the entropy of p. The comparison is ">" in Medusa, and a rule keeps on
  ">=", so the right side is the next float above the threshold.

  Args:
    alpha: e in (0, 1]. d is the square root of e, as in Medusa's own defaults
      (e = .09, d = .3). A smaller alpha keeps more tokens, unlike in other
      rules.

  Source: Cai et al., Medusa (arXiv 2401.10774), section 2.3.1.
  """
  alpha = jnp.asarray(alpha, p.dtype)
  bound = jnp.minimum(alpha, jnp.sqrt(alpha) * jnp.exp(-entropy(p)))
  return p, _like(jnp.nextafter(bound, jnp.full_like(bound, 2)), p)


@rule(
  low=1,
  high=lambda size: size,
  default=2,
  grid=(1, 2, 3, 5, 8, 12, 20),
  scale=LOG,
  per_token=True,
  needs_confidence=False,
)
def top_k(q, p, *, alpha, sampled=None):
  """Top-k acceptance: keeps the alpha likeliest tokens of p.

  Tokens as likely as the last of them are kept, too.

  Args:
    alpha: k, from 1 to V; a fraction counts as the next whole number.

  Source: a baseline of Hao and Mou, Cactus (arXiv 2604.04987). Their code
  replaces a rejected draft from norm(max(0, [v is kept] - q)), in which p has
  no part; here it is replaced from p, as in all token rules.
  """
  bits = jax.lax.bitcast_convert_type(
    p, jnp.int64 if p.dtype == jnp.float64 else jnp.int32
  )

  def holds(threshold: Array) -> Array:
    """Whether alpha tokens or more are as likely as a threshold."""
    is_likely = (bits >= threshold).astype(p.dtype)
    return jnp.sum(is_likely, axis=-1, keepdims=True) >= alpha

  # Probabilities order as their bit patterns do, and the threshold is one of
  # them.
  last = jnp.max(bits, axis=-1, keepdims=True) + 1
  threshold = bisect(holds, jnp.zeros_like(last), last)
  bound = jax.lax.bitcast_convert_type(threshold, p.dtype)
  return p, jnp.broadcast_to(bound, p.shape)


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97),
  per_token=True,
  needs_confidence=False,
)
def min2(q, p, *, alpha, sampled=None):
  """Keeps p's arg-max, and the second v where p(v) >= (1 - alpha) max p.

  It is rule V3 with at most two tokens. Of equal tokens the lower ids come
  first.

  Args:
    alpha: scalar in [0, 1]. 1 - alpha is exp(-m), where m is the margin of the
      two logits in nats.

  Source: Song et al., MARS (arXiv 2601.15498). MARS compares the ratio of the
  two logits with a threshold, which changes when all logits are shifted; the
  difference of the logits, which is a ratio of probabilities, does not.
  """
  ids = jax.lax.broadcasted_iota(jnp.int32, p.shape, p.ndim - 1)
  is_first = ids == first_argmax(p)[..., None]
  others = jnp.where(is_first, -1, p)
  is_second = ids == first_argmax(others)[..., None]
  # No threshold is as low as -1.
  left = jnp.where(is_first | is_second, p, -1)
  return left, _like((1 - alpha) * max_prob(p), p)


# Greedy lenience: three rules of three sources (V3 is a fourth). At temperature
# 0 the draft is the drafter's arg-max; the rule says whether the draft may stay
# although it is not the verifier's arg-max.


def _or_argmax(left, p):
  """Returns `left` with infinity at p's arg-max, which is always kept then."""
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

  The paper prints "<=", which is a sign error: it would drop the arg-max.

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

  This is what the authors' code does: the drafter's probability in the test is
  in effect always 1 there.

  Source: the code of Chen et al. (review of a drafted block).
  """
  bound = jnp.full_like(p, 1 - alpha)
  return _or_argmax(p, p), jnp.nextafter(bound, jnp.full_like(p, 2))


RULES = {
  known.name: known
  for known in list(globals().values())
  if isinstance(known, Rule)
}
