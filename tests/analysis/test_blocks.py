"""Blocks of known texts: closed forms, certain drafts, a Monte-Carlo twin."""

import numpy as np
import pytest

from speccascade.analysis import blocks, speedup


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_one_rate_along_a_long_text(gamma):
  num = 4000
  found = blocks.blocks_of_texts(np.full((1, num), 0.8), [num], gamma)
  wanted = speedup.expected_tokens(0.8, gamma)
  assert num / found.num[0] == pytest.approx(wanted, rel=2e-3)
  rates = found.accepted / found.examined
  np.testing.assert_allclose(rates, 0.8)


def test_certain_drafts_and_texts_that_end():
  # Blocks of 2: (a b) c | (d e) f; then x is wrong: (x) | (a b) c ...
  rates = [[1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1]]
  found = blocks.blocks_of_texts(rates, [6, 5], 2)
  np.testing.assert_array_equal(found.num, [2, 3])
  # The last block of the second has one token left to write.
  np.testing.assert_array_equal(found.examined[1], [3, 1])
  np.testing.assert_array_equal(found.accepted[1], [2, 1])


def test_against_drawn_acceptances():
  rng = np.random.default_rng(0)
  rates, length, gamma, num = rng.random(9), 8, 3, 20000
  found = blocks.blocks_of_texts(rates[None], [length], gamma)
  seen, examined, accepted = [], np.zeros(gamma), np.zeros(gamma)
  for kept in rng.random((num, 9)) < rates:
    at = count = 0
    while at < length:
      count += 1
      drafts = kept[at : min(at + gamma, length)]
      run = int(np.cumprod(drafts).sum())
      examined[: run + 1][: len(drafts)] += 1
      accepted[:run] += 1
      at += run + 1
    seen.append(count)
  error = 4.5 * np.std(seen) / np.sqrt(num)
  assert np.mean(seen) == pytest.approx(found.num[0], abs=error)
  np.testing.assert_allclose(examined / num, found.examined[0], atol=0.03)
  np.testing.assert_allclose(accepted / num, found.accepted[0], atol=0.03)
