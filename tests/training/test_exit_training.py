"""Early exits learn from their verifier, which stays as it is."""

import dataclasses

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import load
from speccascade.generate.pair import early_exit
from speccascade.generate.pair.model_loading import Model, load_model
from speccascade.generate.pair.pair_checks import PairError
from speccascade.models import CausalTransformer, architectures, taught_exit
from speccascade.models.parameters import param_shapes
from speccascade.models.t5.network import Transformer
from speccascade.models.taught_exit import ExitConfig, ExitNetwork
from speccascade.training import (
  evaluate,
  exit_losses,
  losses,
  optimizers,
  states,
)
from speccascade.training.batch_checks import check_batch
from speccascade.training.kinds import KINDS, kind_of
from speccascade.training.lesson import Reading
from tests.training import test_teaching
from tests.training.conftest import (
  BARE,
  LLAMA,
  continues,
  random_batch,
  train_drafts,
)

ADAM = optimizers.adamw(0.01)
EXIT = ExitConfig(num_layers=1, num_new_layers=1)


def verifier_of(kind: str):
  """Returns (a `states.Teacher` of three layers, a batch for it)."""
  if kind == "llama":
    module = CausalTransformer(dataclasses.replace(LLAMA, num_decoder_layers=3))
    batch = test_teaching.batches_of(test_teaching.texts(5), pack=True)[0]
  else:
    module = Transformer(dataclasses.replace(BARE, num_decoder_layers=3))
    batch = check_batch(random_batch(4), BARE, 0)
  params = states.init_params(module, 3)
  # Layers that differ from each other in what they do.
  return states.Teacher(jax.tree.map(lambda x: 2 * x, params), module), batch


def exit_of(verifier, config=EXIT):
  """Returns the config of an exit, and its parameters before training."""
  config = config.of_verifier(verifier.module.config, verifier.params)
  return config, taught_exit.initial_params(
    config, verifier.module, verifier.params
  )


def names_of(tree):
  return {*traverse_util.flatten_dict(tree, sep="/")}


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_an_exit_begins_as_an_untaught_one(kind):
  verifier, batch = verifier_of(kind)
  config, params = exit_of(verifier)
  weights, _ = losses.normalize(batch, None)
  reading = Reading(
    ExitNetwork(config), params, batch, weights, teacher=verifier
  )
  whole = exit_losses.of_whole(reading)
  actual = states.forward(whole.module, whole.params, batch)
  decoder = dict(verifier.params["decoder"])
  del decoder["layers_2"]
  two = dataclasses.replace(verifier.module.config, num_decoder_layers=2)
  wanted = states.forward(
    type(verifier.module)(two), {**verifier.params, "decoder": decoder}, batch
  )
  np.testing.assert_array_equal(actual, wanted)
  # What is described, saved and counted is what it has of its own.
  shapes = param_shapes(config)
  assert {*shapes} == names_of(params) < names_of(verifier.params)
  assert not [name for name in shapes if "layers_0" in name]
  bare, few = exit_of(verifier, dataclasses.replace(EXIT, num_new_layers=0))
  assert [*param_shapes(bare)] == ["decoder/decoder_norm/scale"]
  assert names_of(few) == {"decoder/decoder_norm/scale"}


@pytest.mark.parametrize(
  ("kind", "options"),
  [("t5", {"loss": "forward_kl"}), ("llama", {"loss": "tvd"})],
)
def test_training_teaches_the_exit_alone_and_continues(kind, options, tmp_path):
  verifier, batch = verifier_of(kind)
  before = jax.device_get(verifier.params)
  config, initial = exit_of(verifier)

  def run(folder, steps):
    train_drafts(folder, config, verifier, batch, ADAM, steps=steps, **options)

  stored = continues(run, tmp_path, 30, 11, ADAM)
  assert stored.config == config
  assert names_of(stored.params) == names_of(initial)
  for was, now in zip(*map(jax.tree.leaves, (before, verifier.params))):
    np.testing.assert_array_equal(was, now)
  scores = [
    evaluate.teacher_forced(config, params, [batch], verifier)
    for params in (initial, stored.params)
  ]
  assert [*scores[0]] == ["loss", "accuracy", "divergence", "acceptance"]
  assert scores[1]["divergence"] < 0.8 * scores[0]["divergence"]
  assert scores[1]["acceptance"] > scores[0]["acceptance"]


