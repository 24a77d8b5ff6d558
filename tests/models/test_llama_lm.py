"""Llama, Mistral, Qwen, Gemma: transformers' numbers, however they are fed."""

import dataclasses
import json

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import hugging_face_llama, hugging_face_rope
from speccascade.decoding.records import prompts
from speccascade.models import LlamaLM, layers, llama_lm, native_passes
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import param_shapes
from tests import toy
from tests.models.feeding import (
  CAPACITY,
  NEEDS_NATIVE,
  assert_alike,
  close,
  extend,
  feed,
  greedy,
  int32,
  prefill,
)

NATIVE_KINDS = ("llama", "mistral", "qwen2", "qwen3")
GEMMAS = ("gemma", "gemma2", "gemma3_text", "gemma3")
KINDS = (*NATIVE_KINDS, *GEMMAS)


@jax.jit
def forward(lm, tokens, segment_ids=None, positions=None):
  return lm.module.apply({"params": lm.params}, tokens, segment_ids, positions)


def variant(case, **options):
  """Returns its model, made in another way."""
  return LlamaLM.create(case.lm.module.config, case.lm.params, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(llama, kind):
  case = llama(kind)
  tokens = np.pad(case.tokens, ((0, 0), (0, CAPACITY - 1)))
  actual = forward(case.lm, tokens)
  for b, length in enumerate(case.lengths):
    limit = 1e-5 if kind in GEMMAS else 1e-4
    close(actual[b, :length], case.logits[b, :length], limit)


@pytest.mark.parametrize(
  ("kind", "kernel_dtype"),
  [
    *((kind, None) for kind in KINDS),
    *((kind, "float32") for kind in ("qwen2", *GEMMAS)),
  ],
)
def test_greedy_tokens_equal_transformers(llama, kind, kernel_dtype):
  """Ragged prompts, with plain kernels and with panels."""
  case = llama(kind)
  lm = variant(case, kernel_dtype=kernel_dtype)
  state = prefill(lm, case.inputs)
  np.testing.assert_array_equal(state.length, 0)
  np.testing.assert_array_equal(state.offset, case.lengths - 1)
  actual = greedy(lm, case.inputs, case.greedy.shape[1])
  np.testing.assert_array_equal(actual, case.greedy)


def test_only_the_laws_tell_of_the_cap_of_logits(llama):
  """It moves every probability at temperature 1, and no arg-max."""
  case = llama("gemma2")
  config = dataclasses.replace(case.lm.module.config, logit_cap=None)
  bare = LlamaLM.create(config, case.lm.params)
  is_text = np.arange(case.tokens.shape[1]) < case.lengths[:, None]
  want, capped, plain = (
    np.asarray(logits)[is_text]
    for logits in (
      case.logits,
      forward(case.lm, case.tokens),
      forward(bare, case.tokens),
    )
  )
  np.testing.assert_array_equal(plain.argmax(-1), want.argmax(-1))
  want, capped, plain = map(jax.nn.softmax, (want, capped, plain))
  close(capped, want)
  assert np.abs(plain - want).max() > 0.1


def test_the_scale_of_embeddings_is_rounded():
  """sqrt(3072) is 55.43, and 55.5 in bfloat16."""
  table = jnp.asarray([[1.125, 2.25]], jnp.bfloat16)
  tokens = int32([0])
  factor = 3072**0.5
  vectors = layers.look_up(table, tokens, "bfloat16", factor=factor)
  # 1.125 times 55.43 would round to 62.25, and 1.125 times 55.5 to 62.5.
  want = jnp.asarray([[1.125 * 55.5, 2.25 * 55.5]], jnp.bfloat16)
  np.testing.assert_array_equal(vectors, want)
  exact = (table.astype(jnp.float32) * factor).astype(jnp.bfloat16)
  assert not np.any(want == exact)
  # In float32 there is nothing to round.
  vectors = layers.look_up(table, tokens, "float32", factor=factor)
  close(vectors, np.float32(table) * factor, 1e-7)


@NEEDS_NATIVE
def test_what_native_passes_lack_is_said_once(llama, caplog):
  case = llama("gemma2")
  packed = variant(case, kernel_dtype="float32")
  native_passes._say.cache_clear()
  with caplog.at_level("INFO", logger="speccascade"):
    for _ in range(2):
      assert not native_passes.is_native(packed.module.config, packed.params)
  [line] = caplog.messages
  assert "lack norms of outputs, an offset of norms, scaled" in line
  assert "a cap of attention, a cap of logits: XLA runs" in line
  assert not native_passes.is_native(case.lm.module.config, case.lm.params)


@pytest.mark.parametrize("kind", hugging_face_rope.SCALINGS)
def test_rope_scalings_past_the_length_trained_on(
  golden, llama, llama_arrays, kind
):
  """A text's; where its length matters, a block's after a prompt too."""
  file = golden.parent / "llama" / "llama" / "config.json"
  settings, plain = json.loads(file.read_text()), llama("llama").lm
  tokens, want, scaling = (
    llama_arrays[f"llama-{kind}/{x}"] for x in ("tokens", "logits", "scaling")
  )
  del settings["rope_parameters"]
  settings["rope_scaling"] = json.loads(str(scaling))
  if kind == "dynamic":
    settings["max_position_embeddings"] = 16
  config = hugging_face_llama.build_config(settings)
  assert config.rope_scaling.kind == kind
  lm = LlamaLM.create(config, plain.params)
  close(forward(lm, tokens)[:, ::3], want, 1e-4)
  plain_logits = forward(plain, tokens)[:, ::3]
  assert np.abs(plain_logits - want).max() > 1e-2 * np.abs(want).max()
  if kind != "dynamic":
    return
  state = prefill(lm, int32(tokens[:, :40]))
  _, block = feed(lm, state, tokens[:, 39:], [21])
  close(block[:, ::3], want[:, 13:], 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_at_a_time_equals_the_whole_text(llama, fed, kind):
  case, ours = llama(kind), fed(kind)
  for b, length in enumerate(case.lengths):
    here = slice(length - 1, length - 1 + CAPACITY)
    text = np.zeros((1, case.tokens.shape[1] - 1 + CAPACITY), np.int32)
    text[0, : length - 1] = case.tokens[b, : length - 1]
    text[0, here] = ours.tokens[b]
    close(forward(case.lm, text)[0, here], ours.one_by_one[b])


@NEEDS_NATIVE
@pytest.mark.parametrize("kind", toy.nightly(NATIVE_KINDS, ["qwen3"]))
def test_a_native_pass_equals_the_plain_one(llama, kind):
  """Ragged blocks, fewer positions read, and a row that is fed nothing."""
  case = llama(kind)
  packed = variant(case, kernel_dtype="float32")
  assert native_passes.is_native(packed.module.config, packed.params)
  states = [prefill(lm, case.inputs) for lm in (case.lm, packed)]
  for width, count, read in (
    (1, [1, 0, 1], None),
    (7, [0, 4, 7], [[0, 0], [3, 1], [6, 0]]),
    (7, [7, 1, 6], None),
    (7, [0, 1, 3], None),
  ):
    block = case.tokens[:, :width]
    assert_alike(extend, (case.lm, packed), states, block, count, read)


@NEEDS_NATIVE
@pytest.mark.parametrize("out_bias", [False, True])
def test_biases_and_norms_together(out_bias):
  """As no public model has them; a bias of the output has no native pass."""
  sizes = {"vocab_size": 90, "emb_dim": 24, "head_dim": 8, "mlp_dim": 40}
  heads = {"num_heads": 4, "num_kv_heads": 2, "num_decoder_layers": 2}
  biases = {"qkv_bias": True, "query_key_norm": True, "out_bias": out_bias}
  config = LlamaConfig(**sizes, **heads, **biases)
  rng = np.random.default_rng(0)
  params = {
    path: rng.normal(size=shape) / shape[0] ** 0.5
    for path, shape in param_shapes(config).items()
  }
  params = traverse_util.unflatten_dict(params, sep="/")
  plain, packed = (
    LlamaLM.create(config, params, kernel_dtype=dtype)
    for dtype in (None, "float32")
  )
  assert native_passes.is_native(config, packed.params) != out_bias
  tokens = rng.integers(2, 90, (3, 5), np.int32)
  inputs = np.array([[3, 4, 5], [6, 7, -1], [8, -1, -1]], np.int32)
  logits = []
  for lm in (plain, packed):
    state, first = feed(lm, prefill(lm, inputs), tokens, [5, 5, 5])
    logits.append([first, feed(lm, state, tokens[:, :1], [1, 1, 1])[1]])
  for got, want in zip(*logits[::-1]):
    close(got, want)
    assert np.std(want) > 0.05


def test_long_prompts_are_fed_in_parts(llama, monkeypatch):
  """20 slots by 8: the last part feeds 4 of them again."""
  case = llama("mistral")
  want = prefill(case.lm, case.inputs)
  monkeypatch.setattr(llama_lm, "PREFILL_WIDTH", 8)
  actual = case.lm.prefill(case.inputs, capacity=CAPACITY)
  for leaf, wanted_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(want)):
    assert leaf.shape == wanted_leaf.shape
    np.testing.assert_allclose(leaf, wanted_leaf, atol=1e-5)


def test_packed_rows_do_not_see_each_other(llama):
  case = llama("qwen2")
  packed = np.concatenate([case.tokens[:1, :19], case.tokens[1:2, :12]], axis=1)
  ids = np.repeat([1, 2], [19, 12])[None].astype(np.int32)
  positions = np.r_[:19, :12][None].astype(np.int32)
  actual = forward(case.lm, packed, ids, positions)[0]
  close(actual[:19], case.logits[0, :19], 1e-4)
  close(actual[19:], case.logits[1, :12], 1e-4)


def test_bfloat16_is_near(llama):
  case = llama("qwen2")
  lm = variant(case, dtype="bfloat16")
  state = prefill(lm, case.inputs)
  assert state.caches[0][0].dtype == jnp.bfloat16
  _, actual = feed(lm, state, prompts.last(case.inputs)[:, None], [1] * 3)
  want = case.logits[np.arange(3), case.lengths - 1]
  close(actual[:, 0], want, 3e-2)
  assert np.abs(actual[:, 0] - want).max() > 1e-4
