"""Expected walltime improvement factor (EWIF) of cascades of drafts.

Chen et al., "Cascade Speculative Drafting", arXiv:2312.11462. One block of a
reviewer with acceptance rate a and k drafts yields N tokens: N = i with
probability a^(i-1) (1-a) for i = 1..k, and N = k+1 with probability a^k. EWIF
is the expected number of tokens over the expected cost, in units of one
verifier step.

Letters: their alpha(M_t, M_d) is `acceptance_rate` (see `speedup`); k and n are
the inner and outer block lengths of the paper; c1, c2 the costs of one step of
the two drafts. Rates and costs may be arrays, which broadcast. The EWIF of one
draft, phi'(1) / (c k + 1) (Corollary 4.2), is `speedup.walltime_factor`.

Misprints of the paper, in its own letters: the proof's Eq. (6) starts with x
where it must start with 1; version 2 prints Corollary 4.2 with phi(1) (which is
1) for phi'(1); the proof of Corollary 4.4 says that
(1-(alpha alpha')^(k+1))/(1-alpha alpha') is less than 1, but it is more than 1,
and more than 1 is what the conclusion needs.
"""

import itertools

import numpy as np

from speccascade.analysis import checks, swi
from speccascade.analysis.published import CS_DRAFTING_TABLE_1, leviathan_rate
from speccascade.analysis.speedup import geometric


def tokens_law(acceptance_rate: float, k: int) -> np.ndarray:
  """Returns [k+1], the probabilities of 1, ..., k+1 tokens in a block."""
  rate = checks.probability("acceptance_rate", acceptance_rate)
  k = checks.count("k", k, 0)
  powers = rate ** np.arange(k + 1)
  return np.append(powers[:-1] * (1 - rate), powers[-1])


def pgf(acceptance_rate, k: int, x):
  """Returns phi(x) = E x^N, the probability generating function of a block.

  Source: Chen et al., Theorem 4.1: 1 + (x-1) (1-(a x)^(k+1)) / (1-a x).

  >>> round(float(pgf(0.3, 10, 0.8)), 10)
  0.7368421453
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  x = np.asarray(x, np.float64)
  return 1 + (x - 1) * geometric(rate * x, checks.count("k", k, 0))


def pgf_derivative(acceptance_rate, k: int, x):
  """Returns phi'(x); phi'(1) is the expected number of tokens.

  Source: Chen et al., Corollary 4.2 (version 3; version 2 misprints phi(1)).

  >>> round(float(pgf_derivative(0.7, 5, 1)), 5)
  2.94117
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  k = checks.count("k", k, 0)
  x = np.asarray(x, np.float64)
  # d/dy (1 + y + ... + y^k) = 1 + 2 y + ... + k y^(k-1), highest power first.
  slope = np.polyval(np.arange(k, 0, -1.0), rate * x)
  return geometric(rate * x, k) + (x - 1) * rate * slope


def vertical_tokens(outer_rate, inner_rate, k: int, n: int):
  """Returns the expected tokens per verifier pass of a vertical cascade.

  The outer draft is n blocks of the inner pair, reviewed as a whole. The
  printed (1 - a phi^n(a)) / (1 - a), a the outer rate and phi^n the n-th power,
  is 0/0 at a = 1; since 1 - phi(a) = (1 - a) g(a) with g a geometric sum, it
  equals 1 + a g(a) (1 + phi(a) + ... + phi(a)^(n-1)), which is used here.

  Args:
    outer_rate: verifier's acceptance of the middle model's tokens, alpha.
    inner_rate: the middle model's acceptance of the small draft's, alpha'.
    k: tokens that the small draft writes for each inner block.
    n: inner blocks per verifier pass.

  Source: Chen et al., numerator of Theorem 4.3.
  """
  outer = checks.probability("outer_rate", outer_rate)
  inner = checks.probability("inner_rate", inner_rate)
  n = checks.count("n", n, 1)
  sum_inner = geometric(inner * outer, checks.count("k", k, 0))
  return 1 + outer * sum_inner * geometric(pgf(inner, k, outer), n - 1)


def vertical_ewif(outer_rate, inner_rate, k: int, n: int, c1, c2):
  """Returns the EWIF of a vertical cascade.

  Every inner block counts in full: no draft is cut short.

  Args:
    outer_rate: as in `vertical_tokens`, like the next three.
    inner_rate: likewise.
    k: likewise.
    n: likewise.
    c1: one step of the middle model.
    c2: one step of the small draft.

  Source: Chen et al., Theorem 4.3: the cost is 1 + n c1 + n k c2. By Corollary
  4.4 it beats the middle model alone with k = n drafts where c2 is near 0; at
  equal n it then drafts more tokens per pass, so compare the optima as well.

  >>> round(float(vertical_ewif(0.8, 0.2, 10, 5, 0.04, 0)), 7)
  3.3108472
  """
  tokens = vertical_tokens(outer_rate, inner_rate, k, n)
  c1, c2 = checks.nonnegative("c1", c1), checks.nonnegative("c2", c2)
  return tokens / (1 + n * c1 + n * k * c2)


