"""The position rules, which defer at a position, and the table of all rules.

`rules` says what a rule is. Token rules are in `token_rules`, and the rules of
greedy lenience in `greedy_lenience`.

Narasimhan et al. are arXiv 2405.19261.
"""

import math

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import greedy_lenience, token_rules
from speccascade.decoding.laws.interval import LOG
from speccascade.decoding.laws.numerics import (
  entropy,
  first_argmax,
  jensen_shannon,
  kl,
  max_prob,
  of_token,
  total_variation,
)
from speccascade.decoding.laws.rules import Pair, Rule, Sides, rule

Array = jax.Array


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
)
def chow(
  q: Array, p: Array | None = None, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Chow's rule: defers where the drafter is unsure, max q < 1 - alpha.

  Args:
    alpha: scalar in [0, 1]. Alpha 1 never defers; alpha 0 defers unless max q
      is 1.

  Source: Narasimhan et al., Eq. (2). With the verifier's first layers as the
  drafter (`EarlyExit`) the token cascade is the exit by softmax confidence of
  CALM (Schuster et al., arXiv 2207.07061), at one layer.
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
def diff(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Difference of confidences: defers where max q < max p - alpha.

  Args:
    alpha: scalar in [-1, 1]. Alpha 1 never defers; alpha -1 always defers.

  Source: Narasimhan et al., Eq. (5).
  """
  return max_prob(q), max_prob(p) - alpha


# |max p - max q| <= TV(p, q): at temperature 1 the rule defers wherever the
# models differ at alpha <= -1, and nowhere at alpha >= 1.
@rule(grid=(-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9))
def opt(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Deferral rule of SpecCascade [OPT]: max q < max p - alpha TV(p, q).

  Defers where the verifier is more confident than the drafter by more than the
  price of deferring. Under speculative execution that price is alpha times the
  probability of cutting the block short, TV(p, q).

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


def _exceeds(value: Array, alpha: Array) -> Sides:
  """Returns the sides of a rule that defers where a value exceeds alpha."""
  return jnp.full_like(value, alpha), value


@rule(
  low=0,
  high=math.log,
  default=1.0,
  grid=(0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0),
)
def chow_log(
  q: Array, p: Array | None = None, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
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
def diff_log(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Difference of entropies: defers where H(q) > H(p) + alpha.

  Args:
    alpha: scalar in [-ln V, ln V], nats.

  Source: derived here: the plug-in of the log loss in Narasimhan et al.,
  Eq. (5).
  """
  return entropy(p) + alpha, entropy(q)


@rule(grid=(-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0))
def opt_log(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
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
def bild_tv(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """BiLD* with D = TV(q, p): defers where D exceeds alpha, in [0, 1]."""
  return _exceeds(total_variation(q, p), alpha)


@rule(
  low=0,
  default=0.3,
  grid=(0.02, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0),
  scale=LOG,
)
def bild_kl(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
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
def bild_js(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """BiLD* with D = JS(q, p) in nats: defers where D exceeds alpha."""
  return _exceeds(jensen_shannon(q, p), alpha)


@rule(
  low=0,
  default=2.0,
  grid=(0.1, 0.3, 0.7, 1.5, 2.5, 4.0, 6.0),
  scale=LOG,
)
def bild_nll(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """BiLD* with D = -log p(argmax q) in nats, BiLD's own metric.

  Defers where D exceeds alpha >= 0. Ties of q go to the lowest id.
  """
  token = first_argmax(q)
  return _exceeds(-jnp.log(of_token(p, token)), alpha)


RULES = {
  known.name: known
  for names in (globals(), vars(token_rules), vars(greedy_lenience))
  for known in list(names.values())
  if isinstance(known, Rule)
}
