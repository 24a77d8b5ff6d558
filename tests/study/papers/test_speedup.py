"""Leviathan et al.'s factors, and the cost model."""

import numpy as np
import pytest

from speccascade.study.papers import speedup
from speccascade.study.papers.published import LEVIATHAN_TABLE_4

RATES = np.linspace(0, 0.999, 60)
# Walltime factors of Table 4 to three digits, from its two-digit rates.
RECOMPUTED = (
  3.157,
  3.251,
  2.497,
  2.258,
  2.347,
  1.934,
  2.402,
  2.619,
  2.025,
  1.891,
  1.803,
  1.541,
)
OPTIMAL = (9, 9, 6, 6, 6, 4, 7, 7, 4, 5, 4, 3)


@pytest.mark.parametrize("gamma", [0, 1, 2, 5, 40])
def test_expected_tokens_is_the_printed_quotient(gamma):
  want = (1 - RATES ** (gamma + 1)) / (1 - RATES)
  value = speedup.expected_tokens(RATES, gamma)
  np.testing.assert_allclose(value, want, rtol=1e-12)


def test_expected_tokens_at_the_ends():
  assert speedup.expected_tokens(0, 5) == 1
  assert speedup.expected_tokens(1, 5) == 6
  # The quotient would lose every digit here.
  close = speedup.expected_tokens(1 - 1e-14, 5)
  assert abs(close - 6) < 1e-12


# Leviathan et al., Table 1: (rate, gamma), operations, speed; c = 0.
@pytest.mark.parametrize(
  ("rate", "gamma", "operations", "speed"),
  [
    (0.6, 2, 1.531, 1.960),
    (0.7, 3, 1.579, 2.533),
    (0.8, 2, 1.230, 2.440),
    (0.8, 5, 1.626, 3.689),
    (0.9, 2, 1.107, 2.710),
    (0.9, 10, 1.603, 6.862),
  ],
)
def test_leviathan_table_1(rate, gamma, operations, speed):
  value = speedup.operations_factor(rate, gamma, 0)
  assert abs(value - operations) < 5.001e-4
  assert abs(speedup.walltime_factor(rate, gamma, 0) - speed) < 5.001e-4


def test_operations_factor_is_theorem_3_11():
  rate, gamma, c_hat = 0.7, 4, 0.1
  want = (1 - rate) * (gamma * c_hat + gamma + 1) / (1 - rate ** (gamma + 1))
  np.testing.assert_allclose(
    speedup.operations_factor(rate, gamma, c_hat), want, rtol=1e-13
  )


TABLE_4 = list(zip(LEVIATHAN_TABLE_4, RECOMPUTED, OPTIMAL))


@pytest.mark.parametrize(("row", "factor", "optimal"), TABLE_4)
def test_leviathan_table_4(row, factor, optimal):
  rate, c = row.acceptance_rate, row.c
  value = speedup.walltime_factor(rate, row.gamma, c)
  assert abs(value - factor) < 5.001e-4
  # The printed number comes from an unrounded rate.
  assert abs(value - row.expected) < 0.07
  gamma, best = speedup.optimal_gamma(rate, c)
  assert gamma == optimal
  assert best == pytest.approx(speedup.walltime_factor(rate, gamma, c))
  # The paper's own blocks are shorter than the optimum, but for two rows.
  longer = [("ende", "large", 0), ("ende", "small", 1)]
  assert (row.gamma > gamma) == (row[:3] in longer)


def test_greedy_lenience_speedups():
  # A.5, EnDe small, gamma 8, c .015: printed 3.3, 3.3, 3.9, 4.9.
  rates = np.array([0.75, 0.75, 0.80, 0.87])
  value = speedup.walltime_factor(rates, 8, 0.015)
  np.testing.assert_allclose(value, [3.30, 3.30, 3.87, 4.91], atol=5.001e-3)


@pytest.mark.parametrize(
  ("rate", "reachable", "text"),
  [(0.62, 2.33, 2.5), (0.71, 2.94, 3.1), (0.76, 3.45, 3.6), (0.84, 4.79, 5)],
)
def test_sampling_lenience_speedups_are_not_reachable(rate, reachable, text):
  # A.5's text at T = 1 gives more than any gamma can.
  _, best = speedup.optimal_gamma(rate, 0.015)
  assert abs(best - reachable) < 5.001e-3
  assert best < text


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("c", [0.01, 0.1, 0.3, 0.95])
def test_some_gamma_helps_iff_the_rate_exceeds_c(rate, c):
  gamma, best = speedup.optimal_gamma(rate, c)
  assert (gamma > 0) == (rate > c)
  if rate > c:
    assert best >= (1 + rate) / (1 + c) - 1e-12
    assert best < speedup.gamma_bound(rate)


def test_free_drafts_take_the_whole_limit():
  assert speedup.optimal_gamma(0.8, 0, max_gamma=17)[0] == 17
  assert speedup.optimal_gamma(1, 0.1, max_gamma=17)[0] == 17


def test_block_cost_forms():
  for costs, want in (
    ({}, 5 * 0.05 + 1),
    ({"v": 1.5, "q2": 0.08}, 4 * 0.05 + 0.08 + 1.5),
    ({"v": 1.5, "bonus_law": True}, 6 * 0.05 + 1.5),
  ):
    assert speedup.block_cost(5, 0.05, **costs) == pytest.approx(want)


def test_optimal_gamma_of_the_measured_costs():
  # A block costs 1.5 whatever its width: one draft is not worth the jump.
  assert speedup.optimal_gamma(0.3, 0.05, v=1.5) == (0, 1.0)
  verifier = lambda g: 1 + 0.1 * g

  def factor(g):
    tokens = speedup.expected_tokens(0.8, g)
    return speedup.predicted_speedup(tokens, g, 0.05, v=verifier(g), q2=0.09)

  costs = {"v": verifier, "q2": 0.09, "max_gamma": 29}
  gamma, best = speedup.optimal_gamma(0.8, 0.05, **costs)
  assert gamma == max(range(1, 30), key=factor)
  assert best == pytest.approx(factor(gamma))


@pytest.mark.parametrize(
  ("call", "words"),
  [
    (lambda: speedup.expected_tokens(1.2, 3), r"acceptance_rate is 1\.2"),
    (lambda: speedup.expected_tokens(0.5, 2.5), r"gamma is 2\.5"),
    (lambda: speedup.walltime_factor(0.5, 3, -0.1), r"c is -0\.1"),
    (lambda: speedup.block_cost(0, 0.1), "gamma is 0"),
    (lambda: speedup.block_cost(2, 0.1, q2=0.2, bonus_law=True), "q2"),
    (lambda: speedup.expected_tokens(np.nan, 3), "acceptance_rate is nan"),
  ],
)
def test_bad_arguments_are_named(call, words):
  with pytest.raises(ValueError, match=words):
    call()
