"""What all points of a trade-off have in common: `Study`."""

from collections.abc import Sequence
import dataclasses
import functools
import math
import os

import jax
import numpy as np

from speccascade.data.prompting import eos_ids
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.batches import padding
from speccascade.inference.batches.batching import Batches
from speccascade.inference.batches.sources import Source, Sources, longest
from speccascade.inference.pair.pair_checks import PairError
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.inference.rows import results
from speccascade.settings import fields


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What a point wrote: tokens by (trial, index), its counts, and the fields of
  `LogProbs` in parts, where they were recorded."""

  tokens: dict[tuple[int, int], np.ndarray]
  counts: Counts
  log_probs: Sequence[dict] = ()


@fields.checked
@dataclasses.dataclass(frozen=True, eq=False)
class Study:
  """What all points of a trade-off have in common.

  Attributes:
    pair: the models.
    sources: what is decoded; the first of them are timed.
    run: how it is decoded.
    measuring: what is measured.
    verifier_outputs: what the verifier alone wrote, by sampling, where it was
      decoded.
  """

  pair: ModelPair
  sources: Sources
  run: Run
  measuring: Measuring = Measuring()
  verifier_outputs: dict[Point, Outputs] = dataclasses.field(
    default_factory=dict, init=False
  )
  _batches: dict[tuple, Batches] = dataclasses.field(
    default_factory=dict, init=False
  )

  def __post_init__(self):
    # One row alone is decoded by every part of `data` alike.
    if self.pair.layout is not None and self.run.batch_size > 1:
      self.pair.layout.check_rows(BATCH_SIZE=self.run.batch_size)
    _check_sources(self.pair, self.sources, self.run.max_decode_len)

  @property
  def examples(self) -> Sequence[Source]:
    return self.sources.examples

  @property
  def vocabulary(self):
    return self.sources.vocabulary

  @property
  def metrics(self) -> Sequence[str]:
    """Names in `quality.METRICS` that texts are scored by."""
    asked = self.measuring.metrics
    return self.sources.metrics if asked is None else asked

  @functools.cached_property
  def _buckets(self) -> list[int]:
    return padding.buckets(self.sources.max_len)

  @functools.cached_property
  def lengths(self) -> list[int]:
    """Source lengths of batches, ascending; the last one fits all."""
    num = min(self.run.num_lengths or len(self._buckets), len(self._buckets))
    ends = (len(self._buckets) * (i + 1) // num for i in range(num))
    return [self._buckets[end - 1] for end in ends]

  @property
  def timed_examples(self) -> Sequence[Source]:
    return self.examples[: self.measuring.num_timed]

  @property
  def _is_single(self) -> bool:
    """Whether what is not timed runs the programs of what is."""
    return self.run.batch_size == 1 and bool(self.timed_examples)

  @functools.cached_property
  def timed_length(self) -> int:
    """One length for all timed sources: nothing compiles under the clock."""
    alike = self.examples if self._is_single else self.timed_examples
    return padding.bucket_of(longest(alike), self._buckets)

  def pad_examples(
    self, examples: Sequence[Source], rows: int, lengths: Sequence[int]
  ) -> np.ndarray:
    """Returns [rows, S] int32, the tokens of some; see `padding.pad_batch`."""
    prompted = self.pair.prompted
    return padding.pad_batch(examples, rows, lengths, prompted=prompted)[0]

  def num_trials(self, point: Point) -> int:
    """Returns how often a point is decoded: greedy trials are all alike."""
    return 1 if point.sampling.greedy else self.run.trials

  def settings(
    self, point: Point, *, trials: int | None = None
  ) -> results.Settings:
    """Returns what a point's row is known by; None takes `num_trials`."""
    return point.settings(
      max_decode_len=self.run.max_decode_len,
      task=self.sources.task,
      split=self.sources.split,
      num_examples=len(self.examples),
      drafter=self.pair.drafter_name,
      verifier=self.pair.verifier_name,
      seed=self.run.seed,
      trials=trials or self.num_trials(point),
      dtype=self.pair.dtype,
    )

  def batches(
    self, point: Point, *, timed: bool = False, shared: bool = True
  ) -> Batches:
    """Returns what decodes a point, at batch 1 where it is timed.

    The same at every call: what was checked is what decodes.

    Args:
      point: the method and its settings.
      timed: whether under the clock.
      shared: whether methods share programs, where branching costs nothing.
    """
    run, lengths = self.run, self.lengths
    if timed or self._is_single:
      run = dataclasses.replace(run, batch_size=1)
      lengths = [self.timed_length]
    batches = Batches(
      pair=self.pair,
      point=point,
      run=run,
      eos_id=eos_ids(self.vocabulary),
      lengths=lengths,
      shared=shared and jax.default_backend() == "cpu",
    )
    return self._batches.setdefault((point, timed, shared), batches)

  @property
  def num_threads(self) -> int:
    """Threads at work where nothing is timed.

    One on a mesh: devices that wait for each other must all run programs in one
    order.
    """
    if self.pair.layout is not None:
      return 1
    return max(1, min(8, os.cpu_count() or 1))

  def num_decodes(self, point: Point) -> int:
    """Returns how many examples a point decodes, the unit of progress."""
    timed = len(self.timed_examples) * self.measuring.repeats
    return timed + len(self.examples) * self.num_trials(point)

  def program_examples(self, point: Point) -> dict[tuple, tuple]:
    """Returns {what tells a compiled program: (Batches, an example)}."""
    programs = self.batches(point).program_examples(self.examples)
    if not self.timed_examples:
      return programs
    return (
      self.batches(point, timed=True).program_examples(self.timed_examples)
      | programs
    )


def _check_sources(pair: ModelPair, sources: Sources, most_new: int):
  """Raises PairError where models do not go on from such sources, or a prompt
  and the `most_new` tokens that may follow are longer than their window."""
  for model in pair.models:
    if model.prompted != sources.prompted:
      kind, wanted = "an encoder-decoder", "sources: set PROMPT = 'source'"
      if model.prompted:
        kind, wanted = "decoder-only", "prompts: set PROMPT = 'text' or 'chat'"
      raise PairError(f"{model.name} is {kind} and takes {wanted}")
    if model.window == math.inf:
      continue
    worst = max(sources.examples, key=lambda example: len(example.tokens))
    if (num := len(worst.tokens)) + most_new > model.window:
      raise PairError(
        f"example {worst.index} has {num} tokens, and MAX_DECODE_LEN is"
        f" {most_new}: together more than the {model.window} that"
        f" {model.name} was made for; shorten one of them"
      )
