"""A training run: it starts or resumes, takes steps, evaluates, saves, ends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import os
import time
from typing import Any

import jax
import numpy as np

from speccascade.models.parameters import Config, check_params, network
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import layout_of
from speccascade.runtime import profiling, signals
from speccascade.runtime.progress import ProgressBar, note
from speccascade.settings import fields
from speccascade.training import (
  objectives,
  optimizers,
  states,
  training_step,
  verifier_tuning,
)
from speccascade.training.batch_checks import check_batch
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.meter import Meter, Metrics
from speccascade.training.objectives import Objective
from speccascade.training.states import Teacher, TrainState
from speccascade.training.written_text import WrittenText

Batch = Mapping[str, np.ndarray]
# A list is repeated without end. A function returns the batches from a position
# on, so a resumed run continues with the batch that comes next. An iterator can
# be read only once.
Batches = Sequence[Batch] | Callable[[int], Iterator[Batch]] | Iterable[Batch]

# How many batches are read before the first step to learn their shapes.
LOOK_AHEAD = 16


@fields.checked
@dataclasses.dataclass(frozen=True)
class TrainingRun:
  """How long a run is, where it starts, and how often it is measured.

  Attributes:
    train_steps: the global step to stop at. As in T5X it counts the steps that
      an initial checkpoint was trained for.
    seed: seeds parameters, dropout and, in `finetune`, the order of the data.
    initial_checkpoint_path: see `Checkpoints.start`.
    initial_embedding_path: see `Checkpoints.start`.
    restore_optimizer: see `Checkpoints.start`.
    eval_period: steps between evaluations; the last step is evaluated too.
    checkpoint_period: steps between checkpoints. There is a checkpoint at the
      last step too, and at each evaluation where the best checkpoint is kept.
    log_period: steps between log entries.
    progress: whether to show progress bars.
    mesh: the devices, and which part of the arrays each device holds.
    profile_dir: a folder for the profile of a few steps; None records none.
  """

  train_steps: fields.Positive
  seed: fields.NonNegative = 0
  initial_checkpoint_path: fields.Path | None = None
  initial_embedding_path: fields.Path | None = None
  restore_optimizer: bool = True
  eval_period: fields.Positive = 1000
  checkpoint_period: fields.Positive = 1000
  log_period: fields.Positive = 100
  progress: bool = True
  mesh: meshes.Mesh = meshes.ONE
  profile_dir: fields.Path | None = None


@dataclasses.dataclass(frozen=True)
class TrainingOutcome:
  """How a run ended.

  Attributes:
    step: the last step taken.
    metrics: the last evaluation's metrics, named "eval/...".
    checkpoint: the directory of the last checkpoint; None where there is no
      checkpoint.
    stop: the signal that ended the run early; false where no signal did.
  """

  step: int
  metrics: dict[str, float]
  checkpoint: str | None
  stop: signals.Stop


@dataclasses.dataclass(frozen=True)
class Every:
  """A callback that runs every `steps` steps, and after the last step.

  Attributes:
    steps: steps between two calls; 0 calls after the last step only.
    call: takes the state between two steps. It must not keep the state's
      arrays, because the next step writes over them; `jax.device_get` copies
      them.
  """

  steps: int
  call: Callable[[TrainState], Any]

  def is_due(self, step: int, last: int) -> bool:
    """Returns whether the callback runs after a step of a run to `last`."""
    return step == last or (self.steps > 0 and step % self.steps == 0)


@dataclasses.dataclass
class TrainingJob:
  """A training run whose models and data have been read.

  Attributes:
    config: the architecture, with its dropout rate and its activations' dtype.
    batches: a list of batches, which is repeated; a function that returns the
      batches from a position on; or an iterator, which is read from position
      `state.step - state.first_step` on. An iterator cannot be read again, so a
      run over an iterator cannot be resumed. Batches may differ in shape: one
      program is compiled for each shape.
    checkpoints: where the run begins, and where it saves; None for a job of
      which only `take_steps` is called.
    settings: how long the run is, where it starts, how often it is measured.
    optimizer: an optimizer from `optimizers`; T5 v1.1's Adafactor at 1e-3 by
      default, and where it is None.
    objective: what is minimised; T5 v1.1's objective by default, and where it
      is None.
    teacher: the model whose distributions are learned, which an objective
      needs whose loss reads a teacher.
    written: who writes the texts of a step; None takes the batches as they are.
    evaluation: measures (config, parameters), as an `evaluate.Evaluation` does;
      None evaluates nothing.
    writer: has `write_scalars(step, {name: value})`
      and `flush()`, as clu's metric writers; None writes nothing.
    say: prints a line of text.
    saved_step: the step of the last checkpoint, or None.
    metrics: the last evaluation's metrics, named "eval/...".
    evaluated_step: the step of the last evaluation, or None.
  """

  config: Config
  batches: Batches
  checkpoints: Checkpoints | None
  settings: TrainingRun
  _: dataclasses.KW_ONLY
  optimizer: optimizers.Optimizer | None = optimizers.T5_FINE_TUNING
  objective: Objective | None = objectives.T5_FINE_TUNING
  teacher: Teacher | None = None
  written: WrittenText | None = None
  evaluation: Callable[[Config, Any], dict[str, float]] | None = None
  writer: Any = None
  say: Callable[[str], None] = print
  # What the run has done so far.
  saved_step: int | None = dataclasses.field(default=None, init=False)
  metrics: dict[str, float] = dataclasses.field(
    default_factory=dict, init=False
  )
  evaluated_step: int | None = dataclasses.field(default=None, init=False)

  def __post_init__(self):
    self.optimizer = self.optimizer or optimizers.T5_FINE_TUNING
    self.objective = self.objective or objectives.T5_FINE_TUNING

  @property
  def _name(self) -> str:
    """What progress is shown of: one terminal may have several trainings."""
    folder = self.checkpoints and os.path.basename(self.checkpoints.model_dir)
    return f"train {folder}" if folder else "train"

  def run(
    self, on_start: Callable[[], object] = lambda: None
  ) -> TrainingOutcome:
    """Trains the model, evaluates it, and saves checkpoints.

    A run that was killed continues from its last checkpoint.

    Args:
      on_start: called before the first step, when the checkpoints have been
        read: everything fits, and the caller may write down the configuration.

    Raises:
      ValueError: a checkpoint, a batch or a setting does not fit, or the job
        has no checkpoints.
      LossNotFiniteError: the loss became NaN or infinite; checkpoints that were
        saved before stay.
    """
    settings, checkpoints = self.settings, self.checkpoints
    if checkpoints is None:
      raise ValueError(
        "the job has no checkpoints: give it some, or call take_steps"
      )
    state, source = checkpoints.start(
      self.optimizer,
      seed=settings.seed,
      initial_checkpoint_path=settings.initial_checkpoint_path,
      initial_embedding_path=settings.initial_embedding_path,
      restore_optimizer=settings.restore_optimizer,
    )
    start, first_step = int(state.step), int(state.first_step)
    train_steps = settings.train_steps
    self.say(f"{source}, step {start} of {train_steps}")
    if train_steps <= first_step:
      raise ValueError(
        f"TRAIN_STEPS {train_steps} is not past step {first_step} of the "
        "initial checkpoint, whose steps it counts too, as in T5X: give "
        f"{first_step + train_steps} for {train_steps} more"
      )
    on_start()
    self.saved_step = start if checkpoints.latest() == start else None
    # The first signal is caught from before the first step until after the last
    # save, so it interrupts no save; the loop reads it between two steps.
    with contextlib.closing(checkpoints), signals.catch() as stop:
      state = self.take_steps(
        state, on_log=self._log, callbacks=self._callbacks(), stop=stop
      )
      # A stopped run saves between its periods, if it took a step.
      if stop and int(state.step) > start:
        self._save(state)
    saved = self.saved_step
    return TrainingOutcome(
      step=int(state.step),
      metrics=self.metrics,
      checkpoint=None if saved is None else checkpoints.path(saved),
      stop=stop,
    )

  def take_steps(
    self,
    state: TrainState,
    *,
    on_log: Callable[[int, Metrics], None] | None = None,
    callbacks: Sequence[Every] = (),
    stop: Any = False,
  ) -> TrainState:
    """Trains from a state, and returns the state after the job's last step.

    The result depends on the job and the arguments alone. A run that is stopped
    anywhere and continued from its state ends with the state of the unbroken
    run; on a CPU the two states agree to the bit.

    Args:
      state: the state to continue from, which the run writes over;
        `TrainState.create` makes one of parameters. Where it lies on a mesh,
        the batches are split for the mesh.
      on_log: called with (step, metrics) every `log_period` steps. The metrics
        are "loss", "z_loss" and "accuracy", means over target tokens;
        "grad_norm", the mean over steps; "learning_rate" of the last step; and
        "examples_per_s".
      callbacks: the callbacks; those that are due are called in this order.
      stop: read before each step; the run ends when it is true. See
        `signals.catch`.

    Raises:
      ValueError: the parameters or a batch do not fit the model, the batches
        run out, or the objective's loss reads a teacher and there is no
        teacher.
      LossNotFiniteError: the loss became NaN or infinite; no callback has been
        called with a state after that step.
    """
    config, optimizer, settings = self.config, self.optimizer, self.settings
    check_params(config, verifier_tuning.model_params(state.params))
    step, steps = int(state.step), settings.train_steps
    if step >= steps:
      return state
    teacher = states.teacher_in_use(self.teacher, self.objective, config)
    module, layout = network(config), layout_of(state.params)
    train_step = training_step.programs(
      module, optimizer, self.objective, layout
    )
    take_step = profiling.recorded(
      train_step, settings.profile_dir, profiling.TRAINING
    )
    position = step - int(state.first_step)
    numbered = enumerate(_batches_from(self.batches, position), position)
    checked = (check_batch(batch, config, i) for i, batch in numbered)
    # The first batches are read before the first step, so that XLA compiles
    # several shapes at once while the device already trains on the first one.
    ahead = list(itertools.islice(checked, min(LOOK_AHEAD, steps - step)))
    for batch in ahead:
      train_step.prepare(state, batch, teacher)
    with ProgressBar(
      total=steps,
      initial=step,
      desc=self._name,
      unit="step",
      disable=not settings.progress,
      mininterval=1.0,
    ) as bar:
      meter = Meter(optimizer, on_log, bar)
      for batch in itertools.chain(ahead, checked):
        # Stop: each process looks once before each step, because the processes
        # of a job agree on a step by counting these looks.
        if stop:
          break
        if self.written is not None:
          batch = self.written(batch, step, module, state.params)
        # Step: the call returns before the device is done. The old state is
        # donated to the step and must not be read afterwards.
        if not train_step.prepare(state, batch, teacher).done():
          text = f"compiling {train_step.num_ready + 1} of {len(train_step)}"
          note(text, leave_out=True)
        state = take_step(state, batch, teacher)
        step += 1
        # Measure: totals are read before any callback, so that a loss that is
        # not finite raises before a callback can save or evaluate the state.
        due = [each for each in callbacks if each.is_due(step, steps)]
        is_logged = step == steps or step % settings.log_period == 0
        state = meter.count_step(step, state, batch, is_logged, bool(due))
        # Call back: evaluations and checkpoints do not count as training time.
        start_s = time.monotonic()
        for callback in due:
          callback.call(state)
        meter.leave_out(time.monotonic() - start_s)
        if step == steps:
          break
      else:
        raise ValueError(
          f"the batches ran out after step {step}, {steps} were asked for; "
          "give more, or a list to go round"
        )
    return jax.block_until_ready(state)

  def _callbacks(self) -> list[Every]:
    """Returns what the run does between steps, in this order."""
    # A state is evaluated before it is saved, because its checkpoint holds its
    # metrics, by which the best checkpoint is found. Where both periods end at
    # one step, the second `_save` finds the step saved.
    settings = self.settings
    callbacks = [Every(settings.checkpoint_period, self._save)]
    if self.evaluation is not None:
      callbacks.insert(0, Every(settings.eval_period, self._evaluate))
      if self.checkpoints.metric is not None:
        callbacks.append(Every(settings.eval_period, self._save))
    return callbacks

  def _log(self, step: int, values: Mapping[str, float]):
    """Writes the training metrics of a log entry."""
    self._write(step, _add_prefix("train", values))

  def _evaluate(self, state: TrainState):
    """Evaluates a state, writes and prints the metrics, and keeps its step."""
    step = int(state.step)
    values = self.evaluation(self.config, state.params)
    self.metrics, self.evaluated_step = _add_prefix("eval", values), step
    self._write(step, self.metrics)
    numbers = ", ".join(f"{k} {v:.4g}" for k, v in values.items())
    self.say(f"step {step}: {numbers}")

  def _save(self, state: TrainState):
    """Saves a checkpoint, unless the step's checkpoint is already saved."""
    step = int(state.step)
    if self.saved_step == step:
      return
    metrics = self.metrics if self.evaluated_step == step else None
    self.checkpoints.save(state, metrics=metrics)
    self.saved_step = step

  def _write(self, step: int, values: Mapping[str, float]):
    if self.writer is not None:
      self.writer.write_scalars(step, values)
      # Flushed each time: a kill must not lose scalars of steps before the
      # checkpoint, because a resumed run does not take those steps again.
      self.writer.flush()


