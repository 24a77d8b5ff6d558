"""The training loop: what it computes, how it stops, how it goes on."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from speccascade.models.t5.network import Transformer
from speccascade.training import loop, optimizers, programs, state
from tests.training.conftest import random_batch

STEPS = 12
# Few runs use Adafactor and dropout: their programs compile three times longer.
ADAFACTOR = optimizers.adafactor(0.02)
# Parameters minus the gradient of the summed loss.
DESCENT = optimizers.Optimizer(optax.scale(-1.0), optimizers.constant(1.0))
STILL = optimizers.Optimizer(optax.scale(0.0), optimizers.constant(0.0))


def batches(count=5):
  return [random_batch(i) for i in range(count)]


def train(config, data, steps=STEPS, **kwargs):
  kwargs = {"optimizer": ADAFACTOR, "progress": False, "seed": 3} | kwargs
  return loop.fit(config, data, steps=steps, **kwargs)


def same(one, other):
  """Checks that two states hold the same bits."""
  one, other = (
    jax.device_get((s.step, s.params, s.opt_state)) for s in (one, other)
  )
  jax.tree.map(np.testing.assert_array_equal, one, other)


def difference(one, other):
  return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), one, other)


@pytest.fixture(scope="module")
def unbroken(tiny_config):
  return train(tiny_config, batches())


@pytest.fixture(scope="module")
def bare(tiny_config):
  """Without dropout."""
  return dataclasses.replace(tiny_config, dropout_rate=0.0)


def losses(config, data, steps, **kwargs):
  """The loss of each step."""
  log = []
  train(
    config,
    data,
    steps,
    log_every=1,
    on_log=lambda step, metrics: log.append(metrics["loss"]),
    **kwargs,
  )
  return np.array(log)


def test_the_loss_falls(tiny_config):
  log = []
  train(
    tiny_config,
    [random_batch(0)],
    steps=60,
    log_every=20,
    on_log=lambda step, metrics: log.append((step, metrics)),
  )
  assert [step for step, _ in log] == [20, 40, 60]
  mean = [metrics["loss"] for _, metrics in log]
  assert mean[0] > mean[1] > mean[2]
  assert mean[2] < 0.5 * mean[0]
  assert log[2][1]["accuracy"] > log[0][1]["accuracy"]
  assert log[0][1]["learning_rate"] == pytest.approx(0.02)
  assert log[0][1]["examples_per_s"] > 0


@pytest.mark.parametrize("kind", ["list", "function", "iterator"])
def test_a_run_goes_on_to_the_bit_wherever_it_is_broken(
  tiny_config, unbroken, kind
):
  """Dropout is on; the pieces are 5, 1 and 6 steps long."""
  made = None
  for steps in (5, 6, STEPS):
    data = {
      "list": batches(),
      "function": lambda position: itertools.islice(
        itertools.cycle(batches()), position, None
      ),
      "iterator": itertools.cycle(batches()),
    }[kind]
    made = train(tiny_config, data, steps, state=made)
  same(made, unbroken)


def test_another_seed_is_another_run(tiny_config, unbroken):
  other = train(tiny_config, batches(), seed=4)
  kernel = lambda s: s.params["decoder"]["logits_dense"]["kernel"]
  assert np.abs(kernel(other) - kernel(unbroken)).max() > 1e-3


def test_dropout_draws_anew_at_each_step_and_from_the_seed(tiny_config):
  """The same batch and parameters: only the masks can tell losses apart."""
  params = state.init_params(Transformer(tiny_config), 0)

  def loss(seed, step):
    before = state.create(params, ADAFACTOR, seed=seed, step=step)
    (made,) = losses(
      tiny_config, [random_batch(0)], step + 1, state=before, first_step=step
    )
    return made

  assert loss(0, 0) == loss(0, 0)
  assert len({loss(0, 0), loss(0, 1), loss(1, 0), loss(1, 1)}) == 4


def test_parts_of_a_batch_add_up_to_the_whole(bare):
  """And the sum is divided by the targets of the whole, not of the parts."""
  params = state.init_params(Transformer(bare), 0)
  data = [random_batch(0)]
  num_targets = np.count_nonzero(data[0]["decoder_target_tokens"])
  halves = [
    np.count_nonzero(rows)
    for rows in np.split(data[0]["decoder_target_tokens"], 2)
  ]
  assert halves[0] != halves[1]
  run = lambda **kwargs: train(
    bare, data, 1, params=params, optimizer=DESCENT, **kwargs
  )
  whole = difference(params, run().params)
  objective = state.Objective(
    microbatches=2, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
  )
  parts = difference(params, run(objective=objective).params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a / num_targets, b, atol=2e-6),
    whole,
    parts,
  )


def test_parts_must_divide_the_batch(bare):
  objective = state.Objective(microbatches=3)
  with pytest.raises(ValueError, match="4 rows cannot be cut into 3"):
    train(bare, batches(), objective=objective)


def test_smoothing_ends_at_its_step(bare):
  """At rate 0 on one batch, the loss before is smoothed and after is not."""
  run = lambda **kwargs: losses(
    bare, [random_batch(0)], 4, optimizer=STILL, **kwargs
  )
  plain = run()
  ended = run(objective=state.Objective(label_smoothing=0.3, smoothing_ends=2))
  assert abs(plain[0] - ended[0]) > 0.01
  np.testing.assert_allclose(ended[:2], ended[0], rtol=1e-6)
  np.testing.assert_allclose(ended[2:], plain[2:], rtol=1e-6)


def test_packed_rows_train_as_the_same_rows_apart(bare):
  """Gradients of two examples in one row equal those of two rows."""
  apart = {
    "encoder_input_tokens": np.zeros((4, 7), np.int32),
    "decoder_target_tokens": np.zeros((4, 6), np.int32),
  }
  apart["encoder_input_tokens"][:2, :3] = [[5, 6, 1], [7, 1, 0]]
  apart["decoder_target_tokens"][:2, :2] = [[9, 1], [8, 1]]
  packed = {
    "encoder_input_tokens": [[5, 6, 1, 7, 1]],
    "encoder_segment_ids": [[1, 1, 1, 2, 2]],
    "encoder_positions": [[0, 1, 2, 0, 1]],
    "decoder_input_tokens": [[0, 9, 0, 8]],
    "decoder_target_tokens": [[9, 1, 8, 1]],
    "decoder_segment_ids": [[1, 1, 2, 2]],
    "decoder_positions": [[0, 1, 0, 1]],
  }
  packed = {name: np.array(ids, np.int32) for name, ids in packed.items()}
  one, other = (
    train(bare, [data], 1, optimizer=DESCENT).params for data in (apart, packed)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, other
  )


def test_bfloat16_activations_keep_float32_parameters(bare):
  made = {}
  for dtype in ("float32", "bfloat16"):
    config = dataclasses.replace(bare, dtype=dtype)
    made[dtype] = train(config, batches(), 1, optimizer=DESCENT).params
  leaves = jax.tree.leaves(made["bfloat16"])
  assert all(leaf.dtype == jnp.float32 for leaf in leaves)
  scale = {k: v["encoder"]["encoder_norm"]["scale"] for k, v in made.items()}
  off = np.abs(scale["bfloat16"] - scale["float32"]).max()
  assert 0 < off < 0.05 * np.abs(scale["float32"] - 1).max()


def test_each_shape_is_compiled_once(bare):
  """Over two runs, and for batches of two lengths in turns."""
  data = [random_batch(i, target=6 + i % 2) for i in range(4)]
  objective = state.Objective()
  run = programs.programs(Transformer(bare), DESCENT, objective)
  before = len(run)
  for _ in range(2):
    train(bare, data, 5, optimizer=DESCENT)
  keys = {programs.shapes(loop.check_batch(batch, 40, 0)) for batch in data}
  assert len(keys) == 2
  assert keys <= run._futures.keys()
  assert len(run) <= before + 2
  assert programs.programs(Transformer(bare), DESCENT, objective) is run


def test_callers_parameters_are_not_written_over(bare):
  params = state.init_params(Transformer(bare), 0)
  before = jax.device_get(params)
  train(bare, batches(), steps=2, params=params, optimizer=DESCENT)
  jax.tree.map(np.testing.assert_array_equal, before, params)


def test_callbacks_come_at_their_steps_and_at_the_end(bare):
  seen = []
  train(
    bare,
    batches(),
    steps=7,
    optimizer=STILL,
    callbacks=[
      loop.Every(3, lambda s: seen.append(("three", int(s.step)))),
      loop.Every(0, lambda s: seen.append(("end", int(s.step)))),
    ],
  )
  assert seen == [("three", 3), ("three", 6), ("three", 7), ("end", 7)]


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(bare):
  """An infinite step from batch 3; no callback sees what comes of it."""
  rates = jnp.array([0.0, 0.0, 0.0, jnp.inf, 0.0, 0.0, 0.0])
  schedule = lambda step: rates[step]
  explode = optimizers.Optimizer(
    optax.scale_by_learning_rate(schedule), schedule
  )
  seen = []
  with pytest.raises(loop.LossNotFiniteError, match="infinite at step 4;"):
    train(
      bare,
      batches(),
      steps=7,
      optimizer=explode,
      callbacks=[loop.Every(2, lambda s: seen.append(int(s.step)))],
    )
  assert seen == [2, 4]


class StopAt:
  """A stop that becomes true when it was asked `count` times."""

  def __init__(self, count):
    self.left = count

  def __bool__(self):
    self.left -= 1
    return self.left < 0


def test_a_stopped_run_gives_its_state_and_goes_on(tiny_config, unbroken):
  stopped = train(tiny_config, batches(), stop=StopAt(5))
  assert int(stopped.step) == 5
  same(train(tiny_config, batches(), state=stopped), unbroken)


def _poke(name, value):
  return lambda batch: batch[name].__setitem__((0, -1), value)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      _poke("encoder_input_tokens", 40),
      r"encoder_input_tokens holds id 40, the model has vocab_size 40",
    ),
    (
      _poke("decoder_target_tokens", -1),
      "batch 2: decoder_target_tokens holds id -1",
    ),
    (
      lambda batch: batch.pop("encoder_input_tokens"),
      "batch 2 has no encoder_input_tokens; it has decoder_input_tokens, ",
    ),
    (
      lambda batch: batch.update(encoder_input_tokens=np.ones((4, 7))),
      r"encoder_input_tokens is float64\[4, 7\], wanted int32",
    ),
    (
      lambda batch: batch.update(decoder_segment_ids=np.ones((4, 6))),
      "batch 2 is packed and has no decoder_input_tokens",
    ),
  ],
)
def test_batches_that_do_not_fit_are_refused(bare, change, message):
  data = batches()
  change(data[2])
  with pytest.raises(ValueError, match=message):
    train(bare, data, optimizer=STILL)


def test_decoder_inputs_are_the_targets_shifted(bare):
  batch = loop.check_batch(
    {
      "encoder_input_tokens": np.ones((1, 2), np.int64),
      "decoder_target_tokens": np.array([[5, 6, 1, 0]]),
    },
    40,
    0,
  )
  np.testing.assert_array_equal(batch["decoder_input_tokens"], [[0, 5, 6, 1]])
  assert all(leaf.dtype == np.int32 for leaf in batch.values())


def test_parameters_of_another_size_are_refused(bare):
  params = state.init_params(Transformer(bare), 0)
  config = dataclasses.replace(bare, vocab_size=48)
  with pytest.raises(ValueError, match="the architecture wants"):
    train(config, batches(), params=params)


def test_too_few_batches_are_said_so(bare):
  with pytest.raises(ValueError, match="ran out after step 3, 12 were asked"):
    train(bare, iter(batches(3)), optimizer=STILL)
  with pytest.raises(ValueError, match="no batches to train on"):
    train(bare, [])
