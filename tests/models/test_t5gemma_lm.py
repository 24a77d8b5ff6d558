"""T5Gemma: transformers' numbers, however its decoder is fed."""

import dataclasses

import jax
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  decode_continuously,
  row_keys,
)
from speccascade.decoding.records import prompts
from speccascade.decoding.records.masked_model import MaskedModel
from speccascade.models import (
  HeadsConfig,
  T5GemmaConfig,
  T5GemmaLM,
  native_passes,
)
from speccascade.models.draft_heads import initial_params
from speccascade.models.heads_model import TrainedHeads
from speccascade.settings import fields
from tests import toy
from tests.models.feeding import (
  NEEDS_NATIVE,
  close,
  extend,
  greedy,
  int32,
  prefill,
)

KINDS = ("even", "wide", "merged")
# The shape of the golden models' decoders, and an encoder of its own.
CONFIG = T5GemmaConfig(
  vocab_size=60,
  emb_dim=20,
  num_heads=4,
  num_kv_heads=2,
  num_decoder_layers=2,
  head_dim=6,
  mlp_dim=24,
  num_encoder_layers=2,
  encoder_emb_dim=28,
  encoder_num_heads=2,
  encoder_num_kv_heads=1,
  window=3,
  windowed_layers=(0,),
)
MERGED = dataclasses.replace(
  CONFIG,
  encoder_emb_dim=None,
  query_key_norm=True,
  local_rope_theta=50.0,
  split_window=True,
  merged_attention=True,
  shared_embedding=True,
  end_of_image_id=9,
)


@jax.jit
def encode(lm, sources):
  return lm.module.apply({"params": lm.params}, sources, method="encode")


@jax.jit
def forward(lm, sources, tokens, encoder_ids=None, decoder_ids=None):
  return lm.module.apply(
    {"params": lm.params}, sources, tokens, tokens, encoder_ids, decoder_ids
  )


def changed(case, **fields):
  """Returns the model with other hyperparameters, and the same parameters."""
  config = dataclasses.replace(case.lm.module.config, **fields)
  return T5GemmaLM.create(config, case.lm.params)


