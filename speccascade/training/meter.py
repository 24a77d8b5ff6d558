"""What a training run measures of its own steps: losses, rates, speed."""

from collections.abc import Callable, Mapping
import dataclasses
import time

import jax
import numpy as np

from speccascade.runtime.progress import ProgressBar
from speccascade.training import optimizers, states

Batch = Mapping[str, np.ndarray]
Metrics = dict[str, float]

# The device's totals are read at least this often, in seconds.
REFRESH_S = 2.0


class LossNotFiniteError(ValueError):
  """The loss or a gradient became NaN or infinite."""


@dataclasses.dataclass
class Meter:
  """Reads the device's totals now and then, for the bar, the log and faults.

  Reading waits for the device, so it happens only where a log entry or a
  callback needs it, and otherwise every `REFRESH_S` seconds.

  Attributes:
    optimizer: has the learning rate of each step.
    on_log: see `trainer.TrainingJob.take_steps`.
    bar: the progress bar.
    num_examples: examples since the last log entry.
    window_start_s: when the first of them was begun, by the monotonic clock,
      moved forward by the time that callbacks took.
    last_read_s: when the totals were last read; None before the first read.
  """

  optimizer: optimizers.Optimizer
  on_log: Callable[[int, Metrics], None] | None
  bar: ProgressBar
  num_examples: int = 0
  window_start_s: float = 0.0
  last_read_s: float | None = None

  def count_step(
    self,
    step: int,
    state: states.TrainState,
    batch: Batch,
    is_logged: bool,
    is_checked: bool,
  ) -> states.TrainState:
    """Counts a step; returns the state, with its totals cleared where logged.

    Args:
      step: the step just taken, counted from 1.
      state: the state after the step.
      batch: the batch of the step.
      is_logged: whether the step ends a log entry.
      is_checked: whether a callback will use the state, whose loss must then be
        known to be finite.

    Raises:
      LossNotFiniteError: the totals were read, and a loss was not finite.
    """
    is_first = self.last_read_s is None
    self.num_examples += _num_examples(batch)
    self.bar.update()
    is_stale = is_first or time.monotonic() - self.last_read_s > REFRESH_S
    if not (is_logged or is_checked or is_stale):
      return state
    metrics = _mean_metrics(state.totals)
    now_s = self.last_read_s = time.monotonic()
    if is_first:
      # The first step waited for its program, so its time would make the speed
      # look lower than it is.
      self.num_examples, self.window_start_s = 0, now_s
    examples_per_s = self.num_examples / max(now_s - self.window_start_s, 1e-9)
    self.bar.set_postfix_str(
      f"loss {metrics['loss']:.3f}, {examples_per_s:.0f} examples/s"
    )
    if not is_logged:
      return state
    if self.on_log is not None:
      # Schedules count steps from 0: the step just taken had rate(step - 1).
      rate = float(self.optimizer.learning_rate(step - 1))
      speed = {"examples_per_s": examples_per_s, "learning_rate": rate}
      self.on_log(step, metrics | speed)
    self.num_examples, self.window_start_s = 0, now_s
    return state.replace(totals=states.Totals.zero())

  def leave_out(self, seconds: float):
    """Leaves seconds that were not spent on training out of the speed."""
    self.window_start_s += seconds


def _mean_metrics(totals: states.Totals) -> Metrics:
  """Returns the means over target tokens, or over steps, of the totals."""
  totals = jax.device_get(totals)
  if totals.bad_step >= 0:
    raise LossNotFiniteError(
      f"the loss or its gradient is NaN or infinite at step {totals.bad_step}; "
      "what was saved before is kept: continue from there with a lower "
      "learning rate, a longer warm-up, gradient clipping (max_grad_norm) or"
      " float32"
    )
  weight, steps = max(float(totals.weight), 1e-9), max(float(totals.steps), 1.0)
  return {
    "loss": float(totals.loss) / weight,
    "z_loss": float(totals.z_loss) / weight,
    "accuracy": float(totals.correct) / weight,
    "grad_norm": float(totals.grad_norm) / steps,
  }


def _num_examples(batch: Batch) -> int:
  """Returns how many examples a batch holds, in packed rows too."""
  if "decoder_segment_ids" in batch:
    # The examples of a packed row are numbered from 1, and padding is 0: a row
    # [1, 1, 2, 2, 0] holds two examples.
    return int(np.max(batch["decoder_segment_ids"], axis=1).sum())
  return len(batch["decoder_input_tokens"])
