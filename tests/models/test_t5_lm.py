"""The block cache: any way of feeding tokens gives the same logits."""

import dataclasses
import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import T5LM, T5Config

pytestmark = pytest.mark.usefixtures("quick_compiles")
# Where a row is fed nothing, or a block is wider than its count, these tokens
# are fed; nothing may depend on them.
GARBAGE = 77
CAPACITY = 24  # as the golden greedy decodes, to share compiled programs


@functools.partial(jax.jit, static_argnames="capacity")
def prefill(lm, inputs, capacity):
  return lm.prefill(inputs, capacity=capacity)


@jax.jit
def extend(lm, state, tokens, count, read=None, depth=None, ancestors=None):
  return lm.extend(
    state, tokens, count, read=read, depth=depth, ancestors=ancestors
  )


keep = jax.jit(lambda lm, *args: lm.keep(*args))


def int32(values):
  return jnp.asarray(values, jnp.int32)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request):
  return request.param


@pytest.fixture(scope="module")
def lm(golden_config, golden_params, dtype):
  return T5LM.create(golden_config, golden_params, dtype)


@pytest.fixture(scope="module")
def lm32(golden_config, golden_params):
  """For what has no more to show in bfloat16."""
  return T5LM.create(golden_config, golden_params)


@pytest.fixture(scope="module")
def inputs(golden_arrays):
  return golden_arrays["in/encoder_input_tokens"]


@pytest.fixture(scope="module")
def tokens():
  """[3, CAPACITY], what the rows are fed, one token per slot."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, 512, (3, CAPACITY), np.int32)
  tokens[:, 0] = 0
  return tokens


def feed(lm, state, block, count):
  """Returns (state, float32 logits [B, N, V])."""
  state, out = extend(lm, state, int32(block), int32(count))
  return state, np.asarray(out.logits)


@pytest.fixture(scope="module")
def one_by_one(lm, inputs, tokens):
  """[3, CAPACITY, V], the logits when tokens are fed one at a time."""
  state = prefill(lm, inputs, CAPACITY)
  logits = []
  for i in range(CAPACITY):
    state, one = feed(lm, state, tokens[:, i : i + 1], [1, 1, 1])
    logits.append(one[:, 0])
  np.testing.assert_array_equal(state.length, CAPACITY)
  return np.stack(logits, 1)


def close(dtype, got, want):
  """Same to 1e-5 of the largest logit (bfloat16: three of its roundings)."""
  rtol = {"float32": 1e-5, "bfloat16": 3 * 2**-8}[dtype]
  atol = rtol * np.abs(want).max()
  np.testing.assert_allclose(got, want, atol=atol, rtol=0)


def blocks_of(state, tokens, width, count):
  """Returns [B, width] of which row b's first count[b] are the next ones."""
  block = np.full((len(count), width), GARBAGE, np.int32)
  for b, (first, n) in enumerate(zip(np.asarray(state.length), count)):
    block[b, :n] = tokens[b, first : first + n]
  return block


def test_one_token_at_a_time_equals_t5x(lm32, golden_arrays, inputs):
  fed = golden_arrays["in/decoder_input_tokens"]
  state = prefill(lm32, inputs, CAPACITY)
  for i in range(fed.shape[1]):
    state, logits = feed(lm32, state, fed[:, i : i + 1], [1, 1, 1])
    want = golden_arrays["f32/cached_step_logits"][:, i]
    np.testing.assert_allclose(logits[:, 0], want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
  ("dtype", "name"),
  [("float32", "task"), ("float32", "random"), ("bfloat16", "task")],
  indirect=["dtype"],
)
def test_greedy_tokens_equal_t5x(lm, dtype, golden_arrays, name):
  suffix = {"float32": "", "bfloat16": "_bf16"}[dtype]
  want = golden_arrays[f"greedy/{name}/tokens{suffix}"]
  source = golden_arrays[f"greedy/{name}/encoder_input_tokens"]
  source = np.pad(source, ((0, 0), (0, 14 - source.shape[1])))
  state = prefill(lm, source, CAPACITY)
  token = np.zeros(3, np.int32)
  is_done = np.zeros(3, bool)
  got = []
  for _ in range(want.shape[1]):
    state, logits = feed(lm, state, token[:, None], [1, 1, 1])
    token = np.where(is_done, 0, logits[:, 0].argmax(-1)).astype(np.int32)
    is_done |= token == 1
    got.append(token)
  np.testing.assert_array_equal(np.stack(got, 1), want)
  assert is_done[0] or name == "random"


