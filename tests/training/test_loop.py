"""The training loop: what it computes, how it stops, how it continues."""

import dataclasses
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models.t5.network import Transformer
from speccascade.training import meter, states, trainer, training_step
from speccascade.training.batch_checks import check_batch
from speccascade.training.meter import LossNotFiniteError
from speccascade.training.states import TrainState
from tests import toy
from tests.training.conftest import (
  ADAFACTOR,
  BARE,
  DESCENT,
  STILL,
  TINY,
  exploding,
  random_batch,
  same,
)

STEPS = 12


def batches(count=5):
  return [random_batch(i) for i in range(count)]


def train(data, steps=STEPS, config=BARE, **kwargs):
  """A run that logs to a list, if it is given one."""
  kwargs = {"optimizer": DESCENT, "progress": False, "seed": 3} | kwargs
  if (log := kwargs.pop("log", None)) is not None:
    kwargs["on_log"] = lambda step, metrics: log.append((step, metrics))
  return trainer.fit(config, data, steps=steps, **kwargs)


tiny = functools.partial(train, config=TINY, optimizer=ADAFACTOR)


def losses(*args, run=train, **kwargs):
  """The loss of each step."""
  log = []
  run(*args, log_every=1, log=log, **kwargs)
  return np.array([metrics["loss"] for _, metrics in log])


def started(params):
  return TrainState.create(params, DESCENT)


def saved(state):
  return state.step, state.params, state.opt_state


@pytest.fixture(scope="module")
def unbroken():
  return saved(tiny(batches()))


def test_the_loss_falls():
  log = []
  tiny([random_batch(0)], steps=60, log_every=20, log=log)
  assert [step for step, _ in log] == [20, 40, 60]
  mean = [metrics["loss"] for _, metrics in log]
  assert mean[0] > mean[1] > mean[2]
  assert mean[2] < 0.5 * mean[0]
  assert log[2][1]["accuracy"] > log[0][1]["accuracy"]
  assert log[0][1]["learning_rate"] == pytest.approx(0.02)
  assert log[0][1]["examples_per_s"] > 0


def test_a_few_steps_are_profiled_and_change_nothing(tmp_path, monkeypatch):
  written = []
  monkeypatch.setattr(jax.profiler, "start_trace", written.append)
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: written.append(None))
  settings = trainer.TrainingRun(16, progress=False, profile_dir=tmp_path)
  job = trainer.TrainingJob(
    TINY, batches(), None, settings, optimizer=ADAFACTOR
  )
  params = states.init_params(Transformer(TINY), 3)
  state = job.take_steps(TrainState.create(params, ADAFACTOR, seed=3))
  assert written == [str(tmp_path), None]
  same(saved(state), saved(tiny(batches(), steps=16)))


@pytest.mark.parametrize("kind", ["list", "function", "iterator"])
def test_a_run_continues_to_the_bit_wherever_it_is_broken(unbroken, kind):
  """Dropout is on; the pieces are 5, 1 and 6 steps long."""
  broken = None
  for steps in (5, 6, STEPS):
    data = {
      "list": batches(),
      "function": lambda position: itertools.islice(
        itertools.cycle(batches()), position, None
      ),
      "iterator": itertools.cycle(batches()),
    }[kind]
    broken = tiny(data, steps, state=broken)
  same(saved(broken), unbroken)


def test_parameters_are_drawn_from_the_seed():
  heads = [
    train([], 0, seed=seed).params["decoder"]["logits_dense"]["kernel"]
    for seed in (3, 4)
  ]
  assert np.abs(heads[0] - heads[1]).max() > 1e-3


def test_dropout_draws_at_each_step_and_from_the_seed():
  """The same batch and parameters: only the masks can make losses differ."""
  params = states.init_params(Transformer(TINY), 0)

  def loss(seed, step):
    start = TrainState.create(params, ADAFACTOR, seed=seed, step=step)
    return losses([random_batch(0)], step + 1, run=tiny, state=start).item()

  assert loss(0, 0) == loss(0, 0)
  assert len({loss(0, 0), loss(0, 1), loss(1, 0), loss(1, 1)}) == 4


def close(one, other, **tolerance):
  compare = functools.partial(np.testing.assert_allclose, **tolerance)
  jax.tree.map(compare, one, other)


def test_parts_of_a_batch_add_up_to_the_whole(bare_params):
  """And the sum is divided by the targets of the whole, not of the parts."""
  data = [random_batch(0)]
  is_target = data[0]["decoder_target_tokens"] > 0
  assert is_target[::2].sum() != is_target[1::2].sum()
  run = lambda **kwargs: train(data, 1, state=started(bare_params), **kwargs)
  objective = states.Objective(
    microbatches=2, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
  )
  moved = lambda run: jax.tree.map(np.subtract, bare_params, run.params)
  parts, whole = moved(run(objective=objective)), moved(run())
  close(
    jax.tree.map(lambda a: a / is_target.sum(), whole), parts, rtol=0, atol=2e-6
  )


@pytest.mark.parametrize("remat", toy.nightly(["minimal", "full"], ["minimal"]))
def test_what_is_computed_again_changes_no_gradient(remat):
  """Dropout draws the same masks again."""
  again = tiny(batches(), 2, objective=states.Objective(remat=remat))
  close(again.params, tiny(batches(), 2).params, rtol=1e-5, atol=1e-6)


