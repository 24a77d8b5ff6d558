"""Runs: where they start, what they keep, how they are killed and go on."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from speccascade.checkpoints import CheckpointError, load, orbax_io
from speccascade.models.t5.network import Transformer
from speccascade.training import loop, optimizers, signals, state, trainer
from speccascade.training.checkpointing import Checkpoints
from tests.training import killed_run
from tests.training.conftest import TINY, random_batch

ADAFACTOR = optimizers.adafactor(0.02)
BARE = dataclasses.replace(TINY, dropout_rate=0.0)
STILL = optimizers.Optimizer(
  optax.scale_by_learning_rate(optimizers.constant(0.0)),
  optimizers.constant(0.0),
)


def quick(checkpoints, steps=6, **kwargs):
  """A run whose parameters stay: what is under test is around it."""
  fields = trainer.TrainingRun.__dataclass_fields__
  settings = {name: kwargs.pop(name) for name in fields if name in kwargs}
  return trainer.run(
    BARE,
    [random_batch(i) for i in range(2)],
    checkpoints,
    trainer.TrainingRun(steps, progress=False, **settings),
    **{"optimizer": STILL} | kwargs,
  )


def saved_steps(folder):
  return sorted(
    int(path.name.removeprefix("checkpoint_"))
    for path in pathlib.Path(folder).glob("checkpoint_*")
  )


def final(folder):
  """Parameters and optimizer state of the last step, as numpy."""
  path = f"{folder}/checkpoint_{killed_run.STEPS}"
  params = load(path).params
  like = jax.eval_shape(ADAFACTOR.transform.init, params)
  return params, orbax_io.read_opt_state(path, like)


def test_a_killed_run_ends_as_the_unbroken_one_does(tmp_path):
  """SIGKILL behind the checkpoint of step 5, then SIGTERM, then to the end."""
  killed_run.run(tmp_path / "unbroken")
  folder = tmp_path / "broken"
  env = os.environ | {
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }

  def run(name, step):
    command = [sys.executable, "-m", "tests.training.killed_run"]
    return subprocess.run(
      [*command, str(folder), name, str(step)],
      env=env,
      capture_output=True,
      text=True,
      check=False,
    )

  killed = run("SIGKILL", 8)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  assert saved_steps(folder) == [5]
  stopped = run("SIGTERM", 7)
  assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
  assert f"ended at 7: {folder}/checkpoint_7" in stopped.stdout
  assert f"resuming from {folder}/checkpoint_5, step 5 of 12" in stopped.stdout
  assert saved_steps(folder) == [7]
  outcome = killed_run.run(folder)
  assert outcome.checkpoint == f"{folder}/checkpoint_12"
  assert not outcome.stop
  jax.tree.map(
    np.testing.assert_array_equal, final(folder), final(tmp_path / "unbroken")
  )


def test_a_finished_run_is_left_alone(tmp_path):
  first = quick(Checkpoints(tmp_path, BARE))
  said = []
  again = quick(Checkpoints(tmp_path, BARE), say=said.append)
  assert said == [f"resuming from {tmp_path}/checkpoint_6, step 6 of 6"]
  assert (again.step, again.checkpoint) == (first.step, first.checkpoint)


def test_the_latest_and_the_best_are_kept(tmp_path):
  """BLEU 10, 30, 20, 20 at steps 2, 4, 6, 7: the second is the best."""
  scores = {2: 10.0, 4: 30.0, 6: 20.0, 7: 20.0}
  measured = []

  def evaluation(config, params):
    step = [2, 4, 6, 7][len(measured)]
    measured.append(step)
    return {"loss": 1.0, "bleu": scores[step]}

  written = []

  class Writer:
    def write_scalars(self, step, scalars):
      written.append((step, scalars))

    def flush(self):
      pass

  outcome = quick(
    Checkpoints(tmp_path, BARE, metric="eval/bleu"),
    steps=7,
    evaluation=evaluation,
    eval_period=2,
    checkpoint_period=100,
    log_period=3,
    writer=Writer(),
  )
  assert measured == [2, 4, 6, 7]
  assert saved_steps(tmp_path) == [4, 7]
  assert outcome.metrics == {"eval/loss": 1.0, "eval/bleu": 20.0}
  evaluated = [(s, m["eval/bleu"]) for s, m in written if "eval/bleu" in m]
  assert evaluated == list(scores.items())
  logged = [step for step, metrics in written if "train/loss" in metrics]
  assert logged == [3, 6, 7]


def test_the_best_is_still_known_after_a_restart(tmp_path):
  measure = lambda value: lambda config, params: {"bleu": value}
  for steps, value in ((2, 30.0), (4, 10.0), (6, 20.0)):
    quick(
      Checkpoints(tmp_path, BARE, metric="eval/bleu"),
      steps=steps,
      evaluation=measure(value),
      eval_period=2,
    )
  assert saved_steps(tmp_path) == [2, 6]


def test_a_metric_that_is_not_measured_is_named(tmp_path):
  with pytest.raises(ValueError, match=r"no metric 'eval/blue'.*eval/bleu"):
    quick(
      Checkpoints(tmp_path, BARE, metric="eval/blue"),
      evaluation=lambda config, params: {"bleu": 1.0},
    )


def test_what_was_saved_before_nan_is_kept(tmp_path):
  rates = jax.numpy.array([0.0, 0.0, 0.0, jax.numpy.inf, 0.0, 0.0, 0.0])
  explode = optimizers.Optimizer(
    optax.scale_by_learning_rate(lambda step: rates[step]), lambda step: 0.0
  )
  with pytest.raises(
    loop.LossNotFiniteError, match="at step 4; what was saved"
  ):
    quick(
      Checkpoints(tmp_path, BARE), 7, optimizer=explode, checkpoint_period=3
    )
  assert saved_steps(tmp_path) == [3]


def test_directories_still_being_written_are_passed_over(tmp_path):
  quick(Checkpoints(tmp_path, BARE), 2)
  (tmp_path / "checkpoint_5.orbax-checkpoint-tmp-17" / "state").mkdir(
    parents=True
  )
  (tmp_path / "checkpoint_4").mkdir()
  assert Checkpoints(tmp_path, BARE).latest() == 2


def test_starts_in_t5x_order(tmp_path, golden, golden_config):
  """MODEL_DIR, then the initial checkpoint, then random parameters."""
  adafactor = optimizers.adafactor(min_dim_size_to_factor=16)
  initial = golden / "t5x_native" / "checkpoint_3000"
  checkpoints = Checkpoints(tmp_path / "run", golden_config)
  scratch = checkpoints.start(adafactor)
  assert (int(scratch.state.step), scratch.first_step) == (0, 0)
  assert "random" in scratch.source

  given = checkpoints.start(adafactor, initial_checkpoint_path=initial)
  assert (int(given.state.step), given.first_step) == (3000, 3000)
  assert given.source == f"starting from {initial} with its Adafactor state"
  slots = optimizers.slots_of(given.state.opt_state)
  want = load(initial, optimizer=True)
  jax.tree.map(np.testing.assert_array_equal, slots, want.optimizer)
  jax.tree.map(np.testing.assert_array_equal, given.state.params, want.params)

  moved = given.state.replace(step=given.state.step + 4)
  checkpoints.save(moved, first_step=given.first_step)
  checkpoints.close()
  resumed = checkpoints.start(adafactor, initial_checkpoint_path="/nowhere")
  assert (int(resumed.state.step), resumed.first_step) == (3004, 3000)
  jax.tree.map(
    np.testing.assert_array_equal, resumed.state.opt_state, moved.opt_state
  )

  fresh = Checkpoints(tmp_path / "other", golden_config).start(
    adafactor, initial_checkpoint_path=initial, restore_optimizer=False
  )
  slots = jax.tree.leaves(optimizers.slots_of(fresh.state.opt_state))
  assert all(not slot.any() for slot in slots)


def test_what_is_saved_can_be_loaded_and_says_its_vocabulary(tmp_path):
  vocabulary = {"path": "some.model", "sha256": "ab" * 32}
  quick(Checkpoints(tmp_path, BARE, vocabulary=vocabulary), 2)
  read = load(tmp_path)
  assert (read.step, read.config, read.vocabulary) == (2, BARE, vocabulary)
  params = state.init_params(Transformer(BARE), 0)
  jax.tree.map(np.testing.assert_array_equal, read.params, params)


def test_another_vocabulary_than_the_initial_checkpoints_is_refused(tmp_path):
  one = {"path": "one.model", "sha256": "ab" * 32}
  other = {"path": "other.model", "sha256": "cd" * 32}
  quick(Checkpoints(tmp_path / "one", BARE, vocabulary=one), 2)
  with pytest.raises(ValueError, match=r"trained with .*one\.model.*other\.mo"):
    quick(
      Checkpoints(tmp_path / "other", BARE, vocabulary=other),
      initial_checkpoint_path=tmp_path / "one",
    )


def test_an_initial_checkpoint_of_another_shape_is_refused(tmp_path, golden):
  initial = golden / "t5x_native" / "checkpoint_3000"
  with pytest.raises(CheckpointError, match=r"embedding.*512.*40"):
    quick(Checkpoints(tmp_path, BARE), initial_checkpoint_path=initial)
  assert not saved_steps(tmp_path)


def test_another_seed_or_optimizer_than_the_run_began_with_is_refused(tmp_path):
  quick(Checkpoints(tmp_path, BARE), 2)
  with pytest.raises(ValueError, match="began with RANDOM_SEED 0, got 1"):
    quick(Checkpoints(tmp_path, BARE), seed=1)
  with pytest.raises(CheckpointError, match="optimizer that the run began"):
    quick(Checkpoints(tmp_path, BARE), optimizer=ADAFACTOR)


def test_other_settings_than_the_run_began_with_are_refused(tmp_path):
  settings = {"BATCH_SIZE": 8, "BUCKETS": (16, 32)}
  quick(Checkpoints(tmp_path, BARE, settings=settings), 2)
  quick(Checkpoints(tmp_path, BARE, settings=settings), 4)
  changed = settings | {"BATCH_SIZE": 4}
  with pytest.raises(ValueError, match="began with BATCH_SIZE 8, got 4: give"):
    quick(Checkpoints(tmp_path, BARE, settings=changed), 6)
  assert saved_steps(tmp_path) == [4]


def test_a_foreign_checkpoint_in_model_dir_is_refused(tmp_path):
  params = state.init_params(Transformer(BARE), 0)
  orbax_io.save(tmp_path / "checkpoint_9", params, BARE, step=9)
  with pytest.raises(ValueError, match="INITIAL_CHECKPOINT_PATH"):
    quick(Checkpoints(tmp_path, BARE))


def test_too_few_steps_for_the_initial_checkpoint_are_refused(tmp_path):
  quick(Checkpoints(tmp_path / "one", BARE), 6)
  with pytest.raises(ValueError, match=r"not past step 6.*give 10 for 4 more"):
    quick(
      Checkpoints(tmp_path / "two", BARE),
      4,
      initial_checkpoint_path=tmp_path / "one",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_is_as_before(number):
  before = signal.getsignal(number)
  with signals.caught() as stop:
    assert not stop
    os.kill(os.getpid(), number)
    assert stop
    assert (stop.name, stop.exit_code) == (number.name, 128 + number)
    assert signal.getsignal(number) == before
  assert signal.getsignal(number) == before
