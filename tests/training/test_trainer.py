"""Runs: where they start, what they keep, how they are killed and continue."""

import errno
import functools
import itertools
import os
import signal
from unittest import mock

import jax
import orbax.checkpoint as ocp
import pytest

from speccascade.checkpoints import load, orbax_io
from speccascade.checkpoints.errors import CheckpointError
from speccascade.runtime import signals
from speccascade.training import objectives, optimizers, trainer
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.meter import LossNotFiniteError
from tests.training.conftest import (
  ADAFACTOR,
  BARE,
  STILL,
  TINY,
  exploding,
  random_batch,
  same,
)


def quick(folder, steps=6, say=print, config=BARE, **kwargs):
  """Runs with a rate of 0: the tests are of what a run does around its steps.

  Keywords are fields of `TrainingRun`, fields of `TrainingJob`, or fields of
  `Checkpoints`.
  """

  def take(names):
    return {name: kwargs.pop(name) for name in names if name in kwargs}

  settings = take(trainer.TrainingRun.__dataclass_fields__)
  arguments = {"optimizer": STILL} | take(("optimizer", "evaluation", "writer"))
  return trainer.TrainingJob(
    config,
    [random_batch(i) for i in range(2)],
    Checkpoints(folder, config, **kwargs),
    trainer.TrainingRun(steps, **{"progress": False} | settings),
    say=say,
    **arguments,
  ).run()


def saved_steps(folder):
  names = [path.name for path in folder.glob("checkpoint_*")]
  return sorted(int(name.removeprefix("checkpoint_")) for name in names)


STEPS = 12


class ActAt:
  """A metric writer that calls a function at a step."""

  def __init__(self, step, act):
    self.step, self.act = step, act

  def write_scalars(self, step, scalars):
    if step == self.step:
      self.act()

  def flush(self):
    pass


def die():
  raise KeyboardInterrupt


def final(folder):
  """Parameters and optimizer state of the last step, as numpy."""
  path = f"{folder}/checkpoint_{STEPS}"
  params = load(path).params
  like = jax.eval_shape(ADAFACTOR.transform.init, params)
  return params, orbax_io.read_opt_state(path, like)


def test_progress_names_the_folder(tmp_path, capsys):
  """Two trainings of a script share a log."""
  for name in ("small", "large"):
    quick(tmp_path / name, steps=1, progress=True)
    assert f"\ntrain {name}: 1 of 1" in capsys.readouterr().err


def test_a_killed_run_ends_as_the_unbroken_one_does(tmp_path, capsys):
  """Broken after the checkpoint of step 5, then by SIGTERM, then to the end.

  Dropout is on. `tests/audit/kills` kills processes.
  """
  settings = {
    "config": TINY,
    "optimizer": ADAFACTOR,
    "seed": 3,
    "steps": STEPS,
    "checkpoint_period": 5,
    "log_period": 1,
  }
  folder = tmp_path / "broken"
  quick(tmp_path / "unbroken", **settings)
  with pytest.raises(KeyboardInterrupt):
    quick(folder, writer=ActAt(8, die), **settings)
  assert saved_steps(folder) == [5]
  stop = ActAt(7, lambda: os.kill(os.getpid(), signal.SIGTERM))
  stopped = quick(folder, writer=stop, **settings)
  assert (stopped.step, stopped.checkpoint) == (7, f"{folder}/checkpoint_7")
  assert stopped.stop.exit_code == 128 + signal.SIGTERM
  out = capsys.readouterr().out
  assert f"resuming from {folder}/checkpoint_5, step 5 of 12" in out
  assert saved_steps(folder) == [7]
  outcome = quick(folder, **settings)
  assert outcome.checkpoint == f"{folder}/checkpoint_12"
  assert not outcome.stop
  same(final(folder), final(tmp_path / "unbroken"))


def test_a_finished_run_is_left_alone(tmp_path):
  first = quick(tmp_path)
  lines = []
  again = quick(tmp_path, say=lines.append)
  assert lines == [f"resuming from {tmp_path}/checkpoint_6, step 6 of 6"]
  assert (again.step, again.checkpoint) == (first.step, first.checkpoint)