@pytest.mark.parametrize(
  ("dtype", "width"),
  [*[("float32", width) for width in range(1, 9)], ("bfloat16", 6)],
  indirect=["dtype"],
)
def test_blocks_equal_one_by_one(lm, dtype, inputs, tokens, one_by_one, width):
  """Ragged counts, any rewind, and up to the last slot."""
  rng = np.random.default_rng(width)
  state = prefill(lm, inputs, CAPACITY)
  # Slots behind a row's length hold anything; it must not be seen.
  state = state.replace(
    caches=jax.tree.map(lambda cache: cache + 9, state.caches)
  )
  hit_last_slot = np.zeros(3, bool)
  for _ in range(2 * CAPACITY // width + 6):
    length = np.asarray(state.length)
    # A block writes `width` slots of every row: make room where there is none.
    is_full = length > CAPACITY - width
    shorter = rng.integers(0, CAPACITY - width + 1, 3)
    if rng.random() < 0.3:
      is_full[rng.integers(3)] = True
    length = np.where(is_full, np.minimum(length, shorter), length)
    state = lm.rewind(state, int32(length))
    count = rng.integers(0, width + 1, 3)
    count = np.where(length == CAPACITY - width, width, count)
    block = blocks_of(state, tokens, width, count)
    state, logits = feed(lm, state, block, count)
    np.testing.assert_array_equal(state.length, length + count)
    hit_last_slot |= length + count == CAPACITY
    for b in range(3):
      want = one_by_one[b, length[b] : length[b] + count[b]]
      if count[b]:
        close(dtype, logits[b, : count[b]], want)
  # Then straight on to the end.
  state = lm.rewind(state, int32([CAPACITY - width] * 3))
  state = lm.rewind(state, int32([0, 0, 0]))
  while np.min(state.length) < CAPACITY:
    length = np.asarray(state.length)
    count = np.minimum(width, CAPACITY - length)
    start = np.minimum(length, CAPACITY - width)
    state = lm.rewind(state, int32(start))
    count = np.full(3, width)
    state, logits = feed(
      lm, state, blocks_of(state, tokens, width, count), count
    )
    hit_last_slot |= np.asarray(state.length) == CAPACITY
    want = np.stack([one_by_one[b, s : s + width] for b, s in enumerate(start)])
    close(dtype, logits, want)
  assert hit_last_slot.all()


def test_rewind_only_lowers(lm32, inputs):
  state = prefill(lm32, inputs, CAPACITY)
  state, _ = feed(lm32, state, np.full((3, 4), 5), [4, 2, 0])
  state = lm32.rewind(state, int32([1, 3, 2]))
  np.testing.assert_array_equal(state.length, [1, 2, 0])


def test_row_alone_equals_row_in_batch(lm32, inputs, tokens):
  alone = prefill(lm32, inputs[1:2], CAPACITY)
  batch = prefill(lm32, inputs, CAPACITY)
  for first in range(0, CAPACITY, 4):
    block = tokens[:, first : first + 4]
    alone, got = feed(lm32, alone, block[1:2], [4])
    batch, want = feed(lm32, batch, block, [4, 4, 4])
    close("float32", got[0], want[1])


def test_many_rows_equal_few(lm32, inputs, tokens):
  """Past some number of rows the cache is written by a loop."""
  rows = np.arange(17) % 3
  length = np.arange(17) % 5
  state = prefill(lm32, inputs[rows], CAPACITY)
  state, _ = feed(lm32, state, tokens[rows, :4], np.minimum(length, 4))
  few = prefill(lm32, inputs, CAPACITY)
  few, _ = feed(lm32, few, tokens[:, :4], [4, 4, 4])
  _, got = feed(lm32, state, tokens[rows, 4:8], [4] * 17)
  for b in range(17):
    short = lm32.rewind(few, int32([min(length[b], 4)] * 3))
    _, want = feed(lm32, short, tokens[:, 4:8], [4] * 3)
    close("float32", got[b], want[rows[b]])


def test_cache_much_larger_than_needed(lm32, golden_arrays):
  """Attention looks back over 128, then 256 of 520 slots; T5X's own logits."""
  arrays = {
    name.split("/")[1]: value
    for name, value in golden_arrays.items()
    if name.startswith("long/")
  }
  state = prefill(lm32, arrays["encoder_input_tokens"], 520)
  fed, logits = arrays["decoder_input_tokens"], []
  for first in range(0, fed.shape[1], 10):
    state, block = feed(lm32, state, fed[:, first : first + 10], [10, 10])
    logits.append(block)
  logits = np.concatenate(logits, 1)
  np.testing.assert_allclose(
    logits[:, ::10], arrays["logits_every10"], atol=1e-4, rtol=0
  )
  real = arrays["decoder_target_tokens"] != 0
  np.testing.assert_array_equal(logits.argmax(-1)[real], arrays["argmax"][real])


def test_the_longest_row_sets_how_far_all_look(lm32, golden_arrays):
  """A short first row does not hide a long row's slots from it."""
  state = prefill(lm32, golden_arrays["long/encoder_input_tokens"], 520)
  fed = golden_arrays["long/decoder_input_tokens"][:, :140]
  for first in range(0, 130, 10):
    state, _ = feed(lm32, state, fed[:, first : first + 10], [10, 10])
  _, want = feed(lm32, state, fed[:, 130:], [10, 10])
  short = lm32.rewind(state, int32([3, 130]))
  _, got = feed(lm32, short, fed[:, 130:], [10, 10])
  close("float32", got[1], want[1])


@pytest.mark.parametrize("read", [[[3, 1], [0, 0], [2, 3]], [[3, 0, 2, 1]] * 3])
def test_read_positions_equal_full_logits(lm32, inputs, tokens, read):
  block, count, read = int32(tokens[:, :4]), int32([4, 1, 4]), int32(read)
  state = prefill(lm32, inputs, CAPACITY)
  full_state, full = extend(lm32, state, block, count)
  read_state, out = extend(lm32, state, block, count, read)
  want = np.take_along_axis(full.logits, read[..., None], axis=1)
  close("float32", out.logits, want)
  want = np.take_along_axis(full.hidden, read[..., None], axis=1)
  close("float32", np.float32(out.hidden), np.float32(want))
  for got, want in zip(
    jax.tree.leaves(read_state), jax.tree.leaves(full_state)
  ):
    close("float32", np.float32(got), np.float32(want))


def random_trees(rng, rows, num_nodes):
  """Returns parents [rows, N] (-1: a root), depth, ancestors, and paths."""
  parents = np.stack(
    [[rng.integers(-1, i) for i in range(num_nodes)] for _ in range(rows)]
  )
  depth = np.zeros((rows, num_nodes), np.int32)
  ancestors = np.zeros((rows, num_nodes, num_nodes), bool)
  paths = [[] for _ in range(rows)]
  for b in range(rows):
    for i, parent in enumerate(parents[b]):
      above = [] if parent < 0 else paths[b][parent]
      paths[b].append([*above, i])
      depth[b, i] = len(above)
      ancestors[b, i, paths[b][i]] = True
  return depth, ancestors, paths


def test_tree_equals_its_paths_and_one_is_kept(lm, dtype, inputs, tokens):
  rng = np.random.default_rng(3)
  num_nodes, start = 7, np.array([5, 0, 2])
  state = prefill(lm, inputs, CAPACITY)
  state, _ = feed(lm, state, tokens[:, :7], start)
  depth, ancestors, paths = random_trees(rng, 3, num_nodes)
  nodes = rng.integers(2, 512, (3, num_nodes), np.int32)
  count = int32([num_nodes] * 3)
  after, out = extend(
    lm, state, int32(nodes), count, None, int32(depth), jnp.asarray(ancestors)
  )
  np.testing.assert_array_equal(after.length, start + num_nodes)
  along = {}
  for i in range(num_nodes):
    # Row b feeds the path to its node i as a plain block.
    path = [paths[b][i] for b in range(3)]
    length = np.array([len(p) for p in path])
    block = np.full((3, num_nodes), GARBAGE, np.int32)
    for b in range(3):
      block[b, : length[b]] = nodes[b, path[b]]
    linear, logits = feed(lm, state, block, length)
    along[i] = linear
    for b in range(3):
      close(dtype, out.logits[b, i], logits[b, length[b] - 1])

  # Keep the path to the last node of each row, then go on.
  last = num_nodes - 1
  path = [paths[b][last] for b in range(3)]
  length = np.array([len(p) for p in path])
  assert max(length) > 2
  assert any(p != list(range(len(p))) for p in path)
  padded = np.array([[*p, *[0] * (num_nodes - len(p))] for p in path])
  kept = keep(lm, after, int32(start), int32(padded), int32(length))
  np.testing.assert_array_equal(kept.length, start + length)
  _, got = feed(lm, kept, tokens[:, :7], [7] * 3)
  _, want = feed(lm, along[last], tokens[:, :7], [7] * 3)
  close(dtype, got, want)


def test_tree_defaults_are_the_linear_block(lm32, inputs, tokens):
  """Of depth and ancestors, either alone may be given."""
  state = prefill(lm32, inputs, CAPACITY)
  state, _ = feed(lm32, state, tokens[:, :4], [4, 0, 2])
  block, count = int32(tokens[:, 4:8]), int32([4] * 3)
  _, want = extend(lm32, state, block, count)
  depth = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32), (3, 4))
  ancestors = jnp.broadcast_to(jnp.tri(4, dtype=bool), (3, 4, 4))
  for tree in ((depth, None), (None, ancestors)):
    _, got = extend(lm32, state, block, count, None, *tree)
    close("float32", got.logits, want.logits)


