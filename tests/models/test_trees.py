"""A tree of tokens, fed whole or level by level, scores as its paths do."""

import functools

from flax import traverse_util
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import T5LM, LlamaLM, trees
from speccascade.models.intersection import IntersectionLM
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.markov_lm import MarkovLM
from speccascade.models.parameters import param_shapes
from speccascade.training import ngram_counts
from tests import toy
from tests.models.feeding import close, extend, feed, int32, keep, prefill

pytestmark = pytest.mark.usefixtures("quick_compiles")

V = 50
# Heads are no power of two, nor are they together as wide as the model.
T5 = toy.t5_config(
  vocab_size=V, emb_dim=20, head_dim=5, num_decoder_layers=2, mlp_dim=31
)
LLAMA = LlamaConfig(
  vocab_size=V,
  emb_dim=22,
  num_heads=6,
  num_kv_heads=3,
  num_decoder_layers=3,
  head_dim=6,
  mlp_dim=37,
  qkv_bias=True,
  query_key_norm=True,
  # The first layer sees all, the others four slots.
  window=4,
  windowed_layers=(1, 2),
)
SOURCES = [[3, 4, 5, 6], [7, 8, 0, 0], [9, 2, 3, 0]]
PROMPTS = [[3, 4, 5, 6], [7, 8, -1, -1], [-1, 9, 2, 3]]
HELD = (5, 0, 2)  # tokens that the rows hold before the tree
SIZES = (3, 4, 4)  # nodes of each level, so that a level has siblings
NUM_NODES = sum(SIZES)


def network(config, kernel_dtype=None):
  """Returns a T5 or a Llama whose weights, biases among them, are random."""
  rng = np.random.default_rng(0)
  params = {
    path: rng.normal(size=shape) / shape[0] ** 0.5 + path.endswith("scale")
    for path, shape in param_shapes(config).items()
  }
  params = traverse_util.unflatten_dict(params, sep="/")
  kind = LlamaLM if isinstance(config, LlamaConfig) else T5LM
  return kind.create(config, params, kernel_dtype=kernel_dtype)


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
  "markov": markov,
  "ngram": ngram,
  "intersection": intersection,
  "whole text": lambda: toy.whole(9)[0],
}


@functools.cache
def model(name):
  return MODELS[name]()


def start(lm, capacity=24):
  """Returns the state of three rows that hold `HELD` tokens."""
  inputs = np.array(PROMPTS if lm.prompted else SOURCES, np.int32)
  if lm.vocab_size < V:
    inputs = np.minimum(inputs, 8)
  state = prefill(lm, inputs, capacity)
  text = np.random.default_rng(1).integers(2, 9, (3, max(HELD)), np.int32)
  return feed(lm, state, text, HELD)[0]


def some_tree(seed=0):
  """Returns the nodes [3, NUM_NODES] of a tree in each row, and their paths.

  A node hangs on the prefix or on a node of an earlier level. Some siblings are
  equal. The path of a node is the list of nodes that it sees, itself last.
  """
  rng = np.random.default_rng(seed)
  nodes = rng.integers(2, 9, (3, NUM_NODES), np.int32)
  paths = [[] for _ in range(3)]
  ends = np.cumsum(SIZES)
  for b in range(3):
    for size, end in zip(SIZES, ends):
      first = end - size
      parents = rng.integers(-1, first, size)  # -1 is the prefix
      if first:
        parents[1] = deepest(paths[b])
        # The last two nodes of the level are equal, and siblings.
        parents[-1], nodes[b, end - 1] = parents[-2], nodes[b, end - 2]
      for i, parent in enumerate(parents, first):
        paths[b].append([*(paths[b][parent] if parent >= 0 else []), i])
  return nodes, paths


def deepest(paths):
  """Returns the first of the nodes with the longest path."""
  return max(range(len(paths)), key=lambda i: (len(paths[i]), -i))


def described(paths, end, num_fed):
  """Returns depth [B, end] and ancestors [B, num_fed, end] of a call.

  The window has the first `end` nodes; the last `num_fed` of them are fed.
  """
  depth = [[len(path) - 1 for path in row[:end]] for row in paths]
  ancestors = np.zeros((len(paths), num_fed, end), bool)
  for b, row in enumerate(paths):
    for i in range(num_fed):
      ancestors[b, i, row[end - num_fed + i]] = True
  return int32(depth), jnp.asarray(ancestors)


def grow(lm, state, nodes, paths, sizes=SIZES):
  """Feeds a tree level by level; returns the state and all logits."""
  logits, end = [], 0
  for size in sizes:
    end += size
    tree = described(paths, end, size)
    block, count = int32(nodes[:, end - size : end]), int32([size] * 3)
    state, out = extend(lm, state, block, count, None, *tree)
    logits.append(out.logits)
  return state, np.concatenate(logits, 1)


def along(lm, state, nodes, paths, i):
  """Feeds each row the path to its node i as a chain.

  Returns:
    The state after the chain, the logits [3, V] after the node, and the path
    [3, NUM_NODES] with its lengths [3].
  """
  length = np.array([len(row[i]) for row in paths])
  padded = np.zeros((3, NUM_NODES), np.int32)
  block = np.full((3, NUM_NODES), 8, np.int32)
  for b, row in enumerate(paths):
    padded[b, : length[b]] = row[i]
    block[b, : length[b]] = nodes[b, row[i]]
  state, logits = feed(lm, state, block, length)
  return state, logits[np.arange(3), length - 1], padded, length


def close_laws(actual, wanted):
  """Asserts that logits are close; what is impossible stands apart."""
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
@pytest.mark.parametrize("name", MODELS)
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
    # Keep this path, and go on from it.
    kept = keep(lm, fed, int32(HELD), int32(path), int32(count))
    np.testing.assert_array_equal(kept.length, np.array(HELD) + count)
    _, actual = feed(lm, kept, text, [4] * 3)
    close_laws(actual, feed(lm, chain, text, [4] * 3)[1])
  assert lengths == {1, 2, 3}


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
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
        read, at = trees.kept_slots(
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
