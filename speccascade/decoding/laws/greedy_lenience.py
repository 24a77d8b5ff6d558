"""Greedy lenience: three token rules of three sources.

At temperature 0 the draft is the drafter's arg-max; the rule says whether the
draft may stay although it is not the verifier's arg-max. Rule V3 of
`token_rules` is a fourth of them.
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.numerics import first_argmax
from speccascade.decoding.laws.rules import Pair, Sides, rule
from speccascade.decoding.laws.token_rules import RATIOS, token_v3

Array = jax.Array


def _or_argmax(left: Array, p: Array) -> Array:
  """Returns `left` with infinity at p's arg-max, which is always kept then."""
  best = jax.nn.one_hot(first_argmax(p), p.shape[-1], dtype=bool)
  return jnp.where(best, jnp.inf, left)


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=RATIOS,
  per_token=True,
  needs_confidence=False,
)
def lenient_leviathan(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Keeps v where p(v) >= l max p, with l = 1 - alpha.

  The paper prints "<=", which is a sign error: it would drop the arg-max.

  Source: Leviathan et al. (arXiv 2211.17192), appendix A.5.
  """
  return token_v3(q, p, alpha=alpha)


@rule(
  low=0,
  high=1,
  high_open=True,
  default=0.3,
  grid=RATIOS,
  per_token=True,
)
def lenient_cs_paper(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
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
def lenient_cs_code(
  q: Array, p: Array, *, alpha: Array, sampled: Pair | None = None
) -> Sides:
  """Keeps v if it is p's arg-max, or p(v) > 1 / l, with l = 1 / (1 - alpha).

  This is what the authors' code does: the drafter's probability in the test is
  in effect always 1 there.

  Source: the code of Chen et al. (review of a drafted block).
  """
  bound = jnp.full_like(p, 1 - alpha)
  return _or_argmax(p, p), jnp.nextafter(bound, jnp.full_like(p, 2))
