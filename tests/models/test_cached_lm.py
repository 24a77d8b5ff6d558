"""A T5, a T5Gemma and a Llama give the same p however tokens are fed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import products
from tests import toy
from tests.models.feeding import (
  CAPACITY,
  GARBAGE,
  close,
  extend,
  feed,
  int32,
  keep,
  prefill,
)


@pytest.mark.parametrize(
  ("name", "width"),
  [
    *(("t5", 1), ("t5", 5), ("t5", 8)),
    *(("t5 bfloat16", 6), ("t5 rounded", 6), ("mistral", 2), ("mistral", 7)),
    *(("gemma2", 7), ("gemma3", 2), ("t5gemma-even", 7), ("t5gemma-wide", 2)),
    ("t5gemma-merged", 6),
    *toy.nightly(("t5", width) for width in (2, 3, 4, 6, 7)),
    *toy.nightly(("mistral", width) for width in (1, 3, 4, 5, 6, 8)),
  ],
)
def test_blocks_equal_one_by_one(fed, name, width):
  """Ragged counts, any rewind, and up to the last slot."""
  case, rng = fed(name), np.random.default_rng(width)
  state, rewind = case.start(), case.lm.rewind
  if not case.lm.prompted:
    # Slots after a row's length hold anything; it must not be seen.
    dirty = jax.tree.map(lambda cache: cache + 9, state.caches)
    state = state.replace(caches=dirty)
  for _ in range(2 * CAPACITY // width + 6):
    length = np.asarray(state.length)
    # A block writes `width` slots of every row: make room where there is none.
    is_full = length > CAPACITY - width
    shorter = rng.integers(0, CAPACITY - width + 1, 3)
    if rng.random() < 0.3:
      is_full[rng.integers(3)] = True
    length = np.where(is_full, np.minimum(length, shorter), length)
    count = rng.integers(0, width + 1, 3)
    count = np.where(length == CAPACITY - width, width, count)
    state = case.feed_next(rewind(state, int32(length)), width, count)
  # Then straight on to the end.
  state = rewind(state, int32([0] * 3))
  for start in (*range(0, CAPACITY - width, width), CAPACITY - width):
    state = rewind(state, int32([start] * 3))
    state = case.feed_next(state, width, [width] * 3)


@pytest.mark.parametrize("name", ["t5", "mistral"])
@pytest.mark.parametrize("read", [None, [[]], [[0]], [[0, 0]]], ids=str)
def test_spare_tokens_change_nothing(fed, monkeypatch, name, read):
  """One row, one token a pass, up to the last slot, as on a GPU."""
  case = fed(name)
  read = None if read is None else int32(read).reshape(1, -1)

  def passes(num_spare):
    monkeypatch.setattr(products, "num_spare", lambda *_: num_spare)
    step = jax.jit(lambda lm, *args: lm.extend(*args, read=read))
    state = jax.tree.map(lambda x: x[:1], case.start())
    results = []
    for token in range(CAPACITY - int(state.end[0])):
      state, out = step(case.lm, state, int32([[token + 2]]), int32([1]))
      results.append([x for x in jax.tree.leaves(out) if x.size])
    assert state.end == CAPACITY
    return state, results

  jax.tree.map(close, passes(5), passes(0))


@pytest.mark.parametrize("name", ["t5", "mistral"])
@pytest.mark.parametrize("width", [2, 3])
def test_a_position_read_twice_is_read(fed, monkeypatch, name, width):
  """As on a TPU, where one row is read of a block."""
  case = fed(name)
  block, read = int32([[5, 6, 7][:width]]), int32([[width - 2]])

  def extend(num_spare):
    monkeypatch.setattr(products, "num_spare_reads", lambda *_: num_spare)
    step = jax.jit(lambda lm, *args: lm.extend(*args, read=read))
    state = jax.tree.map(lambda x: x[:1], case.start())
    return step(case.lm, state, block, int32([width]))

  jax.tree.map(close, extend(1), extend(0))


@pytest.mark.parametrize(
  ("platform", "bfloat16", "float32"),
  # One token, a block of two, a token in each of two rows.
  [
    ("cpu", (0, 0, 0), (0, 0, 0)),
    ("gpu", (5, 0, 0), (0, 0, 0)),
    ("tpu", (1, 0, 0), (1, 0, 1)),
  ],
)
def test_accelerators_want_spare_tokens(platform, bfloat16, float32):
  shapes = ((1, 1), (1, 2), (2, 1))
  # No accelerator has to be there.
  with jax.default_device(platform):
    for dtype, want in (("bfloat16", bfloat16), ("float32", float32)):
      assert want == tuple(products.num_spare(s, dtype) for s in shapes)
      reads = tuple(products.num_spare_reads(s, dtype) for s in shapes)
      assert reads == (want if platform == "tpu" else (0, 0, 0))


def test_rewind_only_lowers(fed):
  case = fed("t5")
  state, _ = feed(case.lm, case.start(), np.full((3, 4), 5), [4, 2, 0])
  state = case.lm.rewind(state, int32([1, 3, 2]))
  np.testing.assert_array_equal(state.length, [1, 2, 0])


@pytest.mark.parametrize(
  "name",
  ["t5", "mistral", "qwen2 packed", "gemma2 packed", "t5gemma-wide packed"],
)
@pytest.mark.parametrize(
  "read", [[], [3, 1, 0, 0, 2, 3], [3, 0, 2, 1] * 3], ids=str
)
def test_read_positions_equal_full_logits(fed, name, read):
  case, count = fed(name), int32([7, 4, 4])
  state, block = case.start(), int32(case.tokens[:, :7])
  full_state, full = extend(case.lm, state, block, count)
  read = int32(read).reshape(3, -1)
  read_state, out = extend(case.lm, state, block, count, read)
  for field in ("logits", "hidden"):
    want = np.take_along_axis(getattr(full, field), read[..., None], axis=1)
    assert getattr(out, field).shape == want.shape
    if want.size:
      close(getattr(out, field), want)
  jax.tree.map(close, read_state, full_state)


def random_trees(rng, rows, num_nodes):
  """Returns depth [rows, N], ancestors [rows, N, N], and paths to the nodes."""
  depth = np.zeros((rows, num_nodes), np.int32)
  ancestors = np.zeros((rows, num_nodes, num_nodes), bool)
  paths = [[] for _ in range(rows)]
  for b in range(rows):
    for i in range(num_nodes):
      parent = rng.integers(-1, i)  # -1: a root
      above = [] if parent < 0 else paths[b][parent]
      paths[b].append([*above, i])
      depth[b, i] = len(above)
      ancestors[b, i, paths[b][i]] = True
  return depth, ancestors, paths


@pytest.mark.parametrize(
  "name",
  ["t5", "t5 bfloat16", "mistral", "gemma2", "gemma3_text", "t5gemma-even"],
)
def test_tree_equals_its_paths_and_one_is_kept(fed, name):
  case, rng = fed(name), np.random.default_rng(3)
  lm, num_nodes, start = case.lm, 7, np.array([5, 0, 2])
  state, _ = feed(lm, case.start(), case.tokens[:, :7], start)
  depth, ancestors, paths = random_trees(rng, 3, num_nodes)
  nodes = rng.integers(2, lm.vocab_size, (3, num_nodes), np.int32)
  tree = int32(depth), jnp.asarray(ancestors)
  after, out = extend(lm, state, int32(nodes), int32([7] * 3), None, *tree)
  np.testing.assert_array_equal(after.length, start + num_nodes)
  for path in zip(*paths):
    # Row b feeds the path to its node as a plain block.
    length = np.array([len(p) for p in path])
    block = np.full((3, num_nodes), GARBAGE, np.int32)
    for b, p in enumerate(path):
      block[b, : length[b]] = nodes[b, p]
    linear, logits = feed(lm, state, block, length)
    for b, p in enumerate(path):
      case.close(out.logits[b, p[-1]], logits[b, length[b] - 1])

  # Keep the path to the last node of each row, then continue.
  assert max(length) > 2
  assert any(p != list(range(len(p))) for p in path)
  padded = [[*p, *[0] * (num_nodes - len(p))] for p in path]
  after_keep = keep(lm, after, int32(start), int32(padded), int32(length))
  np.testing.assert_array_equal(after_keep.length, start + length)
  _, actual = feed(lm, after_keep, case.tokens[:, :7], [7] * 3)
  _, want = feed(lm, linear, case.tokens[:, :7], [7] * 3)
  case.close(actual, want)


@pytest.mark.parametrize("name", ["t5", "t5 packed", "mistral"])
def test_a_token_without_a_law_spoils_no_other(fed, name):
  """Its NaN keys and values are masked, and a weight of 0 times NaN is NaN."""
  lm, inputs = fed(name).lm, fed(name).inputs
  table = np.array(lm.params["token_embedder"]["embedding"])
  bad = len(table) - 1
  table[bad] = np.nan
  lm = lm.replace(params=lm.params | {"token_embedder": {"embedding": table}})
  logits = []
  for third in (bad, 9):
    state = prefill(lm, jnp.minimum(inputs, bad - 1))
    state, out = feed(lm, state, [[0, 7, third, 8, 8, 8, 8]] * 3, [7] * 3)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.caches))
    assert np.all(np.isfinite(out[:, :2]))
    assert np.all(np.isfinite(out[:, 2])) == (third != bad)
    state = lm.rewind(state, int32([2] * 3))
    logits.append(feed(lm, state, [[5, 6]] * 3, [2] * 3)[1])
  np.testing.assert_array_equal(*logits)
