"""A tree in one native call: as XLA computes it, and to the bit a chain."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import native_passes
from tests import toy
from tests.models.feeding import NEEDS_NATIVE, close, feed, int32
from tests.models.growing import (
  HELD,
  LLAMA,
  NUM_NODES,
  SIZES,
  T5,
  described,
  network,
  some_tree,
  start,
)

pytestmark = NEEDS_NATIVE
CONFIGS = {"t5": T5, "llama": LLAMA}


@functools.cache
def models(name):
  """Returns a network with plain kernels and with packed ones."""
  plain, packed = (
    network(CONFIGS[name], kernels) for kernels in (None, "float32")
  )
  assert native_passes.is_native(packed.module.config, packed.params)
  return plain, packed


def calls(nodes, paths, sizes):
  """Yields (tokens, depth, ancestors) of the calls that feed a tree."""
  end = 0
  for size in sizes:
    end += size
    block = int32(nodes[:, end - size : end])
    yield block, *described(paths, end, size)


@pytest.mark.parametrize(
  ("build", "name"),
  [
    *(("best", "t5"), ("best", "llama")),
    *toy.nightly([("avx2", "llama"), ("portable", "t5")]),
  ],
  indirect=["build"],
)
def test_a_native_tree_equals_a_plain_one(build, name):
  """Level by level, in ragged rows, with all positions read and with some."""
  # Compiled for this build: a kept program calls the build it was traced with.
  run = jax.jit(
    lambda lm, state, tokens, count, read, depth, ancestors: lm.extend(
      state, tokens, count, read=read, depth=depth, ancestors=ancestors
    )
  )
  lms = models(name)
  states = [start(lm) for lm in lms]
  nodes, paths = some_tree(7)
  read = int32([[2, 0], [1, 1], [0, 3]])
  for i, (tokens, *tree) in enumerate(calls(nodes, paths, SIZES)):
    # The second row takes no part in the first call and the last one.
    num = tokens.shape[1]
    count = int32([num, num if i == 1 else 0, num])
    for wanted in (None, read % num):
      new, outs = zip(
        *(
          run(lm, state, tokens, count, wanted, *tree)
          for lm, state in zip(lms, states)
        )
      )
      fed = np.asarray(count) > 0
      for field in ("logits", "hidden"):
        want, actual = (np.asarray(getattr(out, field)) for out in outs)
        close(actual[fed], want[fed])
        assert not np.any(actual[~fed])
    states = [*new]
  assert np.std(outs[0].logits) > 0.05


@pytest.mark.parametrize("name", CONFIGS)
def test_a_native_tree_of_one_branch_is_a_chain_to_the_bit(name):
  """In blocks of one to seven, also where the window begins before them."""
  lm = models(name)[1]
  text = np.random.default_rng(3).integers(2, 9, (3, 9), np.int32)
  line = [[[*range(i + 1)] for i in range(9)]] * 3
  for width in range(1, 8):
    state, _ = feed(lm, start(lm), text[:, :2], [2] * 3)
    tokens = int32(text[:, 2 : 2 + width])
    count = int32([width, 0, max(width - 2, 1)])
    want_state, want = lm.extend(state, tokens, count)
    for end in (width, width + 2):
      depth, ancestors = described(line, end, width)
      tree = {"depth": depth, "ancestors": ancestors}
      actual_state, actual = lm.extend(state, tokens, count, **tree)
      np.testing.assert_array_equal(actual.logits, want.logits)
      np.testing.assert_array_equal(actual.hidden, want.hidden)
      jax.tree.map(np.testing.assert_array_equal, actual_state, want_state)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_node_is_the_same_to_the_bit_whole_and_grown(name):
  """And whatever its cousins are, which it does not see."""
  lm = models(name)[1]
  nodes, paths = some_tree()
  logits = []
  for sizes in (SIZES, [NUM_NODES]):
    state, parts = start(lm), []
    for tokens, depth, ancestors in calls(nodes, paths, sizes):
      count = int32([tokens.shape[1]] * 3)
      tree = {"depth": depth, "ancestors": ancestors}
      state, out = lm.extend(state, tokens, count, **tree)
      parts.append(out.logits)
    logits.append(np.concatenate(parts, 1))
  np.testing.assert_array_equal(*logits)
  # Another token in a node changes what follows it, and nothing else.
  others = nodes.copy()
  others[:, 0] = 40
  [(tokens, depth, ancestors)] = calls(others, paths, [NUM_NODES])
  count = int32([NUM_NODES] * 3)
  _, out = lm.extend(start(lm), tokens, count, depth=depth, ancestors=ancestors)
  sees = np.array([[0 in path for path in row] for row in paths])
  is_same = np.all(np.asarray(out.logits) == logits[1], axis=-1)
  np.testing.assert_array_equal(is_same, ~sees)
  assert 0 < sees.sum() < sees.size


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_that_is_described_wrongly_spoils_no_other(name):
  """Its depths and its ancestors are garbage, as in a row that is done."""
  lm = models(name)[1]
  nodes, paths = some_tree()
  [(tokens, depth, ancestors)] = calls(nodes, paths, [NUM_NODES])
  count = int32([NUM_NODES] * 3)
  _, want = lm.extend(
    start(lm), tokens, count, depth=depth, ancestors=ancestors
  )
  for garbage in (-(2**31), -99, 99, 2**31 - 1):
    _, out = lm.extend(
      start(lm),
      tokens,
      count,
      depth=depth.at[1].set(garbage),
      ancestors=ancestors.at[1].set(False),
    )
    assert np.all(np.isfinite(out.logits))
    for b in (0, 2):
      np.testing.assert_array_equal(out.logits[b], want.logits[b])
  assert HELD[1] == 0


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_loop_that_keeps_paths_copies_no_cache(name, rows):
  lm = models(name)[1]
  state = jax.tree.map(lambda x: x[:rows], start(lm, capacity=57))
  count = jnp.full((rows,), 4, jnp.int32)
  paths = [[[0], [0, 1], [0, 2], [0, 2, 3]]] * rows
  depth, ancestors = described(paths, 4, 4)

  @jax.jit
  def run(lm, state):
    def step(_, carry):
      before, tokens = carry
      state, out = lm.extend(
        before, tokens, count, depth=depth, ancestors=ancestors
      )
      tokens = out.logits.argmax(-1).astype(jnp.int32)
      path = jnp.stack([tokens[:, 0] * 0, 1 + tokens[:, 1] % 2], axis=1)
      return lm.keep(state, before.length, path, count // 2), tokens

    tokens = jnp.ones((rows, 4), jnp.int32)
    return jax.lax.fori_loop(0, 5, step, (state, tokens))

  text = run.lower(lm, state).compile().as_text()
  shapes = {",".join(map(str, x.shape)) for pair in state.caches for x in pair}
  makers = set()
  for part in text.split("\n\n"):
    if part.lstrip().startswith("ENTRY"):  # before and after the loop
      continue
    for shape, maker in re.findall(r" = f32\[([\d,]+)\]\S* (\S+?)\(", part):
      makers |= {maker} if shape in shapes else set()
  # The native call writes into the caches that it is given.
  keeping = [x for x in text.splitlines() if "KeepPath" in x]
  assert keeping
  assert all("output_to_operand_aliasing" in x for x in keeping)
  in_place = {"parameter", "get-tuple-element", "dynamic-update-slice"}
  assert makers <= in_place | {"fusion"}
