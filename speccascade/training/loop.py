"""The training loop: it reads batches and returns a trained state.

The loop knows nothing of files, tasks or metrics: the caller passes in
callbacks, each with the number of steps between two calls.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import time
from typing import Any

import jax
import numpy as np

from speccascade.models.parameters import Config, check_params, network
from speccascade.models.sharding.partitioning import layout_of
from speccascade.runtime.progress import ProgressBar, note
from speccascade.training import optimizers, states, training_step
from speccascade.training.kinds import input_names, kind_of
from speccascade.training.objectives import Objective
from speccascade.training.written_text import WrittenText

Batch = Mapping[str, np.ndarray]
# A list is repeated without end. A function returns the batches from a position
# on, so a resumed run goes on with the batch that comes next. An iterator can
# be read only once.
Batches = Sequence[Batch] | Callable[[int], Iterator[Batch]] | Iterable[Batch]
Metrics = dict[str, float]

# How many batches are read before the first step to learn their shapes.
LOOK_AHEAD = 16
# The loop reads the device's totals at least this often, in seconds.
REFRESH_S = 2.0


class LossNotFiniteError(ValueError):
  """The loss or a gradient became NaN or infinite."""


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
  call: Callable[[states.TrainState], Any]

  def is_due(self, step: int, last: int) -> bool:
    """Returns whether the callback runs after a step of a run to `last`."""
    return step == last or (self.steps > 0 and step % self.steps == 0)


def check_batch(batch: Batch, config: Config, number: int) -> Batch:
  """Returns a batch as a training step takes it, after checking its token ids.

  Where an encoder-decoder's batch has no decoder inputs, they are computed from
  the targets: the start token 0, then the targets without their last column.

  Args:
    batch: the arrays that the module `states` describes.
    config: the model's architecture.
    number: the batch's position in the run, for messages.

  Raises:
    ValueError: an array is missing or is not of integers, or a token id is
      outside the model's vocabulary.
  """
  batch = {name: np.asarray(leaf) for name, leaf in batch.items()}
  names = input_names(config)
  if names == states.CAUSAL and "decoder_loss_weights" not in batch:
    raise ValueError(
      f"batch {number} has no decoder_loss_weights, which say of a decoder-only"
      " model's tokens which are learned"
    )
  if (
    names == states.INPUTS
    and "decoder_target_tokens" in batch
    and "decoder_input_tokens" not in batch
  ):
    batch["decoder_input_tokens"] = _shift_right(batch, number)
  for name in names:
    if name not in batch:
      raise ValueError(
        f"batch {number} has no {name}; it has {', '.join(sorted(batch))}"
      )
    _check_tokens(name, batch[name], config.vocab_size, number)
    batch[name] = batch[name].astype(np.int32, copy=False)
  return batch


def _shift_right(batch: Batch, number: int) -> np.ndarray:
  """Returns decoder inputs [B, T]: the start token 0, then the targets."""
  # Each segment of a packed row would need a start token of its own.
  if "decoder_segment_ids" in batch:
    raise ValueError(
      f"batch {number} is packed and has no decoder_input_tokens; give them"
    )
  # Targets [5, 6, 1] become decoder inputs [0, 5, 6].
  return np.pad(batch["decoder_target_tokens"], ((0, 0), (1, 0)))[:, :-1]


def _check_tokens(name: str, tokens: np.ndarray, vocab_size: int, number: int):
  """Raises ValueError where an array is not [rows, length] token ids."""
  # A compiled step raises no error for an id out of range: it would train on
  # something else without a word.
  if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
    raise ValueError(
      f"batch {number}: {name} is {tokens.dtype}{list(tokens.shape)}, wanted "
      "int32 [rows, length]"
    )
  if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
    wrong = tokens.min() if tokens.min() < 0 else tokens.max()
    raise ValueError(
      f"batch {number}: {name} holds id {wrong}, the model has vocab_size "
      f"{vocab_size}: the task's vocabulary is not the model's"
    )


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


def _mean_metrics(totals: states.Totals) -> Metrics:
  """Returns the means over target tokens, or over steps, of the totals."""
  totals = jax.device_get(totals)
  if totals.bad_step >= 0:
    raise LossNotFiniteError(
      f"the loss or its gradient is NaN or infinite at step {totals.bad_step}; "
      "what was saved before is kept: go on from there with a lower learning "
      "rate, a longer warm-up, gradient clipping (max_grad_norm) or float32"
    )
  weight, steps = max(float(totals.weight), 1e-9), max(float(totals.steps), 1.0)
  return {
    "loss": float(totals.loss) / weight,
    "z_loss": float(totals.z_loss) / weight,
    "accuracy": float(totals.correct) / weight,
    "grad_norm": float(totals.grad_norm) / steps,
  }


def fit(
  model: Config | states.Network,
  batches: Batches,
  *,
  steps: int,
  params: Any = None,
  state: states.TrainState | None = None,
  optimizer: optimizers.Optimizer | None = None,
  objective: Objective | None = None,
  teacher: states.Teacher | None = None,
  written: WrittenText | None = None,
  seed: int = 0,
  first_step: int = 0,
  log_every: int = 100,
  on_log: Callable[[int, Metrics], None] | None = None,
  callbacks: Sequence[Every] = (),
  stop: Any = False,
  progress: bool = True,
  name: str = "train",
) -> states.TrainState:
  """Trains a model and returns its state after step `steps`.

  The result depends on the arguments alone. A run that is stopped anywhere and
  continued from its state, with the same `first_step`, ends with the state of
  the unbroken run; on a CPU the two states agree to the bit.

  Args:
    model: the architecture, or its network. The architecture sets the dropout
      rate and the activations' dtype.
    batches: a list of batches, which is repeated; a function that returns the
      batches from a position on; or an iterator, which is read from position
      `state.step - first_step` on. Batches may differ in shape: one program is
      compiled for each shape.
    steps: global step to stop at. Without `state` and `first_step` this is the
      number of steps.
    params: parameters to start from; None draws them from `seed`. Where
      `params` or `state` lie on a mesh, the batches are cut for the mesh.
    state: the state to go on from, in place of `params` and `seed`. The run
      writes over it.
    optimizer: an optimizer from `optimizers`; None takes T5 v1.1's Adafactor.
    objective: what is minimised; None takes T5 v1.1's objective.
    teacher: the model whose distributions are learned, which an objective
      needs whose loss reads a teacher.
    written: who writes the texts of a step; None takes the batches as they are.
    seed: seeds the parameters and dropout.
    first_step: global step of the first batch.
    log_every: steps between two calls of `on_log`; the metrics are means over
      these steps.
    on_log: called with (step, metrics). The metrics are "loss", "z_loss" and
      "accuracy", means over target tokens; "grad_norm", the mean over steps;
      "learning_rate" of the last step; and "examples_per_s".
    callbacks: the callbacks; those that are due are called in this order.
    stop: read before each step; the run ends when it is true. See
      `signals.catch`.
    progress: whether to show a progress bar.
    name: the title of the progress bar.

  Raises:
    ValueError: the parameters or a batch do not fit the model, the batches run
      out, or the objective's loss reads a teacher and there is no teacher.
    LossNotFiniteError: the loss became NaN or infinite; no callback has been
      called with a state after that step.
  """
  module = model if isinstance(model, states.Network) else network(model)
  optimizer = optimizers.adafactor() if optimizer is None else optimizer
  if state is None:
    state = _first_state(module, optimizer, params, seed, first_step)
  step = int(state.step)
  if step >= steps:
    return state
  objective = Objective() if objective is None else objective
  teacher = _teacher_in_use(teacher, objective, module.config)
  layout = layout_of(state.params)
  train_step = training_step.programs(module, optimizer, objective, layout)
  position = step - first_step
  numbered = enumerate(_batches_from(batches, position), position)
  checked = (check_batch(batch, module.config, i) for i, batch in numbered)
  # The first batches are read before the first step, so that XLA compiles
  # several shapes at once while the device already trains on the first one.
  ahead = list(itertools.islice(checked, min(LOOK_AHEAD, steps - step)))
  for batch in ahead:
    train_step.prepare(state, batch, teacher)
  with ProgressBar(
    total=steps,
    initial=step,
    desc=name,
    unit="step",
    disable=not progress,
    mininterval=1.0,
  ) as bar:
    meter = _Meter(optimizer, on_log, bar)
    for batch in itertools.chain(ahead, checked):
      # Stop: the processes of a job agree on a step by counting these looks, so
      # each process looks exactly once before each step.
      if stop:
        break
      if written is not None:
        batch = written(batch, step, module, state.params)
      # Step: the call returns before the device is done. The old state is
      # donated to the step and must not be read afterwards.
      if not train_step.prepare(state, batch, teacher).done():
        note(f"compiling {train_step.num_ready + 1} of {len(train_step)}")
      state = train_step(state, batch, teacher)
      step += 1
      # Measure: totals are read before any callback, so that a loss that is not
      # finite raises before a callback can save or evaluate the state.
      due = [callback for callback in callbacks if callback.is_due(step, steps)]
      is_logged = step == steps or step % log_every == 0
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


def _first_state(
  module: states.Network,
  optimizer: optimizers.Optimizer,
  params: Any,
  seed: int,
  first_step: int,
) -> states.TrainState:
  """Returns the state of a run that starts from parameters or from a seed."""
  if params is None:
    params = states.init_params(module, seed)
  check_params(module.config, params)
  return states.create(params, optimizer, step=first_step, seed=seed)


def _teacher_in_use(
  teacher: states.Teacher | None, objective: Objective, config: Config
) -> states.Teacher | None:
  """Returns the teacher, or None where a step does not need it."""
  if kind_of(config).has_verifier:
    if teacher is None:
      raise ValueError("draft heads need a teacher: the verifier")
    return teacher
  if teacher is None and objective.needs_teacher:
    raise ValueError(
      f"the objective's loss is {objective.whole}, and there is no teacher"
    )
  # A step that does not read the teacher must not take its parameters: they
  # would be one more argument to compile for and to hold.
  if not objective.needs_teacher and not (teacher and teacher.earlier):
    return None
  return teacher


@dataclasses.dataclass
class _Meter:
  """Reads the device's totals now and then, for the bar, the log and faults."""

  # Reading waits for the device, so it happens only where a log entry or a
  # callback needs it, and otherwise every `REFRESH_S` seconds.
  optimizer: optimizers.Optimizer
  on_log: Callable[[int, Metrics], None] | None
  bar: ProgressBar
  # Examples since the last log entry; when the first of them was begun, moved
  # forward by the time that callbacks took; when the totals were last read.
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


def _num_examples(batch: Batch) -> int:
  """Returns how many examples a batch holds, in packed rows too."""
  if "decoder_segment_ids" in batch:
    # The examples of a packed row are numbered from 1, and padding is 0: a row
    # [1, 1, 2, 2, 0] holds two examples.
    return int(np.max(batch["decoder_segment_ids"], axis=1).sum())
  return len(batch["decoder_input_tokens"])
