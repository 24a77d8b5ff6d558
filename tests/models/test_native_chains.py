"""A chain of drafts in one native call: to the bit the steps, one by one."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import Sampling, StateDrafter
from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.laws import draws
from speccascade.decoding.programs.decoders import Decoder
from speccascade.decoding.programs.methods import METHODS
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import StateReader
from speccascade.models.cached_lm import CachedLM
from speccascade.native import library
from tests import toy
from tests.models.feeding import NEEDS_NATIVE, int32
from tests.models.growing import LLAMA, PROMPTS, SOURCES, T5, network, start

pytestmark = NEEDS_NATIVE
CONFIGS = {"t5": T5, "llama": LLAMA}
GAMMA, ROUNDS = 3, 4
# (network, kernels, temperature, top-p, whether the last distribution is
# wanted).
CASES = [
  ("t5", "float32", 1.0, None, False),
  ("llama", "float32", 0.7, 0.8, True),
  ("llama", "bfloat16", 0.0, None, False),
  ("t5", "float32", 0.0, None, True),
  ("t5", "bfloat16", 0.7, 0.6, False),
  ("t5", "bfloat16_products", 0.7, None, True),
  ("llama", "float32", 1.0, None, False),
]


@functools.cache
def model(name, kernels="float32"):
  return network(CONFIGS[name], kernels)


def propose(drafter, state, prefix, rngs, sampling, needs_bonus_law):
  (state,), proposal = drafter.propose(
    (state,), Prefix(*prefix), rngs, sampling, needs_bonus_law=needs_bonus_law
  )
  return state, proposal


def program(drafter, lm, sampling, needs_bonus_law=False):
  """Returns the text of a traced proposal."""
  tokens = jnp.zeros((3, 12), jnp.int32)
  active = jnp.ones((3,), bool)
  prefix = (tokens, int32([6, 1, 3]), active)
  rngs = draws.row_keys(0, 0, np.arange(3))
  run = functools.partial(propose, needs_bonus_law=needs_bonus_law)
  state = jax.eval_shape(lambda lm: lm.prefill(tokens[:, :4], capacity=24), lm)
  traced = jax.jit(run).trace(drafter, state, prefix, rngs, sampling)
  return str(traced.jaxpr)


def is_one_call(*args, **kwargs):
  return library.target("DraftChain") in program(*args, **kwargs)


@contextlib.contextmanager
def step_by_step(monkeypatch):
  """A context in which models are driven step by step."""
  with monkeypatch.context() as patch:
    patch.setattr(CachedLM, "draft_chain", lambda *args, **kwargs: None)
    yield


@pytest.mark.parametrize(
  ("build", "case"),
  [
    *(("best", case) for case in CASES[:2]),
    *toy.nightly([("best", case) for case in CASES[2:]]),
    *toy.nightly([("avx2", CASES[1]), ("portable", CASES[0])]),
  ],
  indirect=["build"],
)
def test_a_chain_equals_the_steps_to_the_bit(build, case, monkeypatch):
  """Ragged rows over some rounds; rows end, and some drafts are accepted."""
  name, kernels, temperature, top_p, needs_bonus_law = case
  lm, sampling = model(name, kernels), Sampling.create(temperature, top_p=top_p)
  drafter = AutoregressiveDrafter(lm, GAMMA, behind=0)
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, 9, (3, 30), np.int32)
  state = start(lm, 30)
  run = lambda: jax.jit(
    functools.partial(propose, needs_bonus_law=needs_bonus_law)
  )
  chains, steps, drafted = run(), run(), set()
  length, active = np.asarray(state.length) + 1, np.array([True] * 3)
  if not needs_bonus_law:  # a draft that was not fed
    length[1] += 1
  for i in range(ROUNDS):
    arguments = (
      drafter,
      state,
      (jnp.asarray(tokens), int32(length), jnp.asarray(active)),
      draws.row_keys(i, 0, np.arange(3)),
      sampling,
    )
    assert (length - np.asarray(state.length)).max() <= 2 - needs_bonus_law
    new, actual = chains(*arguments)
    with step_by_step(monkeypatch):
      plain, want = steps(*arguments)
    jax.tree.map(np.testing.assert_array_equal, actual, want)
    np.testing.assert_array_equal(new.length, plain.length)
    held = np.arange(new.caches[0][0].shape[3]) < np.asarray(new.end)[:, None]
    for keys_values, wanted in zip(new.caches, plain.caches, strict=True):
      for x, y, is_held in zip(
        keys_values, wanted, (held[:, None, None], held[:, None, :, None])
      ):
        np.testing.assert_array_equal(
          *(np.where(is_held, z, 0) for z in (x, y))
        )
    drafted |= set(np.ravel(actual.tokens).tolist())
    assert np.ptp(np.asarray(actual.q1[:, :GAMMA])) > 0.05
    # The rows keep 3, 0 and 1 drafts, then others, and a token of their own.
    for b in range(3):
      kept = (3 * (b == i % 3) + (b == 2)) % (GAMMA + 1)
      if active[b]:
        end = length[b] + kept
        tokens[b, length[b] : end] = np.asarray(actual.tokens)[b, :kept]
        length[b] = end + 1
    (state,) = drafter.rewind((new,), int32(length - 1))
    # A row that ended keeps its length.
    active[1] &= i < 1
  assert len(drafted) > 2


@pytest.mark.slow
def test_faults_are_where_the_steps_find_them(monkeypatch):
  """A NaN in the vector of a token makes the logits after it invalid."""
  lm = model("t5")
  table = lm.params["token_embedder"]["embedding"]
  broken = jnp.asarray(table).at[7].set(jnp.nan)
  params = {**lm.params, "token_embedder": {"embedding": broken}}
  drafter = AutoregressiveDrafter(lm.replace(params=params), GAMMA, behind=0)
  tokens = jnp.asarray([[0, 7, 4], [0, 3, 7], [0, 5, 6]], jnp.int32)
  arguments = (
    drafter,
    start(lm).replace(length=int32([0, 1, 1])),
    (tokens, int32([2, 3, 3]), jnp.ones((3,), bool)),
    draws.row_keys(0, 0, np.arange(3)),
    Sampling.create(1.0),
  )
  run = lambda: jax.jit(functools.partial(propose, needs_bonus_law=False))
  _, actual = run()(*arguments)
  with step_by_step(monkeypatch):
    _, want = run()(*arguments)
  jax.tree.map(np.testing.assert_array_equal, actual, want)
  assert np.all(actual.bad[:2, 0])
  assert not actual.bad[2, 0]


# (network, kernels of the verifier, of the reader, whether the reader has a
# head of its own, kept tokens, temperature, top-p, whether the last
# distribution is wanted).
READERS = [
  ("llama", "bfloat16", "int8", False, [1, *range(3, 40, 2)], 0.7, 0.8, False),
  ("t5", "float32", "bfloat16", True, None, 1.0, None, True),
  ("llama", "float32", "float32", False, None, 1.0, None, False),
  ("llama", "bfloat16_products", "int8", False, None, 0.7, None, True),
  ("t5", "float32", "float32", False, [1, *range(2, 50, 3)], 0.0, None, False),
  ("t5", "bfloat16", "bfloat16_products", False, None, 0.7, None, False),
]


@pytest.mark.parametrize(
  "case", toy.nightly([(x,) for x in READERS], [(x,) for x in READERS[:2]])
)
def test_a_readers_chain_equals_the_steps_to_the_bit(case, monkeypatch):
  """Ragged rows over some rounds, whose states the rounds leave."""
  name, kernels, own, own_head, kept, temperature, top_p, bonus = case
  verifier = model(name, kernels)
  plain = StateReader.untrained(model(name, None), own_head=own_head)
  reader = StateReader.create(plain.config, plain.params, kernel_dtype=own)
  if kept:
    reader = reader.cut_to(kept, verifier)
  drafter = StateDrafter.of(reader.reading_model(verifier), GAMMA)
  assert drafter.drafter.model.model.lm._is_native
  inputs = int32(PROMPTS if verifier.prompted else SOURCES)
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, 9, (3, 30), np.int32)
  length, active = np.array([2, 6, 1]), np.array([True] * 3)
  states = drafter.prefill_with(verifier, inputs, capacity=30)
  state, _ = drafter.catch_up_with(
    verifier, states, jnp.asarray(tokens), int32(length - 1), wide=4
  )

  def run():
    return jax.jit(
      lambda drafter, state, prefix, rngs, sampling: drafter.propose(
        state, Prefix(*prefix), rngs, sampling, needs_bonus_law=bonus
      )
    )

  chains, steps, drafted = run(), run(), set()
  for i in range(ROUNDS):
    arguments = (
      drafter,
      state,
      (jnp.asarray(tokens), int32(length), jnp.asarray(active)),
      draws.row_keys(i, 0, np.arange(3)),
      Sampling.create(temperature, top_p=top_p),
    )
    jaxpr = str(chains.trace(*arguments).jaxpr)
    assert library.target("DraftChain") in jaxpr
    assert library.target("DecoderPass") not in jaxpr
    state, actual = chains(*arguments)
    with step_by_step(monkeypatch):
      _, want = steps(*arguments)
    jax.tree.map(np.testing.assert_array_equal, actual, want)
    drafted |= set(np.ravel(actual.tokens).tolist())
    count = np.zeros(3, np.int32)
    for b in range(3):
      num = (3 * (b == i % 3) + (b == 2)) % (GAMMA + 1)
      if active[b]:
        end = length[b] + num
        tokens[b, length[b] : end] = np.asarray(actual.tokens)[b, :num]
        length[b], count[b] = end + 1, num + 1
    held = int32(length - 1)
    hidden = rng.normal(size=(3, GAMMA + 1, verifier.module.config.emb_dim))
    path = np.tile(np.arange(GAMMA + 1), (3, 1))
    state = drafter.observe(
      drafter.rewind(state, held),
      jnp.asarray(hidden, jnp.float32),
      int32(path),
      int32(count),
      held,
    )
    active[1] &= i < 1
  assert len(drafted) > 2
  assert not kept or drafted <= set(kept)


def test_other_settings_take_the_steps():
  lm, plain = model("t5"), model("t5", None)
  chain = AutoregressiveDrafter(lm, GAMMA, behind=0)
  one = Sampling.create(1.0)
  assert is_one_call(chain, lm, one)
  assert is_one_call(chain, lm, Sampling.create(0.7, top_k=lm.vocab_size))
  for sampling in (
    Sampling.create(1.0, top_k=5),
    Sampling.create(1.0, min_p=0.1),
  ):
    assert not is_one_call(chain, lm, sampling)
  stop = StopPolicy(jnp.float32(0.5), before_draw=True)
  assert not is_one_call(chain.replace(stop=stop), lm, one)
  assert not is_one_call(chain.replace(behind=2), lm, one)
  assert not is_one_call(chain.replace(model=plain), plain, one)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("method", "temperature"),
  [("spec_decode", 1.0), ("spec_cascade_opt", 0.7), ("spec_decode", 0.0)],
)
def test_decoders_write_and_count_the_same(method, temperature, monkeypatch):
  drafter, verifier = model("t5"), model("t5", "bfloat16")
  inputs = jnp.asarray(np.random.default_rng(2).integers(2, 50, (4, 6)))
  decoder = Decoder(METHODS[method], gamma=3, max_decode_len=9, eos_id=1)
  call = lambda: decoder(
    drafter,
    verifier,
    inputs.astype(jnp.int32),
    draws.row_keys(0, 0, np.arange(4)),
    METHODS[method].default_alpha,
    Sampling.create(temperature),
  )
  actual = call()
  jax.clear_caches()
  with step_by_step(monkeypatch):
    want = call()
  jax.clear_caches()
  assert np.sum(actual.stats.accepted) > 3
  jax.tree.map(np.testing.assert_array_equal, actual, want)