def acceptance_by_position(rates) -> np.ndarray:
  """Returns [G], the chance that the draft at each position is kept at all.

  A draft is kept if it and all before it are accepted, so the first tokens of a
  block matter most: the reason for the horizontal cascade.

  Args:
    rates: [G], the acceptance rate at each position.

  Source: Chen et al., Figure 2 (alpha^i for one draft).
  """
  return np.cumprod(checks.probability("rates", rates))


def horizontal_ewif(rates, costs) -> float:
  """Returns the EWIF of a horizontal cascade: other drafts write later tokens.

  Args:
    rates: [G], acceptance rate of the draft that writes each position.
    costs: [G], the cost of one step of that draft.

  Source: Chen et al., Theorem 4.5: sum_{i=0..G} prod_{j<=i} alpha_j over
  1 + sum_j c_j.
  """
  rates, costs = _same_length(rates, costs)
  return float((1 + np.sum(acceptance_by_position(rates))) / (1 + costs.sum()))


def horizontal_gradient(rates, costs) -> np.ndarray:
  """Returns [G], the derivative of `horizontal_ewif` by each position's rate.

  It falls from each position to the next where the rates do not rise, so the
  better draft belongs at the front. Arguments as in `horizontal_ewif`.

  Source: Chen et al., Corollary 4.6. That it falls is proved for non-rising
  rates only: with A = 1 + a_{l+2} (1 + a_{l+3} (...)) <= 1 / (1 - a_{l+1}),
  neighbours differ by a multiple of 1 + (a_{l+1} - a_l) A >= 1 -
  (1 - a_{l+1}) A >= 0. Rates (0.9, 0.1, 1, 1) break it.

  >>> horizontal_gradient([0.8, 0.7, 0.6], [0.1, 0.05, 0.02]).round(7)
  array([1.8119658, 1.0940171, 0.4786325])
  """
  rates, costs = _same_length(rates, costs)
  before = np.cumprod(np.append(1.0, rates[:-1]))
  after = np.ones(len(rates))  # A of the position itself: 1 + a_{l+1} (...)
  for l in reversed(range(len(rates) - 1)):
    after[l] = 1 + rates[l + 1] * after[l + 1]
  return before * after / (1 + costs.sum())


def optimal_vertical(
  outer_rate: float,
  inner_rate: float,
  c1: float,
  c2: float,
  *,
  max_k: int = 30,
  max_n: int = 30,
) -> tuple[int, int, float]:
  """Returns (k, n, EWIF) of the best vertical cascade within the limits.

  At equal EWIF the smaller k, then the smaller n.
  """
  choices = itertools.product(range(1, max_k + 1), range(1, max_n + 1))
  value = lambda kn: vertical_ewif(outer_rate, inner_rate, *kn, c1, c2)
  best = max(choices, key=value)
  return *best, float(value(best))


def optimal_horizontal(
  rates, costs, *, max_length: int = 20
) -> tuple[tuple[int, ...], float]:
  """Returns the best tokens per draft, and the EWIF.

  An exhaustive search, (max_length + 1)^drafts cases; meant for two or three.

  Args:
    rates: one acceptance rate per draft, in the order of the block.
    costs: one cost per draft.
    max_length: most tokens of each.

  >>> lengths, ewif = optimal_horizontal([0.8, 0.75], [248 / 11300, 77 / 11300])
  >>> lengths, round(ewif, 3)
  ((5, 8), 3.929)
  """
  rates, costs = _same_length(rates, costs)
  value = lambda lengths: horizontal_ewif(
    np.repeat(rates, lengths), np.repeat(costs, lengths)
  )
  choices = range(checks.count("max_length", max_length, 1) + 1)
  lengths = max(itertools.product(choices, repeat=len(rates)), key=value)
  return lengths, value(lengths)


def table_1(costs=None) -> list[tuple]:
  """Returns (row, EWIF) for each row of the paper's Table 1.

  Args:
    costs: T5 size -> cost of one step; None means ratios of parameters, which
      reproduce the printed numbers to 0.01. The paper says "information
      provided by Leviathan", but with his c (0.02 and 0.04) the six rows are
      2.389, 2.641, 2.716, 3.149, 3.234 and 3.363.

  The printed block lengths are the optima but for the horizontal row of
  CNN/DM: (5, 5) gives 3.046, more than the 3.028 of (5, 3).
  """
  costs = swi.cost_table("params_v11") if costs is None else costs
  rows = []
  for row in CS_DRAFTING_TABLE_1:
    drafts = [name for name, length in row.drafts for _ in range(length)]
    rates = [leviathan_rate(row.task, name) for name in drafts]
    value = horizontal_ewif(rates, [costs[name] for name in drafts])
    rows.append((row, value))
  return rows


def _same_length(rates, costs):
  rates = checks.probability("rates", rates)
  costs = checks.nonnegative("costs", costs)
  if rates.ndim != 1 or rates.shape != costs.shape:
    raise ValueError(
      f"rates have shape {rates.shape} and costs {costs.shape}; both must be"
      " one list of the same length"
    )
  return rates, costs
