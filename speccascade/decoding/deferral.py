"""The deferral rules: when to take the verifier's token.

A rule is one pure function `rule(q, p, *, alpha, sampled) -> (left, right)`; it
defers where `left < right`, strictly. `q` and `p` are [..., V] at temperature 1
(the confidences); `sampled` is the pair that is drawn from (Narasimhan et al.,
Remark 3), None meaning q and p themselves. Position rules return [...], token
rules [..., V]. A rule of q alone gives `p` the default None: a sequential
cascade calls it before p exists.

A larger alpha defers less in every rule except those that say otherwise.
"""

from collections.abc import Callable
import dataclasses
import inspect
import math

import jax.numpy as jnp

from speccascade.decoding import numerics
from speccascade.decoding.numerics import entropy, max_prob, total_variation
from speccascade.decoding.types import RuleFunction, check_shape

FINITE = math.inf  # as an open end: any finite number


@dataclasses.dataclass(frozen=True)
class Interval:
  """The range of alpha; an end may depend on the vocabulary size.

  Infinite ends are open.

  Attributes:
    low: number, or a function of V.
    high: number, or a function of V.
    high_open: whether `high` itself is outside.
    low_open: whether `low` itself is outside.
  """

  low: float | Callable[[int], float] = -FINITE
  high: float | Callable[[int], float] = FINITE
  high_open: bool = False
  low_open: bool = False

  def ends(self, vocab_size: int) -> tuple[float, float]:
    """Returns (low, high) as numbers."""
    return tuple(
      end(vocab_size) if callable(end) else end for end in (self.low, self.high)
    )

  def contains(self, alpha: float, vocab_size: int) -> bool:
    """Whether alpha is a finite number inside, and still is in float32.

    Programs use float32: a number next to an open end must not become it.
    """
    low, high = self.ends(vocab_size)
    used = numerics.as_float32(alpha)
    open_low, open_high = numerics.as_float32(low), numerics.as_float32(high)
    above = used > open_low if self.low_open else alpha >= low
    below = used < open_high if self.high_open else alpha <= high
    return math.isfinite(used) and above and below

  def describe(self, vocab_size: int) -> str:
    """Returns the range in words, as in "[0, 1)" or "any finite number"."""
    low, high = self.ends(vocab_size)
    if math.isinf(low) and math.isinf(high):
      return "any finite number"
    if math.isinf(high):
      return f"{'more than ' if self.low_open else ''}{low:g}" + (
        "" if self.low_open else " or more"
      )
    left = "(" if self.low_open or math.isinf(low) else "["
    right = ")" if self.high_open else "]"
    return f"{left}{low:.6g}, {high:.6g}{right}"


def defers(left, right):
  """Whether a rule defers, from its two sides: strictly below; [...] bool."""
  return left < right


@dataclasses.dataclass(frozen=True)
class Rule:
  """A rule function with what is known of it before it is called.

  Attributes:
    function: `(q, p, *, alpha, sampled) -> (left, right)`.
    interval: the range of alpha.
    per_token: whether it returns [..., V] (a keep-set) and not [...].
    needs_verifier: whether it needs p.
    needs_confidence: whether it reads q, and so needs a drafter whose q is a
      real confidence (not a one-hot proposal).
  """

  function: RuleFunction
  interval: Interval
  per_token: bool
  needs_verifier: bool
  needs_confidence: bool

  def __call__(self, q, p=None, *, alpha, sampled=None):
    if p is None and self.needs_verifier:
      raise TypeError(f"rule {self.name} needs the verifier's p")
    sides = self.function(q, p, alpha=alpha, sampled=sampled)
    for side, values in zip(("left", "right"), sides):
      wanted = q.shape if self.per_token else q.shape[:-1]
      check_shape(f"the {side} side of rule {self.name}", values, wanted)
    return sides

  @property
  def name(self) -> str:
    return self.function.__name__

  @property
  def __doc__(self):
    return self.function.__doc__


def rule(
  *,
  low=-FINITE,
  high=FINITE,
  low_open: bool = False,
  high_open: bool = False,
  per_token: bool = False,
  needs_confidence: bool = True,
):
  """Returns a decorator that makes a function a `Rule`; arguments as there."""

  def decorate(function):
    default = inspect.signature(function).parameters["p"].default
    return Rule(
      function=function,
      interval=Interval(low, high, high_open=high_open, low_open=low_open),
      per_token=per_token,
      needs_verifier=default is inspect.Parameter.empty,
      needs_confidence=needs_confidence,
    )

  return decorate


