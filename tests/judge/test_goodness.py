"""Chi-square and total variation against scipy and against their promises."""

import itertools

import numpy as np
import pytest
from scipy import stats

from speccascade.decoding.loops import emission
from speccascade.judge import chunk_laws, goodness


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
    expected = emission.cut(chunks, *sizes, 1)
    for mine, theirs in zip(actual, expected):
      np.testing.assert_array_equal(mine, theirs)
