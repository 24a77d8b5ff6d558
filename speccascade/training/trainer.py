"""A training run: it starts or resumes, evaluates, saves checkpoints, ends."""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import functools
from typing import Any

from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.runtime import signals
from speccascade.settings import fields
from speccascade.training import loop, optimizers
from speccascade.training.checkpointing import Checkpoints, fault_of
from speccascade.training.objectives import Objective
from speccascade.training.states import Teacher, TrainState
from speccascade.training.written_text import WrittenText


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


@dataclasses.dataclass
class TrainingJob:
  """A training run whose models and data have been read.

  Attributes:
    config: the architecture.
    batches: see `loop.fit`. An iterator cannot be read again, so a run over an
      iterator cannot be resumed.
    checkpoints: where the run begins, and where it saves.
    settings: how long the run is, where it starts, how often it is measured.
    optimizer: None takes T5 v1.1's Adafactor.
    objective: None takes T5 v1.1's objective.
    teacher: see `loop.fit`.
    written: see `loop.fit`.
    evaluation: measures (config, parameters), as an `evaluate.Evaluation` does;
      None evaluates nothing.
    writer: has `write_scalars(step, {name: value})`
      and `flush()`, as clu's metric writers; None writes nothing.
    say: prints a line of text.
    first_step: the step at which the run began, which checkpoints hold.
    saved_step: the step of the last checkpoint, or None.
    metrics: the last evaluation's metrics, named "eval/...".
    evaluated_step: the step of the last evaluation, or None.
  """

  config: Config
  batches: loop.Batches
  checkpoints: Checkpoints
  settings: TrainingRun
  _: dataclasses.KW_ONLY
  optimizer: optimizers.Optimizer | None = None
  objective: Objective | None = None
  teacher: Teacher | None = None
  written: WrittenText | None = None
  evaluation: Callable[[Config, Any], dict[str, float]] | None = None
  writer: Any = None
  say: Callable[[str], None] = print
  # What the run has done so far.
  first_step: int = dataclasses.field(default=0, init=False)
  saved_step: int | None = dataclasses.field(default=None, init=False)
  metrics: dict[str, float] = dataclasses.field(
    default_factory=dict, init=False
  )
  evaluated_step: int | None = dataclasses.field(default=None, init=False)

  def run(
    self, on_start: Callable[[], object] = lambda: None
  ) -> TrainingOutcome:
    """Trains the model, evaluates it, and saves checkpoints.

    A run that was killed goes on from its last checkpoint.

    Args:
      on_start: called before the first step, when the checkpoints have been
        read: everything fits, and the caller may write down the configuration.

    Raises:
      ValueError: a checkpoint, a batch or a setting does not fit.
      LossNotFiniteError: the loss became NaN or infinite; checkpoints that were
        saved before stay.
    """
    settings, checkpoints = self.settings, self.checkpoints
    optimizer = self.optimizer or optimizers.adafactor()
    state, self.first_step, source = checkpoints.start(
      optimizer,
      seed=settings.seed,
      initial_checkpoint_path=settings.initial_checkpoint_path,
      initial_embedding_path=settings.initial_embedding_path,
      restore_optimizer=settings.restore_optimizer,
    )
    start, train_steps = int(state.step), settings.train_steps
    self.say(f"{source}, step {start} of {train_steps}")
    if train_steps <= self.first_step:
      raise ValueError(
        f"TRAIN_STEPS {train_steps} is not past step {self.first_step} of the "
        "initial checkpoint, whose steps it counts too, as in T5X: give "
        f"{self.first_step + train_steps} for {train_steps} more"
      )
    on_start()
    self.saved_step = start if checkpoints.latest() == start else None
    # The first signal is caught from before the first step until after the last
    # save, so it interrupts no save; the loop reads it between two steps.
    with contextlib.closing(checkpoints), signals.catch() as stop:
      state = loop.fit(
        self.config,
        self.batches,
        steps=train_steps,
        state=state,
        optimizer=optimizer,
        objective=self.objective,
        teacher=self.teacher,
        written=self.written,
        first_step=self.first_step,
        log_every=settings.log_period,
        on_log=self._log,
        callbacks=self._callbacks(),
        stop=stop,
        progress=settings.progress,
      )
      # A stopped run saves between its periods. A run that was stopped before
      # its first step has nothing to save.
      if stop and int(state.step) > start:
        self._save(state)
    path = (
      None if self.saved_step is None else checkpoints.path(self.saved_step)
    )
    return TrainingOutcome(int(state.step), self.metrics, path, stop)

  def _callbacks(self) -> list[loop.Every]:
    """Returns what the run does between steps, in this order."""
    # A state is evaluated before it is saved, because its checkpoint holds its
    # metrics, by which the best checkpoint is found. Where both periods end at
    # one step, the second `_save` finds the step saved.
    settings = self.settings
    callbacks = [loop.Every(settings.checkpoint_period, self._save)]
    if self.evaluation is not None:
      callbacks.insert(0, loop.Every(settings.eval_period, self._evaluate))
      if self.checkpoints.metric is not None:
        callbacks.append(loop.Every(settings.eval_period, self._save))
    return callbacks

  def _log(self, step: int, values: Mapping[str, float]):
    """Writes the training metrics of a log entry."""
    self._write(step, _add_prefix("train", values))

  def _evaluate(self, state: TrainState):
    """Evaluates a state, and writes and prints the metrics."""
    step = int(state.step)
    values = self.evaluation(self.config, state.params)
    # The step tells `_save` whether these metrics belong to the state it saves.
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
    self.checkpoints.save(state, first_step=self.first_step, metrics=metrics)
    self.saved_step = step

  def _write(self, step: int, values: Mapping[str, float]):
    if self.writer is not None:
      self.writer.write_scalars(step, values)
      # Flushed each time: a kill must not lose scalars of steps before the
      # checkpoint, because a resumed run does not take those steps again.
      self.writer.flush()


def _add_prefix(kind: str, values: Mapping[str, float]) -> dict[str, float]:
  return {f"{kind}/{name}": value for name, value in values.items()}


class EventFiles:
  """TensorBoard's event files, begun when there is something to write.

  TensorFlow is imported only then.
  """

  def __init__(self, folder: str):
    self._folder = folder

  @functools.cached_property
  def _writer(self):
    from clu import metric_writers

    return metric_writers.SummaryWriter(self._folder)

  @contextlib.contextmanager
  def _one_line_errors(self):
    """Turns TensorFlow's errors into OSErrors of one line."""
    from speccascade.cli import quiet

    tf = quiet.import_tensorflow()
    try:
      with quiet.native_logs():
        yield
    except tf.errors.OpError as error:
      raise OSError(
        f"no event file can be written to {self._folder}: {fault_of(error)}"
      ) from error

  def write_scalars(self, step: int, scalars: Mapping[str, float]):
    """Adds scalars of a step; OSError where the file cannot be written."""
    with self._one_line_errors():
      self._writer.write_scalars(step, scalars)

  def flush(self):
    """Writes what was added to the file; OSError where it cannot be."""
    with self._one_line_errors():
      self._writer.flush()
