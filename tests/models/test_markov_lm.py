"""The table as a `LanguageModel`: blocks, trees, and what a rewind leaves."""

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.records import prompts
from speccascade.models.markov_lm import MarkovLM
from tests import toy

V = 5
TABLE = np.random.default_rng(0).normal(size=(2, V, V, V)).astype(np.float32)
LM = MarkovLM(jnp.asarray(TABLE))
# What each row holds before a block. A start token comes first, or a prompt.
WRITTEN = [[0, 2, 4, 1], [1, 3]]
# Parents of the nodes of each row's tree; -1 is the prefix.
PARENTS = [[-1, 0, 0, 1, 2, -1, 5], [-1, -1, 1, 0, 2, 4, 1]]
NODES = [[3, 1, 4, 2, 2, 0, 4], [1, 4, 2, 3, 0, 3, 3]]


def logits_behind(row, tokens):
  """Returns [V], looked up by hand; 0 comes before the first token."""
  return TABLE[row][tuple([0, *tokens][-2:])]


def filled(lm=LM, capacity=16):
  """Returns the state in which each row holds what was written."""
  if lm.prompted:  # the first token of a prompt chooses its table
    inputs = toy.padded(WRITTEN, "left")
    last = prompts.last(inputs)[:, None]
    state = lm.prefill(inputs, capacity=capacity)
    return lm.extend(state, last, jnp.ones(2, jnp.int32))[0]
  width = max(map(len, WRITTEN))
  tokens = [row + [0] * (width - len(row)) for row in WRITTEN]
  source = jnp.asarray([[0], [1]], jnp.int32)
  count = jnp.asarray([len(row) for row in WRITTEN], jnp.int32)
  state = lm.prefill(source, capacity=capacity)
  return lm.extend(state, jnp.asarray(tokens, jnp.int32), count)[0]


def go_on(lm, state):
  """Returns the logits after one more token, 2."""
  fed = jnp.full((2, 1), 2, jnp.int32)
  return lm.extend(state, fed, jnp.ones(2, jnp.int32))[1].logits[:, 0]


@pytest.mark.parametrize("prompted", [False, True])
def test_a_tree_equals_its_paths_and_one_is_kept(prompted):
  paths = []
  for parents in PARENTS:
    paths.append([])
    for i, parent in enumerate(parents):
      paths[-1].append([*(paths[-1][parent] if parent >= 0 else []), i])
  num = len(NODES[0])
  depth = jnp.asarray([[len(p) - 1 for p in row] for row in paths], jnp.int32)
  ancestors = np.zeros((2, num, num), bool)
  for row in range(2):
    for i, path in enumerate(paths[row]):
      ancestors[row, i, path] = True
  lm = LM.replace(prompted=prompted)
  state = filled(lm)
  start = state.length
  tree = {"depth": depth, "ancestors": jnp.asarray(ancestors)}
  fed = jnp.asarray(NODES, jnp.int32), jnp.full((2,), num, jnp.int32)
  after, out = lm.extend(state, *fed, **tree)
  for row in range(2):
    for i, path in enumerate(paths[row]):
      along = [*WRITTEN[row], *(NODES[row][node] for node in path)]
      np.testing.assert_array_equal(
        out.logits[row, i], logits_behind(row, along)
      )
  # The paths to nodes 4 and 5: not the first nodes of their trees.
  path = jnp.asarray([[0, 2, 4, 0], [1, 2, 4, 5]], jnp.int32)
  count = jnp.asarray([3, 4], jnp.int32)
  after_keep = lm.keep(after, start, path, count)
  np.testing.assert_array_equal(after_keep.length, start + count)
  for row, want in enumerate(([3, 4, 2], [4, 2, 0, 3])):
    slots = after_keep.tokens[
      row, : after_keep.offset[row] + after_keep.length[row]
    ]
    assert slots.tolist() == [*WRITTEN[row], *want]
    one_less = lm.rewind(after_keep, after_keep.length - 1)
    for state, tokens in ((after_keep, want), (one_less, want[:-1])):
      np.testing.assert_array_equal(
        go_on(lm, state)[row], logits_behind(row, [*WRITTEN[row], *tokens, 2])
      )


def test_rewind_only_lowers():
  state = LM.rewind(filled(), jnp.asarray([2, 9], jnp.int32))
  np.testing.assert_array_equal(state.length, [2, 2])
  for row, tokens in enumerate(([0, 2, 2], [1, 3, 2])):
    logits = go_on(LM, state)[row]
    np.testing.assert_array_equal(logits, logits_behind(row, tokens))
