"""Monte-Carlo twins of the closed forms in `ewif` and `speedup`.

Each simulation draws a uniform number for each draft, lets the reviewer stop at
the first draft that it refuses, and counts the tokens that come out. It uses no
formula of `ewif` or `speedup`. Costs are the theorems' costs, which are fixed
for each block.
"""

from typing import NamedTuple

import numpy as np

from speccascade.study.papers import checks


class SimulatedEwif(NamedTuple):
  """A simulated EWIF over independent blocks.

  Attributes:
    mean: the mean over blocks.
    standard_error: the standard error of the mean.
  """

  mean: float
  standard_error: float


def _accepted_prefix(accepted: np.ndarray) -> np.ndarray:
  """Returns [N], the number of drafts before the first False.

  Args:
    accepted: [N, G] bool, whether each draft of each block is accepted.
  """
  return np.sum(np.cumprod(accepted, axis=1, dtype=np.int64), axis=1)


def _ewif(tokens: np.ndarray, cost: float) -> SimulatedEwif:
  """Returns the EWIF of blocks that yielded `tokens` [N] at one cost each."""
  ewif = tokens / cost
  return SimulatedEwif(ewif.mean(), ewif.std(ddof=1) / np.sqrt(len(ewif)))


def accepted_by_position(
  rng: np.random.Generator, rates, *, num_blocks: int
) -> np.ndarray:
  """Returns [G], the share of blocks that emitted the draft at each position.

  Args:
    rng: NumPy generator.
    rates: [G], the acceptance rate at each position.
    num_blocks: how many blocks are drawn.
  """
  rates = checks.probability("rates", rates)
  prefix = _accepted_prefix(rng.random((num_blocks, len(rates))) < rates)
  return np.mean(prefix[:, None] > np.arange(len(rates)), axis=0)


def horizontal(
  rng: np.random.Generator, rates, costs, *, num_blocks: int
) -> SimulatedEwif:
  """Returns the simulated EWIF of a horizontal cascade.

  It is the twin of `ewif.horizontal_ewif`, and with equal rates and equal costs
  the twin of `speedup.walltime_factor`.

  Args:
    rng: NumPy generator.
    rates: [G], the acceptance rate at each position.
    costs: [G], the cost of drafting the token at each position.
    num_blocks: how many blocks are drawn.
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
  """Returns the simulated EWIF of a vertical cascade.

  It is the twin of `ewif.vertical_ewif`. The middle model reviews n blocks of k
  small drafts. Each block yields 1 to k+1 tokens, and the verifier reviews the
  tokens of all n blocks as one draft.

  Args:
    rng: NumPy generator.
    outer_rate: see `ewif.vertical_ewif`.
    inner_rate: see `ewif.vertical_ewif`.
    k: see `ewif.vertical_ewif`.
    n: see `ewif.vertical_ewif`.
    c1: see `ewif.vertical_ewif`.
    c2: see `ewif.vertical_ewif`.
    num_blocks: how many blocks are drawn.
  """
  checks.probability("rates", [outer_rate, inner_rate])
  inner = rng.random((num_blocks * n, k)) < inner_rate
  drafted = (_accepted_prefix(inner) + 1).reshape(num_blocks, n).sum(axis=1)
  # A block has at most n (k + 1) tokens; places after its last are not drafts.
  outer = rng.random((num_blocks, n * (k + 1))) < outer_rate
  outer &= np.arange(n * (k + 1)) < drafted[:, None]
  return _ewif(_accepted_prefix(outer) + 1, 1 + n * c1 + n * k * c2)
