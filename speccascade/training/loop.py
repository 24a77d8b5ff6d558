"""The training loop: batches in, a trained state out.

It knows nothing of files, tasks or metrics: what happens every so many steps is
passed in.
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
from speccascade.training import optimizers, programs, states

Batch = Mapping[str, np.ndarray]
# A list is gone round; a function gives the batches from a position on, and so
# lets a resumed run go on where it was; an iterator can be read only once.
Batches = Sequence[Batch] | Callable[[int], Iterator[Batch]] | Iterable[Batch]
Metrics = dict[str, float]

# How many batches are looked at before the first step, for their shapes.
LOOK_AHEAD = 16
# Seconds between looks at the device where nothing is logged.
REFRESH_S = 2.0


class LossNotFiniteError(ValueError):
  """The loss or a gradient became NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Every:
  """Something to do every `steps` steps, and after the last one.

  Attributes:
    steps: how often.
    call: given the state between two steps; must not keep its arrays, which
      the next step writes over (`jax.device_get` copies).
  """

  steps: int
  call: Callable[[states.TrainState], Any]

  def is_due(self, step: int, last: int) -> bool:
    return step == last or (self.steps > 0 and step % self.steps == 0)


def check_batch(batch: Batch, config: Config, number: int) -> Batch:
  """Returns a batch as a step wants it, its ids checked.

  Decoder inputs that an encoder-decoder's misses are made: the targets, shifted
  right after the start token 0.

  Args:
    batch: see `state`.
    config: the model's.
    number: position among the run's batches, for the message.

  Raises:
    ValueError: an array is missing or is not int, or an id does not fit.
  """
  batch = {name: np.asarray(leaf) for name, leaf in batch.items()}
  targets = batch.get("decoder_target_tokens")
  wanted, vocab_size = states.inputs(config), config.vocab_size
  if wanted == states.CAUSAL and "decoder_loss_weights" not in batch:
    raise ValueError(
      f"batch {number} has no decoder_loss_weights, which say of a decoder-only"
      " model's tokens which are learned"
    )
  if (
    wanted == states.INPUTS
    and targets is not None
    and "decoder_input_tokens" not in batch
  ):
    if "decoder_segment_ids" in batch:
      raise ValueError(
        f"batch {number} is packed and has no decoder_input_tokens; give them"
      )
    batch["decoder_input_tokens"] = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
  for name in wanted:
    if (tokens := batch.get(name)) is None:
      raise ValueError(
        f"batch {number} has no {name}; it has {', '.join(sorted(batch))}"
      )
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
    batch[name] = tokens.astype(np.int32, copy=False)
  return batch


def _from(batches: Batches, position: int) -> Iterator[Batch]:
  """Returns the batches from a position on."""
  if callable(batches):
    return iter(batches(position))
  if isinstance(batches, Sequence):
    if not batches:
      raise ValueError("there are no batches to train on")
    batches, position = itertools.cycle(batches), position % len(batches)
  return itertools.islice(batches, position, None)


