"""Chi-square and total variation against scipy and against their promises."""

import itertools

import numpy as np
import pytest
from scipy import stats

from speccascade.decoding.records import token_buffers
from speccascade.judge import goodness
from tests import chunk_laws


def test_the_tail_is_scipys():
  degrees = (1, 2, 3, 8, 39, 363)
  for n, share in itertools.product(degrees, (0.01, 0.4, 1, 1.3, 2.5, 6)):
    expected = stats.chi2.sf(share * n, n)
    actual = goodness.chi_square_tail(share * n, n)
    assert actual == pytest.approx(expected, rel=1e-9, abs=1e-15)
  assert goodness.chi_square_tail(0.0, 0) == 1


def test_a_chunk_is_cut_as_the_product_cuts_it():
  chunks = np.array(list(itertools.product(range(3), repeat=3)), np.int32)
  for num, room in itertools.product((1, 2, 3), (1, 2, 4)):
    sizes = [np.full(len(chunks), x, np.int32) for x in (num, room)]
    actual = chunk_laws.cut(chunks, *sizes, 1)
    expected = token_buffers.cut(chunks, *sizes, 1)
    for mine, theirs in zip(actual, expected):
      np.testing.assert_array_equal(mine, theirs)


RARE = {
  "one that expects .01": (0.6, 0.3, 0.1 - 1e-5, 1e-5),
  "two that expect 1": (0.5, 0.3, 0.199, 0.00099, 1e-5),
  "many": (0.9, *(0.001,) * 100),
}


@pytest.mark.parametrize("law", RARE.values(), ids=RARE)
def test_right_samples_are_no_more_often_far_than_stated(law):
  law = np.array(law)
  drawn = np.random.default_rng(0).multinomial(1000, law, 10_000)
  rows, times = np.unique(drawn, axis=0, return_counts=True)
  values = np.array([goodness.p_value(row, law) for row in rows])
  for level, most in ((1e-2, 140), (1e-3, 25), (1e-4, 6)):
    # Expected are 100, 10 and 1; chi-square is near in cells that expect 10.
    assert times[values < level].sum() <= most


def test_counts_without_mass_and_too_many_rare_ones_are_far():
  law = np.array([0.5, 0.494, 0.003, 0.003, 0.0])
  fits = np.array([500, 494, 3, 3, 0])
  assert goodness.p_value(fits, law) > 0.5
  assert goodness.p_value(np.add(fits, [-1, 0, 0, 0, 1]), law) == 0
  # The pool expects 6, and 494 with the outcome that joins it: 40 more are
  # hidden there, and not from the test of the pool by itself.
  assert goodness.p_value(np.add(fits, [-20, -20, 20, 20, 0]), law) < 1e-15
  # A pool that expects 50, of outcomes that expect 5 each.
  law = np.array([0.5, 0.49, *(0.001,) * 10])
  counts = np.array([2475, 2425, *(10,) * 10])
  assert goodness.p_value(counts, law) < 1e-10
  # All outcomes are rare.
  assert goodness.p_value(np.array([5, 0]), np.array([0.5, 0.5])) == 1


def test_the_rare_tail_is_scipys():
  for count, num, share in itertools.product(
    (0, 1, 7, 60), (80, 5000), (1e-9, 0.001, 0.0019)
  ):
    binomial = stats.binom(num, share)
    tails = binomial.cdf(count), binomial.sf(count - 1)
    actual = goodness._rare_p_value(count, num, share)
    assert actual == pytest.approx(min(1, 2 * min(tails)), rel=1e-9)
