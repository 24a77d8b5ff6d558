"""Compares the table of arrays with the network, and checks misfits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import (
  CheckpointError,
  architecture,
  check_params,
  hugging_face_names,
)
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer

# No two sizes alike, so that a swapped axis shows.
UNEVEN = T5Config(
  vocab_size=11,
  emb_dim=5,
  num_heads=2,
  num_encoder_layers=2,
  num_decoder_layers=1,
  head_dim=3,
  mlp_dim=7,
)
TIED = dataclasses.replace(
  UNEVEN,
  num_encoder_layers=1,
  num_decoder_layers=2,
  mlp_activations=("relu",),
  logits_via_embedding=True,
)


@pytest.mark.parametrize("config", [UNEVEN, TIED], ids=["v1.1", "v1.0"])
def test_the_table_is_that_of_the_network(config):
  tokens = jnp.ones((1, 1), jnp.int32)
  init = functools.partial(Transformer(config).init, enable_dropout=False)
  tree = jax.eval_shape(init, jax.random.key(0), tokens, tokens, tokens)
  shapes = jax.tree.map(lambda leaf: leaf.shape, tree["params"])
  table = {p.name: p.shape for p in hugging_face_names.list_parameters(config)}
  is_leaf = lambda _, x: isinstance(x, tuple)
  assert table == architecture.flatten(shapes, is_leaf=is_leaf)


def zeros(config):
  return {
    p.name: np.zeros(p.shape, np.float32)
    for p in hugging_face_names.list_parameters(config)
  }


def test_every_kind_of_misfit_in_one_line():
  flat = zeros(UNEVEN)
  del flat["encoder/layers_1/mlp/wo/kernel"]
  flat["decoder/extra/kernel"] = np.zeros((2, 2))
  flat["token_embedder/embedding"] = np.zeros((12, 5))
  with pytest.raises(CheckpointError) as error:
    check_params(architecture.unflatten(flat), UNEVEN, where="at x")
  assert str(error.value) == (
    "the checkpoint at x does not fit the model config: "
    "missing encoder/layers_1/mlp/wo/kernel; unexpected decoder/extra/kernel; "
    "token_embedder/embedding has shape [12, 5], [11, 5] by the config; give "
    "the config that the checkpoint was made with"
  )


UNTIED = dataclasses.replace(TIED, logits_via_embedding=False)


@pytest.mark.parametrize(
  ("arrays", "config", "message"),
  [
    (UNEVEN, T5Config(), r"and \d+ more;"),
    (UNTIED, TIED, "unexpected decoder/logits_dense"),
    (TIED, UNTIED, "missing decoder/logits_dense"),
  ],
)
def test_misfits_of_configs(arrays, config, message):
  with pytest.raises(CheckpointError, match=message):
    check_params(architecture.unflatten(zeros(arrays)), config)


@pytest.mark.parametrize(
  ("name", "shape", "message"),
  [
    ("encoder/encoder/mlp/wo/kernel", (4, 2, 4), "scanned layers"),
    (
      *("encoder/layers_0/relpos_bias/rel_embedding", (4, 32)),
      "relative positions per layer",
    ),
    ("encoder/layers_0/attention/query/kernel", (3, 4, 8), "three-dimensional"),
  ],
)
def test_scalable_t5_is_recognised_by_its_arrays(name, shape, message):
  params = architecture.unflatten({name: np.zeros(shape)})
  with pytest.raises(CheckpointError, match=message):
    architecture.shapes_of(params, where="")


@pytest.mark.parametrize("config", [UNEVEN, TIED])
def test_the_architecture_is_read_off_the_arrays(config):
  flat = zeros(config)
  assert architecture.config_of(architecture.unflatten(flat)) == config
  del flat["decoder/layers_0/mlp/wo/kernel"]
  with pytest.raises(CheckpointError, match="missing decoder/layers_0/mlp/wo"):
    architecture.config_of(architecture.unflatten(flat))
  del flat["token_embedder/embedding"]
  with pytest.raises(CheckpointError, match="give its T5Config"):
    architecture.config_of(architecture.unflatten(flat), where="here")