@rule(low=0, high=1)
def chow(q, p=None, *, alpha, sampled=None):
  """Chow's rule: defers where the drafter is unsure.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: not used.
    alpha: scalar in [0, 1]; 1 never defers, 0 defers unless max q is 1.
    sampled: not used.

  Returns:
    ([...], [...]): defers where left < right.

  Source: Narasimhan et al., Eq. (2).
  >>> left, right = chow(jnp.array([0.6, 0.4]), alpha=0.3)
  >>> bool(left < right)
  True
  """
  return max_prob(q), jnp.full_like(max_prob(q), 1 - alpha)


@rule(low=-1, high=1)
def diff(q, p, *, alpha, sampled=None):
  """Difference of confidences: defers where the verifier is surer by alpha.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar in [-1, 1]; 1 never defers, -1 always (unless p(argmax) = 0).
    sampled: not used.

  Returns:
    ([...], [...]): defers where left < right.

  Source: Narasimhan et al., Eq. (5).
  """
  return max_prob(q), max_prob(p) - alpha


@rule()
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


@rule(low=0, high=math.log)
def chow_log(q, p=None, *, alpha, sampled=None):
  """Chow's rule for the log loss: defers where H(q) > alpha.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: not used.
    alpha: scalar in [0, ln V], nats.
    sampled: not used.

  Source: derived; the paper names the log-loss plug-ins without a formula.
  """
  uncertainty = entropy(q)
  return jnp.full_like(uncertainty, alpha), uncertainty


@rule(low=lambda size: -math.log(size), high=math.log)
def diff_log(q, p, *, alpha, sampled=None):
  """Difference of entropies: defers where H(q) > H(p) + alpha.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar in [-ln V, ln V], nats.
    sampled: not used.

  Source: derived, the plug-in of the log loss in Eq. (5).
  """
  return entropy(p) + alpha, entropy(q)


@rule()
def opt_log(q, p, *, alpha, sampled=None):
  """OPT for the log loss: defers where H(q) > H(p) + alpha TV(sampled).

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar, nats per unit of total variation; any finite number.
    sampled: the pair (q, p) drawn from; None means q and p themselves.

  Source: derived, the plug-in of the log loss in Eq. (10).
  """
  tv = total_variation(*(sampled or (q, p)))
  return entropy(p) + alpha * tv, entropy(q)


@rule(low=-1, high=1, per_token=True)
def token_v1(q, p, *, alpha, sampled=None):
  """Token-specific rule V1: keeps v where q(v) >= max p - alpha.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar in [-1, 1]; 1 keeps every token.
    sampled: not used; thresholds are at temperature 1.

  Returns:
    ([..., V], [..., V]): token v is deferred where left < right.

  Source: Narasimhan et al. (ICLR 2025), Eq. (13).
  """
  return q, _like(max_prob(p) - alpha, q)


@rule(low=-1, high=1, per_token=True, needs_confidence=False)
def token_v2(q, p, *, alpha, sampled=None):
  """Token-specific rule V2: keeps v where p(v) >= max p - alpha.

  Args and Returns as in `token_v1`.

  Source: Narasimhan et al. (ICLR 2025), Eq. (14).
  """
  return p, _like(max_prob(p) - alpha, p)


@rule(low=0, high=1, per_token=True, needs_confidence=False)
def token_v3(q, p, *, alpha, sampled=None):
  """Token-specific rule V3: keeps v where p(v) >= (1 - alpha) max p.

  At alpha 0 the verifier's arg-max is still kept whenever the drafter draws it,
  so alpha 0 is lossless only at temperature 0.

  Args:
    q: not used.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: scalar in [0, 1]; 1 keeps every token.
    sampled: not used.

  Returns:
    ([..., V], [..., V]): token v is deferred where left < right.

  Source: Narasimhan et al. (ICLR 2025), Eq. (15).
  """
  return p, _like((1 - alpha) * max_prob(p), p)


@rule(low=0, high=1, low_open=True, per_token=True, needs_confidence=False)
def typical(q, p, *, alpha, sampled=None):
  """Typical acceptance as a keep-set: p(v) > min(e, d exp(-H(p))).

  Args:
    q: not used.
    p: [..., V] verifier probabilities at temperature 1.
    alpha: e in (0, 1]; d is its square root, the relation of Medusa's own
      defaults (.09 and .3). A smaller alpha keeps more, unlike elsewhere.
    sampled: not used.

  Returns:
    ([..., V], [..., V]): token v is deferred where left < right. Medusa keeps
    on ">", so right is the next number above the threshold.

  Source: Cai et al., Medusa (arXiv 2401.10774), section 2.3.1.
  """
  alpha = jnp.asarray(alpha, p.dtype)
  bound = jnp.minimum(alpha, jnp.sqrt(alpha) * jnp.exp(-entropy(p)))
  return p, _like(jnp.nextafter(bound, jnp.full_like(bound, 2)), p)


