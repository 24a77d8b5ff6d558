"""The checkpoints of a run: where it starts, and what it leaves.

Nothing here imports Orbax before a checkpoint is written or looked for.
"""

from collections.abc import Mapping
import dataclasses
import errno
import functools
import glob
import json
import os
import shutil
from typing import Any

import jax
import numpy as np

from speccascade.checkpoints import load, orbax_io, restore, storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.parameters import Config, lying, network
from speccascade.models.sharding.partitioning import Layout, fetched
from speccascade.runtime import processes, standard_error
from speccascade.training import optimizers, states, teachers


@dataclasses.dataclass
class Checkpoints:
  """The `checkpoint_<step>` directories of a run: the latest and the best.

  Attributes:
    model_dir: MODEL_DIR.
    config: the architecture, written into each.
    vocabulary: `orbax_io.vocabulary_identity`, written into each so that
      decoding can compare a drafter's with its verifier's; None where unknown.
    keep_latest: how many of the latest to keep.
    metric: name of the evaluation metric by which the best one is kept beside
      them, e.g. "eval/bleu"; None keeps none.
    best_mode: "max" or "min" of that metric.
    layout: where the state lies, None on one device; with one it is read part
      by part, and saved as it lies.
    settings: JSON values that a run must keep when it is resumed, by the names
      its user knows, e.g. {"BATCH_SIZE": 128}.
  """

  model_dir: str | os.PathLike
  config: Config
  _: dataclasses.KW_ONLY
  vocabulary: Mapping[str, str] | None = None
  keep_latest: int = 1
  metric: str | None = None
  best_mode: str = "max"
  layout: Layout | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if self.best_mode not in ("max", "min"):
      raise ValueError(
        f"best_mode is {self.best_mode!r}; wanted 'max' or 'min'"
      )
    self.model_dir = storage.Directory(self.model_dir).url
    # As they come back from JSON: tuples are lists.
    self.settings = json.loads(json.dumps(self.settings))

  @functools.cached_property
  def _manager(self):
    self._remove_half_written()
    return orbax_io.manager(
      self.model_dir,
      keep_latest=self.keep_latest,
      metric=self.metric,
      best_mode=self.best_mode,
    )

  def latest(self) -> int | None:
    """Returns the last complete step in `model_dir`, or None."""
    return processes.agreed(
      lambda: max(restore.steps(self.model_dir), default=None)
    )

  def path(self, step: int) -> str:
    """Returns the directory of a step."""
    return f"{self.model_dir}/{orbax_io.STEP_PREFIX}_{step}"

  def start(
    self,
    optimizer: optimizers.Optimizer,
    *,
    seed: int = 0,
    initial_checkpoint_path: str | os.PathLike | None = None,
    initial_embedding_path: str | os.PathLike | None = None,
    restore_optimizer: bool = True,
  ) -> tuple[states.TrainState, int, str]:
    """Returns where to begin, in T5X's order.

    `model_dir` comes first: a run that has begun there is resumed as it was.
    Then the initial checkpoint, of any layout; its step is counted on from.
    Then random parameters, the embedding perhaps excepted.

    Args:
      optimizer: the run's optimizer.
      seed: seeds parameters and dropout.
      initial_checkpoint_path: or None.
      initial_embedding_path: a larger model, whose embedding takes the place of
        a random one; see `teachers.reduced`. None for no such.
      restore_optimizer: take Adafactor's accumulators from the initial
        checkpoint too, where it has any.

    Returns:
      (state, first_step, source): the state before its next step; the step at
      which the run began, 0 or that of the initial checkpoint (batch number
      `state.step - first_step` comes next); and in words where it starts, for
      the log.

    Raises:
      CheckpointError: a checkpoint cannot be read, or does not fit the model.
      ValueError: its vocabulary is not the run's, the run in `model_dir` began
        with another seed or other settings, or the accumulators do not fit the
        optimizer.
    """
    step = self.latest()
    if step is not None:
      return self._resume(step, optimizer, seed)
    if not initial_checkpoint_path:
      params = states.init_params(network(self.config), seed, self.layout)
      source = "starting from random parameters"
      if initial_embedding_path:
        params = teachers.begun(params, initial_embedding_path)
        source += f" and the embedding of {initial_embedding_path}"
      state = states.create(self._lying(params), optimizer, seed=seed)
      return state, 0, source
    path, config = initial_checkpoint_path, self.config
    lazy = self.layout is not None
    read = load(path, config=config, optimizer=restore_optimizer, lazy=lazy)
    self._check_vocabulary(read)
    step, slots = read.step or 0, read.optimizer
    params = self._lying(read.params)
    state = states.create(params, optimizer, step=step, seed=seed, slots=slots)
    with_slots = "" if slots is None else " with its Adafactor state"
    return state, step, f"starting from {read.path}{with_slots}"

  def _lying(self, params: Mapping) -> Mapping:
    layout = self.layout
    return lying(self.config, params, layout) if layout else params

  def _check_vocabulary(self, read) -> None:
    old, new = read.vocabulary, self.vocabulary
    if old and new and old["sha256"] != new["sha256"]:
      raise ValueError(
        f"{read.path} was trained with the vocabulary {old['path']}, the task "
        f"has {new['path']} (their sha256 differ): give VOCABULARY the former"
      )

  def _resume(self, step, optimizer, seed) -> tuple:
    path = self.path(step)
    read = load(path, config=self.config, lazy=self.layout is not None)
    if "first_step" not in read.extra:
      raise ValueError(
        f"MODEL_DIR {self.model_dir} holds checkpoint_{step}, which no run of "
        "this trainer left there; give it as INITIAL_CHECKPOINT_PATH and "
        "another MODEL_DIR"
      )
    self._check_vocabulary(read)
    began = {"RANDOM_SEED": read.extra["seed"], **read.extra["settings"]}
    for name, now in {"RANDOM_SEED": seed, **self.settings}.items():
      if name in began and began[name] != now:
        raise ValueError(
          f"the run in MODEL_DIR {self.model_dir} began with {name} "
          f"{began[name]}, got {now}: give that, or another MODEL_DIR"
        )
    state = states.create(
      self._lying(read.params),
      optimizer,
      step=step,
      seed=seed,
      read_opt_state=functools.partial(orbax_io.read_opt_state, path),
    )
    return state, read.extra["first_step"], f"resuming from {path}"

  def save(
    self,
    state: states.TrainState,
    *,
    first_step: int = 0,
    metrics: Mapping[str, float] | None = None,
  ) -> str:
    """Writes a state, whole or not at all, and drops what need not be kept.

    Args:
      state: between two steps.
      first_step: see `start`.
      metrics: an evaluation at this step; without, it can be the latest but
        not the best.

    Returns:
      The directory.
    """
    step = int(state.step)
    params, opt_state = state.params, state.opt_state
    if self.layout is None or processes.count() > 1:
      params, opt_state = fetched((params, opt_state))
    seed = int(state.seed)
    extra = {"first_step": first_step, "seed": seed, "settings": self.settings}
    if metrics is not None and self.metric is not None:
      if self.metric not in metrics:
        raise ValueError(
          f"no metric {self.metric!r} to keep the best checkpoint by; the "
          f"evaluation gave {', '.join(sorted(metrics)) or 'none'}"
        )
      if not np.isfinite(metrics[self.metric]):
        metrics = None
    if metrics is not None:
      metrics = {name: float(value) for name, value in metrics.items()}
    if self.latest() == step or not processes.is_first():
      return self.path(step)
    args = orbax_io.save_args(
      params,
      self.config,
      step=step,
      # Orbax takes no tree without arrays, as plain descent has.
      opt_state=opt_state if jax.tree.leaves(opt_state) else None,
      slots=optimizers.slots_of(opt_state),
      vocabulary=self.vocabulary,
      extra=extra,
    )
    try:
      with standard_error.failing_threads():
        self._manager.save(step, args=args, metrics=metrics, force=True)
    except (OSError, ValueError, RuntimeError) as error:
      vars(self).pop("_manager", None)
      self._remove_half_written()
      raise CheckpointError(
        f"{self.path(step)} cannot be written: {cause(error)}; when it can,"
        " the same command goes on"
      ) from error
    return self.path(step)

  def _remove_half_written(self) -> None:
    """Removes what killed or failed writers left in a local `model_dir`."""
    pattern = f"{orbax_io.STEP_PREFIX}_*.orbax-checkpoint-tmp*"
    for path in glob.glob(pattern, root_dir=self.model_dir):
      shutil.rmtree(os.path.join(self.model_dir, path), ignore_errors=True)

  def close(self) -> None:
    """Ends the writer."""
    if "_manager" in vars(self):
      vars(self).pop("_manager").close()


def cause(error: BaseException) -> str:
  """Returns in a few words why something could not be written."""
  full = os.strerror(errno.ENOSPC)
  return full if full in str(error) else storage.first_line(error)
