"""A training run: where it starts, what it measures and keeps, how it ends."""

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


@fields.checked
@dataclasses.dataclass(frozen=True)
class TrainingRun:
  """How long a run is, where it starts, and how often it is looked at.

  Attributes:
    train_steps: step to stop at. As in T5X it counts the steps that an initial
      checkpoint was trained for.
    seed: seeds parameters, dropout and, in `finetune`, the order of the data.
    initial_checkpoint_path: see `Checkpoints.start`.
    initial_embedding_path: see there.
    restore_optimizer: see there.
    eval_period: steps between evaluations; there is one at the end.
    checkpoint_period: steps between checkpoints; there is one at the end, and
      at each evaluation where the best one is kept.
    log_period: steps between lines of the log.
    progress: show bars.
    mesh: the devices, and what each holds.
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
    step: the last one taken.
    metrics: the last evaluation's, named "eval/...".
    checkpoint: directory of the last one, or None where nothing was done.
    stop: what ended the run early, else falsy.
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
  evaluation: evaluate.Evaluation | None = None,
  writer: Any = None,
  say: Callable[[str], None] = print,
  on_start: Callable[[], object] = lambda: None,
) -> TrainingOutcome:
  """Trains, evaluates and saves; a killed run goes on where it last saved.

  Args:
    config: the architecture.
    batches: see `loop.fit`; to be resumable, not an iterator.
    checkpoints: where to begin, and where to save.
    settings: how long, from where, how often.
    optimizer: None is T5 v1.1's Adafactor.
    objective: None is T5 v1.1's.
    teacher: see `loop.fit`.
    evaluation: None evaluates nothing.
    writer: has `write_scalars(step, {name: value})` and `flush()`, as clu's
      metric writers; None writes none.
    say: given lines of text.
    on_start: called before the first step, when the checkpoints have been read.

  Raises:
    ValueError: a checkpoint, the batches or a setting do not fit.
    LossNotFiniteError: the loss became NaN or infinite; what was saved is kept.
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
  begun = int(state.step)
  say(f"{source}, step {begun} of {train_steps}")
  if train_steps <= first_step:
    raise ValueError(
      f"TRAIN_STEPS {train_steps} is not past step {first_step} of the "
      "initial checkpoint, whose steps it counts too, as in T5X: give "
      f"{first_step + train_steps} for {train_steps} more"
    )
  on_start()
  metrics: dict[str, float] = {}
  measured_at = None
  saved_at = begun if checkpoints.latest() == begun else None

  def write(step, kind, values):
    values = {f"{kind}/{name}": value for name, value in values.items()}
    if writer is not None:
      writer.write_scalars(step, values)
      writer.flush()
    return values

  def measure(state: TrainState) -> None:
    nonlocal metrics, measured_at
    measured_at = int(state.step)
    values = evaluation(config, state.params)
    metrics = write(measured_at, "eval", values)
    numbers = ", ".join(f"{k} {v:.4g}" for k, v in values.items())
    say(f"step {measured_at}: {numbers}")

  def save(state: TrainState) -> None:
    nonlocal saved_at
    step = int(state.step)
    if saved_at != step:
      measured = metrics if measured_at == step else None
      checkpoints.save(state, first_step=first_step, metrics=measured)
      saved_at = step

  callbacks = [loop.Every(settings.checkpoint_period, save)]
  if evaluation is not None:
    callbacks.insert(0, loop.Every(settings.eval_period, measure))
    if checkpoints.metric is not None:
      callbacks.append(loop.Every(settings.eval_period, save))
  with contextlib.closing(checkpoints), signals.caught() as stop:
    state = loop.fit(
      config,
      batches,
      steps=train_steps,
      state=state,
      optimizer=optimizer,
      objective=objective,
      teacher=teacher,
      first_step=first_step,
      log_every=settings.log_period,
      on_log=lambda step, values: write(step, "train", values),
      callbacks=callbacks,
      stop=stop,
      progress=settings.progress,
    )
    if stop and int(state.step) > begun:
      save(state)
  saved = None if saved_at is None else checkpoints.path(saved_at)
  return TrainingOutcome(int(state.step), metrics, saved, stop)


class EventFiles:
  """TensorBoard's event files, begun when there is something to write."""

  def __init__(self, folder: str):
    self._folder = folder

  @functools.cached_property
  def _writer(self):
    from clu import metric_writers

    return metric_writers.SummaryWriter(self._folder)

  @contextlib.contextmanager
  def _checked(self):
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
    with self._checked():
      self._writer.write_scalars(step, scalars)

  def flush(self):
    with self._checked():
      self._writer.flush()


def logit_bytes(batches, model: Config, objective: Objective) -> int:
  """Returns the bytes of a batch's logits; ValueError if it is not cut so."""
  parts, num_models = objective.microbatches, 1 + bool(objective.teacher_share)
  for bucket in batches.buckets:
    if bucket.batch_size % parts:
      raise ValueError(
        f"MICROBATCHES is {parts}, which does not divide a batch of"
        f" {bucket.batch_size} rows"
      )
  positions = (x.batch_size // parts * x.widths[-1] for x in batches.buckets)
  return 4 * num_models * max(positions) * model.vocab_size
