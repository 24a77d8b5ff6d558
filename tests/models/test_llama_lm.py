"""Llama, Mistral and Qwen: transformers' numbers, by any way of feeding."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import checkpoints, native
from speccascade.checkpoints import hugging_face_llama
from speccascade.decoding import prompts
from speccascade.models import LlamaLM, llama_lm, native_passes
from tests.models.test_t5_lm import (
  extend,
  feed,
  int32,
  keep,
  prefill,
  random_trees,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")

KINDS = ("llama", "mistral", "qwen2", "qwen3")
CAPACITY = 24
LENGTHS = (19, 12, 1)


@pytest.fixture(scope="module")
def folder(golden):
  return golden.parent / "llama"


@pytest.fixture(scope="module")
def arrays(folder):
  with np.load(folder / "golden.npz") as arrays:
    return dict(arrays)


@pytest.fixture(scope="module")
def lms(folder):
  """Returns a function from a kind to its model, in float32."""

  @functools.cache
  def read(kind):
    checkpoint = checkpoints.load(folder / kind)
    return LlamaLM.create(checkpoint.config, checkpoint.params)

  return read


@functools.partial(jax.jit, static_argnums=0)
def forward(module, params, tokens, segment_ids=None, positions=None):
  return module.apply({"params": params}, tokens, segment_ids, positions)


def of(arrays, kind):
  return [arrays[f"{kind}/{name}"] for name in ("tokens", "lengths", "logits")]


def padded(tokens, lengths):
  """Prompts with padding before the first row, and after the others."""
  inputs = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, -1)
  inputs = np.pad(inputs, ((0, 0), (0, 2)), constant_values=prompts.PAD)
  inputs[0] = np.roll(inputs[0], 2)
  return int32(inputs)


def close(got, want, rtol=1e-5):
  atol = rtol * np.abs(want).max()
  np.testing.assert_allclose(got, want, atol=atol, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(lms, arrays, kind):
  lm, (tokens, lengths, want) = lms(kind), of(arrays, kind)
  tokens = np.pad(tokens, ((0, 0), (0, CAPACITY - 1)))
  got = forward(lm.module, lm.params, tokens)
  for b, length in enumerate(lengths):
    close(got[b, :length], want[b, :length], 1e-4)


@pytest.mark.parametrize(
  ("kind", "kernel_dtype"),
  [*((kind, None) for kind in KINDS), ("qwen2", "float32")],
)
def test_greedy_tokens_equal_transformers(lms, arrays, kind, kernel_dtype):
  """Ragged prompts, with plain kernels and with panels."""
  lm, (tokens, lengths, _) = lms(kind), of(arrays, kind)
  lm = LlamaLM.create(lm.module.config, lm.params, kernel_dtype=kernel_dtype)
  inputs = padded(tokens, lengths)
  state, token, got = prefill(lm, inputs, CAPACITY), prompts.last(inputs), []
  np.testing.assert_array_equal(state.length, 0)
  np.testing.assert_array_equal(state.offset, lengths - 1)
  for _ in range(arrays[f"{kind}/greedy"].shape[1]):
    state, logits = feed(lm, state, np.asarray(token)[:, None], [1, 1, 1])
    token = logits[:, 0].argmax(-1)
    got.append(token)
  np.testing.assert_array_equal(np.stack(got, 1), arrays[f"{kind}/greedy"])


@pytest.mark.parametrize("kind", hugging_face_llama.SCALINGS)
def test_rope_scalings_past_the_length_trained_on(lms, arrays, folder, kind):
  """Of a text; where its length matters, of a block after a prompt too."""
  settings = json.loads((folder / "llama" / "config.json").read_text())
  del settings["rope_parameters"]
  settings["rope_scaling"] = json.loads(str(arrays[f"llama-{kind}/scaling"]))
  if kind == "dynamic":
    settings["max_position_embeddings"] = 16
  config = hugging_face_llama.built(settings)
  assert config.rope_scaling.kind == kind
  lm = LlamaLM.create(config, lms("llama").params)
  tokens, want = (arrays[f"llama-{kind}/{x}"] for x in ("tokens", "logits"))
  got = forward(lm.module, lm.params, tokens)[:, ::3]
  close(got, want, 1e-4)
  plain = forward(lms("llama").module, lm.params, tokens)[:, ::3]
  assert np.abs(plain - want).max() > 1e-2 * np.abs(want).max()
  if kind != "dynamic":
    return
  state = prefill(lm, int32(tokens[:, :40]), CAPACITY)
  _, block = feed(lm, state, tokens[:, 39:], [21])
  close(block[:, ::3], want[:, 13:], 1e-4)


@pytest.fixture(scope="module")
def one_by_one(lms, arrays):
  """Returns what a kind says when tokens are fed one at a time, and those."""

  @functools.cache
  def run(kind):
    lm, (tokens, lengths, _) = lms(kind), of(arrays, kind)
    fed = np.random.default_rng(0).integers(0, 96, (3, CAPACITY), np.int32)
    state, logits = prefill(lm, padded(tokens, lengths), CAPACITY), []
    for i in range(CAPACITY):
      state, one = feed(lm, state, fed[:, i : i + 1], [1, 1, 1])
      logits.append(one[:, 0])
    return fed, np.stack(logits, 1)

  return run


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_at_a_time_equals_the_whole_text(
  lms, arrays, one_by_one, kind
):
  lm, (tokens, lengths, _) = lms(kind), of(arrays, kind)
  fed, want = one_by_one(kind)
  for b, length in enumerate(lengths):
    text = np.zeros((1, LENGTHS[0] - 1 + CAPACITY), np.int32)
    text[0, : length - 1] = tokens[b, : length - 1]
    text[0, length - 1 : length - 1 + CAPACITY] = fed[b]
    whole = forward(lm.module, lm.params, text)[0]
    close(whole[length - 1 : length - 1 + CAPACITY], want[b])


@pytest.mark.parametrize(
  "width",
  [
    pytest.param(n, marks=[] if n in (2, 7) else pytest.mark.slow)
    for n in range(1, 9)
  ],
)
def test_blocks_equal_one_by_one(lms, arrays, one_by_one, width):
  """Ragged counts and any rewind, up to the last slot."""
  lm, (tokens, lengths, _) = lms("mistral"), of(arrays, "mistral")
  rng, (fed, want) = np.random.default_rng(width), one_by_one("mistral")
  state = prefill(lm, padded(tokens, lengths), CAPACITY)
  is_full = np.zeros(3, bool)
  for step in range(40 + CAPACITY // width):
    length = np.asarray(state.length)
    back = rng.integers(0, CAPACITY - width + 1, 3)
    is_wide = length > CAPACITY - width
    length = np.where(is_wide, np.minimum(length, back), length)
    if step == 39:
      length = np.zeros(3, np.int64)
    state = lm.rewind(state, int32(length))
    count = rng.integers(0, width + 1, 3) if step < 39 else np.full(3, width)
    block = np.full((3, width), 77, np.int32)
    for b, (first, n) in enumerate(zip(np.asarray(state.length), count)):
      block[b, :n] = fed[b, first : first + n]
    length = np.asarray(state.length)
    state, logits = feed(lm, state, block, count)
    np.testing.assert_array_equal(state.length, length + count)
    for b in range(3):
      is_full[b] |= length[b] + count[b] >= CAPACITY - width + 1
      if count[b]:
        close(logits[b, : count[b]], want[b, length[b] :][: count[b]])
  assert is_full.all()


def test_tree_equals_its_paths_and_one_is_kept(lms, arrays, one_by_one):
  lm, (tokens, lengths, _) = lms("mistral"), of(arrays, "mistral")
  rng, (fed, _) = np.random.default_rng(3), one_by_one("mistral")
  state = prefill(lm, padded(tokens, lengths), CAPACITY)
  start = np.array([5, 0, 2])
  state, _ = feed(lm, state, fed[:, :7], start)
  depth, ancestors, paths = random_trees(rng, 3, 7)
  nodes = rng.integers(0, 96, (3, 7), np.int32)
  after, out = extend(
    lm,
    state,
    int32(nodes),
    int32([7] * 3),
    None,
    int32(depth),
    jnp.asarray(ancestors),
  )
  for i in range(7):
    block = np.full((3, 7), 77, np.int32)
    count = [len(paths[b][i]) for b in range(3)]
    for b in range(3):
      block[b, : count[b]] = nodes[b, paths[b][i]]
    linear, logits = feed(lm, state, block, count)
    for b in range(3):
      close(out.logits[b, i], logits[b, count[b] - 1])
  # Keep the path to the last node of each row, then go on.
  assert max(count) > 2
  path = [paths[b][-1] + [0] * (7 - count[b]) for b in range(3)]
  kept = keep(lm, after, int32(start), int32(path), int32(count))
  np.testing.assert_array_equal(kept.length, start + count)
  _, got = feed(lm, kept, fed[:, :7], [7] * 3)
  _, want = feed(lm, linear, fed[:, :7], [7] * 3)
  close(got, want)


@pytest.mark.skipif(not native.is_available(), reason="no native code here")
@pytest.mark.parametrize(
  "kind",
  ["qwen3", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[:3])],
)
def test_a_native_pass_equals_the_plain_one(lms, arrays, kind):
  """Ragged blocks, fewer positions read, and a row that is fed nothing."""
  lm, (tokens, lengths, _) = lms(kind), of(arrays, kind)
  packed = LlamaLM.create(lm.module.config, lm.params, kernel_dtype="float32")
  assert native_passes.is_native(packed.module.config, packed.params)
  inputs = padded(tokens, lengths)
  both = [prefill(each, inputs, CAPACITY) for each in (lm, packed)]
  for width, count, read in (
    (1, [1, 0, 1], None),
    (7, [0, 4, 7], [[0, 0], [3, 1], [6, 0]]),
    (7, [7, 1, 6], None),
    (7, [0, 1, 3], None),
  ):
    read = None if read is None else int32(read)
    block, outs = int32(tokens[:, :width]), []
    for i, each in enumerate((lm, packed)):
      both[i], out = extend(each, both[i], block, int32(count), read)
      outs.append(out)
    fed = np.asarray(count) > 0
    if read is None:
      fed = np.arange(width) < np.asarray(count)[:, None]
    close(outs[1].logits[fed], outs[0].logits[fed])
    close(outs[1].hidden[fed], outs[0].hidden[fed])


@pytest.mark.parametrize(
  ("kind", "kernel_dtype"), [("mistral", None), ("qwen2", "float32")]
)
def test_read_positions_equal_full_logits(lms, arrays, kind, kernel_dtype):
  lm, (tokens, lengths, _) = lms(kind), of(arrays, kind)
  lm = LlamaLM.create(lm.module.config, lm.params, kernel_dtype=kernel_dtype)
  state = prefill(lm, padded(tokens, lengths), CAPACITY)
  block, count = int32(tokens[:, :7]), int32([7, 1, 4])
  full_state, full = extend(lm, state, block, count)
  for read in ([[3, 1], [0, 0], [2, 3]], [[], [], []]):
    read = int32(read).reshape(3, -1)
    after, out = extend(lm, state, block, count, read)
    want = np.take_along_axis(full.logits, read[..., None], axis=1)
    assert out.logits.shape == want.shape
    np.testing.assert_allclose(out.logits, want, atol=1e-5)
    want = np.take_along_axis(full.hidden, read[..., None], axis=1)
    np.testing.assert_allclose(out.hidden, want, atol=1e-5)
    for got, want in zip(jax.tree.leaves(after), jax.tree.leaves(full_state)):
      np.testing.assert_allclose(got, want, atol=1e-5)


def test_long_prompts_are_fed_in_parts(lms, arrays, monkeypatch):
  """20 slots by 8: the last part feeds 4 of them again."""
  lm, (tokens, lengths, _) = lms("mistral"), of(arrays, "mistral")
  inputs = padded(tokens, lengths)
  want = prefill(lm, inputs, CAPACITY)
  monkeypatch.setattr(llama_lm, "PREFILL_WIDTH", 8)
  got = lm.prefill(inputs, capacity=CAPACITY)
  for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_packed_rows_do_not_see_each_other(lms, arrays):
  lm, (tokens, _, want) = lms("qwen2"), of(arrays, "qwen2")
  packed = np.concatenate([tokens[:1, :19], tokens[1:2, :12]], axis=1)
  ids = np.repeat([1, 2], [19, 12])[None].astype(np.int32)
  positions = np.r_[:19, :12][None].astype(np.int32)
  got = forward(lm.module, lm.params, packed, ids, positions)[0]
  close(got[:19], want[0, :19], 1e-4)
  close(got[19:], want[1, :12], 1e-4)


def test_bfloat16_is_near(lms, arrays):
  lm, (tokens, lengths, want) = lms("qwen2"), of(arrays, "qwen2")
  lm = LlamaLM.create(lm.module.config, lm.params, "bfloat16")
  inputs = padded(tokens, lengths)
  state = prefill(lm, inputs, CAPACITY)
  assert state.caches[0][0].dtype == jnp.bfloat16
  _, got = feed(lm, state, prompts.last(inputs)[:, None], [1] * 3)
  want = np.stack([want[b, length - 1] for b, length in enumerate(lengths)])
  close(got[:, 0], want, 3e-2)
  assert np.abs(got[:, 0] - want).max() > 1e-4


def test_a_token_without_a_law_spoils_no_other(lms, arrays):
  lm, (tokens, lengths, _) = lms("mistral"), of(arrays, "mistral")
  table = np.array(lm.params["token_embedder"]["embedding"])
  table[95] = np.nan
  params = lm.params | {"token_embedder": {"embedding": table}}
  lm, logits = LlamaLM.create(lm.module.config, params), []
  inputs = padded(np.minimum(tokens, 94), lengths)
  for third in (95, 9):
    state = prefill(lm, inputs, CAPACITY)
    block = np.tile([7, 8, third, 8, 8, 8, 8], (3, 1))
    state, out = feed(lm, state, block, [7] * 3)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.caches))
    assert np.all(np.isfinite(out[:, :2]))
    assert np.all(np.isfinite(out[:, 2])) == (third != 95)
    state = lm.rewind(state, int32([0] * 3))
    logits.append(feed(lm, state, np.tile([5, 6], (3, 1)), [2] * 3)[1])
  np.testing.assert_array_equal(*logits)
