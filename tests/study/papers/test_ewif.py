"""Chen et al.'s theorems against definitions, goldens, printed tables."""

import numpy as np
import pytest

from speccascade.study.papers import ewif, speedup
from speccascade.study.papers.published import leviathan_rate

GRID = np.arange(1, 100) / 100
LENGTHS = (1, 2, 5, 20)
_draw = np.random.default_rng(0)
CASES = [(0.0, 3, 0.5), (1.0, 3, 0.5), (1.0, 3, 1.0), (0.4, 0, 0.7)]
CASES += list(
  zip(*(_draw.random(200), _draw.integers(0, 25, 200), _draw.random(200) * 1.2))
)


def by_definition(rate, k, x):
  """E x^N, term by term."""
  i = np.arange(1, k + 1)
  ended = rate ** (i - 1) * (1 - rate) * x**i
  return rate**k * x ** (k + 1) + ended.sum()


def test_generating_function_is_the_definition():
  # Theorem 4.1, and Eqs. (3) to (5) of its proof.
  for rate, k, x in CASES:
    want = by_definition(rate, k, x)
    assert ewif.pgf(rate, k, x) == pytest.approx(want, abs=1e-13)
    law = ewif.tokens_law(rate, k)
    assert law.sum() == pytest.approx(1, abs=1e-14)
    assert law @ x ** np.arange(1, k + 2) == pytest.approx(want, abs=1e-13)
    steps = ((rate * x) ** np.arange(1, k + 1)).sum()
    assert x + (x - 1) * steps == pytest.approx(want, abs=1e-13)


def test_printed_quotient_and_the_misprinted_equation_6():
  rate, k, x = 0.7, 5, 0.6
  tail = (x - 1) * (1 - (rate * x) ** (k + 1)) / (1 - rate * x)
  assert ewif.pgf(rate, k, x) == pytest.approx(1 + tail)
  assert abs(ewif.pgf(rate, k, x) - (x + tail)) == pytest.approx(1 - x)


VERTICAL = 0.8, 0.2, 10, 5, 0.04
HORIZONTAL = [0.8, 0.7, 0.6], [0.1, 0.05, 0.02]
# function, arguments, what it gives, its last digit's unit
GOLDENS = [
  (ewif.vertical_ewif, (*VERTICAL, 0), 3.3108472, 1e-7),
  (ewif.vertical_ewif, (*VERTICAL, 0.001), 3.1784, 1e-4),
  (ewif.vertical_ewif, (0.8, 0.75, 5, 3, 0.04, 0.02), 3.1174, 1e-4),
  # 1 + .8 + .8*.7 + .8*.7*.6 = 2.696 tokens at cost 1.17
  (ewif.horizontal_ewif, HORIZONTAL, 2.696 / 1.17, 1e-12),
]


@pytest.mark.parametrize(("function", "args", "want", "unit"), GOLDENS)
def test_goldens(function, args, want, unit):
  np.testing.assert_allclose(function(*args), want, rtol=0, atol=0.51 * unit)


def test_derivative_by_complex_step():
  # f'(x) = Im f(x + ih) / h without cancellation.
  h = 1e-30
  for rate, k, x in CASES:
    want = by_definition(rate, k, x + 1j * h).imag / h
    assert ewif.pgf_derivative(rate, k, x) == pytest.approx(want, abs=1e-11)


@pytest.mark.parametrize("k", LENGTHS)
def test_mean_is_the_derivative_at_1(k):
  # Corollary 4.2 as version 3 prints it; version 2's phi(1) is 1.
  np.testing.assert_allclose(
    ewif.pgf_derivative(GRID, k, 1), (1 - GRID ** (k + 1)) / (1 - GRID)
  )
  np.testing.assert_allclose(ewif.pgf(GRID, k, 1), 1)
  np.testing.assert_allclose(
    speedup.walltime_factor(GRID, k, 0.04),
    ewif.pgf_derivative(GRID, k, 1) / (0.04 * k + 1),
  )


def convolved_tokens(outer, inner, k, n):
  """Expected tokens of a vertical cascade, from its draft's q."""
  law = np.array([1.0])
  for _ in range(n):  # the draft is n independent inner blocks
    law = np.convolve(law, np.append(0, ewif.tokens_law(inner, k)))
  # A draft of that many tokens yields 1 + outer + outer^2 + ... of them.
  return law @ np.cumsum(outer ** np.arange(len(law)))


@pytest.mark.parametrize("outer", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("inner", [0.0, 0.2, 0.75, 1.0])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 2), (10, 5)])
def test_vertical_is_the_exact_convolution(outer, inner, k, n):
  value = ewif.vertical_tokens(outer, inner, k, n)
  assert value == pytest.approx(convolved_tokens(outer, inner, k, n), rel=1e-12)
  if outer < 1:  # Theorem 4.3 as printed; phi^n is a power
    power = ewif.pgf(inner, k, outer) ** n
    assert value == pytest.approx((1 - outer * power) / (1 - outer), rel=1e-12)