def _like(value, p):
  """Broadcasts a value [...] against [..., V]."""
  return jnp.broadcast_to(value[..., None], p.shape)


# BiLD*: defer where a divergence exceeds alpha. Which divergence the paper's
# Table 1 used is not stated; all are measured on the temperature-1 pair (our
# choice: on one-hot pairs the curve would be two points).


def _divergence_rule(name, divergence, high, doc):
  def bild_star(q, p, *, alpha, sampled=None):
    value = divergence(q, p)
    return jnp.full_like(value, alpha), value

  bild_star.__name__ = name
  bild_star.__doc__ = doc
  return rule(low=0, high=high)(bild_star)


def _nll(q, p):
  """Returns -log p(argmax q), ties to the lowest id."""
  token = numerics.first_argmax(q)
  prob = jnp.take_along_axis(p, token[..., None], axis=-1)
  return -jnp.log(jnp.squeeze(prob, -1))


bild_tv = _divergence_rule(
  "bild_tv",
  total_variation,
  1,
  """BiLD* with D = TV(q, p): defers where it exceeds alpha, in [0, 1].""",
)
bild_kl = _divergence_rule(
  "bild_kl",
  lambda q, p: numerics.kl(q, p),
  FINITE,
  """BiLD* with D = KL(q || p) in nats: defers where it exceeds alpha >= 0.

  This direction is BiLD's own metric, -log p(x), averaged over x ~ q, less the
  entropy of q.
  """,
)
bild_js = _divergence_rule(
  "bild_js",
  numerics.jensen_shannon,
  math.log(2),
  """BiLD* with D = JS(q, p) in nats: defers where it exceeds alpha.""",
)
bild_nll = _divergence_rule(
  "bild_nll",
  _nll,
  FINITE,
  """BiLD* with D = -log p(argmax q): BiLD's own metric. alpha >= 0.""",
)


# Greedy lenience: three rules (a fourth is V3). At temperature 0 the draft
# is the drafter's arg-max; the rule says whether it may stay.


def _or_argmax(left, p):
  """Raises `left` to infinity at p's arg-max: it is always kept."""
  best = numerics.one_hot(numerics.first_argmax(p), p.shape[-1], bool)
  return jnp.where(best, jnp.inf, left)


@rule(low=0, high=1, per_token=True, needs_confidence=False)
def lenient_leviathan(q, p, *, alpha, sampled=None):
  """Keeps v where p(v) >= l max p, with l = 1 - alpha.

  The text prints "<=", a sign error: with it the arg-max itself would go.

  Source: Leviathan et al., appendix A.5.
  """
  return p, _like((1 - alpha) * max_prob(p), p)


@rule(low=0, high=1, high_open=True, per_token=True)
def lenient_cs_paper(q, p, *, alpha, sampled=None):
  """Keeps v if it is p's arg-max, or q(v) <= l p(v), with l = 1 / (1 - alpha).

  Source: Chen et al., Cascade Speculative Drafting, section on lenience.
  """
  return _or_argmax(p, p), (1 - alpha) * q


@rule(low=0, high=1, high_open=True, per_token=True, needs_confidence=False)
def lenient_cs_code(q, p, *, alpha, sampled=None):
  """Keeps v if it is p's arg-max, or p(v) > 1 / l, with l = 1 / (1 - alpha).

  What the authors' code does: there the drafter's probability in the test is in
  effect always 1.

  Source: the code of Chen et al. (review of a drafted block).
  """
  bound = jnp.full_like(p, 1 - alpha)
  return _or_argmax(p, p), jnp.nextafter(bound, jnp.full_like(p, 2))


RULES = {
  r.name: r
  for r in (
    chow,
    diff,
    opt,
    chow_log,
    diff_log,
    opt_log,
    token_v1,
    token_v2,
    token_v3,
    typical,
    bild_tv,
    bild_kl,
    bild_js,
    bild_nll,
    lenient_leviathan,
    lenient_cs_paper,
    lenient_cs_code,
  )
}
