"""A tiny model, random batches, and optimizers that compile quickly."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from speccascade.models import T5Config
from speccascade.models.t5.network import Transformer
from speccascade.training import optimizers, states


def random_batch(seed, rows=4, source=7, target=6, vocab_size=40):
  """Returns a batch of random sentences with ragged lengths and EOS."""
  rng = np.random.default_rng(seed)

  def sentences(length):
    tokens = rng.integers(2, vocab_size, (rows, length)).astype(np.int32)
    ends = rng.integers(1, length, rows)
    column = np.arange(length)
    tokens = np.where(column < ends[:, None], tokens, 0)
    return np.where(column == ends[:, None], 1, tokens).astype(np.int32)

  return {
    "encoder_input_tokens": sentences(source),
    "decoder_target_tokens": sentences(target),
  }


# Dropout is on, so that its keys are under test too.
TINY = T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  num_encoder_layers=1,
  num_decoder_layers=1,
  head_dim=8,
  mlp_dim=32,
  dropout_rate=0.1,
)


BARE = dataclasses.replace(TINY, dropout_rate=0.0)
ADAFACTOR = optimizers.adafactor(0.02)
# Parameters minus the gradient of the summed loss, and parameters that stay.
# Few runs use Adafactor and dropout: their programs compile three times longer.
DESCENT = optimizers.Optimizer(optax.scale(-1.0), optimizers.constant(1.0))
STILL = optimizers.Optimizer(
  optax.scale_by_learning_rate(optimizers.constant(0.0)),
  optimizers.constant(0.0),
)


def exploding(step):
  """Returns descent at rate 0, but for one infinite step."""
  rate = lambda count: jnp.where(count == step, jnp.inf, 0.0)
  return optimizers.Optimizer(optax.scale_by_learning_rate(rate), rate)


def same(*trees):
  """Checks that trees hold the same bits."""
  jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, trees))


@pytest.fixture(scope="session")
def golden_batch(golden_arrays):
  names = (*states.INPUTS, "decoder_loss_weights")
  return {name: golden_arrays[f"in/{name}"] for name in names}


@pytest.fixture(scope="session")
def bare_params():
  """Parameters of `BARE`."""
  return jax.device_get(states.init_params(Transformer(BARE), 0))