def _means(totals: states.Totals) -> Metrics:
  """Returns the means of each target token, or step; all must be finite."""
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
  objective: states.Objective | None = None,
  teacher: states.Teacher | None = None,
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

  The result depends on the arguments alone: a run that is stopped anywhere and
  continued from its state (with the same `first_step`) ends as the unbroken one
  does, on a CPU to the bit.

  Args:
    model: the architecture; `dropout_rate` and `dtype` are its own.
    batches: a list of batches, gone round; a function that gives the batches
      from a position on; or an iterator, which is read from `state.step -
      first_step` on. Batches may differ in shape: each shape is one program.
    steps: global step to stop at; with neither `state` nor `first_step`, the
      number of steps.
    params: to start from; None draws them from `seed`. Where they lie on a
      mesh, or those of `state` do, the batches are cut for it.
    state: to go on from, in place of `params` and `seed`; it is used up.
    optimizer: from `optimizers`; None is T5 v1.1's Adafactor.
    objective: what is minimised; None is T5 v1.1's.
    teacher: what the objective's `teacher_share` is of.
    seed: seeds the parameters and dropout.
    first_step: global step of the first batch.
    log_every: steps over which what is logged is averaged.
    on_log: given (step, metrics) then: "loss", "z_loss", "accuracy" of each
      target token, "grad_norm", "learning_rate", "examples_per_s".
    callbacks: what else to do every so many steps, in this order.
    stop: looked at before each step; ends the run when it is true. See
      `signals.caught`.
    progress: show a bar.
    name: what the bar is called.

  Raises:
    ValueError: parameters do not fit the model, or batches do not, or they run
      out; or an objective has a share for a teacher, and there is none.
    LossNotFiniteError: the loss became NaN or infinite; no callback has seen
      the state since.
  """
  module = model if isinstance(model, states.Network) else network(model)
  optimizer = optimizers.adafactor() if optimizer is None else optimizer
  if state is None:
    if params is None:
      params = states.init_params(module, seed)
    check_params(module.config, params)
    state = states.create(params, optimizer, step=first_step, seed=seed)
  step = int(state.step)
  if step >= steps:
    return state
  objective = states.Objective() if objective is None else objective
  if objective.teacher_share and teacher is None:
    raise ValueError(
      f"teacher_share is {objective.teacher_share}, and there is no teacher"
    )
  teacher = teacher if objective.teacher_share else None
  layout = layout_of(state.params)
  run = programs.programs(module, optimizer, objective, layout)
  first = step - first_step
  feed = (
    check_batch(batch, module.config, number)
    for number, batch in enumerate(_from(batches, first), first)
  )
  ahead = list(itertools.islice(feed, min(LOOK_AHEAD, steps - step)))
  for batch in ahead:
    run.prepare(state, batch, teacher)
  with ProgressBar(
    total=steps,
    initial=step,
    desc=name,
    unit="step",
    disable=not progress,
    mininterval=1.0,
  ) as bar:
    meter = _Meter(optimizer, on_log, bar)
    for batch in itertools.chain(ahead, feed):
      if stop:
        break
      if not run.prepare(state, batch, teacher).done():
        note(f"compiling {run.num_ready + 1} of {len(run)}")
      state = run(state, batch, teacher)
      step += 1
      due = [callback for callback in callbacks if callback.is_due(step, steps)]
      is_logged = step == steps or step % log_every == 0
      state = meter.took(step, state, batch, is_logged, bool(due))
      before = time.monotonic()
      for callback in due:
        callback.call(state)
      meter.began += time.monotonic() - before  # does not tell the speed
      if step == steps:
        break
    else:
      raise ValueError(
        f"the batches ran out after step {step}, {steps} were asked for; "
        "give more, or a list to go round"
      )
  return jax.block_until_ready(state)


@dataclasses.dataclass
class _Meter:
  """Looks at the device now and then, for the bar, the log and the faults."""

  optimizer: optimizers.Optimizer
  on_log: Callable[[int, Metrics], None] | None
  bar: ProgressBar
  examples: int = 0
  looked: float | None = None  # both in seconds of the monotonic clock
  began: float = 0.0

  def took(self, step, state, batch, is_logged, is_looked):
    """Counts a step; returns the state, its totals cleared where logged."""
    now = time.monotonic()
    is_first = self.looked is None
    is_looked |= is_logged or is_first or now - self.looked > REFRESH_S
    self.examples += _num_examples(batch)
    self.bar.update()
    if not is_looked:
      return state
    metrics = _means(state.totals)
    self.looked = now = time.monotonic()
    if is_first:
      # The first step waited for its program: it does not tell the speed.
      self.examples, self.began = 0, now
    speed = self.examples / max(now - self.began, 1e-9)
    self.bar.set_postfix_str(
      f"loss {metrics['loss']:.3f}, {speed:.0f} examples/s"
    )
    if not is_logged:
      return state
    rate = float(self.optimizer.learning_rate(step - 1))
    if self.on_log is not None:
      extra = {"examples_per_s": speed, "learning_rate": rate}
      self.on_log(step, metrics | extra)
    self.examples, self.began = 0, now
    return state.replace(totals=states.Totals.zero())


def _num_examples(batch: Batch) -> int:
  """Returns how many examples a batch holds, those in packed rows counted."""
  if "decoder_segment_ids" in batch:
    return int(np.max(batch["decoder_segment_ids"], axis=1).sum())
  return len(batch["decoder_input_tokens"])
