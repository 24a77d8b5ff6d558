"""State readers of tiny networks: what they compute, and what is written."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import (
  Constraints,
  Sampling,
  StateDrafter,
  decoder,
  row_keys,
)
from speccascade.decoding.records import prompts
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import (
  LlamaLM,
  StateReader,
  StateReaderConfig,
  fused_states,
)
from speccascade.models.cached_stack import with_layer_inputs
from speccascade.models.llama.eagle import Eagle
from tests import toy
from tests.decoding import test_constraints
from tests.decoding.test_sampled_laws import (
  GEMMA,
  MERGED,
  PROMPTS,
  T5_SOURCES,
  tiny_llama,
  tiny_t5,
  tiny_t5gemma,
)
from tests.models import head_samples
from tests.models.feeding import NEEDS_NATIVE

VERIFIERS = {
  "llama": tiny_llama,
  "gemma": lambda seed: tiny_llama(seed, **GEMMA),
  "t5": tiny_t5,
  "t5gemma": lambda seed: tiny_t5gemma(seed, **GEMMA),
  "t5gemma 2": lambda seed: tiny_t5gemma(seed, **GEMMA | MERGED),
}
ALL = list(VERIFIERS)


def inputs_of(verifier):
  rows = PROMPTS if verifier.prompted else T5_SOURCES
  return jnp.asarray(rows, jnp.int32)


# What the readers of a test have: a head of their own, or several states.
OWN_HEAD = {"own_head": True}
FUSED = {"fused": True}
EAGLE = {"layout": "eagle"}
EAGLE3 = {"layout": "eagle3", "fused": True, "own_head": True}
OPTIONS = {
  "False": {},
  "True": OWN_HEAD,
  "fused": FUSED,
  "table": FUSED | {"own_table": True, "fused_layers": (1, 0)},
  "eagle": EAGLE,
  "eagle3": EAGLE3,
  "eagle3 options": EAGLE3
  | {
    "own_table": True,
    "eagle": Eagle(
      norm_before_residual=True, norm_output=True, norms_of_states="each"
    ),
  },
}
OF_LLAMA = [name for name in OPTIONS if "eagle" in name]


@pytest.mark.parametrize(
  ("kind", "options"),
  toy.nightly(
    [
      (kind, name)
      for kind in ALL
      for name in OPTIONS
      if kind == "llama" or name not in OF_LLAMA
      if kind == "llama" or name != "table"
    ],
    quick=[
      ("llama", "False"),
      ("t5", "True"),
      ("gemma", "fused"),
      ("llama", "eagle"),
      ("llama", "eagle3 options"),
    ],
  ),
)
def test_what_drafts_is_what_training_reads(kind, options):
  # Each draft has the law of the network that reads the whole text and the
  # drafts, as many times as there are drafts: in a block after a text that was
  # given, and in the next block, which follows one accepted draft.
  verifier = VERIFIERS[kind](2)
  reader = StateReader.untrained(verifier, **OPTIONS[options])
  handed = reader.verifier_read(verifier)
  inputs, gamma, held = inputs_of(verifier), 3, 4
  rows = len(inputs)
  rng = np.random.default_rng(0)
  text = jnp.asarray(rng.integers(2, verifier.vocab_size, (rows, 12)))
  start = prompts.start(verifier, inputs)[:, None]
  tokens = jnp.concatenate([start, text], axis=1).astype(jnp.int32)
  length = jnp.full(rows, held + 1, jnp.int32)

  @jax.jit
  def draft(reader, verifier):
    drafter = StateDrafter.of(reader.reading_model(verifier), gamma)
    states = drafter.prefill_with(verifier, inputs, capacity=14)
    state, verifying = drafter.catch_up_with(
      verifier, states, tokens, length - 1, wide=2
    )

    def propose(state, tokens, length):
      return drafter.propose(
        state,
        Prefix(tokens, length, jnp.ones(rows, bool)),
        row_keys(0, 0, jnp.arange(rows)),
        Sampling.create(1.0),
        needs_bonus_law=True,
      )

    state, first = propose(state, tokens, length)
    # (The teacher-forced T5Gemma takes a 0 for the token before a text.)
    kept = jnp.maximum(first.tokens, 2)
    block = jnp.concatenate([tokens[:, held : held + 1], kept], axis=1)
    _, out = verifier.extend(verifying, block, jnp.full_like(length, gamma + 1))
    accepted = tokens.at[:, held + 1].set(kept[:, 0])
    state = drafter.observe(
      drafter.rewind(state, length + 1),
      out.hidden,
      jnp.broadcast_to(jnp.arange(gamma + 1, dtype=jnp.int32), block.shape),
      jnp.full_like(length, 2),
      length + 1,
    )
    _, second = propose(state, accepted, length + 2)
    return (tokens, first), (accepted, second)

  for more, (text, proposal) in zip((0, 2), draft(reader, handed)):
    assert_laws(reader, verifier, inputs, text, held + more, proposal)


def assert_laws(reader, verifier, inputs, tokens, held, proposal):
  """Asserts the laws of drafts after `held` + 1 tokens of each text."""
  # The prompt, the text that was drafted after, and the drafts.
  whole = np.concatenate(
    [tokens[:, : held + 1], proposal.tokens], axis=1
  ).astype(np.int32)
  rows, gamma = proposal.tokens.shape
  offset = 0
  if verifier.prompted:
    before, offset = prompts.prefill_tokens(inputs)
    assert len(set(np.asarray(offset).tolist())) > 1 or rows == 1
  for row in range(rows):
    read, past = whole[row], 0
    if verifier.prompted:
      past = int(offset[row])
      read = np.concatenate([before[row, :past], read])
    laws = read_whole(reader, verifier, inputs[row : row + 1], read, gamma + 1)
    for step, law in enumerate(laws):
      got = proposal.q[row, step]
      want = law[past + held + step]
      np.testing.assert_allclose(got, want, atol=2e-5)


def read_whole(reader, verifier, source, text, num_steps):
  """Returns the laws [T, V] of each reading of a text."""
  text = jnp.asarray(text, jnp.int32)[None]

  @jax.jit
  def run(reader, verifier):
    module, variables = verifier.module, {"params": verifier.params}
    apply = lambda method, *args, **options: module.apply(
      variables, *args, method=method, **options
    )
    encoded = None
    inputs = (text,)
    if not verifier.prompted:
      inputs = source, text, jnp.ones_like(text)
      encoded = (
        apply("encode", source, enable_dropout=False),
        (source > 0)[:, None, :],
      )
    hidden, read = with_layer_inputs(
      module, variables, *inputs, method="hidden"
    )
    config, own = reader.config, {"params": reader.params}
    layers = config.layers_read(module.config.num_decoder_layers)
    if layers:
      hidden = jnp.concatenate([read[layer] for layer in layers], axis=-1)
    vectors = apply("embed", text)
    if config.own_table:
      vectors = reader.module.apply(own, text, method="embed")
    outputs = reader.module.apply(
      own,
      vectors,
      hidden,
      source=encoded,
      num_steps=num_steps,
    )
    lm = reader.reading_model(verifier).lm
    return [jax.nn.softmax(lm.project(x)[0]) for x in outputs]

  return [np.asarray(x) for x in run(reader, verifier)]


SHAPES = {
  "chain": {"gamma": 3},
  "tree": {"gamma": 2, "tree": (2, 1)},
}


@pytest.mark.parametrize(
  ("kind", "shape"),
  toy.nightly(
    [(kind, shape) for kind in ALL for shape in SHAPES],
    quick=[("llama", "tree"), ("t5", "chain"), ("t5gemma", "chain")],
  ),
)
def test_greedy_texts_are_the_verifiers(kind, shape):
  verifier = VERIFIERS[kind](2)
  reader = StateReader.untrained(verifier)
  toy.greedily(
    "spec_decode",
    (reader, verifier),
    inputs=inputs_of(verifier),
    max_decode_len=9,
    **SHAPES[shape],
  )


@pytest.mark.parametrize("kind", toy.nightly(["llama", "t5"], ["llama"]))
def test_greedy_texts_under_a_mask_and_stops_are_the_verifiers(kind):
  verifier = VERIFIERS[kind](6)  # which writes both 0 and 2
  size = verifier.vocab_size
  mask = test_constraints.forcing(test_constraints.two_after_zero(size))
  got = toy.greedily(
    "spec_decode",
    (StateReader.untrained(verifier), verifier),
    inputs=inputs_of(verifier),
    max_decode_len=16,
    constraints=Constraints(mask, test_constraints.at_the_third_two(size)),
  )
  tokens, lengths = np.asarray(got.tokens), np.asarray(got.lengths)
  texts = [row[:num] for row, num in zip(tokens, lengths)]
  assert any(len(text) < 16 and (text == 2).sum() == 3 for text in texts)
  assert any((text == 0).any() for text in texts)
  for text in texts:
    assert np.all(text[1:][text[:-1] == 0] == 2)


CASES = [
  (model, way) for model in head_samples.MODELS for way in head_samples.WAYS
]


@pytest.mark.parametrize(
  ("model", "way"), toy.nightly(CASES, [("llama", "chain"), ("t5", "tree")])
)
def test_samples_have_the_verifiers_law(model, way):
  decoded = head_samples.decode(
    StateReader.untrained, model, **head_samples.WAYS[way]
  )
  assert 0 < decoded.stats.accepted.sum() < decoded.stats.examined.sum()


def packed(lm, kernels="float32"):
  return type(lm).create(lm.module.config, lm.params, kernel_dtype=kernels)


@NEEDS_NATIVE
@pytest.mark.parametrize(
  ("kind", "options"),
  toy.nightly(
    [(kind, options) for kind in ("llama", "t5") for options in ({}, FUSED)],
    [("llama", FUSED), ("t5", {})],
  ),
)
def test_native_passes_write_the_same(kind, options):
  plain = VERIFIERS[kind](2)
  reader = StateReader.untrained(plain, **options)
  config = reader.config
  verifier = packed(plain)
  native_reader = StateReader.create(
    config, reader.params, kernel_dtype="float32"
  )
  assert native_reader.reading_model(verifier).lm._is_native
  options = {
    "inputs": inputs_of(plain),
    "max_decode_len": 9,
    "sampling": Sampling.create(0.8),
  }
  one, other = (
    toy.decode("spec_decode", models, **options)
    for models in ((reader, plain), (native_reader, verifier))
  )
  assert np.array_equal(one.tokens, other.tokens)
  assert np.array_equal(one.stats.accepted, other.stats.accepted)


@NEEDS_NATIVE
def test_an_eagle_drafts_with_packed_kernels():
  plain = VERIFIERS["llama"](2)
  reader = StateReader.untrained(plain, **EAGLE3)
  quick = StateReader.create(
    reader.config, reader.params, kernel_dtype="float32"
  )
  model = quick.reading_model(packed(plain)).lm
  assert not model._is_native
  options = {"inputs": inputs_of(plain), "max_decode_len": 9}
  one, other = (
    toy.decode("spec_decode", models, **options)
    for models in ((reader, plain), (quick, packed(plain)))
  )
  assert np.array_equal(one.tokens, other.tokens)
  assert np.array_equal(one.stats.accepted, other.stats.accepted)


@NEEDS_NATIVE
@pytest.mark.parametrize("read", [None, [[0, 2], [3, 3]]])
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_native_passes_hand_out_what_layers_read(kind, read):
  plain = VERIFIERS[kind](2)
  num_layers = plain.module.config.num_decoder_layers
  tokens = jnp.asarray([[4, 1, 3, 2], [2, 2, 1, 5]], jnp.int32)
  read = None if read is None else jnp.asarray(read, jnp.int32)

  @jax.jit
  def states(lm):
    lm = lm.handing_out([num_layers - 1, 0])
    state = lm.prefill(inputs_of(plain)[:2], capacity=9)
    # (The first row is fed less; its other states mean nothing.)
    _, out = lm.extend(state, tokens, jnp.asarray([3, 4]), read=read)
    return out.hidden

  want, got = (np.array(states(lm)) for lm in (plain, packed(plain)))
  if read is None:
    want[0, 3], got[0, 3] = 0, 0
  else:
    want, got = want[:, :2], got[:, :2]
  np.testing.assert_allclose(got, want, atol=1e-5)
  table = np.asarray(plain.params["token_embedder"]["embedding"])
  vectors = table[tokens[1, np.arange(4) if read is None else read[1]]]
  width = vectors.shape[1]
  np.testing.assert_allclose(got[1, :, width:], vectors, atol=1e-6)
  with pytest.raises(ValueError, match=f"and the verifier has {num_layers} la"):
    plain.handing_out([num_layers])


@NEEDS_NATIVE
@pytest.mark.parametrize(
  ("verifiers", "own", "kept"),
  toy.nightly(
    [
      (None, "float32", None),
      ("bfloat16", None, None),
      ("bfloat16", "int8", None),
      (None, "bfloat16", None),
      ("bfloat16", "int8", [1, 2, 4]),
    ],
    quick=[("bfloat16", "int8", [1, 2, 4])],
  ),
)
def test_a_reader_has_kernels_of_its_own(verifiers, own, kept):
  # The verifier's head is read as it is; one that is cut is the reader's.
  plain = tiny_llama(2)
  verifier = packed(plain, verifiers) if verifiers else plain
  reader = StateReader.untrained(plain)
  reader = StateReader.create(reader.config, reader.params, kernel_dtype=own)
  is_panels = lambda x: isinstance(x, native.Panels)
  kernels = jax.tree.leaves(reader.params, is_leaf=is_panels)
  dtypes = {x.array.dtype for x in kernels if is_panels(x)}
  assert dtypes == ({jnp.dtype(own)} if own else set())
  if kept:
    reader = reader.cut_to(kept, verifier)
    kernel = reader.params["draft_vocabulary"]["kernel"]
    assert kernel.array.dtype == own
  # A prompt of one token leaves no states.
  toy.greedily(
    "spec_decode",
    (reader, verifier),
    inputs=jnp.asarray([[3]], jnp.int32),
    max_decode_len=6,
  )


def test_a_reader_in_eight_bits_without_native_products(monkeypatch):
  verifier = tiny_llama(2)
  reader = StateReader.untrained(verifier)
  monkeypatch.setattr(native, "is_available", lambda: False)
  reader = StateReader.create(reader.config, reader.params, kernel_dtype="int8")
  cut = reader.cut_to([1, 2, 4], verifier)
  assert isinstance(cut.params["draft_vocabulary"]["kernel"], native.Quantised)
  lms = (each.reading_model(verifier).lm for each in (cut, reader))
  hidden = jax.random.normal(jax.random.key(0), (1, 2, reader.config.emb_dim))
  got, want = (lm.project(hidden) for lm in lms)
  np.testing.assert_allclose(got[..., 2], want[..., 2], atol=0.05)
  assert np.all(np.isneginf(got[..., 3]))


@NEEDS_NATIVE
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_reader_of_packed_kernels_is_that_of_the_arrays(kind):
  plain = VERIFIERS[kind](2)
  wanted = StateReader.untrained(plain, own_head=True)
  made = StateReader.untrained(packed(plain), own_head=True)
  assert made.config == wanted.config
  jax.tree.map(np.testing.assert_array_equal, made.params, wanted.params)


def test_a_reader_of_no_language_model():
  for other in (None, "large"):
    with pytest.raises(ValueError, match=r"a (NoneType|str) was given"):
      StateReader.untrained(other)


@NEEDS_NATIVE
def test_a_token_is_looked_up_without_a_copy_of_the_table():
  # XLA's CPU backend would make float32 of all of a bfloat16 table.
  plain = tiny_llama(2)
  table = plain.params["token_embedder"]["embedding"]
  panels = native.pack(np.asarray(table).T, "bfloat16")
  tokens = jnp.arange(3)
  look_up = jax.jit(lambda panels: panels.columns(tokens))
  text = look_up.lower(panels).compile().as_text()
  sizes = ",".join(map(str, panels.array.shape))
  assert f"bf16[{sizes}]" in text
  assert f"f32[{sizes}]" not in text
  want = np.asarray(table, jnp.bfloat16)[:3]
  assert np.array_equal(look_up(panels), want)


@pytest.mark.parametrize("kind", toy.nightly(["llama", "t5"], ["llama"]))
def test_a_row_alone_is_as_in_a_batch(kind):
  verifier = VERIFIERS[kind](2)
  reader = StateReader.untrained(verifier)
  inputs = np.asarray(inputs_of(verifier))
  keys = row_keys(0, 0, jnp.arange(len(inputs)))
  options = {"max_decode_len": 9, "sampling": Sampling.create(1.0)}
  models = reader, verifier
  whole = toy.decode(
    "spec_decode", models, inputs=jnp.asarray(inputs), keys=keys, **options
  )
  for row in range(len(inputs)):
    alone = toy.decode(
      "spec_decode",
      models,
      inputs=jnp.asarray(inputs[row : row + 1]),
      keys=keys[row : row + 1],
      **options,
    )
    assert np.array_equal(alone.tokens[0], whole.tokens[row])


@pytest.mark.parametrize("own_head", toy.nightly([False, True], [False]))
def test_a_cut_head_drafts_what_it_keeps(own_head):
  verifier = tiny_llama(2)
  reader = StateReader.untrained(verifier, own_head=own_head)
  kept = [1, 2, 4]
  cut = reader.cut_to(kept, verifier)
  model = cut.reading_model(verifier).lm
  assert model.params["draft_vocabulary"]["kernel"].shape[1] == len(kept)
  toy.greedily(
    "spec_decode",
    (cut, verifier),
    inputs=inputs_of(verifier),
    max_decode_len=9,
  )


def test_a_cut_head_is_read_over_what_it_keeps(monkeypatch):
  """No distribution of a draft has a number for each token."""
  verifier = tiny_llama(2)
  cut = StateReader.untrained(verifier).cut_to([1, 2, 4], verifier)
  widths, step = [], Sampling.step

  def recorded(self, logits, *others, **named):
    widths.append(logits.shape[-1])
    return step(self, logits, *others, **named)

  monkeypatch.setattr(Sampling, "step", recorded)
  inputs = jnp.asarray(inputs_of(verifier))
  keys = row_keys(0, 0, jnp.arange(len(inputs)))
  for options in ({"gamma": 3}, {"gamma": 2, "tree": (2, 1)}):
    widths.clear()
    run = decoder("spec_decode", max_decode_len=4, eos_id=1, **options)
    run.lower(cut, verifier, inputs, keys, 0.0, Sampling.create(1.0))
    assert widths[:-1] == [3] * (len(widths) - 1)
    assert widths[-1] == verifier.vocab_size


def test_a_config_has_one_layer_of_the_verifiers_kind():
  for make in VERIFIERS.values():
    config = make(0).module.config
    shaped = StateReaderConfig().shaped_like(config)
    assert type(shaped.layer) is type(config)
    assert shaped.layer.num_decoder_layers == 1
    assert shaped.prompted == (not hasattr(config, "num_encoder_layers"))
  windowed = dataclasses.replace(
    config, window=3, windowed_layers=None, local_rope_theta=None
  )
  assert StateReaderConfig().shaped_like(windowed).layer.windows == {3}
  with pytest.raises(ValueError, match="one of t5, t5gemma and llama"):
    StateReaderConfig(t5=toy.t5_config(), llama=tiny_llama(0).module.config)


def test_options_that_do_not_fit_are_refused():
  verifier = tiny_llama(2)
  for options, words in (
    ({"layout": "eagle3"}, "wants both True"),
    (EAGLE | OWN_HEAD, "wants both True"),
    ({"fused_layers": (1,)}, "give one layer or more"),
    ({"draft_vocab_size": 3}, "set own_head"),
    (FUSED | {"fused_layers": (0, 9)}, "has 2 layers"),
  ):
    with pytest.raises(ValueError, match=words):
      StateReader.untrained(verifier, **options).verifier_read(verifier)
  for other in (tiny_t5(0), tiny_llama(0, **GEMMA)):
    with pytest.raises(ValueError, match="a Llama, a Mistral or a Qwen"):
      StateReader.untrained(other, **EAGLE)
  # A verifier that hands out its last state.
  model = StateReader.untrained(verifier, **FUSED).reading_model(verifier)
  with pytest.raises(ValueError, match="3 states of 16 numbers is given 16"):
    model.states_of(jnp.zeros((1, 1, 16)))


def test_three_layers_of_any_verifier_are_read():
  want = {1: (0, 0, 0), 2: (0, 1, 1), 5: (1, 2, 4), 6: (2, 3, 3)}
  want |= {32: (2, 16, 29)}
  for num, layers in want.items():
    assert fused_states.default_layers(num) == layers


def test_another_verifier_is_refused():
  verifier = tiny_llama(2)
  reader = StateReader.untrained(verifier)
  wider = dataclasses.replace(verifier.module.config, vocab_size=9)
  other = LlamaLM.init(wider, jax.random.key(0))
  with pytest.raises(ValueError, match="vocab_size 9"):
    reader.reading_model(other)
  with pytest.raises(ValueError, match="for a LlamaConfig is given a T5Config"):
    reader.reading_model(tiny_t5(0))
  with pytest.raises(ValueError, match="the verifier is a MarkovLM"):
    reader.reading_model(toy.markov(np.eye(3)))
  with pytest.raises(ValueError, match="leave MESH out"):
    StateReader.create(reader.config, reader.params, layout=object())
