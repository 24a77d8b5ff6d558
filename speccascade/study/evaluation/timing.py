"""Measures wall-clock time: in turns, repeated, and synchronised.

Compilation does not count. Competitors take turns, so a machine that slows down
slows all of them. `walltime` says what the seconds of whole decodes mean.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.drafter import Exit, Heads, Lookahead
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.pass_loops import (
  Blocks,
  HotLoop,
  ReaderAlone,
)

# Examples that a competitor decodes before the next competitor has its turn.
TURN = 8

_HotLoops = dict[str, HotLoop]


def interleave(
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
  """Times competitors in turns on a few examples, `repeats` times over.

  Each competitor is first called once, which compiles its program. A later call
  that still has to compile is the caller's mistake: all examples must have one
  shape.

  Args:
    competitors: by name, a function of an example number. The timer waits until
      the result is ready on the device.
    examples: the example numbers.
    repeats: how often each example is timed, 1 or more.
    turn: examples in a turn, 1 or more.
    clock: returns seconds, from any origin.
    on_result: called with (name, example, result) in the first repeat.
    tick: called with the number of timed calls since the last tick, for
      progress; with 0 before a program is compiled, and before the first timed
      call. What it raises ends the timing.
    is_over: asked after each repeat; True ends the timing with fewer repeats.

  Returns:
    Seconds [repeats, examples] float64, by name; of fewer repeats where
    `is_over` ended the timing.

  Raises:
    ValueError: there are no competitors, examples or repeats.
  """
  examples = list(examples)
  if not examples or not competitors or repeats < 1:
    raise ValueError(
      f"timing needs competitors, examples and repeats; got {len(competitors)},"
      f" {len(examples)} and {repeats}"
    )
  for run in competitors.values():
    tick(0)
    jax.block_until_ready(run(examples[0]))
  tick(0)
  seconds = {
    name: np.zeros((repeats, len(examples)), np.float64) for name in competitors
  }
  names = list(competitors)
  starts = range(0, len(examples), turn)
  for repeat in range(repeats):
    for number, first in enumerate(starts):
      columns = range(first, min(first + turn, len(examples)))
      # Each turn begins one competitor later: with a, b, c the turns are abc,
      # bca, cab, ..., so no competitor is always the first.
      shift = (repeat * len(starts) + number) % len(names)
      for name in names[shift:] + names[:shift]:
        # Warm up: this call is not measured. A program that runs after another
        # program finds the caches full of the other's code and arrays, and
        # takes half as long again as a program that runs alone.
        jax.block_until_ready(competitors[name](examples[first]))
        # Measure: the clock stops when the device is done.
        for column in columns:
          start = clock()
          result = jax.block_until_ready(competitors[name](examples[column]))
          seconds[name][repeat, column] = clock() - start
          if repeat == 0:
            on_result(name, examples[column], result)
      tick(len(names) * len(columns))
    if is_over():
      return {name: times[: repeat + 1] for name, times in seconds.items()}
  return seconds


@dataclasses.dataclass(frozen=True, eq=False)
class CostLoops:
  """What hot loops took, round by round.

  Attributes:
    seconds: of each loop [rounds] float64. "drafter" and "verifier" are the
      encoders; "c" and "q2" feed the drafter blocks of one and two tokens, "v1"
      and "v6", say, the verifier blocks of one and six. Draft heads have "h1"
      and "h3", say, which draw from the first head and from the first three, in
      the place of "drafter", "c" and "q2".
    num_blocks: blocks that a loop feeds.
  """

  seconds: Mapping[str, np.ndarray]
  num_blocks: int

  @property
  def widths(self) -> list[int]:
    """The tokens of the verifier's blocks, ascending."""
    return self._numbers("v")

  def _numbers(self, letter: str) -> list[int]:
    """Returns the numbers of the loops that a letter names, ascending."""
    matches = (re.fullmatch(rf"{letter}(\d+)", name) for name in self.seconds)
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
    heads = {num: least[f"h{num}"] / unit for num in self._numbers("h")}
    if heads:
      c = q2 = heads[max(heads)]
    else:
      c, q2 = least["c"] / unit, least["q2"] / unit
    # Draft heads encode no source.
    drafter_prefill = least.get("drafter", 0.0) / unit * self.num_blocks
    return Costs(
      verifier_step_s=unit / self.num_blocks,
      c=c,
      q2=q2,
      v={width: least[f"v{width}"] / unit for width in self.widths},
      drafter_prefill=drafter_prefill,
      verifier_prefill=least["verifier"] / unit * self.num_blocks,
      heads=heads,
    )


