"""Expected walltime improvement factor (EWIF) of cascades of drafts.

The formulas are from Chen et al., "Cascade Speculative Drafting",
arXiv:2312.11462. A reviewer with acceptance rate a reviews a block of k drafts.
The block yields N tokens: N = i with probability a^(i-1) (1-a) for i = 1..k,
and N = k+1 with probability a^k. EWIF is the expected number of tokens divided
by the expected cost, in units of one verifier step.

Letters: the paper's alpha(M_t, M_d) is `acceptance_rate` here (see `speedup`).
k and n are the paper's inner and outer block lengths, c1 and c2 the costs of
one step of the two drafts. Rates and costs may be arrays, which broadcast. The
EWIF of one draft, phi'(1) / (c k + 1) (Corollary 4.2), is
`speedup.walltime_factor`.

The paper has these misprints, in its own letters. The proof's Eq. (6) starts
with x and must start with 1. Version 2 prints Corollary 4.2 with phi(1), which
is 1, in place of phi'(1). The proof of Corollary 4.4 says that
(1-(alpha alpha')^(k+1))/(1-alpha alpha') is less than 1; it is more than 1, and
the conclusion needs more than 1.
"""

import itertools

import numpy as np

from speccascade.study.papers import checks, swi
from speccascade.study.papers.published import (
  CS_DRAFTING_TABLE_1,
  leviathan_rate,
)
from speccascade.study.papers.speedup import geometric


def tokens_law(acceptance_rate: float, k: int) -> np.ndarray:
  """Returns [k+1] float64, the probabilities of 1, ..., k+1 tokens in a block.

  Args:
    acceptance_rate: in [0, 1].
    k: drafts of the block, 0 or more.
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  k = checks.count("k", k, 0)
  powers = rate ** np.arange(k + 1)
  return np.append(powers[:-1] * (1 - rate), powers[-1])


def pgf(acceptance_rate, k: int, x):
  """Returns phi(x) = E x^N, the probability generating function of a block.

  Args:
    acceptance_rate: in [0, 1].
    k: drafts of the block, 0 or more.
    x: the argument of the generating function.

  Source: Chen et al., Theorem 4.1: 1 + (x-1) (1-(a x)^(k+1)) / (1-a x). The
  quotient is computed as a geometric sum, which is not 0/0 at a x = 1.

  >>> round(float(pgf(0.3, 10, 0.8)), 10)
  0.7368421453
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  x = np.asarray(x, np.float64)
  return 1 + (x - 1) * geometric(rate * x, checks.count("k", k, 0))


