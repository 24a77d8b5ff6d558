"""A tiny model, random batches, and optimizers that compile quickly."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from speccascade.checkpoints import load, orbax_io
from speccascade.models import LlamaConfig, T5Config
from speccascade.models.t5.network import Transformer
from speccascade.training import optimizers, states, trainer
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.kinds import kind_of
from speccascade.training.tuned_checkpoints import TunedCheckpoints


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
LLAMA = LlamaConfig(
  vocab_size=11,
  emb_dim=16,
  num_heads=2,
  num_kv_heads=1,
  num_decoder_layers=1,
  head_dim=8,
  mlp_dim=16,
)
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


def train_drafts(
  folder, config, verifier, batch, optimizer, *, steps, writer=None, **options
):
  """Trains what drafts for a verifier, on from what a folder holds.

  Keywords are fields of `Objective`, and `evaluation`.
  """
  initial = kind_of(config).initial_params(
    config, verifier.module, verifier.params
  )
  evaluation = options.pop("evaluation", None)
  objective = states.Objective(z_loss=0.0, **options)
  parts = {"initial_params": initial}
  if objective.tuning is None:
    checkpoints = Checkpoints(folder, config, **parts)
  else:
    checkpoints = TunedCheckpoints(folder, config, verifier=verifier, **parts)
  return trainer.TrainingJob(
    config,
    [batch],
    checkpoints,
    trainer.TrainingRun(steps, progress=False, log_period=1),
    optimizer=optimizer,
    objective=objective,
    teacher=verifier,
    evaluation=evaluation,
    writer=writer,
    say=lambda text: None,
  ).run()


def continues(run, folder, steps, broken_at, optimizer):
  """Checks that a run which ended early continues, and ends with the same bits.

  Args:
    run: called with a folder and `steps`, besides other keywords.
    folder: holds the folders of the runs, "whole" and "broken".
    steps: of the whole run.
    broken_at: the step at which the broken run ended.
    optimizer: the run's optimizer.

  Returns:
    The checkpoint of the whole run.
  """
  run(folder / "whole", steps=steps)
  for part in (broken_at, steps):
    run(folder / "broken", steps=part)
  whole, broken = (load(folder / name) for name in ("whole", "broken"))
  same(whole.params, broken.params)
  assert whole.config == broken.config
  like = jax.eval_shape(optimizer.transform.init, whole.params)
  same(*(orbax_io.read_opt_state(x.path, like) for x in (whole, broken)))
  return whole


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