def cost_loops(
  drafter: LanguageModel | Heads | Lookahead | Exit | ReadsStates,
  verifier: LanguageModel,
  inputs,
  sampling: Sampling,
  *,
  max_decode_len: int,
  widths: Iterable[int],
  heads: Iterable[int] = (),
  rounds: int = 7,
  clock: Callable[[], float] = time.perf_counter,
  tick: Callable[[int], object] = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> CostLoops:
  """Times the loops that measure c, q2, v and the encoders, in turns.

  Each loop feeds blocks and draws from the distributions that they give, as a
  decoder does, at lengths from 0 to `max_decode_len`.

  Args:
    drafter: the small model; or draft heads, look-ahead embeddings or a state
      reader over the verifier.
    verifier: the large model.
    inputs: [B, S] int32, one example as it is timed.
    sampling: how logits become distributions.
    max_decode_len: blocks that a loop feeds; the run's value, so that caches
      have the run's size.
    widths: the numbers of tokens N for which v is measured; 1 is added.
    heads: of draft heads and look-ahead embeddings, the numbers of
      distributions for which the cost of drawing from so many is measured; one
      number at least.
    rounds: how often each loop is timed.
    clock: returns seconds, from any origin.
    tick: see `interleave`; nothing is compiled but after its call.
    is_over: asked after each round; True ends the timing with fewer rounds.
  """
  widths = sorted({1, *widths})
  inputs = jnp.asarray(inputs, jnp.int32)
  # The last block starts at length max_decode_len - 1 and must fit.
  capacity = max_decode_len + widths[-1] + 2
  blocks = Blocks(verifier, inputs, capacity, sampling, max_decode_len)
  loops = {"verifier": blocks.encoding(verifier)}
  draft_loops = DRAFT_LOOPS[draft_models.kind_of(drafter)]
  loops |= draft_loops(drafter, blocks, sorted(set(heads)))
  feeding = blocks.feeding(verifier)
  for width in widths:
    loops[f"v{width}"] = feeding(width)
  times = interleave(
    {name: lambda _, loop=loop: loop() for name, loop in loops.items()},
    [0],
    repeats=rounds,
    clock=clock,
    tick=tick,
    is_over=is_over,
  )
  by_round = {name: rounds_s[:, 0] for name, rounds_s in times.items()}
  return CostLoops(by_round, max_decode_len)


def _model_loops(model, blocks: Blocks, nums: list[int]) -> _HotLoops:
  feeding = blocks.feeding(model)
  return {
    "drafter": blocks.encoding(model),
    "c": feeding(1),
    "q2": feeding(2),
  }


def _head_loops(heads, blocks: Blocks, nums: list[int]) -> _HotLoops:
  rows, fixed = len(blocks.inputs), (blocks.verifier, blocks.sampling)
  return {
    f"h{num}": functools.partial(
      _draw_heads, heads, *fixed, rows, num, blocks.num
    )
    for num in nums
  }


def _embedding_loops(embeddings, blocks: Blocks, nums: list[int]) -> _HotLoops:
  # A pass over the last token and num - 1 embeddings gives num distributions.
  # What the fed ids are makes no difference to its cost.
  model = embeddings.language_model(blocks.verifier)
  feeding = blocks.feeding(model)
  loops = {"drafter": blocks.encoding(model)}
  return loops | {f"h{num}": feeding(num) for num in nums}


def _exit_loops(taught, blocks: Blocks, nums: list[int]) -> _HotLoops:
  return _model_loops(taught.language_model(blocks.verifier), blocks, nums)


def _reader_loops(reader, blocks: Blocks, nums: list[int]) -> _HotLoops:
  return _model_loops(ReaderAlone.of(reader, blocks.verifier), blocks, nums)


# What is timed of each kind of draft model: a function from the model, the
# blocks, and the numbers of distributions that are drawn at once.
DRAFT_LOOPS = draft_models.PerKind[
  Callable[[Any, Blocks, list[int]], _HotLoops]
](__name__, "DRAFT_LOOPS", "how the cost of drafting is timed")
DRAFT_LOOPS.register(LanguageModel, _model_loops)
DRAFT_LOOPS.register(Heads, _head_loops)
DRAFT_LOOPS.register(Lookahead, _embedding_loops)
DRAFT_LOOPS.register(Exit, _exit_loops)
DRAFT_LOOPS.register(ReadsStates, _reader_loops)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _draw_heads(heads, verifier, sampling, rows, num, num_blocks):
  """Draws blocks from the first `num` heads, and returns [B] the last token."""
  # The hidden state of each block depends on the tokens that the block before
  # it drew, so XLA cannot leave out a block or run two blocks at once.
  u = jnp.full((rows, num), 0.5, jnp.float32)

  def draw_block(_, carry):
    hidden, _ = carry
    logits = heads.head_logits(verifier, hidden, num)
    _, probs = sampling.laws(logits)
    tokens = draws.draw(probs, u)
    shift = jnp.mean(tokens.astype(jnp.float32), axis=1, keepdims=True)
    return jnp.sin(hidden + shift), tokens[:, -1]

  first = jnp.ones((rows, heads.width), jnp.float32)
  token = jnp.zeros((rows,), jnp.int32)
  _, token = jax.lax.fori_loop(0, num_blocks, draw_block, (first, token))
  return token