def test_parts_must_divide_the_batch():
  with pytest.raises(ValueError, match="4 rows cannot be split into 3"):
    train(batches(), objective=states.Objective(microbatches=3))


def test_smoothing_ends_at_its_step():
  """At rate 0 on one batch, the loss before is smoothed and after is not."""
  run = functools.partial(losses, [random_batch(0)], 4, optimizer=STILL)
  plain = run()
  ended = run(objective=states.Objective(label_smoothing=0.3, smoothing_ends=2))
  assert abs(plain[0] - ended[0]) > 0.01
  np.testing.assert_allclose(ended[:2], ended[0], rtol=1e-6)
  np.testing.assert_allclose(ended[2:], plain[2:], rtol=1e-6)


def test_packed_rows_train_as_the_same_rows_apart():
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
  close(train([apart], 1).params, train([packed], 1).params, atol=1e-5)


def test_bfloat16_activations_keep_float32_parameters():
  scale = {}
  for dtype in ("float32", "bfloat16"):
    config = dataclasses.replace(BARE, dtype=dtype)
    params = train(batches(), 1, config).params
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    scale[dtype] = params["encoder"]["encoder_norm"]["scale"]
  off = np.abs(scale["bfloat16"] - scale["float32"]).max()
  assert 0 < off < 0.05 * np.abs(scale["float32"] - 1).max()


def test_each_shape_is_compiled_once():
  """Over two runs, and for batches of two lengths in turns."""
  data = [random_batch(i, target=6 + i % 2) for i in range(4)]
  kind = (Transformer(BARE), DESCENT, states.Objective(), None)
  run = training_step.programs(*kind)
  before = len(run)
  for _ in range(2):
    train(data, 5)
  keys = {
    training_step.shape_key(check_batch(batch, TINY, 0)) for batch in data
  }
  assert len(keys) == 2
  assert keys <= run._futures.keys()
  assert len(run) <= before + 2
  assert training_step.programs(*kind) is run


def test_callers_parameters_are_not_written_over(bare_params):
  params = jax.tree.map(jnp.array, bare_params)
  train(batches(), steps=2, state=started(params))
  same(params, bare_params)


def test_callbacks_come_at_their_steps_and_at_the_end():
  seen = []

  def every(steps):
    return trainer.Every(steps, lambda s: seen.append((steps, int(s.step))))

  train(batches(), steps=7, optimizer=STILL, callbacks=[every(3), every(0)])
  assert seen == [(3, 3), (3, 6), (3, 7), (0, 7)]


def test_evaluations_are_not_training_time(monkeypatch):
  clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
  monkeypatch.setattr(trainer, "time", clock)
  monkeypatch.setattr(meter, "time", clock)

  def evaluate(state):
    clock.now += 100.0

  def each_second():
    for batch in itertools.cycle(batches()):
      clock.now += 1.0
      yield batch

  log = []
  # Batches are read one by one, and each takes a second.
  monkeypatch.setattr(trainer, "LOOK_AHEAD", 1)
  rows = len(random_batch(0)["decoder_target_tokens"])
  train(
    each_second(),
    steps=9,
    optimizer=STILL,
    log=log,
    log_every=4,
    callbacks=[trainer.Every(2, evaluate)],
  )
  # (The first step, which compiles, is left out: three steps in three seconds.)
  speeds = [metrics["examples_per_s"] for _, metrics in log]
  assert speeds == pytest.approx([rows] * 3)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step():
  """An infinite step from batch 3; no callback sees what comes of it."""
  seen = []
  every = trainer.Every(2, lambda s: seen.append(int(s.step)))
  with pytest.raises(LossNotFiniteError, match="infinite at step 4;"):
    train(batches(), 7, optimizer=exploding(3), callbacks=[every])
  assert seen == [2, 4]


def _poke(name, value):
  return lambda batch: batch[name].__setitem__((0, -1), value)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      _poke("encoder_input_tokens", 40),
      r"encoder_input_tokens holds id 40, .*vocab_size 40",
    ),
    (
      _poke("decoder_target_tokens", -1),
      "batch 2: decoder_target_tokens holds id -1",
    ),
    (
      lambda batch: batch.pop("encoder_input_tokens"),
      "batch 2 has no encoder_input_tokens",
    ),
    (
      lambda batch: batch.update(encoder_input_tokens=np.ones((4, 7))),
      r"encoder_input_tokens is float64\[4, 7\], wanted int32",
    ),
    (
      lambda batch: batch.update(decoder_segment_ids=np.ones((4, 6))),
      "batch 2 is packed .*no decoder_",
    ),
  ],
)
def test_batches_that_do_not_fit_are_refused(change, message):
  data = batches()
  change(data[2])
  with pytest.raises(ValueError, match=message):
    train(data, optimizer=STILL)


def test_parameters_of_another_size_are_refused(bare_params):
  config = dataclasses.replace(BARE, vocab_size=48)
  with pytest.raises(ValueError, match="by the config"):
    train(batches(), config=config, state=started(bare_params))


def test_too_few_batches_are_said_so():
  with pytest.raises(ValueError, match="ran out after step 3"):
    train(iter(batches(3)), optimizer=STILL)
  with pytest.raises(ValueError, match="no batches to train on"):
    train([])
