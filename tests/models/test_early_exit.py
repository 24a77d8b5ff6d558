"""Early exits: the first layers of a network as a network of their own."""

import dataclasses
import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import METHODS, AdaptiveDrafter, Constraints
from speccascade.decoding.drafting.draft_pace import PaceCosts
from speccascade.decoding.laws import draws
from speccascade.decoding.programs.decoders import Decoder
from speccascade.decoding.records import readers
from speccascade.models import architectures, taught_exit
from speccascade.models.exit_model import TrainedExit
from speccascade.models.sharding import meshes
from speccascade.models.taught_exit import ExitConfig
from tests import toy
from tests.decoding.test_constraints import automaton
from tests.models import growing
from tests.models.feeding import feed, int32
from tests.models.test_cut_head import CONFIGS as WITH_HEADS

V = growing.V
CONFIGS = {
  name: WITH_HEADS[name]
  for name in ("t5", "t5_tied", "llama", "gemma", "t5gemma", "t5gemma_2")
}


CASES = pytest.mark.parametrize(
  ("name", "kernels"),
  [
    ("t5", None),
    ("llama", "bfloat16"),
    *toy.nightly([("llama", None), ("t5", "bfloat16"), ("t5gemma", None)]),
  ],
)


@functools.cache
def network(name, kernels=None):
  return growing.network(CONFIGS[name], kernels)


def truncated(name, kernels, num):
  """Returns a network that is made of the arrays of the first layers alone."""
  config = dataclasses.replace(CONFIGS[name], num_decoder_layers=num)
  whole = traverse_util.flatten_dict(growing.weights(CONFIGS[name]), sep="/")
  dropped = tuple(
    f"decoder/layers_{i}/" for i in range(num, CONFIGS[name].num_decoder_layers)
  )
  kept = {path: x for path, x in whole.items() if not path.startswith(dropped)}
  return architectures.row_of(config).model.create(
    config, traverse_util.unflatten_dict(kept, sep="/"), kernel_dtype=kernels
  )


@pytest.mark.parametrize(
  ("name", "kernels"),
  [
    *((name, None) for name in CONFIGS),
    ("t5_tied", "float32"),
    ("llama", "bfloat16"),
    *toy.nightly([("t5", "bfloat16"), ("gemma", "bfloat16")]),
  ],
)
def test_logits_are_those_of_the_first_layers(name, kernels):
  verifier = network(name, kernels)
  exit_lm, alone = verifier.first_layers(1), truncated(name, kernels, 1)
  assert exit_lm.vocab_size == verifier.vocab_size
  assert exit_lm.slot_bytes == alone.slot_bytes < verifier.slot_bytes
  block, count = [[3, 40, 5], [7, 8, 9], [2, 4, 6]], [3, 3, 2]
  logits = [
    feed(lm, growing.start(lm), block, count)[1] for lm in (exit_lm, alone)
  ]
  np.testing.assert_array_equal(*logits)
  _, whole = feed(verifier, growing.start(verifier), block, count)
  assert np.abs(logits[0] - whole).max() > 0.1


@pytest.mark.parametrize("name", ["t5", "llama"])
@pytest.mark.parametrize("kernels", [None, "bfloat16"])
def test_no_array_is_a_copy(name, kernels):
  verifier = network(name, kernels)
  exit_lm = verifier.first_layers(1)
  arrays = {id(leaf) for leaf in jax.tree.leaves(verifier)}
  own = [x for x in jax.tree.leaves(exit_lm) if id(x) not in arrays]
  assert not own
  assert len(jax.tree.leaves(exit_lm)) < len(arrays)
  cut = exit_lm.cut_to([1, 3, 5])
  own = [x for x in jax.tree.leaves(cut) if id(x) not in arrays]
  assert len(own) == 2  # the cut head, and the ids
  assert cut.num_shared == 1


@pytest.mark.parametrize("num", [0, -1, 4, 1.0, True, None])
def test_layers_that_there_are_not(num):
  message = f"after {num} layers; wanted a whole number from 1 to 3"
  with pytest.raises(ValueError, match=message):
    network("llama").first_layers(num)


def decode(name, drafter, verifier, *, gamma=3, sampling=toy.GREEDY, **options):
  constraints = options.pop("constraints", Constraints())
  decoder = Decoder(
    METHODS[name], gamma=gamma, max_decode_len=12, eos_id=1, **options
  )
  rng = np.random.default_rng(2)
  inputs = jnp.asarray(rng.integers(2, 50, (4, 6)), jnp.int32)
  return decoder(
    drafter,
    verifier,
    inputs,
    draws.row_keys(0, 0, np.arange(4)),
    METHODS[name].default_alpha,
    sampling,
    constraints,
  )


