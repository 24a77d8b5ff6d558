"""Adafactor as T5 fine-tunes with, AdamW, and learning rate schedules.

A schedule is a function of the global step, counted from 0 as T5X does: a run
that starts from a checkpoint goes on counting from the checkpoint's step.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import optax

from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.stored_arrays import SLOTS
from speccascade.settings import fields

Schedule = Callable[[Any], Any]
Rate = Annotated[float, fields.Bounds(0, 1e6)]
Decay = Annotated[float, fields.Bounds(0, 1, high_open=True)]
Above0 = Annotated[float, fields.Bounds(0, low_open=True)]


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optax transformation, and the schedule that it was made with.

  Attributes:
    transform: takes gradients of the summed loss, returns updates.
    learning_rate: from the step to its rate, for the log.
  """

  transform: optax.GradientTransformation
  learning_rate: Schedule


@fields.checked
def constant(learning_rate: Rate = 1e-3) -> Schedule:
  """Returns the same rate for every step; T5 fine-tunes with 1e-3."""
  return optax.constant_schedule(learning_rate)


@fields.checked
def linear(
  peak: Rate,
  total_steps: fields.Positive,
  warmup_steps: fields.NonNegative = 0,
  final_fraction: fields.Share = 0.0,
  first_step: fields.NonNegative = 0,
  warmup_fraction: fields.Share = 1.0,
) -> Schedule:
  """Returns linear warm-up to `peak`, then linear decay.

  Args:
    peak: highest rate, reached after the warm-up.
    total_steps: global step at which the decay ends; TRAIN_STEPS.
    warmup_steps: steps of warm-up; the first step has peak / warmup_steps.
    final_fraction: last rate over the peak.
    first_step: global step at which the run begins: the step of the initial
      checkpoint, where there is one.
    warmup_fraction: most of the run that the warm-up takes: a run of few steps
      then has a warm-up of fewer than `warmup_steps`.

  Raises:
    ValueError: the warm-up does not end before the run does.

  >>> rate = linear(peak=0.4, total_steps=10, warmup_steps=4)
  >>> print(*(f"{rate(step):.2f}" for step in (0, 3, 4, 7, 10)))
  0.10 0.40 0.40 0.20 0.00
  """
  run_steps = total_steps - first_step
  warmup_steps = min(warmup_steps, int(warmup_fraction * run_steps))
  decay_steps = run_steps - warmup_steps
  if decay_steps <= 0:
    raise ValueError(
      f"linear schedule: {warmup_steps} warm-up steps from step {first_step} "
      f"do not end before total_steps {total_steps}; give fewer WARMUP_STEPS, "
      "a WARMUP_FRACTION of 0.25, or more TRAIN_STEPS"
    )

  start = peak / max(warmup_steps, 1)
  up = optax.linear_schedule(start, peak + start, max(warmup_steps, 1))
  down = optax.linear_schedule(peak, final_fraction * peak, decay_steps)
  rate = optax.join_schedules([up, down], [warmup_steps])
  return lambda step: rate(step - first_step)


@fields.checked
def rsqrt(
  base: Rate = 1.0, warmup_steps: fields.NonNegative = 10_000
) -> Schedule:
  """Returns base / sqrt(max(step, warmup_steps)), T5's own pre-training."""
  floor = float(max(warmup_steps, 1))
  return lambda step: base * jnp.maximum(floor, step) ** -0.5


def _optimizer(learning_rate, max_grad_norm, make) -> Optimizer:
  """Returns an optimizer of a rate or schedule, its gradients clipped."""
  is_schedule = callable(learning_rate)
  schedule = learning_rate if is_schedule else constant(learning_rate)
  clip = max_grad_norm is not None
  steps = [optax.clip_by_global_norm(max_grad_norm)] if clip else []
  return Optimizer(optax.chain(*steps, make(schedule)), schedule)