def test_hidden_gives_the_logits(lm32, inputs, tokens):
  state = prefill(lm32, inputs, CAPACITY)
  _, out = extend(lm32, state, int32(tokens[:, :4]), int32([4] * 3))
  kernel = lm32.params["decoder"]["logits_dense"]["kernel"]
  want = np.asarray(out.hidden, np.float32) @ np.asarray(kernel)
  # (Compilers skip the rounding of what only the head reads.)
  close("float32", out.logits, want)


def test_tied_model_in_blocks_equals_teacher_forcing():
  config = T5Config(
    vocab_size=40,
    emb_dim=24,
    num_heads=3,
    head_dim=4,
    mlp_dim=20,
    num_encoder_layers=1,
    num_decoder_layers=1,
    mlp_activations=("relu",),
    logits_via_embedding=True,
  )
  lm = T5LM.init(config, jax.random.key(0))
  rng = np.random.default_rng(0)
  source = rng.integers(2, 40, (2, 6), np.int32)
  fed = rng.integers(2, 40, (2, 5), np.int32)
  want = jax.jit(functools.partial(lm.module.apply, enable_dropout=False))(
    {"params": lm.params}, source, fed, fed
  )
  _, got = feed(lm, prefill(lm, source, 8), fed, [5, 5])
  assert want.shape == (2, 5, 40)
  assert np.std(want) > 0.1
  close("float32", got, want)