def is_text(case):
  return np.arange(case.tokens.shape[1]) < case.lengths[:, None]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(t5gemma, kind):
  """Ragged rows together; there each row was alone, without padding."""
  case = t5gemma(kind)
  assert case.lm.module.config.window < min(
    case.sources.shape[1], case.tokens.shape[1]
  )
  actual = forward(case.lm, case.sources, case.tokens)
  close(actual[is_text(case)], case.logits[is_text(case)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel_dtype", [None, "float32"])
def test_greedy_tokens_equal_transformers(t5gemma, kind, kernel_dtype):
  """One by one, with plain kernels and with panels."""
  case = t5gemma(kind)
  lm = T5GemmaLM.create(
    case.lm.module.config, case.lm.params, kernel_dtype=kernel_dtype
  )
  assert set(np.asarray(prompts.start(lm, case.sources))) == {2}
  actual = greedy(lm, case.sources, case.greedy.shape[1])
  np.testing.assert_array_equal(actual, case.greedy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  "options",
  [
    {"gamma": 3},
    {"gamma": 3, "tree": (3, 2, 1)},
    {"gamma": 3, "verification": "block"},
  ],
  ids=["blocks", "trees", "block verification"],
)
def test_decodes_equal_transformers(t5gemma, kind, options):
  """In blocks and in trees, by a drafter that is right at times."""
  case = t5gemma(kind)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: x + 0.08 * x.std() * rng.normal(size=x.shape).astype(np.float32),
    case.lm.params,
  )
  drafter = T5GemmaLM.create(case.lm.module.config, params)
  decoded = toy.decode(
    "spec_decode",
    (drafter, case.lm),
    inputs=int32(case.sources),
    max_decode_len=case.greedy.shape[1],
    eos_id=96,  # nothing ends
    **options,
  )
  np.testing.assert_array_equal(decoded.tokens, case.greedy)
  assert decoded.stats.num_blocks.sum() < 0.8 * case.greedy.size


@pytest.mark.parametrize(
  ("name", "kind"),
  toy.nightly(
    [
      *(("wide", x) for x in ("medusa", "blockwise", "lookahead")),
      ("merged", "lookahead"),
    ],
    [("wide", "lookahead")],
  ),
)
def test_draft_heads_write_transformers_tokens(t5gemma, name, kind):
  """Heads over its hidden states, and embeddings that its decoder reads."""
  case = t5gemma(name)
  config = HeadsConfig(kind=kind, num_heads=3, mlp_dim=16)
  config = config.of_verifier(case.lm.module.config, case.lm.params)
  params = initial_params(config, case.lm.module, case.lm.params)
  decoded = toy.decode(
    "spec_decode",
    (TrainedHeads.create(config, params), case.lm),
    inputs=int32(case.sources),
    max_decode_len=case.greedy.shape[1],
    eos_id=96,  # nothing ends
    gamma=3,
  )
  np.testing.assert_array_equal(decoded.tokens, case.greedy)


@pytest.mark.parametrize("kind", KINDS)
def test_refilled_rows_equal_transformers(t5gemma, kind):
  """A row that ended makes room for the next one."""
  case = t5gemma(kind)
  decoder = Decoder(
    METHODS["spec_decode"],
    gamma=3,
    max_decode_len=case.greedy.shape[1],
    eos_id=96,  # nothing ends
  )
  rngs = row_keys(0, 0, np.arange(3))
  arguments = (case.lm, case.lm, case.sources, rngs, 0.0, toy.GREEDY)
  tokens = np.zeros_like(case.greedy)
  for places, decoded in decode_continuously(
    decoder, *arguments, rows=2, refill=1
  ):
    tokens[places] = decoded.tokens
  np.testing.assert_array_equal(tokens, case.greedy)


@pytest.mark.parametrize(
  ("base", "window", "num_before", "num_after"),
  [(CONFIG, 3, 3, 3), (MERGED, 3, 1, 1), (MERGED, 4, 1, 2)],
  ids=["one side", "odd", "even"],
)
def test_the_window_of_the_encoder(base, window, num_before, num_after):
  """In T5Gemma a token sees W on either side, in T5Gemma 2 W with itself.

  As transformers has it. In Google's own code of T5Gemma the token itself
  counts in the encoder, too. In short sources the window hides nothing.
  """
  one_layer = {"num_encoder_layers": 1, "encoder_windowed_layers": (0,)}
  config = dataclasses.replace(base, **one_layer, window=window)
  near = T5GemmaLM.init(config, jax.random.key(0))
  far = T5GemmaLM.create(dataclasses.replace(config, window=99), near.params)

  def encoded(lm, source):
    padded = [*source, *[0] * (6 - len(source))]
    return np.asarray(encode(lm, int32([padded])))[0, : len(source)]

  source, place = [3, 4, 5, 6, 7, 8], np.arange(6)
  text = source[: num_before + 1]
  np.testing.assert_array_equal(encoded(near, text), encoded(far, text))
  assert np.all(encoded(near, source) != encoded(far, source), -1).any()
  for changed, seen in ((0, place <= num_before), (5, place >= 5 - num_after)):
    other = [10 if i == changed else x for i, x in enumerate(source)]
    moved = (encoded(near, source) != encoded(near, other)).any(-1)
    np.testing.assert_array_equal(moved, seen)


def test_only_the_laws_tell_of_the_cap_of_logits(t5gemma):
  """It moves every probability at temperature 1, and no arg-max."""
  case = t5gemma("even")
  bare = changed(case, logit_cap=None)
  want, capped, plain = (
    np.asarray(logits)[is_text(case)]
    for logits in (
      case.logits,
      forward(case.lm, case.sources, case.tokens),
      forward(bare, case.sources, case.tokens),
    )
  )
  np.testing.assert_array_equal(plain.argmax(-1), want.argmax(-1))
  want, capped, plain = map(jax.nn.softmax, (want, capped, plain))
  close(capped, want)
  assert np.abs(plain - want).max() > 0.1


def test_the_start_token_is_the_configs(t5gemma):
  """A batch has 0 before a text, which is read as the start token."""
  case = t5gemma("even")
  tokens = np.array(case.tokens)
  assert np.all(tokens[:, 0] == case.lm.start_id)
  tokens[:, 0] = 0
  actual = forward(case.lm, case.sources, tokens)
  close(actual[is_text(case)], case.logits[is_text(case)])
  other = changed(case, start_id=5)
  assert set(np.asarray(prompts.start(other, case.sources))) == {5}
  assert np.any(greedy(other, case.sources, 3) != case.greedy[:, :3])
  with pytest.raises(
    fields.SettingError, match=r"start_id is 96; wanted an id"
  ):
    dataclasses.replace(case.lm.module.config, start_id=96)


def test_a_masked_model_starts_likewise(t5gemma):
  case = t5gemma("even")
  masked = MaskedModel(changed(case, start_id=5), automaton=None)
  assert set(np.asarray(prompts.start(masked, case.sources))) == {5}


def test_packed_rows_do_not_see_each_other(t5gemma):
  case = t5gemma("wide")
  sources = np.concatenate([case.sources[0], case.sources[1, :12]])[None]
  tokens = np.concatenate([case.tokens[0], case.tokens[2, :9]])[None]
  encoder_ids = np.repeat([1, 2], [19, 12])[None].astype(np.int32)
  decoder_ids = np.repeat([1, 0], [14, 9])[None].astype(np.int32)
  logits = forward(case.lm, sources, tokens, encoder_ids, decoder_ids)
  close(logits[0, :14], case.logits[0])
  # And the second source with a target of its own.
  decoder_ids = np.where(decoder_ids, 1, 2)
  logits = forward(case.lm, sources, tokens, encoder_ids, decoder_ids)
  alone = forward(case.lm, case.sources[1:2, :12], tokens[:, 14:])
  close(logits[0, 14:], alone[0])


def test_one_scale_of_queries_has_one_spelling():
  """Where the stacks' heads differ in width, None means two scales."""
  left_out, spelled = (
    dataclasses.replace(CONFIG, query_pre_attn_scalar=scale)
    for scale in (None, 6.0)
  )
  assert left_out == spelled
  two = dataclasses.replace(
    CONFIG, query_pre_attn_scalar=None, encoder_head_dim=8
  )
  assert two != dataclasses.replace(two, query_pre_attn_scalar=6.0)
  assert two.encoder.query_factor == 8**-0.5


@pytest.mark.parametrize(
  ("config", "changes", "message"),
  [
    (
      CONFIG,
      {"encoder_num_heads": 3, "encoder_num_kv_heads": 2},
      "the encoder's num_kv_heads is 2, which",
    ),
    (MERGED, {"encoder_emb_dim": 28}, "encoder_emb_dim is 28; .* emb_dim, 20"),
    (CONFIG, {"end_of_image_id": 9}, "end_of_image_id wants shared_embedding"),
  ],
)
def test_impossible_configs(config, changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(config, **changes)


def test_keys_of_the_source_are_computed_once(t5gemma):
  """They are kept as for T5Gemma, and blocks leave them as they are."""
  case = t5gemma("merged")
  state = prefill(case.lm, case.sources, 16)
  heads, width = case.lm.module.config.num_kv_heads, 12
  rows, length = case.sources.shape
  for keys, values in state.sources:
    assert keys.shape == (rows, heads, width, length)
    assert values.shape == (rows, heads, length, width)
  count = int32([4, 1, 4])
  after, _ = extend(case.lm, state, int32(case.tokens[:, :4]), count)
  jax.tree.map(np.testing.assert_array_equal, after.sources, state.sources)
  # Nothing of the source is in the cache of the decoder.
  assert all(keys.shape[3] == 16 for keys, _ in after.caches)


@NEEDS_NATIVE
def test_native_passes_are_refused_in_a_line(t5gemma, caplog):
  case = t5gemma("even")
  config = case.lm.module.config
  packed = T5GemmaLM.create(config, case.lm.params, kernel_dtype="float32")
  native_passes._say.cache_clear()
  with caplog.at_level("INFO", logger="speccascade"):
    assert not native_passes.is_native(config, packed.params)
  [line] = caplog.messages
  assert "a cap of attention, a cap of logits, attention to a source" in line
  # Nor is one that has nothing else that they lack, which is not a Llama.
  plain = dataclasses.replace(
    config,
    norm_offset=0,
    post_norms=False,
    scaled_embedding=False,
    query_pre_attn_scalar=None,
    attention_cap=None,
    logit_cap=None,
  )
  assert not native_passes.is_native(plain, packed.params)
