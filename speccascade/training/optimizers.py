"""Adafactor as T5 fine-tunes with, AdamW, and learning rate schedules.

A schedule is a function of the global step, counted from 0 as T5X does: a run
that starts from a checkpoint goes on counting from the checkpoint's step.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

Schedule = Callable[[Any], Any]
_SLOTS = ("v_row", "v_col", "v")


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optax transformation, and the schedule that it was made with.

  Attributes:
    transform: takes gradients of the summed loss, returns updates.
    learning_rate: from the step to its rate, for the log.
  """

  transform: optax.GradientTransformation
  learning_rate: Schedule


def constant(learning_rate: float = 1e-3) -> Schedule:
  """Returns the same rate for every step; T5 fine-tunes with 1e-3."""
  return optax.constant_schedule(learning_rate)


def linear(
  peak: float,
  total_steps: int,
  warmup_steps: int = 0,
  final_fraction: float = 0.0,
  first_step: int = 0,
) -> Schedule:
  """Returns linear warm-up to `peak`, then linear decay.

  Args:
    peak: highest rate, reached after the warm-up.
    total_steps: global step at which the decay ends; TRAIN_STEPS.
    warmup_steps: steps of warm-up; the first step has peak / warmup_steps.
    final_fraction: last rate over the peak.
    first_step: global step at which the run begins: the step of the initial
      checkpoint, where there is one.

  Raises:
    ValueError: the warm-up does not end before the run does.

  >>> rate = linear(peak=0.4, total_steps=10, warmup_steps=4)
  >>> print(*(f"{rate(step):.2f}" for step in (0, 3, 4, 7, 10)))
  0.10 0.40 0.40 0.20 0.00
  """
  decay_steps = total_steps - first_step - warmup_steps
  if decay_steps <= 0 or warmup_steps < 0:
    raise ValueError(
      f"linear schedule: {warmup_steps} warm-up steps from step {first_step} "
      f"do not end before total_steps {total_steps}; give fewer, or more steps"
    )

  def rate(step):
    taken = jnp.asarray(step, jnp.float32) - first_step
    up = (taken + 1.0) / max(warmup_steps, 1)
    left = 1.0 - (taken - warmup_steps) / decay_steps
    down = final_fraction + (1.0 - final_fraction) * jnp.clip(left, 0.0, 1.0)
    return peak * jnp.where(taken < warmup_steps, up, down)

  return rate


def rsqrt(base: float = 1.0, warmup_steps: int = 10_000) -> Schedule:
  """Returns base / sqrt(max(step, warmup_steps)), T5's own pre-training."""
  floor = float(max(warmup_steps, 1))
  return lambda step: base * jnp.maximum(floor, step) ** -0.5


def _schedule(learning_rate: float | Schedule) -> Schedule:
  return learning_rate if callable(learning_rate) else constant(learning_rate)


def _clipped(max_grad_norm, *transforms):
  if max_grad_norm is None:
    return optax.chain(*transforms)
  return optax.chain(optax.clip_by_global_norm(max_grad_norm), *transforms)


def adafactor(
  learning_rate: float | Schedule = 1e-3,
  decay_rate: float = 0.8,
  min_dim_size_to_factor: int = 128,
  multiply_by_parameter_scale: bool = True,
  clipping_threshold: float | None = 1.0,
  max_grad_norm: float | None = None,
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
  schedule = _schedule(learning_rate)
  transform = optax.adafactor(
    schedule,
    min_dim_size_to_factor=min_dim_size_to_factor,
    decay_rate=decay_rate,
    multiply_by_parameter_scale=multiply_by_parameter_scale,
    clipping_threshold=clipping_threshold,
    momentum=None,
    eps=1e-30,
  )
  return Optimizer(_clipped(max_grad_norm, transform), schedule)


def adamw(
  learning_rate: float | Schedule = 1e-3,
  b1: float = 0.9,
  b2: float = 0.98,
  eps: float = 1e-9,
  weight_decay: float = 0.0,
  max_grad_norm: float | None = 1.0,
) -> Optimizer:
  """Returns AdamW, with optax's meaning of each argument.

  Gradients are of the summed loss: with `loss_normalizing_factor` None, eps is
  against sums over tokens. On T5's initial scales prefer `adafactor`.
  """
  schedule = _schedule(learning_rate)
  transform = optax.adamw(
    schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay
  )
  return Optimizer(_clipped(max_grad_norm, transform), schedule)


def _replace(state: Any, kind: type, **changes) -> Any:
  """Returns `state` with fields of every state of a kind in it changed."""
  is_kind = lambda part: isinstance(part, kind)
  change = lambda part: part._replace(**changes) if is_kind(part) else part
  return jax.tree.map(change, state, is_leaf=is_kind)


def _find(state: Any, kind: type) -> Any:
  """Returns the first state of a kind in an optimizer state, or None."""
  is_kind = lambda part: isinstance(part, kind)
  return next(filter(is_kind, jax.tree.leaves(state, is_leaf=is_kind)), None)


def _flat_slots(factored: optax.FactoredState) -> dict:
  """Returns Adafactor's accumulators by T5X's names, "a/b/kernel/v_row"."""
  return {
    f"{name}/{slot}": leaf
    for slot in _SLOTS
    for name, leaf in traverse_util.flatten_dict(
      getattr(factored, slot), sep="/"
    ).items()
  }


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
  opt_state = _replace(opt_state, optax.ScaleByScheduleState, count=count)
  if slots is None:
    return opt_state
  fresh = _find(opt_state, optax.FactoredState)
  if fresh is None:
    raise ValueError(
      "the checkpoint holds Adafactor's accumulators, the optimizer is another "
      "one; drop them with restore_optimizer=False, or use adafactor"
    )
  stored = traverse_util.flatten_dict(slots, sep="/")
  trees = {slot: {} for slot in _SLOTS}
  for path, leaf in _flat_slots(fresh).items():
    name, _, slot = path.rpartition("/")
    value = stored.get(path)
    shape = "none" if value is None else tuple(np.shape(value))
    if shape != leaf.shape:
      raise ValueError(
        f"{name}: the checkpoint's accumulator {slot} has shape {shape}, the "
        f"optimizer wants {leaf.shape}; give adafactor the checkpoint's "
        "min_dim_size_to_factor, or drop them with restore_optimizer=False"
      )
    trees[slot][name] = jnp.asarray(value, leaf.dtype)
  trees = {
    slot: traverse_util.unflatten_dict(tree, sep="/")
    for slot, tree in trees.items()
  }
  return _replace(opt_state, optax.FactoredState, count=count, **trees)


def slots_of(opt_state: Any) -> dict | None:
  """Returns Adafactor's accumulators under T5X's names, or None.

  The inverse of `start_at`: `{"v_row", "v_col", "v"}` in place of each
  parameter.
  """
  factored = _find(opt_state, optax.FactoredState)
  if factored is None:
    return None
  return traverse_util.unflatten_dict(_flat_slots(factored), sep="/")
