"""Monte-Carlo twins of the closed forms: acceptances are drawn, blocks run.

Each system draws one uniform per examined draft, lets the reviewer stop at its
first refusal and counts the tokens that come out. No formula of `ewif` or
`speedup` is used. Costs are the theorems': fixed per block.
"""

from typing import NamedTuple

import numpy as np

from speccascade.analysis import checks


class SimulatedEwif(NamedTuple):
  """A mean over independent blocks, and the standard error of that mean."""

  mean: float
  standard_error: float


def _accepted_prefix(accepted: np.ndarray) -> np.ndarray:
  """Returns [N], how many of [N, G] bool drafts come before the first False."""
  return np.sum(np.cumprod(accepted, axis=1, dtype=np.int64), axis=1)


def _ewif(tokens: np.ndarray, cost: float) -> SimulatedEwif:
  ewif = tokens / cost
  return SimulatedEwif(ewif.mean(), ewif.std(ddof=1) / np.sqrt(len(ewif)))


def accepted_by_position(
  rng: np.random.Generator, rates, *, num_blocks: int
) -> np.ndarray:
  """Returns [G], the share of blocks that kept the draft at each position.

  Args:
    rng: NumPy generator.
    rates: [G], acceptance rate at each position.
    num_blocks: blocks drawn.
  """
  rates = checks.probability("rates", rates)
  prefix = _accepted_prefix(rng.random((num_blocks, len(rates))) < rates)
  return np.mean(prefix[:, None] > np.arange(len(rates)), axis=0)


def horizontal(
  rng: np.random.Generator, rates, costs, *, num_blocks: int
) -> SimulatedEwif:
  """Returns the simulated EWIF; twin of `horizontal_ewif`.

  With one rate and one cost throughout, also of `speedup.walltime_factor`.

  Args:
    rng: NumPy generator.
    rates: [G], acceptance rate at each position.
    costs: [G], cost of drafting it.
    num_blocks: blocks drawn.
  """
  rates = checks.probability("rates", rates)
  prefix = _accepted_prefix(rng.random((num_blocks, len(rates))) < rates)
  return _ewif(prefix + 1, 1 + np.sum(checks.nonnegative("costs", costs)))


def vertical(
  rng: np.random.Generator,
  outer_rate: float,
  inner_rate: float,
  k: int,
  n: int,
  c1: float,
  c2: float,
  *,
  num_blocks: int,
) -> SimulatedEwif:
  """Returns the simulated EWIF of a vertical cascade; twin of `vertical_ewif`.

  The middle model reviews n blocks of k small drafts; all that comes out of
  them, 1..k+1 tokens each, is one draft that the verifier reviews.
  """
  checks.probability("rates", [outer_rate, inner_rate])
  inner = rng.random((num_blocks * n, k)) < inner_rate
  drafted = (_accepted_prefix(inner) + 1).reshape(num_blocks, n).sum(axis=1)
  outer = rng.random((num_blocks, n * (k + 1))) < outer_rate
  outer &= np.arange(n * (k + 1)) < drafted[:, None]
  return _ewif(_accepted_prefix(outer) + 1, 1 + n * c1 + n * k * c2)
