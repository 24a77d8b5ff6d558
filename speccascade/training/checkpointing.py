"""The checkpoints of a training run: where it starts, and what it leaves.

A run that is killed at any moment must find a complete checkpoint when it
starts again. So a checkpoint is written into a temporary directory, which gets
its name `checkpoint_<step>` when all of it is on disk, and older checkpoints
are removed only after that. Between the two a run has one checkpoint more than
it keeps, never one fewer.

The module imports Orbax only when a checkpoint is written or looked for.
"""

from collections.abc import Mapping
import dataclasses
import errno
import functools
import glob
import json
import os
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np

from speccascade.checkpoints import hub_names, load, orbax_io, restore, storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.parameters import Config, network, place_params
from speccascade.models.sharding.partitioning import Layout, fetch
from speccascade.runtime import processes, standard_error
from speccascade.text import token_names
from speccascade.training import optimizers, states, teachers
from speccascade.training.kinds import kind_of

_INITIAL = "INITIAL_CHECKPOINT_PATH"


class StartingPoint(NamedTuple):
  """Where a run begins.

  Attributes:
    state: the state before the run's next step.
    source: in words, what the run starts from, for the log.
  """

  state: states.TrainState
  source: str


@dataclasses.dataclass
class Checkpoints:
  """The `checkpoint_<step>` directories of a run: the latest and the best.

  Attributes:
    model_dir: MODEL_DIR.
    config: the architecture, which is written into each checkpoint.
    vocabulary: the value of `orbax_io.vocabulary_identity`, which is written
      into each checkpoint: decoding compares a drafter's vocabulary with its
      verifier's. None where the vocabulary is unknown.
    keep_latest: how many of the latest checkpoints are kept.
    metric: name of the evaluation metric by which the best checkpoint is kept
      too, e.g. "eval/bleu"; None keeps the latest checkpoints only. Of losses
      and divergences the least value is the best, of others the largest.
    layout: where the state lies; None on one device. With a layout the state is
      read part by part, and each device's part is saved as it lies.
    initial_params: parameters that a run starts from in place of random ones,
      where there is no checkpoint, e.g. those of `draft_heads.initial_params`.
    settings: JSON values that a resumed run must have in common with the run
      that it resumes, by the names its user knows, e.g. {"BATCH_SIZE": 128}.
  """

  model_dir: str | os.PathLike
  config: Config
  _: dataclasses.KW_ONLY
  vocabulary: Mapping[str, str] | None = None
  keep_latest: int = 1
  metric: str | None = None
  layout: Layout | None = None
  initial_params: Mapping | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    self.model_dir = storage.Directory(self.model_dir).url
    # Settings are compared with the settings that a checkpoint holds as JSON,
    # which has no tuples: a tuple must become a list here too.
    self.settings = json.loads(json.dumps(self.settings))

  @functools.cached_property
  def _manager(self):
    """Orbax's manager, made at the first write."""
    # It lists the directories when it is made, so directories that an earlier
    # writer left half written are removed before.
    self._remove_half_written()
    return orbax_io.manager(
      self.model_dir,
      keep_latest=self.keep_latest,
      metric=self.metric,
      best_mode=_best_mode(self.metric),
    )

  def latest(self) -> int | None:
    """Returns the last step with a complete checkpoint in `model_dir`, or None.

    The first process of a job looks, and the others take its answer: a process
    that looked a moment later could see another step, and take another way.
    """
    return processes.agree(
      lambda: max(restore.steps(self.model_dir), default=None)
    )

  def path(self, step: int) -> str:
    """Returns the directory of a step's checkpoint."""
    return f"{self.model_dir}/{orbax_io.STEP_PREFIX}_{step}"

  def start(
    self,
    optimizer: optimizers.Optimizer,
    *,
    seed: int = 0,
    initial_checkpoint_path: str | os.PathLike | None = None,
    initial_embedding_path: str | os.PathLike | None = None,
    restore_optimizer: bool = True,
  ) -> StartingPoint:
    """Returns where a run begins; the sources are tried in T5X's order.

    A run that has begun in `model_dir` is resumed as it was. Otherwise the run
    starts from the initial checkpoint, in any layout, and counts steps on from
    the checkpoint's step. Otherwise it starts from random parameters, whose
    embedding may come from a larger model.

    Args:
      optimizer: the run's optimizer.
      seed: seeds parameters and dropout.
      initial_checkpoint_path: the initial checkpoint, or None.
      initial_embedding_path: a larger model, whose reduced embedding takes the
        place of a random embedding, see `teachers.with_embedding`; or None.
      restore_optimizer: whether to take Adafactor's accumulators from the
        initial checkpoint too, where the checkpoint has any.

    Raises:
      CheckpointError: a checkpoint cannot be read, or does not fit the model.
      ValueError: a checkpoint's vocabulary is not the run's, the run in
        `model_dir` began with another seed or other settings, or the
        accumulators do not fit the optimizer.
    """
    step = self.latest()
    if step is not None:
      return self._resume(step, optimizer, seed)
    if initial_checkpoint_path:
      return self._start_from_checkpoint(
        initial_checkpoint_path, optimizer, seed, restore_optimizer
      )
    return self._start_from_random(optimizer, seed, initial_embedding_path)

  def _resume(
    self, step: int, optimizer: optimizers.Optimizer, seed: int
  ) -> StartingPoint:
    """Returns the state that the run in `model_dir` saved at a step."""
    path = self.path(step)
    checkpoint = load(path, config=self.config, lazy=self.layout is not None)
    if "first_step" not in checkpoint.extra:
      raise ValueError(
        f"MODEL_DIR {self.model_dir} holds checkpoint_{step}, which no run of "
        "this trainer left there; give it as INITIAL_CHECKPOINT_PATH and "
        "another MODEL_DIR"
      )
    self._check_vocabulary(checkpoint)
    self._check_settings(checkpoint, seed)
    if begun := checkpoint.extra["settings"].get(_INITIAL):
      self.settings = {**self.settings, _INITIAL: begun}
    state = states.TrainState.create(
      self._whole(self._place(checkpoint.params), step),
      optimizer,
      step=step,
      first_step=checkpoint.extra["first_step"],
      seed=seed,
      read_opt_state=functools.partial(orbax_io.read_opt_state, path),
    )
    return StartingPoint(state, f"resuming from {path}")

  def _start_from_checkpoint(
    self,
    path: str | os.PathLike,
    optimizer: optimizers.Optimizer,
    seed: int,
    restore_optimizer: bool,
  ) -> StartingPoint:
    """Returns the state of a new run with a checkpoint's parameters."""
    checkpoint = load(
      path,
      config=self.config,
      optimizer=restore_optimizer,
      lazy=self.layout is not None,
    )
    self._check_vocabulary(checkpoint)
    if name := hub_names.name_of(checkpoint.path):
      # A card names the revision, and a resumed run need not ask for it.
      self.settings = {**self.settings, _INITIAL: name}
    step, slots = checkpoint.step or 0, checkpoint.optimizer
    params = self._whole(self._place(checkpoint.params))
    state = states.TrainState.create(
      params, optimizer, step=step, seed=seed, slots=slots
    )
    source = f"starting from {checkpoint.path}"
    if slots is not None:
      source += " with its Adafactor state"
    return StartingPoint(state, source)

  def _start_from_random(
    self,
    optimizer: optimizers.Optimizer,
    seed: int,
    embedding_path: str | os.PathLike | None,
  ) -> StartingPoint:
    """Returns the state of a new run without a checkpoint."""
    source = f"starting from {kind_of(self.config).initial}"
    if self.initial_params is not None:
      params = self._whole(self.initial_params)
    else:
      params = states.init_params(network(self.config), seed, self.layout)
      if embedding_path:
        params = teachers.with_embedding(params, embedding_path)
        source += f" and the embedding of {embedding_path}"
      params = self._place(params)
    state = states.TrainState.create(params, optimizer, seed=seed)
    return StartingPoint(state, source)

  def _whole(self, params: Mapping, step: int | None = None) -> Mapping:
    """Returns all that is trained, of the model's parameters at a step."""
    # A subclass adds what it writes beside the model's own checkpoint. The step
    # is None where a run begins.
    return params

  def _slots_of(self, opt_state: Any) -> dict | None:
    """Returns Adafactor's accumulators under T5X's names, or None."""
    return optimizers.slots_of(opt_state)

  def _write_parts(
    self, step: int, params: Mapping, extra: dict[str, Any]
  ) -> Mapping:
    """Writes what belongs beside a checkpoint; returns what it holds itself."""
    # This comes before the checkpoint, and may add to what it records, `extra`.
    return params

  def _remove_parts(self) -> None:
    """Removes what was beside checkpoints that are gone."""

  def _place(self, params: Mapping) -> Mapping:
    """Returns parameters where the layout puts them."""
    if self.layout is None:
      return params
    return place_params(self.config, params, self.layout)

  def _check_vocabulary(self, checkpoint) -> None:
    """Raises ValueError where a checkpoint has another vocabulary."""
    old, new = checkpoint.vocabulary, self.vocabulary
    if differs := token_names.difference(old, new):
      raise ValueError(
        f"{checkpoint.path} was trained with the vocabulary {old['path']}, the "
        f"task has {new['path']} ({differs}): give VOCABULARY the "
        "former"
      )

  def _check_settings(self, checkpoint, seed: int) -> None:
    """Raises ValueError where the run began with another seed or setting."""
    # Such a run would read other batches or draw other masks, and would not end
    # as the unbroken run does.
    extra = checkpoint.extra
    old = {"RANDOM_SEED": extra["seed"], **extra["settings"]}
    new = {"RANDOM_SEED": seed, **self.settings}
    for name, value in new.items():
      # A checkpoint that is older than a setting does not have it.
      if name in old and old[name] != value:
        raise ValueError(
          f"the run in MODEL_DIR {self.model_dir} began with {name} "
          f"{old[name]}, got {value}: give that, or another MODEL_DIR"
        )

  def save(
    self,
    state: states.TrainState,
    *,
    metrics: Mapping[str, float] | None = None,
  ) -> str:
    """Writes a checkpoint, then removes checkpoints that need not be kept.

    A checkpoint is written whole or not at all. All processes of a job must
    call `save`; the first process writes.

    Args:
      state: the state between two steps.
      metrics: an evaluation at this step. A checkpoint without metrics may be
        kept as one of the latest, but not as the best.

    Returns:
      The checkpoint's directory.

    Raises:
      CheckpointError: the checkpoint cannot be written.
      ValueError: the evaluation did not measure `metric`.
    """
    step = int(state.step)
    params, opt_state = state.params, state.opt_state
    # The first process of a job writes all of the arrays, and every process
    # takes part in fetching them, so this comes before processes part ways. A
    # single process with a mesh needs no whole arrays: Orbax writes its
    # devices' parts as they lie.
    if self.layout is None or processes.count() > 1:
      params, opt_state = fetch((params, opt_state))
    extra = {
      "first_step": int(state.first_step),
      "seed": int(state.seed),
      "settings": self.settings,
    }
    metrics = self._metrics_to_save(metrics)
    # A step that is complete is not written again: `latest` counts a directory
    # only when all of it is on disk.
    if self.latest() == step or not processes.is_first():
      return self.path(step)
    params = self._write_parts(step, params, extra)
    args = orbax_io.save_args(
      params,
      self.config,
      step=step,
      # Orbax takes no tree without arrays, as plain descent has.
      opt_state=opt_state if jax.tree.leaves(opt_state) else None,
      slots=self._slots_of(opt_state),
      vocabulary=self.vocabulary,
      extra=extra,
    )
    # Orbax writes into `checkpoint_<step>.orbax-checkpoint-tmp...`, renames it,
    # and only then removes older checkpoints. A kill before the renaming leaves
    # the checkpoint before; a kill after it leaves one more than is kept.
    try:
      with standard_error.hide_failing_threads():
        self._manager.save(step, args=args, metrics=metrics, force=True)
    except (OSError, ValueError, RuntimeError) as error:
      # The manager may take the failed save for one in progress. The next save
      # makes a new manager, which looks at the directories again.
      vars(self).pop("_manager", None)
      self._remove_half_written()
      raise self._unwritten(self.path(step), error) from error
    self._remove_parts()
    return self.path(step)

  def _unwritten(self, path: str, error: Exception) -> CheckpointError:
    """Returns the error of a checkpoint that cannot be written."""
    return CheckpointError(
      f"{path} cannot be written: {fault_of(error)}; when it can, the same"
      " command continues"
    )

  def _metrics_to_save(
    self, metrics: Mapping[str, float] | None
  ) -> dict[str, float] | None:
    """Returns an evaluation's metrics as JSON takes them, or None."""
    # None stands for an evaluation by which a checkpoint cannot be the best: a
    # metric that is NaN would compare as neither better nor worse.
    if metrics is None:
      return None
    if self.metric is not None:
      if self.metric not in metrics:
        raise ValueError(
          f"no metric {self.metric!r} to keep the best checkpoint by; the "
          f"evaluation gave {', '.join(sorted(metrics)) or 'none'}"
        )
      if not np.isfinite(metrics[self.metric]):
        return None
    return {name: float(value) for name, value in metrics.items()}

  def _remove_half_written(self) -> None:
    """Removes what killed or failed writers left in a local `model_dir`."""
    # The run is the folder's only writer (`folders.sole_writer`), so every
    # temporary directory there belongs to a writer that has ended.
    pattern = f"{orbax_io.STEP_PREFIX}_*.orbax-checkpoint-tmp*"
    for path in glob.glob(pattern, root_dir=self.model_dir):
      shutil.rmtree(os.path.join(self.model_dir, path), ignore_errors=True)

  def close(self) -> None:
    """Closes Orbax's manager, where one was made."""
    if "_manager" in vars(self):
      vars(self).pop("_manager").close()


def _best_mode(metric: str | None) -> str:
  """Returns "min" for a metric that is better where it is smaller.

  >>> [_best_mode(name) for name in ("eval/loss_2", "eval/bleu", None)]
  ['min', 'max', 'max']
  """
  is_cost = metric and ("loss" in metric or "divergence" in metric)
  return "min" if is_cost else "max"


def fault_of(error: BaseException) -> str:
  """Returns in a few words why something could not be written.

  A full disk is named first: Orbax and TensorFlow bury it in longer messages.
  """
  full = os.strerror(errno.ENOSPC)
  return full if full in str(error) else storage.first_line(error)