def test_the_latest_and_the_best_are_kept(tmp_path):
  """BLEU 10, 30, 20, 20 at steps 2, 4, 6, 7: the second is the best."""
  bleu = iter([10.0, 30.0, 20.0, 20.0])
  writer = mock.Mock()
  outcome = quick(
    tmp_path,
    steps=7,
    metric="eval/bleu",
    evaluation=lambda config, params: {"loss": 1.0, "bleu": next(bleu)},
    eval_period=2,
    checkpoint_period=100,
    log_period=3,
    writer=writer,
  )
  assert saved_steps(tmp_path) == [4, 7]
  assert outcome.metrics == {"eval/loss": 1.0, "eval/bleu": 20.0}
  written = [call.args for call in writer.write_scalars.call_args_list]
  evaluated = [(s, m["eval/bleu"]) for s, m in written if "eval/bleu" in m]
  assert evaluated == [(2, 10.0), (4, 30.0), (6, 20.0), (7, 20.0)]
  logged = [step for step, metrics in written if "train/loss" in metrics]
  assert logged == [3, 6, 7]


def test_a_metric_that_is_not_measured_is_named(tmp_path):
  bleu = lambda config, params: {"bleu": 1.0}
  with pytest.raises(ValueError, match=r"no metric 'eval/blue'.*eval/bleu"):
    quick(tmp_path, metric="eval/blue", evaluation=bleu)


def test_what_was_saved_before_nan_is_kept(tmp_path):
  with pytest.raises(LossNotFiniteError, match="at step 4; what was saved"):
    quick(tmp_path, 7, optimizer=exploding(3), checkpoint_period=3)
  assert saved_steps(tmp_path) == [3]


def test_a_checkpoint_that_cannot_be_written_is_one_line(
  tmp_path, monkeypatch, capfd
):
  """No thread's traceback is shown, and half-written files are removed."""
  quick(tmp_path, 2)
  # This is left by a run that was killed while it saved step 1.
  (tmp_path / "checkpoint_1.orbax-checkpoint-tmp").mkdir()

  def full(*args, **kwargs):
    os.write(2, b"Traceback\n")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as patch:
    patch.setattr(ocp.JsonCheckpointHandler, "_save_fn", full)
    with pytest.raises(
      CheckpointError, match="checkpoint_4 cannot be written: No space"
    ):
      quick(tmp_path, 4)
  assert "Traceback" not in capfd.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_2"]
  quick(tmp_path, 4)
  assert saved_steps(tmp_path) == [4]


def test_starts_in_t5x_order(tmp_path, golden, golden_config):
  """MODEL_DIR, then the initial checkpoint, then random parameters."""
  adafactor = optimizers.adafactor(min_dim_size_to_factor=16)
  initial = golden / "t5x_native" / "checkpoint_3000"
  checkpoints = Checkpoints(tmp_path / "run", golden_config)
  start = functools.partial(checkpoints.start, adafactor)
  state, source = start()
  assert (state.step, state.first_step) == (0, 0)
  assert "random" in source

  state, source = start(initial_checkpoint_path=initial)
  assert (state.step, state.first_step) == (3000, 3000)
  assert source == f"starting from {initial} with its Adafactor state"
  want = load(initial, optimizer=True)
  same(optimizers.slots_of(state.opt_state), want.optimizer)
  same(state.params, want.params)

  moved = state.replace(step=state.step + 4)
  checkpoints.save(moved)
  checkpoints.close()
  state, _ = start(initial_checkpoint_path="/nowhere")
  assert (state.step, state.first_step) == (3004, 3000)
  same(state.opt_state, moved.opt_state)

  state, *_ = Checkpoints(tmp_path / "other", golden_config).start(
    adafactor, initial_checkpoint_path=initial, restore_optimizer=False
  )
  slots = jax.tree.leaves(optimizers.slots_of(state.opt_state))
  assert all(not slot.any() for slot in slots)


