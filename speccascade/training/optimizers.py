"""Adafactor as T5 is fine-tuned with it, AdamW, and learning rate schedules.

A schedule is a function from the global step to the learning rate. Steps are
counted from 0, as in T5X: a run that starts from a checkpoint continues to
count from the checkpoint's step.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import optax

from speccascade.checkpoints.adafactor_slots import SLOTS
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.settings import fields

Schedule = Callable[[Any], Any]
Rate = Annotated[float, fields.Bounds(0, 1e6)]
Decay = Annotated[float, fields.Bounds(0, 1, high_open=True)]
Above0 = Annotated[float, fields.Bounds(0, low_open=True)]


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optax transformation and its learning rate schedule.

  Attributes:
    transform: turns gradients of the summed loss into updates of the
      parameters. The schedule is part of it.
    learning_rate: the schedule once more, for the log.
  """

  transform: optax.GradientTransformation
  learning_rate: Schedule


@fields.checked
def constant(learning_rate: Rate = 1e-3) -> Schedule:
  """Returns a schedule with one rate; T5 is fine-tuned with 1e-3."""
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
  """Returns a schedule of a linear warm-up to `peak`, then a linear decay.

  Args:
    peak: the highest rate, reached at the end of the warm-up.
    total_steps: the global step at which the decay ends; TRAIN_STEPS.
    warmup_steps: steps of the warm-up; the first step has the rate
      peak / warmup_steps.
    final_fraction: the last rate divided by the peak.
    first_step: the global step at which the run begins, which is the step of
      the initial checkpoint, or 0 without one.
    warmup_fraction: the largest share of the run's steps that the warm-up may
      take. A short run then has a shorter warm-up than `warmup_steps`.

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

  # With 4 steps to a peak of 0.4, steps 0 to 3 have 0.1, 0.2, 0.3, 0.4: the
  # first step is not lost to a rate of 0. The line up is aimed one step past
  # the peak, where the line down takes over and starts at the peak.
  first_rate = peak / max(warmup_steps, 1)
  up = optax.linear_schedule(
    first_rate, peak + first_rate, max(warmup_steps, 1)
  )
  down = optax.linear_schedule(peak, final_fraction * peak, decay_steps)
  rate = optax.join_schedules([up, down], [warmup_steps])
  return lambda step: rate(step - first_step)


@fields.checked
def rsqrt(
  base: Rate = 1.0, warmup_steps: fields.NonNegative = 10_000
) -> Schedule:
  """Returns a schedule of base / sqrt(max(step, warmup_steps)).

  T5 was pre-trained with it.
  """
  floor = float(max(warmup_steps, 1))
  return lambda step: base * jnp.maximum(floor, step) ** -0.5


def _with_clipping(
  learning_rate: float | Schedule,
  max_grad_norm: float | None,
  make_transform: Callable[[Schedule], optax.GradientTransformation],
) -> Optimizer:
  """Returns an optimizer that first clips the gradients' global norm."""
  is_schedule = callable(learning_rate)
  schedule = learning_rate if is_schedule else constant(learning_rate)
  transforms = [make_transform(schedule)]
  if max_grad_norm is not None:
    transforms.insert(0, optax.clip_by_global_norm(max_grad_norm))
  # The chain is there without clipping too: saved optimizer states have its
  # structure.
  return Optimizer(optax.chain(*transforms), schedule)


@fields.checked
def adafactor(
  learning_rate: Rate | Schedule = 1e-3,
  decay_rate: fields.Share = 0.8,
  min_dim_size_to_factor: fields.NonNegative = 128,
  multiply_by_parameter_scale: bool = True,
  clipping_threshold: Above0 | None = 1.0,
  max_grad_norm: Above0 | None = None,
) -> Optimizer:
  """Returns Adafactor; the defaults are T5 v1.1's fine-tuning.

  Args:
    learning_rate: a number or a schedule. With `multiply_by_parameter_scale`
      the rate is relative to each array's own size.
    decay_rate: the second moment's decay at step s is 1 - (s+1) ** -decay_rate.
    min_dim_size_to_factor: a matrix whose second largest dimension is smaller
      than this has a whole second moment, not row and column means.
    multiply_by_parameter_scale: whether to scale steps by each array's root
      mean square (at least 1e-3). T5's initial scales need it.
    clipping_threshold: the largest root mean square of an array's update
      before the learning rate; None does not clip updates.
    max_grad_norm: gradients are first clipped to this global norm; None does
      not clip gradients.

  Source: Shazeer & Stern, arXiv:1804.04235. The updates are the updates of
  T5X's `adafactor.py`.
  """
  make_transform = functools.partial(
    optax.adafactor,
    min_dim_size_to_factor=min_dim_size_to_factor,
    decay_rate=decay_rate,
    multiply_by_parameter_scale=multiply_by_parameter_scale,
    clipping_threshold=clipping_threshold,
    # T5 is trained without a first moment: the optimizer's state of a factored
    # matrix is then a row and a column, not a second copy of the matrix.
    momentum=None,
    # Added to squared gradients: the value of the paper, and of T5X.
    eps=1e-30,
  )
  return _with_clipping(learning_rate, max_grad_norm, make_transform)


