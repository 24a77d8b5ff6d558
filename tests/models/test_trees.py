"""A tree of tokens, fed whole or level by level, scores as its paths do."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import tree_windows
from speccascade.models.intersection import IntersectionLM
from speccascade.models.markov_lm import MarkovLM
from speccascade.training import ngram_counts
from tests import toy
from tests.models.feeding import close, extend, feed, int32, keep
from tests.models.growing import (
  GEMMA,
  HELD,
  LLAMA,
  NUM_NODES,
  SIZES,
  T5,
  T5GEMMA,
  T5GEMMA2,
  V,
  along,
  described,
  grow,
  network,
  some_tree,
  start,
)


@functools.cache
def ngram():
  """Returns a 4-gram model of a few repetitive texts."""
  rng = np.random.default_rng(0)
  texts = [list(rng.integers(2, 9, 40)) for _ in range(60)]
  counts = ngram_counts.count(texts, vocab_size=V, order=4)
  return ngram_counts.smooth(counts, vocab_size=V, successors=5, min_count=1)


def markov(prompted=False):
  table = np.random.default_rng(0).normal(size=(2, 9, 9, 9))
  return MarkovLM(jnp.asarray(table, jnp.float32), prompted=prompted)


def intersection():
  """Returns a chain of order 2 that reads the ids 0 to 8 in another order."""
  rng = np.random.default_rng(1)
  to_drafter = jnp.asarray(rng.permutation(9), jnp.int32)
  return IntersectionLM(
    markov(prompted=True), to_drafter, jnp.arange(9) % 4 != 3
  )


MODELS = {
  "t5": lambda: network(T5),
  "llama": lambda: network(LLAMA),
  "gemma": lambda: network(GEMMA),
  "t5gemma": lambda: network(T5GEMMA),
  "t5gemma2": lambda: network(T5GEMMA2),
  "t5 packed": lambda: network(T5, "float32"),
  "llama packed": lambda: network(LLAMA, "float32"),
  "markov": markov,
  "ngram": ngram,
  "intersection": intersection,
  "whole text": lambda: toy.whole(9)[0],
}
QUICK = ("t5", "t5gemma", "llama packed", "ngram")


@functools.cache
def model(name):
  return MODELS[name]()


def close_laws(actual, wanted):
  """Asserts that logits are close; impossible tokens apart."""
  actual, wanted = np.asarray(actual), np.asarray(wanted)
  np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(wanted))
  possible = np.isfinite(wanted)
  close(actual[possible], wanted[possible])


def test_the_trees_of_these_tests_branch():
  """They have levels, equal siblings, and paths that skip nodes."""
  nodes, paths = some_tree()
  for b, row in enumerate(paths):
    assert max(map(len, row)) == len(SIZES)
    assert nodes[b, 6] == nodes[b, 5]
    assert row[6][:-1] == row[5][:-1]
    assert any(path != list(range(len(path))) for path in row)
  assert {len(row[-1]) for row in paths} != {1}


@pytest.mark.parametrize("is_grown", [False, True], ids=["whole", "grown"])
@pytest.mark.parametrize("name", toy.nightly(MODELS, QUICK))
def test_a_tree_equals_its_paths_and_one_is_kept(name, is_grown):
  lm = model(name)
  state = start(lm)
  nodes, paths = some_tree()
  sizes = SIZES if is_grown else [NUM_NODES]
  fed, logits = grow(lm, state, nodes, paths, sizes)
  np.testing.assert_array_equal(fed.length, np.array(HELD) + NUM_NODES)
  text = np.random.default_rng(2).integers(2, 9, (3, 4), np.int32)
  lengths = set()
  for i in range(NUM_NODES):
    chain, want, path, count = along(lm, state, nodes, paths, i)
    close_laws(logits[:, i], want)
    lengths |= {*count}
    if i % 3:
      continue
    # Keep this path, and continue from it.
    kept = keep(lm, fed, int32(HELD), int32(path), int32(count))
    np.testing.assert_array_equal(kept.length, np.array(HELD) + count)
    _, actual = feed(lm, kept, text, [4] * 3)
    close_laws(actual, feed(lm, chain, text, [4] * 3)[1])
  assert lengths == {1, 2, 3}


@pytest.mark.parametrize("name", toy.nightly(MODELS, QUICK))
def test_a_tree_of_one_branch_is_a_chain(name):
  """Also where the window begins among the tokens before the block."""
  lm, rng = model(name), np.random.default_rng(3)
  block = rng.integers(2, 9, (3, 6), np.int32)
  state, first = feed(lm, start(lm), block[:, :3], [3] * 3)
  _, want = feed(lm, state, block[:, 3:], [3] * 3)
  row = [[*range(i + 1)] for i in range(6)]
  for end in (3, 5, 6):
    tree = described([row] * 3, end, 3)
    _, out = extend(lm, state, int32(block[:, 3:]), int32([3] * 3), None, *tree)
    close_laws(out.logits, want)
  assert not np.array_equal(first, want)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_fed_fewer_nodes_and_read_in_places(name):
  """Its first nodes are right, and so is what is read of them."""
  lm, state = model(name), start(model(name))
  nodes, paths = some_tree(4)
  tree = described(paths, NUM_NODES, NUM_NODES)
  count, read = int32([2, 0, NUM_NODES]), int32([[1, 0], [0, 0], [9, 4]])
  fed, out = extend(lm, state, int32(nodes), count, None, *tree)
  _, some = extend(lm, state, int32(nodes), count, read, *tree)
  np.testing.assert_array_equal(fed.length, np.array(HELD) + count)
  for b, i in ((0, 0), (0, 1), (2, 4), (2, 9)):
    want = along(lm, state, nodes, paths, i)[1][b]
    close_laws(out.logits[b, i], want)
    at = read[b].tolist().index(i)
    close_laws(some.logits[b, at], want)


@pytest.mark.parametrize("name", toy.nightly(MODELS, QUICK))
def test_a_kept_path_damages_nothing_beside_it(name):
  """At the end of the cache, and in a row that keeps nothing."""
  lm = model(name)
  # Six more slots than are held by the longest row.
  state = start(lm, capacity=max(HELD) + 6)
  rng = np.random.default_rng(5)
  nodes = rng.integers(2, 9, (3, 4), np.int32)
  paths = [[[0], [0, 1], [0, 2], [0, 2, 3]]] * 3
  fed, _ = grow(lm, state, nodes, paths, [1, 3])
  # More places than there are slots after the row's first node.
  path = np.full((3, 9), 3, np.int32)
  path[:, 1:3] = 2, 3
  path[:, 0] = 0
  kept = keep(lm, fed, int32(HELD), int32(path), int32([3, 0, 2]))
  assert kept.length.tolist() == [8, 0, 4]
  text = rng.integers(2, 9, (3, 3), np.int32)
  block = np.full((3, 3), 8, np.int32)
  block[0], block[2, :2] = nodes[0, [0, 2, 3]], nodes[2, [0, 2]]
  chain, _ = feed(lm, state, block, [3, 0, 2])
  _, want = feed(lm, chain, text, [3] * 3)
  close_laws(feed(lm, kept, text, [3] * 3)[1], want)


def test_kept_slots_are_those_of_the_definition():
  """Against a loop, for every start, count and number of nodes."""
  num_slots, rng = 7, np.random.default_rng(0)
  for num in range(1, num_slots + 1):
    for first in range(num_slots + 1):
      for count in range(min(num, num_slots - first) + 1):
        path = rng.permutation(num_slots - first)[:count]
        rest = rng.integers(0, 99, num - count)
        rows = np.concatenate([path, rest]).astype(np.int32)[None]
        read, at = tree_windows.kept_slots(
          num_slots, int32([first]), jnp.asarray(rows), int32([count])
        )
        slots = np.arange(num_slots)
        actual = slots.copy()
        actual[int(at[0]) : int(at[0]) + num] = read[0]
        want = slots.copy()
        want[first : first + count] = first + path
        np.testing.assert_array_equal(actual, want)


def test_keeping_no_nodes_forgets_the_tree():
  lm = model("t5")
  state = start(lm)
  fed, _ = grow(lm, state, *some_tree())
  none = jnp.zeros((3, 0), jnp.int32)
  kept = keep(lm, fed, state.length, none, int32([0] * 3))
  np.testing.assert_array_equal(kept.length, HELD)


@pytest.mark.parametrize("name", MODELS)
def test_what_does_not_describe_a_tree_is_refused(name):
  lm = model(name)
  state, tokens = start(lm), jnp.full((3, 4), 2, jnp.int32)
  depth = jnp.zeros((3, 5), jnp.int32)
  ancestors = jnp.ones((3, 4, 5), bool)
  for options, message in (
    ({"depth": depth}, "a block has depth and no ancestors; give both"),
    ({"ancestors": ancestors}, "a block has ancestors and no depth; give both"),
    (
      {"depth": depth[:, :3], "ancestors": ancestors},
      r"depth has shape \[3, 3\]; wanted \[3, 4 or more\]",
    ),
    (
      {"depth": depth[:2], "ancestors": ancestors},
      r"depth has shape \[2, 5\]; wanted \[3, 5\]",
    ),
    (
      {"depth": depth, "ancestors": ancestors[:, :, 1:]},
      r"ancestors has shape \[3, 4, 4\]; wanted \[3, 4, 5\]",
    ),
  ):
    with pytest.raises(ValueError, match=message) as error:
      lm.extend(state, tokens, int32([4] * 3), **options)
    assert "\n" not in str(error.value)