def _add_prefix(kind: str, values: Mapping[str, float]) -> dict[str, float]:
  return {f"{kind}/{name}": value for name, value in values.items()}


def fit(
  model: Config,
  batches: Batches,
  *,
  steps: int,
  state: TrainState | None = None,
  seed: int = 0,
  optimizer: optimizers.Optimizer | None = optimizers.T5_FINE_TUNING,
  objective: Objective | None = objectives.T5_FINE_TUNING,
  teacher: Teacher | None = None,
  written: WrittenText | None = None,
  log_every: int = 100,
  on_log: Callable[[int, Metrics], None] | None = None,
  callbacks: Sequence[Every] = (),
  stop: Any = False,
  progress: bool = True,
) -> TrainState:
  """Trains a model and returns its state after step `steps`.

  It is `TrainingJob.take_steps` of a job without checkpoints.

  Args:
    model: see `TrainingJob.config`.
    batches: see `TrainingJob`.
    steps: global step to stop at. Without `state` this is the number of steps.
    state: the state to continue from; see `TrainingJob.take_steps`. None draws
      parameters from `seed`.
    seed: seeds the parameters and dropout, where there is no `state`.
    optimizer: see `TrainingJob`, as of the next three.
    objective: what is minimised.
    teacher: the model whose distributions are learned.
    written: who writes the texts of a step.
    log_every: steps between two calls of `on_log`; the metrics are means over
      these steps.
    on_log: see `TrainingJob.take_steps`, as of the next two.
    callbacks: what is called between steps.
    stop: whether to end the run.
    progress: whether to show a progress bar.

  Raises:
    ValueError: see `TrainingJob.take_steps`.
    LossNotFiniteError: the loss became NaN or infinite.
  """
  if state is None:
    optimizer = optimizer or optimizers.T5_FINE_TUNING
    params = states.init_params(network(model), seed)
    state = TrainState.create(params, optimizer, seed=seed)
  if steps < 1:
    return state
  job = TrainingJob(
    model,
    batches,
    None,
    TrainingRun(steps, log_period=log_every, progress=progress),
    optimizer=optimizer,
    objective=objective,
    teacher=teacher,
    written=written,
  )
  return job.take_steps(state, on_log=on_log, callbacks=callbacks, stop=stop)


def _batches_from(batches: Batches, position: int) -> Iterator[Batch]:
  """Returns an iterator over the batches from a position on."""
  if callable(batches):
    return iter(batches(position))
  if isinstance(batches, Sequence):
    if not batches:
      raise ValueError("there are no batches to train on")
    # Position 12 of a repeated list of 5 is its batch 2, so the first two full
    # rounds are not gone through one by one.
    batches, position = itertools.cycle(batches), position % len(batches)
  return itertools.islice(batches, position, None)