def test_equal_models_are_traced_once(golden_config, golden_params, inputs):
  traces = []

  @jax.jit
  def run(lm, inputs):
    traces.append(lm)
    return lm.extend(
      lm.prefill(inputs, capacity=4), inputs[:, :2], inputs[:, 0]
    )[1].logits

  for _ in range(2):
    config = dataclasses.replace(golden_config)
    run(T5LM.create(config, golden_params), inputs)
  assert len(traces) == 1
  run(T5LM.create(config, golden_params, "bfloat16"), inputs)
  assert len(traces) == 2


def test_state_has_the_batch_first(lm, dtype, inputs):
  state = jax.eval_shape(functools.partial(lm.prefill, capacity=5), inputs)
  assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {3}
  assert {leaf.dtype for leaf in jax.tree.leaves(state.caches)} == {
    jnp.dtype(dtype)
  }


def test_params_are_cast_once_but_the_head(golden_config, golden_params):
  lm = T5LM.create(golden_config, golden_params, "bfloat16")
  flat = traverse_util.flatten_dict(lm.params, sep="/")
  wide = {name for name, leaf in flat.items() if leaf.dtype == jnp.float32}
  assert wide == {"decoder/logits_dense/kernel"}
  assert lm.module.config.dtype == "bfloat16"
  assert lm.vocab_size == 512