def pgf_derivative(acceptance_rate, k: int, x):
  """Returns phi'(x); phi'(1) is the expected number of tokens of a block.

  Args:
    acceptance_rate: in [0, 1].
    k: drafts of the block, 0 or more.
    x: the argument of the generating function.

  Source: Chen et al., Corollary 4.2 (version 3; version 2 misprints phi(1)).

  >>> round(float(pgf_derivative(0.7, 5, 1)), 5)
  2.94117
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  k = checks.count("k", k, 0)
  x = np.asarray(x, np.float64)
  # phi(x) = 1 + (x-1) g(a x), so phi'(x) = g(a x) + (x-1) a g'(a x), with
  # g'(y) = 1 + 2 y + ... + k y^(k-1). `polyval` takes the highest power first.
  slope = np.polyval(np.arange(k, 0, -1.0), rate * x)
  return geometric(rate * x, k) + (x - 1) * rate * slope


def vertical_tokens(outer_rate, inner_rate, k: int, n: int):
  """Returns the expected tokens per verifier pass of a vertical cascade.

  The middle model and the small draft write n inner blocks, which the verifier
  reviews as one draft. The paper prints (1 - a phi^n(a)) / (1 - a), where a is
  the outer rate and phi^n is the n-th power; this is 0/0 at a = 1. Since
  1 - phi(a) = (1 - a) g(a) with a geometric sum g, it equals
  1 + a g(a) (1 + phi(a) + ... + phi(a)^(n-1)), which is computed here.

  Args:
    outer_rate: the verifier's acceptance rate of the middle model's tokens, the
      paper's alpha.
    inner_rate: the middle model's acceptance rate of the small draft's tokens,
      the paper's alpha'.
    k: tokens that the small draft writes in each inner block.
    n: inner blocks per verifier pass, 1 or more.

  Source: Chen et al., numerator of Theorem 4.3.
  """
  outer = checks.probability("outer_rate", outer_rate)
  inner = checks.probability("inner_rate", inner_rate)
  n = checks.count("n", n, 1)
  sum_inner = geometric(inner * outer, checks.count("k", k, 0))
  return 1 + outer * sum_inner * geometric(pgf(inner, k, outer), n - 1)


def vertical_ewif(outer_rate, inner_rate, k: int, n: int, c1, c2):
  """Returns the EWIF of a vertical cascade.

  Every inner block costs its full k drafts: no draft is cut short.

  Args:
    outer_rate: see `vertical_tokens`.
    inner_rate: see `vertical_tokens`.
    k: see `vertical_tokens`.
    n: see `vertical_tokens`.
    c1: the cost of one step of the middle model.
    c2: the cost of one step of the small draft.

  Source: Chen et al., Theorem 4.3; the cost is 1 + n c1 + n k c2. By Corollary
  4.4 the cascade beats the middle model alone with n drafts where c2 is near 0.
  At equal n the cascade drafts more tokens per pass, so the optima should be
  compared as well.

  >>> round(float(vertical_ewif(0.8, 0.2, 10, 5, 0.04, 0)), 7)
  3.3108472
  """
  tokens = vertical_tokens(outer_rate, inner_rate, k, n)
  c1, c2 = checks.nonnegative("c1", c1), checks.nonnegative("c2", c2)
  return tokens / (1 + n * c1 + n * k * c2)


def acceptance_by_position(rates) -> np.ndarray:
  """Returns [G] float64, the chance that each position's draft is emitted.

  A draft is emitted if it and all drafts before it are accepted. So the first
  tokens of a block matter most, which is the reason for horizontal cascades.

  Args:
    rates: [G], the acceptance rate at each position.

  Source: Chen et al., Figure 2, which shows alpha^i for one draft.
  """
  return np.cumprod(checks.probability("rates", rates))


def horizontal_ewif(rates, costs) -> float:
  """Returns the EWIF of a horizontal cascade.

  In a horizontal cascade other drafts write the later tokens of a block than
  the first tokens.

  Args:
    rates: [G], the acceptance rate of the draft that writes each position.
    costs: [G], the cost of one step of the draft that writes each position.

  Source: Chen et al., Theorem 4.5: sum_{i=0..G} prod_{j<=i} alpha_j over
  1 + sum_j c_j.
  """
  rates, costs = _same_length(rates, costs)
  return float((1 + np.sum(acceptance_by_position(rates))) / (1 + costs.sum()))


def horizontal_gradient(rates, costs) -> np.ndarray:
  """Returns [G], the derivative of `horizontal_ewif` by each position's rate.

  The derivative falls from each position to the next where the rates do not
  rise, so the better draft belongs at the front.

  Args:
    rates: see `horizontal_ewif`.
    costs: see `horizontal_ewif`.

  Source: Chen et al., Corollary 4.6. The derivative is proved to fall for rates
  that do not rise: with A = 1 + a_{l+2} (1 + a_{l+3} (...)) <= 1/(1 - a_{l+1}),
  neighbours differ by a multiple of 1 + (a_{l+1} - a_l) A >= 1 -
  (1 - a_{l+1}) A >= 0. For the rates (0.9, 0.1, 1, 1) it rises.

  >>> horizontal_gradient([0.8, 0.7, 0.6], [0.1, 0.05, 0.02]).round(7)
  array([1.8119658, 1.0940171, 0.4786325])
  """
  rates, costs = _same_length(rates, costs)
  before = np.cumprod(np.append(1.0, rates[:-1]))
  # The numerator is 1 + a_1 (1 + a_2 (1 + ...)). Its derivative by a_l is the
  # product of the rates before l, times A of l: 1 + a_{l+1} (1 + ...), which is
  # computed from the last position backwards.
  after = np.ones(len(rates))
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

  Of choices with equal EWIF the one with the smaller k is returned, and of
  those the one with the smaller n.

  Args:
    outer_rate: see `vertical_tokens`.
    inner_rate: see `vertical_tokens`.
    c1: see `vertical_ewif`.
    c2: see `vertical_ewif`.
    max_k: the largest k that is tried.
    max_n: the largest n that is tried.
  """

  def ewif(choice):
    k, n = choice
    return float(vertical_ewif(outer_rate, inner_rate, k, n, c1, c2))

  # `max` returns the first of equal choices, and k and n are in rising order.
  choices = itertools.product(range(1, max_k + 1), range(1, max_n + 1))
  k, n = best = max(choices, key=ewif)
  return k, n, ewif(best)


def optimal_horizontal(
  rates, costs, *, max_length: int = 20
) -> tuple[tuple[int, ...], float]:
  """Returns the best number of tokens of each draft, and their EWIF.

  The search goes through all (max_length + 1)^drafts cases, so it is meant for
  two or three drafts.

  Args:
    rates: the acceptance rate of each draft, in the order of the block.
    costs: the cost of one step of each draft.
    max_length: the most tokens of one draft.

  >>> lengths, ewif = optimal_horizontal([0.8, 0.75], [248 / 11300, 77 / 11300])
  >>> lengths, round(ewif, 3)
  ((5, 8), 3.929)
  """
  rates, costs = _same_length(rates, costs)

  def ewif(lengths):
    return horizontal_ewif(np.repeat(rates, lengths), np.repeat(costs, lengths))

  choices = range(checks.count("max_length", max_length, 1) + 1)
  best = max(itertools.product(choices, repeat=len(rates)), key=ewif)
  return best, ewif(best)


def table_1(costs=None) -> list[tuple]:
  """Returns (row, EWIF) for each row of the paper's Table 1.

  The printed block lengths are the optima, except in the horizontal row of
  CNN/DM: (5, 5) gives 3.046, more than the 3.028 of the printed (5, 3).

  Args:
    costs: T5 size -> cost of one step. None takes ratios of parameters, which
      reproduce the printed numbers to 0.01. The paper says "information
      provided by Leviathan", but with Leviathan et al.'s c (0.02 and 0.04) the
      six rows are 2.389, 2.641, 2.716, 3.149, 3.234 and 3.363.
  """
  costs = swi.cost_table("params_v11") if costs is None else costs
  rows = []
  for row in CS_DRAFTING_TABLE_1:
    # The model that writes each position of the block.
    writers = [name for name, length in row.drafts for _ in range(length)]
    rates = [leviathan_rate(row.task, name) for name in writers]
    ewif = horizontal_ewif(rates, [costs[name] for name in writers])
    rows.append((row, ewif))
  return rows


def _same_length(rates, costs):
  """Returns rates and costs as two float64 arrays of one length."""
  rates = checks.probability("rates", rates)
  costs = checks.nonnegative("costs", costs)
  if rates.ndim != 1 or rates.shape != costs.shape:
    raise ValueError(
      f"rates have shape {rates.shape} and costs {costs.shape}; both must be"
      " one list of the same length"
    )
  return rates, costs
