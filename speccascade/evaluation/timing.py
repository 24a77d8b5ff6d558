"""Wall-clock time: compiled before, synchronised, interleaved, repeated.

`walltime_s` is one example at batch 1, its encoder included and compilation
not. Competitors take turns on every example, so that a machine that slows down
slows all of them.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import re
import time
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.types import LanguageModel
from speccascade.evaluation.efficiency import Costs
from speccascade.settings import fields

RESAMPLES = 1000
# Examples that a competitor decodes before the next one has its turn.
TURN = 8
REPLICATES = 200  # of them, those that are kept
_DIGITS = 5


_Time = Annotated[float, fields.Bounds(0, low_open=True)]


@dataclasses.dataclass(frozen=True)
class Latency:
  """Seconds of one competitor over the timed examples.

  Attributes:
    walltime_s: mean over examples of the median over repeats.
    by_repeat_s: the mean over examples, for each repeat: the spread.
    relative_latency: `walltime_s` over that of the reference, same examples.
    relative_low: lower end of its 95% interval.
    relative_high: upper end; bootstrap over examples, in pairs.
    num_examples: timed examples.
    repeats: how often each was timed.
    replicates: relative latencies of resampled examples; of equally many timed
      examples, the i-th is made from the same ones for every competitor.
    num_tokens: tokens that the timed examples have together, EOS counted; None
      where they were not counted.
    per_token: seconds a token over the reference's, and the ends of its 95%
      interval; None likewise.
  """

  walltime_s: _Time
  by_repeat_s: tuple[_Time, ...]
  relative_latency: _Time
  relative_low: _Time
  relative_high: _Time
  num_examples: fields.Positive
  repeats: fields.Positive
  replicates: tuple[_Time, ...] = ()
  num_tokens: fields.NonNegative | None = None
  per_token: tuple[_Time, _Time, _Time] | None = None

  def __post_init__(self):
    fields.freeze(self)


def interleaved(
  competitors: dict[str, Callable[[int], object]],
  examples: Iterable[int],
  *,
  repeats: int = 3,
  turn: int = TURN,
  clock: Callable[[], float] = time.perf_counter,
  on_result: Callable[[str, int, object], object] = lambda *_: None,
  tick: Callable[[int], object] = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> dict[str, np.ndarray]:
  """Times competitors in turn on a few examples, `repeats` times over.

  The first call of a turn is made twice and measured once. A program that runs
  after another one finds the caches full of the other's code and arrays, and
  takes half as long again as it does when it is used for itself. Beforehand
  each is called once: that compiles. A later call that still has to compile is
  the caller's mistake: give all examples one shape.

  Args:
    competitors: by name, a function of an example number; what it returns is
      waited for on the device.
    examples: the example numbers.
    repeats: 1 or more.
    turn: examples in a turn, 1 or more.
    clock: seconds, from any origin.
    on_result: called with (name, example, result) in the first repeat.
    tick: called with the calls made since, for progress.
    is_over: asked after each repeat; True leaves the others out.

  Returns:
    Seconds [repeats, examples] float64, by name; of fewer repeats where
    `is_over` ended the timing.

  Raises:
    ValueError: there is nothing to time.
  """
  examples = list(examples)
  if not examples or not competitors or repeats < 1:
    raise ValueError(
      f"timing needs competitors, examples and repeats; got {len(competitors)},"
      f" {len(examples)} and {repeats}"
    )
  for run in competitors.values():
    jax.block_until_ready(run(examples[0]))
  seconds = {
    name: np.zeros((repeats, len(examples)), np.float64) for name in competitors
  }
  order = list(competitors)
  starts = range(0, len(examples), turn)
  for repeat in range(repeats):
    for number, first in enumerate(starts):
      columns = range(first, min(first + turn, len(examples)))
      # Nobody always runs after the same neighbour.
      shift = (repeat * len(starts) + number) % len(order)
      for name in order[shift:] + order[:shift]:
        jax.block_until_ready(competitors[name](examples[first]))
        for column in columns:
          start = clock()
          result = jax.block_until_ready(competitors[name](examples[column]))
          seconds[name][repeat, column] = clock() - start
          if repeat == 0:
            on_result(name, examples[column], result)
      tick(len(order) * len(columns))
    if is_over():
      return {name: times[: repeat + 1] for name, times in seconds.items()}
  return seconds


def latency(
  seconds: np.ndarray,
  reference: np.ndarray,
  tokens: tuple[np.ndarray, np.ndarray] | None = None,
) -> Latency:
  """Returns the latency of a competitor against a reference.

  Args:
    seconds: [repeats, examples] from `interleaved`.
    reference: those of the verifier alone, same run and examples.
    tokens: [examples] int, of the competitor's texts and of the reference's;
      None leaves the latency per token out.
  """
  ours, theirs = np.median(seconds, axis=0), np.median(reference, axis=0)
  rng = np.random.default_rng(0)
  pick = rng.integers(0, ours.size, (RESAMPLES, ours.size))
  ratios = ours[pick].mean(axis=1) / theirs[pick].mean(axis=1)
  low, high = np.quantile(ratios, [0.025, 0.975])
  per_token = None
  if tokens is not None:
    lengths, its = (np.maximum(each, 1) for each in tokens)
    rates = ratios * its[pick].sum(axis=1) / lengths[pick].sum(axis=1)
    value = ours.sum() / theirs.sum() * its.sum() / lengths.sum()
    ends = np.quantile(rates, [0.025, 0.975])
    per_token = (float(value), *map(float, ends))
  return Latency(
    walltime_s=float(ours.mean()),
    by_repeat_s=tuple(float(x) for x in seconds.mean(axis=1)),
    relative_latency=float(ours.mean() / theirs.mean()),
    relative_low=float(low),
    relative_high=float(high),
    num_examples=ours.size,
    repeats=len(seconds),
    replicates=tuple(np.round(ratios[:REPLICATES], _DIGITS).tolist()),
    num_tokens=None if tokens is None else int(tokens[0].sum()),
    per_token=per_token,
  )


@dataclasses.dataclass(frozen=True, eq=False)
class CostLoops:
  """What hot loops took, round by round.

  Attributes:
    seconds: of each loop [rounds] float64. "drafter" and "verifier" are the
      encoders; "c" and "q2" feed the drafter blocks of one and two tokens, "v1"
      and "v6", say, the verifier blocks of one and six.
    num_blocks: blocks that a loop feeds.
  """

  seconds: Mapping[str, np.ndarray]
  num_blocks: int

  @property
  def widths(self) -> list[int]:
    """The tokens of the verifier's blocks, ascending."""
    matches = (re.fullmatch(r"v(\d+)", name) for name in self.seconds)
    return sorted(int(match[1]) for match in matches if match)

  @property
  def costs(self) -> Costs:
    """The costs by the least of the rounds: other work can only add.

    Raises:
      ValueError: a step was too short to measure.
    """
    least = {name: float(times.min()) for name, times in self.seconds.items()}
    unit = least["v1"]
    if unit <= 0:
      raise ValueError(
        "a verifier step was too short to measure; the clock is too coarse"
      )
    return Costs(
      verifier_step_s=unit / self.num_blocks,
      c=least["c"] / unit,
      q2=least["q2"] / unit,
      v={width: least[f"v{width}"] / unit for width in self.widths},
      drafter_prefill=least["drafter"] / unit * self.num_blocks,
      verifier_prefill=least["verifier"] / unit * self.num_blocks,
    )