ONE = {
  "vocabulary": {"path": "one.model", "sha256": "ab" * 32},
  "settings": {"BATCH_SIZE": 8, "BUCKETS": (16, 32)},
}
OTHER = {"path": "other.model", "sha256": "cd" * 32}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A run of four steps, taken up once by the same settings."""
  folder = tmp_path_factory.mktemp("saved")
  quick(folder, 2, **ONE)
  quick(folder, 4, **ONE)
  return folder


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"seed": 1}, "began with RANDOM_SEED 0, got 1"),
    ({"optimizer": ADAFACTOR}, "optimizer that the run began"),
    (
      {"settings": ONE["settings"] | {"BATCH_SIZE": 4}},
      "began with BATCH_SIZE 8, got 4: give",
    ),
    ({"vocabulary": OTHER}, r"trained with .*one\.model.*other\.mo"),
  ],
)
def test_a_run_continues_as_it_began_or_not_at_all(saved, changes, message):
  with pytest.raises(ValueError, match=message):
    quick(saved, **ONE | changes)
  assert saved_steps(saved) == [4]


@pytest.mark.parametrize(
  ("initial", "changes", "message"),
  [
    ("saved", {"vocabulary": OTHER}, r"trained with .*one\.model.*other\.mo"),
    ("saved", {"steps": 3}, r"not past step 4.*give 7 for 3 more"),
    ("saved", {"steps": 4}, r"not past step 4.*give 8 for 4 more"),
    ("golden", {}, r"embedding.*512.*40"),
  ],
)
def test_an_initial_checkpoint_that_does_not_fit_is_refused(
  tmp_path, saved, golden, initial, changes, message
):
  golden_path = golden / "t5x_native" / "checkpoint_3000"
  path = {"saved": saved, "golden": golden_path}[initial]
  with pytest.raises(ValueError, match=message):
    quick(tmp_path, initial_checkpoint_path=path, **changes)
  assert not saved_steps(tmp_path)


def test_a_foreign_checkpoint_in_model_dir_is_refused(tmp_path, bare_params):
  orbax_io.save(tmp_path / "checkpoint_9", bare_params, BARE, step=9)
  with pytest.raises(ValueError, match="INITIAL_CHECKPOINT_PATH"):
    quick(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_is_as_before(number):
  before = signal.getsignal(number)
  with signals.catch() as stop:
    assert not stop
    os.kill(os.getpid(), number)
    assert stop
    assert (stop.name, stop.exit_code) == (number.name, 128 + number)
    assert signal.getsignal(number) == before
  assert signal.getsignal(number) == before


def test_a_run_that_is_stopped_before_its_first_step_leaves_nothing(tmp_path):
  def batches(position):
    os.kill(os.getpid(), signal.SIGTERM)
    return itertools.repeat(random_batch(position))

  outcome = trainer.TrainingJob(
    BARE,
    batches,
    Checkpoints(tmp_path, BARE),
    trainer.TrainingRun(3, progress=False),
    optimizer=STILL,
    say=lambda text: None,
  ).run()
  assert outcome.stop
  assert (outcome.step, outcome.checkpoint) == (0, None)
  assert saved_steps(tmp_path) == []


def test_none_is_the_default(tmp_path):
  job = trainer.TrainingJob(
    BARE,
    [],
    Checkpoints(tmp_path, BARE),
    trainer.TrainingRun(1),
    optimizer=None,
    objective=None,
  )
  assert job.optimizer == optimizers.T5_FINE_TUNING
  assert job.objective == objectives.T5_FINE_TUNING
  batches = [random_batch(0)]
  mine = trainer.fit(
    BARE, batches, steps=1, optimizer=None, objective=None, progress=False
  )
  assert trainer.fit(BARE, batches, steps=1, state=mine) is mine


def test_a_job_without_checkpoints_takes_steps():
  batches = [random_batch(i) for i in range(2)]
  settings = trainer.TrainingRun(3, progress=False)
  job = trainer.TrainingJob(BARE, batches, None, settings)
  start = lambda: trainer.fit(BARE, batches, steps=0)
  assert start().step == 0
  mine = job.take_steps(start())
  theirs = trainer.fit(BARE, batches, steps=3, progress=False)
  same(mine.params, theirs.params)
  with pytest.raises(ValueError, match=r"no checkpoints.*take_steps"):
    job.run()