@fields.checked
def adafactor(
  learning_rate: Rate | Schedule = 1e-3,
  decay_rate: fields.Share = 0.8,
  min_dim_size_to_factor: fields.NonNegative = 128,
  multiply_by_parameter_scale: bool = True,
  clipping_threshold: Above0 | None = 1.0,
  max_grad_norm: Above0 | None = None,
) -> Optimizer:
  """Returns Adafactor; the defaults are those of T5 v1.1's fine-tuning.

  Args:
    learning_rate: number or schedule; relative to each array's own size where
      `multiply_by_parameter_scale`.
    decay_rate: the second moment's decay at step s is 1 - (s+1) ** -decay_rate.
    min_dim_size_to_factor: smaller matrices keep their second moment whole.
    multiply_by_parameter_scale: scale steps by each array's root mean square
      (at least 1e-3). T5's initial scales need it.
    clipping_threshold: largest root mean square of an array's scaled update.
    max_grad_norm: clip gradients to this global norm first; None does not.

  Source: Shazeer & Stern, arXiv:1804.04235; T5X's `adafactor.py`, whose updates
  these equal.
  """
  make = functools.partial(
    optax.adafactor,
    min_dim_size_to_factor=min_dim_size_to_factor,
    decay_rate=decay_rate,
    multiply_by_parameter_scale=multiply_by_parameter_scale,
    clipping_threshold=clipping_threshold,
    momentum=None,
    eps=1e-30,
  )
  return _optimizer(learning_rate, max_grad_norm, make)


@fields.checked
def adamw(
  learning_rate: Rate | Schedule = 1e-3,
  b1: Decay = 0.9,
  b2: Decay = 0.98,
  eps: Above0 = 1e-9,
  weight_decay: Rate = 0.0,
  max_grad_norm: Above0 | None = 1.0,
) -> Optimizer:
  """Returns AdamW, with optax's meaning of each argument.

  Gradients are of the summed loss: with `loss_normalizing_factor` None, eps is
  against sums over tokens. On T5's initial scales prefer `adafactor`.
  """
  make = functools.partial(
    optax.adamw, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay
  )
  return _optimizer(learning_rate, max_grad_norm, make)


def start_at(opt_state: Any, step: int, slots: Mapping | None = None) -> Any:
  """Returns a fresh optimizer state made to start at a checkpoint's step.

  The schedule goes on from `step`. Adafactor's second moments are those of
  `slots`, and then decay as at `step`; without slots they begin anew.

  Args:
    opt_state: what `transform.init(params)` returned.
    step: the checkpoint's step.
    slots: T5X's Adafactor accumulators, `{"v_row", "v_col", "v"}` in place of
      each parameter of the tree, or None.

  Raises:
    ValueError: the optimizer is not Adafactor, or an accumulator has another
      shape (the checkpoint was written with other factoring).
  """
  count = jnp.asarray(step, jnp.int32)
  opt_state = _set(opt_state, "ScaleByScheduleState", count=count)
  if slots is None:
    return opt_state
  fresh = slots_of(opt_state)
  if fresh is None:
    raise ValueError(
      "the checkpoint holds Adafactor's accumulators, the optimizer is another "
      "one; drop them with restore_optimizer=False, or use adafactor"
    )
  stored, trees = flatten(slots), {slot: {} for slot in SLOTS}
  for path, leaf in flatten(fresh).items():
    name, _, slot = path.rpartition("/")
    shape = np.shape(stored[path]) if path in stored else "none"
    if shape != leaf.shape:
      raise ValueError(
        f"{name}: the checkpoint's accumulator {slot} has shape {shape}, the "
        f"optimizer wants {leaf.shape}; give adafactor the checkpoint's "
        "min_dim_size_to_factor, or drop them with restore_optimizer=False"
      )
    trees[slot][name] = jnp.asarray(stored[path], leaf.dtype)
  trees = {slot: unflatten(tree) for slot, tree in trees.items()}
  return _set(opt_state, "FactoredState", count=count, **trees)


def _set(opt_state: Any, kind: str, **fields) -> Any:
  """Returns an optimizer state, fields of its states of a kind changed."""
  if not optax.tree.get_all_with_path(opt_state, kind):
    return opt_state
  is_of_kind = lambda path, _: getattr(path[-1], "tuple_name", None) == kind
  return optax.tree.set(opt_state, is_of_kind, **fields)


def slots_of(opt_state: Any) -> dict | None:
  """Returns Adafactor's accumulators under T5X's names, or None.

  The inverse of `start_at`: `{"v_row", "v_col", "v"}` in place of each
  parameter.
  """
  factored = optax.tree.get(opt_state, "FactoredState")
  if factored is None:
    return None
  flat = {
    f"{name}/{slot}": leaf
    for slot in SLOTS
    for name, leaf in flatten(getattr(factored, slot)).items()
  }
  return unflatten(flat)