def cost_loops(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs,
  sampling: Sampling,
  *,
  max_decode_len: int,
  widths: Iterable[int],
  rounds: int = 7,
  clock: Callable[[], float] = time.perf_counter,
  is_over: Callable[[], bool] = lambda: False,
) -> CostLoops:
  """Times the loops that tell c, q2, v and the encoders, taking turns.

  Each loop feeds blocks and draws from the laws that they give, as a decoder
  does, at lengths from 0 to `max_decode_len`.

  Args:
    drafter: the small model.
    verifier: the large one.
    inputs: [B, S] int32, one example as it is timed.
    sampling: how logits become laws.
    max_decode_len: as in the run, for the size of the caches.
    widths: the block widths whose v is wanted.
    rounds: how often each loop is timed.
    clock: seconds, from any origin.
    is_over: asked after each round; True leaves the others out.
  """
  widths = sorted({1, *widths})
  inputs = jnp.asarray(inputs, jnp.int32)
  capacity = max_decode_len + widths[-1] + 2
  models = {"drafter": drafter, "verifier": verifier}
  steps = {"c": ("drafter", 1), "q2": ("drafter", 2)}
  steps |= {f"v{width}": ("verifier", width) for width in widths}
  runs = {
    role: functools.partial(_prefill, model, inputs, capacity)
    for role, model in models.items()
  }
  states = {role: runs[role]() for role in models}
  for name, (role, width) in steps.items():
    fed = (models[role], states[role], sampling, width, max_decode_len)
    runs[name] = functools.partial(_feed_blocks, *fed)
  seconds = interleaved(
    {name: lambda _, run=run: run() for name, run in runs.items()},
    [0],
    repeats=rounds,
    clock=clock,
    is_over=is_over,
  )
  by_round = {name: times[:, 0] for name, times in seconds.items()}
  return CostLoops(by_round, max_decode_len)


def measure_costs(
  drafter: LanguageModel, verifier: LanguageModel, inputs, sampling, **how
) -> Costs:
  """Returns the costs that `cost_loops` measures; it takes the same."""
  return cost_loops(drafter, verifier, inputs, sampling, **how).costs


@functools.partial(jax.jit, static_argnums=(2,))
def _prefill(model, inputs, capacity):
  return model.prefill(inputs, capacity=capacity)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _feed_blocks(model, state, sampling, width, num_blocks):
  """Feeds `num_blocks` blocks, one slot further each; returns the last token.

  Each block depends on the draw before it, so that no pass can be left out.
  """
  rows = jax.tree.leaves(state)[0].shape[0]
  count = jnp.full((rows,), width, jnp.int32)

  def block(index, carry):
    state, token = carry
    tokens = jnp.broadcast_to(token[:, None], (rows, width))
    state, out = model.extend(state, tokens, count)
    u = jnp.full((rows,), 0.5, jnp.float32)
    _, law = sampling.laws(out.logits)
    token = draws.draw(jnp.mean(law, axis=1), u)
    return model.rewind(state, jnp.full((rows,), index + 1)), token

  token = jnp.zeros((rows,), jnp.int32)
  return jax.lax.fori_loop(0, num_blocks, block, (state, token))[1]
