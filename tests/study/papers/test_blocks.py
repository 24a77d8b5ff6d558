"""Blocks of known texts: chains, heads and trees are one recursion."""

import numpy as np
import pytest

from speccascade.study.papers import blocks as library
from speccascade.study.papers import draft_trees, speedup
from speccascade.study.papers.blocks import acceptance_by_depth, chain


def blocks_of(rates, lengths, gamma):
  """Returns the blocks of chains whose rates [..., N, T] have no depth."""
  rates = np.asarray(rates, float)[None, None, None]
  return library.blocks(rates, lengths, chain(gamma))


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_one_rate_along_a_long_text(gamma):
  num = 4000
  blocks = blocks_of(np.full((1, num), 0.8), [num], gamma)
  want = speedup.expected_tokens(0.8, gamma)
  assert num / blocks.num[0] == pytest.approx(want, rel=2e-3)
  rates = blocks.accepted / blocks.examined
  np.testing.assert_allclose(rates, 0.8)


def test_certain_drafts_and_texts_that_end():
  # Blocks of 2: (a b) c | (d e) f; then x is wrong: (x) | (a b) c ...
  rates = [[1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1]]
  blocks = blocks_of(rates, [6, 5], 2)
  np.testing.assert_array_equal(blocks.num, [2, 3])
  # The last block of the second has one token left to write.
  np.testing.assert_array_equal(blocks.examined[1], [3, 1])
  np.testing.assert_array_equal(blocks.accepted[1], [2, 1])


def test_blocks_may_be_longer_than_texts():
  blocks = blocks_of([[1, 1]], [2], 4)
  np.testing.assert_array_equal(blocks.num, [1])
  np.testing.assert_array_equal(blocks.examined, [[1, 1, 0, 0]])


def test_against_drawn_acceptances():
  rng = np.random.default_rng(0)
  rates, length, gamma, num = rng.random(9), 8, 3, 20000
  blocks = blocks_of(rates[None], [length], gamma)
  num_blocks, examined, accepted = [], np.zeros(gamma), np.zeros(gamma)
  for is_accepted in rng.random((num, 9)) < rates:
    start = count = 0
    while start < length:
      count += 1
      drafts = is_accepted[start : min(start + gamma, length)]
      run = int(np.cumprod(drafts).sum())
      # The first rejected draft is examined too, inside the text.
      examined[: run + 1][: len(drafts)] += 1
      accepted[:run] += 1
      start += run + 1
    num_blocks.append(count)
  error = 4.5 * np.std(num_blocks) / np.sqrt(num)
  assert np.mean(num_blocks) == pytest.approx(blocks.num[0], abs=error)
  np.testing.assert_allclose(examined / num, blocks.examined[0], atol=0.03)
  np.testing.assert_allclose(accepted / num, blocks.accepted[0], atol=0.03)


def test_heads_have_a_rate_a_depth():
  """The first block writes one token: (x) | (a b) c | d, say."""
  rates = np.array([[[0, 1, 1, 1, 1]], [[0, 0, 1, 0, 0]]])[:, None, None]
  blocks = library.blocks(rates, [5], chain(2), first_drafts=False)
  np.testing.assert_array_equal(blocks.num, [3])
  np.testing.assert_array_equal(blocks.accepted, [[2, 1]])
  with pytest.raises(ValueError, match="no more drafts in a row"):
    library.blocks(rates, [5], chain(3))


def test_a_long_text_tells_the_tokens_of_a_tree():
  """Where every place is alike, a block is that of the closed form."""
  tree, num = (-1, -1, 0, 0, 1, 2), 4000
  rates = np.zeros((2, 2, 2))
  rates[0, :, 0], rates[1, :, 0] = (0.6, 0.45), (0.5, 0.35)
  rates[:, 1, 1] = (0.3, 0.25)
  rates = np.concatenate([rates, rates[1:] / 2])
  along = np.tile(rates[..., None, None], (1, num))
  got = num / library.blocks(along, [num], tree).num[0]
  want = draft_trees.expected_tokens(tree, rates)
  assert got == pytest.approx(want, rel=2e-3)


def test_acceptance_by_depth():
  """Depth 1 is the mean; deeper places count as a chain reaches them."""
  rates = np.zeros((1, 2, 2, 1, 3))
  rates[0, 0, 0, 0] = [0.5, 0.25, 1.0]
  rates[0, 1, 0, 0] = [0.5, 0.25, 1.0]
  rates[0, 1, 1, 0] = [0.5, 0.0, 0.0]
  got = acceptance_by_depth(rates, [3], 2)
  np.testing.assert_allclose(got[0, 0, 0], 1.75 / 3)
  np.testing.assert_allclose(got[0, 1], [1.75 / 3, 0.5 / 3])
  # The second place is reached with .5, the third with .25.
  want = (0.5 * 0.25 + 0.25 * 1.0) / 0.75
  np.testing.assert_allclose(got[1, 0, 0], want)