def without(tree, path):
  flat = traverse_util.flatten_dict(tree, sep="/")
  del flat[path]
  return traverse_util.unflatten_dict(flat, sep="/")


def test_wrong_parameters_are_named(golden_config, golden_params):
  head = "decoder/logits_dense/kernel"
  with pytest.raises(ValueError, match=f"missing {head}"):
    T5LM.create(golden_config, without(golden_params, head))
  tied = dataclasses.replace(golden_config, logits_via_embedding=True)
  with pytest.raises(ValueError, match=f"unexpected {head}"):
    T5LM.create(tied, golden_params)
  wide = dataclasses.replace(golden_config, mlp_dim=96)
  message = (
    r"layers_0/mlp/wi_0/kernel has shape \[32, 64\], \[32, 96\] by the config,"
    r".* and 8 more"
  )
  with pytest.raises(ValueError, match=message) as error:
    T5LM.create(wide, golden_params)
  assert "\n" not in str(error.value)


def test_block_wider_than_the_cache(lm32, inputs):
  state = jax.eval_shape(functools.partial(lm32.prefill, capacity=4), inputs)
  with pytest.raises(ValueError, match="5 tokens does not fit a cache of 4"):
    jax.eval_shape(lm32.extend, state, int32(np.zeros((3, 5))), int32([5] * 3))


@pytest.mark.parametrize("kernel_dtype", [None, "float32"])
def test_a_token_without_a_law_spoils_no_other(
  golden_config, golden_params, kernel_dtype
):
  """Its NaN keys and values are masked, and a weight of 0 times NaN is NaN."""
  table = golden_params["token_embedder"]["embedding"].copy()
  table[50] = np.nan
  params = golden_params | {"token_embedder": {"embedding": table}}
  lm = T5LM.create(golden_config, params, kernel_dtype=kernel_dtype)
  state = {}
  for third in (50, 9):
    state[third] = prefill(lm, int32([[3, 4, 1]]), CAPACITY)
    state[third], out = extend(
      lm, state[third], int32([[0, 7, third, 8]]), int32([4])
    )
    assert np.all(np.isfinite(out.logits[:, :2]))
    assert np.all(np.isfinite(out.logits[:, 2])) == (third != 50)
    state[third] = lm.rewind(state[third], int32([2]))
  logits = [
    extend(lm, state[third], int32([[5, 6]]), int32([2]))[1].logits
    for third in (50, 9)
  ]
  np.testing.assert_array_equal(*logits)
