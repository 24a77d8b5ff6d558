"""What a plan says each device will hold, against arrays that are there."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from speccascade import footprint, meshes
from speccascade.inference import planning
from speccascade.inference.inputs import Inputs
from speccascade.inference.pair import PairSpec
from speccascade.inference.point import Point
from speccascade.inference.settings import Run
from speccascade.models import T5LM, LlamaConfig, LlamaLM, T5Config
from speccascade.training import optimizers, training_plan
from speccascade.training.finetune import TrainingData
from speccascade.training.trainer import TrainingRun
from tests.inference import tiny

T5 = T5Config(
  vocab_size=64,
  emb_dim=8,
  num_heads=4,
  num_encoder_layers=2,
  num_decoder_layers=3,
  head_dim=4,
  mlp_dim=16,
)
LLAMA = LlamaConfig(
  vocab_size=64,
  emb_dim=8,
  num_heads=4,
  num_kv_heads=4,
  num_decoder_layers=3,
  head_dim=4,
  mlp_dim=16,
)
XXL = dataclasses.replace(
  T5Config(),
  emb_dim=4096,
  num_heads=64,
  num_encoder_layers=24,
  num_decoder_layers=24,
  mlp_dim=10240,
)


def num_bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("kind", "config"), [(T5LM, T5), (LlamaLM, LLAMA)])
def test_one_device_holds_all(kind, config):
  layout = meshes.ONE.abstract()
  lm = jax.eval_shape(lambda rng: kind.init(config, rng), jax.random.key(0))
  held = footprint.weights(config, layout, "float32")
  assert held == num_bytes(lm) == 4 * footprint.num_parameters(config)
  tokens = jnp.ones((8, 6), jnp.int32)
  state = jax.eval_shape(lambda lm: lm.prefill(tokens, capacity=9), lm)
  assert footprint.caches(kind, config, layout, (8, 6), 9) == num_bytes(state)


def test_a_mesh_cuts_what_its_rules_say():
  layout = meshes.Mesh({"data": 2, "model": 4}).abstract()
  cut = 4 * (
    2 * 64 * 8  # the table and the head
    + 8 * (4 * 8 * 16)  # two layers' attention, and three layers' two
    + 5 * (3 * 8 * 16)  # their MLPs
    + 2 * 4 * 32  # position biases
  )
  norms = 4 * 8 * (2 * 2 + 3 * 3 + 2)
  assert footprint.weights(T5, layout, "float32") == cut / 4 + norms
  half = footprint.weights(T5, layout, "bfloat16")
  assert (
    half
    == (cut - 4 * 2 * 4 * 32 - 4 * 64 * 8) / 8
    + norms
    + (4 * 2 * 4 * 32 + 4 * 64 * 8) / 4
  )
  state = footprint.training(T5, layout, optimizers.adamw().transform.init)
  assert state["optimizer"] == pytest.approx(2 * state["weights"], abs=16)


def decoding(config, shape, **settings):
  pair = PairSpec(
    verifier=config, mesh=meshes.Mesh(shape, **settings), dtype="bfloat16"
  )
  inputs = Inputs(
    input_file="-",
    vocabulary=tiny.Vocabulary(),
    task_feature_lengths={"inputs": 128},
  )
  return planning.decoding(pair, inputs, Point("verifier"), Run(batch_size=32))


def test_the_smallest_mesh_that_holds_xxl():
  plan = decoding(XXL, None, device_memory_gb=16)
  assert footprint.num_parameters(XXL) == 11_135_332_352
  said = str(plan).splitlines()
  assert said[0] == "verifier: 11,135,332,352 parameters, bfloat16"
  assert "does not fit" in said[1]
  assert "smallest mesh that fits: mesh of data 1 x model 2" in said[2]
  assert decoding(XXL, {"model": 2}, device_memory_gb=16).smallest().shape == {
    "data": 1,
    "model": 2,
  }
  assert decoding(XXL, None, device_memory_gb=0.01).smallest() is None
  assert "no mesh" in str(decoding(XXL, None, device_memory_gb=0.01))


def test_a_plan_of_training():
  data = TrainingData(
    mixture_or_task_name="any",
    task_feature_lengths={"inputs": 32, "targets": 16},
    batch_size=8,
  )
  mesh = meshes.Mesh({"data": 3}, device_memory_gb=1)
  plan = training_plan.planned(T5, data, run=TrainingRun(1, mesh=mesh))
  assert footprint.said(lambda: plan).startswith("no plan: BATCH_SIZE is 8")
  plan = training_plan.planned(T5, data)
  held = plan.held(meshes.ONE)
  assert held["weights"] == held["gradients"]
  assert held["logits"] == 2 * 4 * 8 * 16 * 64