@pytest.mark.parametrize("k", LENGTHS)
def test_corollary_4_4(k):
  outer, inner = GRID[:, None], GRID[None]
  difference = ewif.pgf(inner, k, outer) - outer
  # The smallest gap on the grid is .01 * .01 * .99, rounded 1e-4.
  assert difference.max() < -9e-5
  # The step of the proof that is printed the wrong way round.
  y = outer * inner
  assert np.all((1 - y ** (k + 1)) / (1 - y) > 1)


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("k", LENGTHS)
def test_corollary_4_4_in_walltime(k, n):
  # At c2 = 0 the vertical cascade beats n drafts of the middle model.
  outer, inner = GRID[:, None], GRID[None]
  vertical = ewif.vertical_ewif(outer, inner, k, n, 0.05, 0)
  speculative = speedup.walltime_factor(outer, n, 0.05)
  assert np.all(vertical >= speculative - 1e-14)
  # Below, the gain (about outer^(n+1) inner) drowns in rounding.
  assert np.all((vertical > speculative)[GRID >= 0.1])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_horizontal_gradient_by_differences(size):
  # EWIF is linear in each rate, so a difference of any size is exact.
  rng = np.random.default_rng(size)
  rates, costs = np.append(rng.random(size - 1), 0.0), rng.random(size) / 10
  gradient = ewif.horizontal_gradient(rates, costs)
  for place, slope in enumerate(gradient):
    low, high = (
      ewif.horizontal_ewif(np.where(np.arange(size) == place, x, rates), costs)
      for x in (0.0, 1.0)
    )
    assert slope == pytest.approx(high - low, abs=1e-13)


def test_corollary_4_6():
  rng = np.random.default_rng(2)
  for _ in range(200):
    rates = np.sort(rng.random(6))[::-1]
    gradient = ewif.horizontal_gradient(rates, np.full(6, 0.1))
    assert np.all(np.diff(gradient) <= 1e-12)
  rising = ewif.horizontal_gradient([0.9, 0.1, 1, 1], np.zeros(4))
  # 1 + .1 + .1 + .1 against .9 (1 + 1 + 1)
  np.testing.assert_allclose(rising[:2], [1.3, 2.7])


def test_table_1():
  rows, values = zip(*ewif.table_1())
  want = [2.656, 2.965, 3.028, 3.610, 3.751, 3.929]
  np.testing.assert_allclose(values, want, rtol=0, atol=5.001e-4)
  printed = [row.printed for row in rows]
  np.testing.assert_allclose(values, printed, rtol=0, atol=0.01)
  # At Leviathan et al.'s costs.
  _, values = zip(*ewif.table_1({"small": 0.02, "base": 0.04}))
  want = [2.389, 2.641, 2.716, 3.149, 3.234, 3.363]
  np.testing.assert_allclose(values, want, rtol=0, atol=5.001e-4)


def test_table_1_uses_the_best_block_lengths():
  costs = {"small": 77 / 11300, "base": 248 / 11300}
  for row, value in ewif.table_1(costs):
    names, lengths = zip(*row.drafts)
    rates = [leviathan_rate(row.task, name) for name in names]
    units = [costs[name] for name in names]
    best, most = ewif.optimal_horizontal(rates, units, max_length=14)
    if row.task == "cnndm" and len(names) == 2:
      assert best == (5, 5)
      assert abs(most - 3.046) < 5.001e-4
    else:
      assert best == lengths
      assert most == pytest.approx(value)
    if len(names) == 1:
      assert speedup.optimal_gamma(rates[0], units[0])[0] == best[0]


def test_optimal_vertical_is_a_maximum():
  rates, costs = (0.8, 0.6), (0.05, 0.002)
  k, n, value = ewif.optimal_vertical(*rates, *costs, max_k=15, max_n=12)
  assert 1 < k < 15
  assert 1 < n < 12
  assert value == pytest.approx(ewif.vertical_ewif(*rates, k, n, *costs))
  for near in [(k - 1, n), (k + 1, n), (k, n - 1), (k, n + 1)]:
    assert ewif.vertical_ewif(*rates, *near, *costs) <= value


@pytest.mark.parametrize(
  ("function", "args", "words"),
  [
    (ewif.horizontal_ewif, ([0.5, 0.4], [0.1]), "same length"),
    (ewif.vertical_ewif, (0.5, 1.5, 2, 2, 0.1, 0), r"inner_rate is 1\.5"),
    (ewif.vertical_ewif, (0.5, 0.5, 2, 0, 0.1, 0), "n is 0"),
  ],
)
def test_bad_arguments_are_named(function, args, words):
  with pytest.raises(ValueError, match=words):
    function(*args)