@CASES
def test_a_greedy_lossless_decode_is_the_verifiers(name, kernels):
  verifier = network(name, kernels)
  wanted = decode("verifier", None, verifier).tokens
  for drafter in (
    verifier.first_layers(1),
    verifier.first_layers(1).cut_to(range(0, V, 2)),
  ):
    actual = decode("spec_decode", drafter, verifier)
    np.testing.assert_array_equal(actual.tokens, wanted)


@CASES
def test_all_layers_are_always_right(name, kernels):
  verifier = network(name, kernels)
  layers = verifier.module.config.num_decoder_layers
  out = decode("spec_decode", verifier.first_layers(layers), verifier)
  stats = out.stats
  np.testing.assert_array_equal(stats.accepted, stats.examined)
  assert np.sum(stats.accepted) > 8


def test_a_tree_and_a_mask():
  verifier = network("llama")
  drafter = verifier.first_layers(2)
  wanted = decode("verifier", None, verifier).tokens
  tree = decode("spec_decode", drafter, verifier, tree=(2, 2, 1))
  np.testing.assert_array_equal(tree.tokens, wanted)
  allowed = np.arange(V) % 3 != 0
  table = automaton([[0] * V], [allowed])
  texts = [
    decode(method, model, verifier, constraints=Constraints(mask=table)).tokens
    for method, model in (("verifier", None), ("spec_decode", drafter))
  ]
  np.testing.assert_array_equal(*texts)
  assert allowed[texts[0]].all()


def test_rows_choose_how_much_an_exit_drafts():
  verifier = network("llama", "bfloat16")
  costs = PaceCosts(jnp.float32([1.0, 1.4, 1.7]), jnp.float32(0.3))
  drafter = AdaptiveDrafter.of(verifier.first_layers(2), costs, (0, 1, 2))
  wanted = decode("verifier", None, verifier).tokens
  actual = decode("spec_decode", drafter, verifier, gamma=2)
  np.testing.assert_array_equal(actual.tokens, wanted)
  assert np.sum(actual.stats.drafted) > 0


def test_an_exit_of_another_verifier_is_refused():
  other = growing.network(CONFIGS["llama"], noise=0.1)
  with pytest.raises(ValueError, match="early exit after 1 layers of another"):
    decode("spec_decode", other.first_layers(1), network("llama"))


@CASES
def test_a_prompt_is_read_once(name, kernels):
  """The states are those of two prefills, for the work of one."""
  verifier = network(name, kernels)
  exit_lm = verifier.first_layers(1)
  inputs = int32(growing.PROMPTS if verifier.prompted else growing.SOURCES)
  jitted = jax.jit(readers.prefill_parts, static_argnums=(2, 3))
  state, _ = jitted((exit_lm, verifier), inputs, 20, 24)
  wanted = jax.jit(lambda lm: lm.prefill(inputs, capacity=20))(exit_lm)
  assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, wanted)
  for actual, want in zip(*map(jax.tree.leaves, (state, wanted))):
    np.testing.assert_allclose(actual, want, atol=1e-6)
    if kernels and native.is_available():
      np.testing.assert_array_equal(actual, want)

  def work(*models):
    compiled = jitted.lower(models, inputs, 20).compile()
    if kernels and native.is_available():  # whose work XLA cannot count
      return compiled.as_text().count("custom-call(")
    return compiled.cost_analysis()["flops"]

  other = exit_lm.replace(num_shared=0)
  alone, twice = work(verifier), work(other, verifier)
  assert work(exit_lm, verifier) - alone < (twice - alone) / 4
  assert twice > alone


@CASES
def test_a_taught_exit_drafts_for_its_verifier(name, kernels):
  verifier, params = network(name, kernels), growing.weights(CONFIGS[name])
  config = ExitConfig(num_layers=1).shaped_like(CONFIGS[name])
  initial = taught_exit.initial_params(config, verifier.module, params)
  # The last layer of three, or of two, comes next.
  taught = TrainedExit.create(config, initial, kernel_dtype=kernels)
  wanted = decode("verifier", None, verifier).tokens
  for drafter in (taught, taught.language_model(verifier)):
    out = decode("spec_decode", drafter, verifier)
    np.testing.assert_array_equal(out.tokens, wanted)
    assert np.sum(out.stats.accepted) > 0
  with pytest.raises(ValueError, match="wants a language model as its drafter"):
    decode("token_cascade_chow", taught, verifier)
  with pytest.raises(ValueError, match="of another architecture was given"):
    taught.language_model(network("gemma"))
  if kernels and native.is_available():
    plain = TrainedExit.create(config, dict(initial))
    with pytest.raises(ValueError, match="make both with one kernel_dtype"):
      plain.language_model(verifier)
  with pytest.raises(ValueError, match="lies on one device, and a mesh"):
    TrainedExit.create(config, initial, layout=meshes.Mesh({"data": 1}))
