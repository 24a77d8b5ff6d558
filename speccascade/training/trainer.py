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
from speccascade.training import evaluate, loop, optimizers
from speccascade.training.checkpointing import Checkpoints, fault_of
from speccascade.training.states import Objective, Teacher, TrainState
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


def run(
  config: Config,
  batches: loop.Batches,
  checkpoints: Checkpoints,
  settings: TrainingRun,
  *,
  optimizer: optimizers.Optimizer | None = None,
  objective: Objective | None = None,
  teacher: Teacher | None = None,
  written: WrittenText | None = None,
  evaluation: evaluate.Evaluation | None = None,
  writer: Any = None,
  say: Callable[[str], None] = print,
  on_start: Callable[[], object] = lambda: None,
) -> TrainingOutcome:
  """Trains a model, evaluates it, and saves checkpoints.

  A run that was killed goes on from its last checkpoint.

  Args:
    config: the architecture.
    batches: see `loop.fit`. An iterator cannot be read again, so a run over an
      iterator cannot be resumed.
    checkpoints: where the run begins, and where it saves.
    settings: how long the run is, where it starts, how often it is measured.
    optimizer: None takes T5 v1.1's Adafactor.
    objective: None takes T5 v1.1's objective.
    teacher: see `loop.fit`.
    written: see `loop.fit`.
    evaluation: what is measured; None evaluates nothing.
    writer: has `write_scalars(step, {name: value})`
      and `flush()`, as clu's metric writers; None writes nothing.
    say: prints a line of text.
    on_start: called before the first step, when the checkpoints have been read.

  Raises:
    ValueError: a checkpoint, a batch or a setting does not fit.
    LossNotFiniteError: the loss became NaN or infinite; checkpoints that were
      saved before stay.
  """
  optimizer = optimizers.adafactor() if optimizer is None else optimizer
  train_steps = settings.train_steps
  state, first_step, source = checkpoints.start(
    optimizer,
    seed=settings.seed,
    initial_checkpoint_path=settings.initial_checkpoint_path,
    initial_embedding_path=settings.initial_embedding_path,
    restore_optimizer=settings.restore_optimizer,
  )
  start = int(state.step)
  say(f"{source}, step {start} of {train_steps}")
  if train_steps <= first_step:
    raise ValueError(
      f"TRAIN_STEPS {train_steps} is not past step {first_step} of the "
      "initial checkpoint, whose steps it counts too, as in T5X: give "
      f"{first_step + train_steps} for {train_steps} more"
    )
  # Everything fits: the caller may write down the run's configuration.
  on_start()
  recorder = _Recorder(
    config=config,
    checkpoints=checkpoints,
    first_step=first_step,
    evaluation=evaluation,
    writer=writer,
    say=say,
    saved_step=start if checkpoints.latest() == start else None,
  )
  # The first signal is caught from before the first step until after the last
  # save, so it interrupts no save; the loop reads it between two steps.
  with contextlib.closing(checkpoints), signals.catch() as stop:
    state = loop.fit(
      config,
      batches,
      steps=train_steps,
      state=state,
      optimizer=optimizer,
      objective=objective,
      teacher=teacher,
      written=written,
      first_step=first_step,
      log_every=settings.log_period,
      on_log=recorder.log,
      callbacks=_callbacks(recorder, settings),
      stop=stop,
      progress=settings.progress,
    )
    # A stopped run saves between its periods. A run that was stopped before its
    # first step has nothing to save.
    if stop and int(state.step) > start:
      recorder.save(state)
  saved_step = recorder.saved_step
  return TrainingOutcome(
    step=int(state.step),
    metrics=recorder.metrics,
    checkpoint=None if saved_step is None else checkpoints.path(saved_step),
    stop=stop,
  )


@dataclasses.dataclass
class _Recorder:
  """Writes down a run: its log, its evaluations, its checkpoints.

  Attributes:
    config: the architecture.
    checkpoints: where the run saves.
    first_step: the step at which the run began, which checkpoints hold.
    evaluation: see `run`.
    writer: see `run`.
    say: see `run`.
    saved_step: the step of the last checkpoint, or None.
    metrics: the last evaluation's metrics, named "eval/...".
    evaluated_step: the step of the last evaluation, or None.
  """

  config: Config
  checkpoints: Checkpoints
  first_step: int
  evaluation: evaluate.Evaluation | None
  writer: Any
  say: Callable[[str], None]
  saved_step: int | None
  metrics: dict[str, float] = dataclasses.field(default_factory=dict)
  evaluated_step: int | None = None

  def log(self, step: int, values: Mapping[str, float]):
    """Writes the training metrics of a log entry."""
    self._write(step, _add_prefix("train", values))

  def measure(self, state: TrainState):
    """Evaluates a state, and writes and prints the metrics."""
    step = int(state.step)
    values = self.evaluation(self.config, state.params)
    # The step tells `save` whether these metrics belong to the state it saves.
    self.metrics, self.evaluated_step = _add_prefix("eval", values), step
    self._write(step, self.metrics)
    numbers = ", ".join(f"{k} {v:.4g}" for k, v in values.items())
    self.say(f"step {step}: {numbers}")

  def save(self, state: TrainState):
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


def _callbacks(recorder: _Recorder, settings: TrainingRun) -> list[loop.Every]:
  """Returns the callbacks of a run, in the order in which a step calls them.

  A state is evaluated before it is saved, because its checkpoint holds its
  metrics, by which the best checkpoint is found. Where both periods end at one
  step, the second `save` finds the step saved.
  """
  callbacks = [loop.Every(settings.checkpoint_period, recorder.save)]
  if recorder.evaluation is not None:
    callbacks.insert(0, loop.Every(settings.eval_period, recorder.measure))
    if recorder.checkpoints.metric is not None:
      callbacks.append(loop.Every(settings.eval_period, recorder.save))
  return callbacks


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