def saved_verifier(folder, verifier):
  from speccascade.checkpoints import orbax_io

  params = jax.device_get(verifier.params)
  orbax_io.save(folder, params, verifier.module.config, step=1)
  return folder


@pytest.mark.parametrize(
  ("kind", "kernels"),
  [("t5", "float32"), ("llama", "float32"), ("t5", "bfloat16")],
)
def test_an_exit_is_read_as_a_language_model(kind, kernels, tmp_path):
  verifier, batch = verifier_of(kind)
  config, _ = exit_of(verifier)
  train_drafts(tmp_path / "exit", config, verifier, batch, ADAM, steps=2)
  path = saved_verifier(tmp_path / "large", verifier)
  options = {"dtype": "float32", "kernel_dtype": kernels}
  large = load_model("verifier", path, **options)
  taught = load_model("drafter", tmp_path / "exit", **options)
  assert not taught.drafts_alone
  [drafter] = early_exit.made_of([taught], large)
  assert drafter.drafts_alone
  lm = drafter.lm
  assert lm.num_shared == 1
  assert lm.module.config.num_decoder_layers == 2
  held = {id(x) for model in (large, taught) for x in jax.tree.leaves(model.lm)}
  assert {id(leaf) for leaf in jax.tree.leaves(lm)} <= held
  # The logits are those that training sees.
  params = load(str(tmp_path / "exit")).params
  whole = exit_losses.of_whole(
    Reading(ExitNetwork(config), params, batch, None, teacher=verifier)
  )
  inputs = batch.get("encoder_input_tokens", jnp.full((1, 1), 3, jnp.int32))
  fed = batch["decoder_input_tokens"][: len(inputs), :4]
  fed = jnp.maximum(fed, 0).astype(jnp.int32)
  if kind == "llama":
    inputs, fed = fed[:, :1], fed
  state = lm.prefill(jnp.asarray(inputs), capacity=8)
  count = jnp.full((len(fed),), 4, jnp.int32)
  _, out = lm.extend(state, fed, count)
  single = {**batch, "decoder_input_tokens": fed}
  single["decoder_target_tokens"] = jnp.ones_like(fed)
  for name in ("decoder_segment_ids", "decoder_positions"):
    single.pop(name, None)
  wanted = states.forward(whole.module, whole.params, single)
  if kernels == "float32":
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(out.logits, wanted, atol=1e-4 * scale)
  else:
    assert np.corrcoef(np.ravel(out.logits), np.ravel(wanted))[0, 1] > 0.97


def test_an_exit_of_another_verifier(tmp_path):
  verifier, batch = verifier_of("t5")
  config, _ = exit_of(verifier)
  train_drafts(tmp_path / "exit", config, verifier, batch, ADAM, steps=1)
  taught = load_model("drafter", tmp_path / "exit")
  other = states.init_params(verifier.module, 5)
  changed = dataclasses.replace(
    verifier, params=jax.tree.map(lambda x: 3 * x, other)
  )
  large = load_model("verifier", saved_verifier(tmp_path / "b", changed))
  with pytest.raises(PairError, match=r"another verifier than b.*: give that"):
    early_exit.made_of([taught], large)
  with pytest.raises(PairError, match="give the verifier, as VERIFIER_CHECK"):
    early_exit.made_of([taught], None)
  with pytest.raises(PairError, match=r"has early exits; the verifier must"):
    load_model("verifier", tmp_path / "exit")
  small, _ = verifier_of("llama")
  lm = architectures.row_of(LLAMA).model.create(
    small.module.config, small.params
  )
  with pytest.raises(PairError, match=r"of another architecture was given"):
    early_exit.made_of([taught], Model(lm, "llama", ""))


def test_more_layers_than_the_verifier_has():
  verifier, _ = verifier_of("t5")
  with pytest.raises(ValueError, match=r"after 4 layers; wanted .* 1 to 3"):
    exit_of(verifier, ExitConfig(num_layers=4))
  assert kind_of(EXIT) is KINDS[architectures.kind_of(EXIT)]
