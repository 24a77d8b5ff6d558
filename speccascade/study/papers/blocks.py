"""The blocks in which known texts are written, expected without decoding.

A tree of drafts is a tuple `parents`, see `draft_trees`; a chain of gamma
drafts is the tree of one branch. Acceptance is an array `rates`, [D, K, K, ...,
N, T]: at [d, k - 1, b] the chance that token t of text n is the accepted child
of rank b, where k children were drafted d + 1 levels below the root. D is 1
where the chance is the same at each depth, and K is 1 for chains.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from speccascade.study.papers import checks
from speccascade.study.papers.draft_trees import ROOT


class ExpectedBlocks(NamedTuple):
  """The expected blocks in which each of N texts is written.

  Attributes:
    num: [..., N] the number of blocks.
    examined: [..., N, L] the number of blocks that examined a draft of each of
      the L levels of the tree, at a position inside the text.
    accepted: [..., N, L] the number of blocks that accepted one there.
  """

  num: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray

  def at(self, place: int) -> "ExpectedBlocks":
    """Returns the expectations at one index of the first axis."""
    return ExpectedBlocks(*(part[place] for part in self))


def chain(gamma: int) -> tuple[int, ...]:
  """Returns the tree of one branch, a chain of gamma drafts.

  >>> chain(3)
  (-1, 0, 1)
  """
  return tuple(range(ROOT, checks.count("gamma", gamma, 1) - 1))


def blocks(
  rates, lengths, tree: Sequence[int], *, first_drafts: bool = True
) -> ExpectedBlocks:
  """Returns the expected blocks that wrote texts, without decoding them.

  Suppose that the text's next token x was drawn from the target distribution pi
  after its prefix, by way of a draft. The chance that x is the accepted draft,
  and not the correction after rejected ones, is min(q, pi)(x) / pi(x) for one
  draft. Given the text, these events are independent of each other at all
  positions. So the expected number of blocks follows from these chances alone.

  The function carries along the text the chance that a block begins at each
  token. A block that begins at position t and accepts j drafts ends with the
  correction or the bonus at position t + j; the next block begins at t + j + 1.

  Args:
    rates: see the module. They are estimates where they exceed 1.
    lengths: [N], the tokens of each text, EOS included.
    tree: the parents of the drafts, level by level.
    first_drafts: whether the first block of a text drafts. If not, as with
      draft heads, it writes one token.

  Raises:
    ValueError: the tree is deeper or wider than the rates.

  >>> rates = np.array([1, 1, 0, 1, 1, 1]).reshape(1, 1, 1, 1, 6)
  >>> of_text = blocks(rates, [6], chain(2))
  >>> of_text.num, of_text.accepted
  (array([2.]), array([[2., 2.]]))
  """
  rates = checks.nonnegative("rates", rates)
  num_tokens = rates.shape[-1]
  inside = np.arange(num_tokens) < np.asarray(lengths)[:, None]
  at_least = _levels_accepted(rates * inside, tree)
  num_levels = len(at_least) - 2
  # [..., N, T, L + 1], the chance that a block accepts so many levels.
  ends = -np.diff(np.moveaxis(at_least, 0, -1), axis=-1)
  # The last block of a text may run past its end, hence the further positions.
  begins = np.zeros((*rates.shape[3:-1], num_tokens + num_levels + 1))
  begins[..., 0] = 1
  if not first_drafts:
    begins[..., 1] = 1
  for start in range(0 if first_drafts else 1, num_tokens):
    # No block begins after the end of a text.
    begins[..., start] *= inside[:, start]
    after = slice(start + 1, start + num_levels + 2)
    begins[..., after] += begins[..., start, None] * ends[..., start, :]
  begins = begins[..., :num_tokens]
  drafting = begins.copy()
  if not first_drafts:
    drafting[..., 0] = 0
  reached = drafting * at_least
  examined = [
    (reached[level, ..., : max(0, num_tokens - level)] * inside[:, level:]).sum(
      -1
    )
    for level in range(num_levels)
  ]
  accepted = np.moveaxis(reached[1:-1].sum(-1), 0, -1)
  return ExpectedBlocks(begins.sum(-1), np.stack(examined, -1), accepted)


def acceptance_by_depth(
  rates: np.ndarray, lengths, max_depth: int, *, first_drafts: bool = True
) -> np.ndarray:
  """Returns the acceptance by depth, number of children and rank.

  A block is as likely to begin at each token of a text as at any other one. The
  places at a depth count with the chance that a chain of drafts reaches them.
  The first block of a text does not count where it drafts nothing.

  Args:
    rates: [D, K, K, N, T], see the module.
    lengths: [N], the tokens of each text.
    max_depth: how many depths are asked for.
    first_drafts: see `blocks`.

  Returns:
    [max_depth, K, K] float64, in [0, 1].
  """
  inside = np.arange(rates.shape[-1]) < np.asarray(lengths)[:, None]
  weights = inside.astype(np.float64)
  if not first_drafts:
    weights[:, 0] = 0
  result = np.zeros((max_depth, *rates.shape[1:3]))
  for depth in range(max_depth):
    total, here = weights.sum(), _at_depth(rates, depth)
    if total > 0:
      result[depth] = np.einsum("nt,kbnt->kb", weights, here) / total
    # The chain continues where its only child was accepted.
    passed = weights * here[0, 0]
    weights = np.zeros_like(weights)
    weights[:, 1:] = passed[:, :-1] * inside[:, 1:]
  result = np.clip(result, 0, 1)
  # Estimates without replacement may exceed 1 in sum.
  return result / np.maximum(result.sum(axis=-1, keepdims=True), 1)


def _at_depth(rates: np.ndarray, depth: int) -> np.ndarray:
  """Returns the rates of a depth, which counts from 0."""
  if depth >= len(rates) > 1:
    raise ValueError(
      f"the tree has {depth + 1} levels or more, and rates are of {len(rates)}:"
      " ask for no more drafts in a row than there are heads"
    )
  return rates[depth if len(rates) > 1 else 0]


def _levels_accepted(rates: np.ndarray, tree: Sequence[int]) -> np.ndarray:
  """Returns [L + 2, ..., N, T], the chance that a block accepts l levels."""
  # The block begins at token t; the last entry, of more levels than there are,
  # is 0.
  tree = list(tree)
  paths: list[tuple[np.ndarray, int]] = []  # of each node, and its depth
  ranks = dict.fromkeys(tree, 0)
  for parent in tree:
    before, depth = (1.0, 0) if parent == ROOT else paths[parent]
    here = _at_depth(rates, depth)[tree.count(parent) - 1, ranks[parent]]
    ranks[parent] += 1
    # The child of depth d of a block from t is token t + d.
    shifted = np.zeros_like(here)
    width = max(0, here.shape[-1] - depth)
    shifted[..., :width] = here[..., depth:]
    paths.append((before * shifted, depth + 1))
  num_levels = max(depth for _, depth in paths)
  at_least = np.zeros((num_levels + 2, *rates.shape[3:]))
  at_least[0] = 1
  for chance, depth in paths:
    at_least[depth] += chance
  return np.minimum.accumulate(np.clip(at_least, 0, 1), axis=0)