# The optimizer where none is given. It is one object, so that runs which take
# it share their compiled steps.
T5_FINE_TUNING = adafactor()


@fields.checked
def adamw(
  learning_rate: Rate | Schedule = 1e-3,
  b1: Decay = 0.9,
  b2: Decay = 0.98,
  eps: Above0 = 1e-9,
  weight_decay: Rate = 0.0,
  max_grad_norm: Above0 | None = 1.0,
) -> Optimizer:
  """Returns AdamW; the arguments have optax's meanings.

  With `loss_normalizing_factor` None the gradients are sums over target tokens,
  and eps is added to the root mean square of these sums. On T5's initial scales
  prefer `adafactor`.

  Args:
    learning_rate: a number or a schedule.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: the decay of parameters, times the learning rate.
    max_grad_norm: gradients are first clipped to this global norm; None does
      not clip gradients.

  Source: Loshchilov & Hutter, arXiv:1711.05101.
  """
  make_transform = functools.partial(
    optax.adamw, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay
  )
  return _with_clipping(learning_rate, max_grad_norm, make_transform)


def start_at(opt_state: Any, step: int, slots: Mapping | None = None) -> Any:
  """Returns a fresh optimizer state that continues from a checkpoint's step.

  The learning rate schedule continues from `step`. With `slots`, Adafactor's
  second moments are the checkpoint's and decay as at `step`. Without `slots`
  they begin at zero, and decay as at step 0.

  Args:
    opt_state: the value of `transform.init(params)`.
    step: the checkpoint's step.
    slots: T5X's Adafactor accumulators: the parameter tree with
      `{"v_row", "v_col", "v"}` in place of each parameter; or None.

  Raises:
    ValueError: there are slots and the optimizer is not Adafactor, or an
      accumulator has another shape than the optimizer's, because the checkpoint
      was written with another `min_dim_size_to_factor`.
  """
  # optax counts steps in each of its states: the schedule's count sets the
  # rate, and the factored state's count sets the decay of second moments. The
  # second count stays 0 for second moments that begin at zero: their decay at
  # step 0 is 0, so that the first gradient makes up all of them.
  count = jnp.asarray(step, jnp.int32)
  opt_state = _set_fields(opt_state, "ScaleByScheduleState", count=count)
  if slots is None:
    return opt_state
  fresh = slots_of(opt_state)
  if fresh is None:
    raise ValueError(
      "the checkpoint holds Adafactor's accumulators, the optimizer is another "
      "one; drop them with restore_optimizer=False, or use adafactor"
    )
  # T5X stores {parameter: {slot: array}}, optax {slot: {parameter: array}}.
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
  return _set_fields(opt_state, "FactoredState", count=count, **trees)


def _set_fields(opt_state: Any, kind: str, **values) -> Any:
  """Returns an optax state with new values in fields of a class of states."""
  if not optax.tree.get_all_with_path(opt_state, kind):
    return opt_state

  def is_field_of_kind(path, _):
    return getattr(path[-1], "tuple_name", None) == kind

  return optax.tree.set(opt_state, is_field_of_kind, **values)


def slots_of(opt_state: Any) -> dict | None:
  """Returns Adafactor's accumulators under T5X's names.

  It is the inverse of `start_at`.

  Args:
    opt_state: the state of an optimizer of this module.

  Returns:
    The parameter tree with `{"v_row", "v_col", "v"}` in place of each
    parameter; None where the optimizer is not Adafactor.
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
