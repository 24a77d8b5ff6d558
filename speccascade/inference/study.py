"""What all points of a trade-off have in common: `Study`."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import os

import jax

from speccascade.inference import inputs as sources
from speccascade.inference import results
from speccascade.inference.agreement import Outputs
from speccascade.inference.batching import Batches
from speccascade.inference.inputs import Example
from speccascade.inference.pair import Pair
from speccascade.inference.point import Point

Score = Callable[[Sequence[Example], Sequence[str]], dict]


@dataclasses.dataclass(frozen=True)
class Study:
  """What all points of a trade-off have in common.

  Attributes:
    pair: both models.
    vocabulary: for texts and EOS.
    examples: decoded for quality and counts.
    task: name of the task.
    split: of it.
    max_decode_len: most tokens, EOS counted.
    num_timed: how many of the examples, the first ones, are timed too; 0 leaves
      latency out.
    repeats: how often each is timed.
    seed: of the keys.
    trials: decodes of each example for quality, with other keys; where a
      temperature is 0 one is enough.
    batch_size: rows decoded at once for quality; 1 shares its programs with the
      timed runs.
    score: (examples, texts) to `ResultRow.quality`; None is BLEU.
    threads: at work where nothing is timed; None takes the cores.
    dtype: of the activations, for the rows.
    num_lengths: source lengths that batches are padded to, each another program
      of every method; None takes all that `examples.buckets` names.
    num_cut: sources that were cut to fit, for the rows.
  """

  pair: Pair
  vocabulary: object
  examples: Sequence[Example]
  task: str
  split: str
  max_decode_len: int
  num_timed: int
  repeats: int = 3
  seed: int = 0
  trials: int = 1
  batch_size: int = 1
  score: Score | None = None
  threads: int | None = None
  dtype: str = "float32"
  num_lengths: int | None = None
  num_cut: int = 0

  @functools.cached_property
  def _buckets(self) -> list[int]:
    return sources.buckets(
      max(len(example.tokens) for example in self.examples)
    )

  @functools.cached_property
  def lengths(self) -> list[int]:
    """Source lengths of batches, ascending; the last one fits all."""
    num = min(self.num_lengths or len(self._buckets), len(self._buckets))
    ends = (len(self._buckets) * (i + 1) // num for i in range(num))
    return [self._buckets[end - 1] for end in ends]

  @property
  def timed(self) -> Sequence[Example]:
    return self.examples[: self.num_timed]

  @functools.cached_property
  def timed_length(self) -> int:
    """One length for all timed sources: nothing compiles under the clock."""
    same_programs = self.examples if self.batch_size == 1 else self.timed
    longest = max(len(example.tokens) for example in same_programs)
    return sources.bucket_of(longest, self._buckets)

  def num_trials(self, point: Point) -> int:
    return 1 if point.sampling.greedy else self.trials

  def settings(self, point: Point) -> results.Settings:
    """Returns what a point's row is known by."""
    return point.settings(
      max_decode_len=self.max_decode_len,
      task=self.task,
      split=self.split,
      num_examples=len(self.examples),
      drafter=self.pair.drafter_name,
      verifier=self.pair.verifier_name,
      seed=self.seed,
      trials=self.num_trials(point),
      dtype=self.dtype,
    )

  def batches(self, point: Point, *, timed: bool) -> Batches:
    """Returns what decodes a point, at batch 1 where it is timed."""
    single = timed or self.batch_size == 1
    return Batches(
      self.pair,
      point,
      self.vocabulary,
      lengths=[self.timed_length] if single else self.lengths,
      batch_size=1 if single else self.batch_size,
      max_decode_len=self.max_decode_len,
      seed=self.seed,
      shared=self.shared,
    )

  @property
  def shared(self) -> bool:
    """Whether methods share programs: where branching costs nothing."""
    return jax.default_backend() == "cpu"

  @property
  def num_threads(self) -> int:
    return self.threads or max(1, min(8, os.cpu_count() or 1))

  def num_decodes(self, point: Point) -> int:
    """Returns how many examples a point decodes, the unit of progress."""
    timed = len(self.timed) * self.repeats
    return timed + len(self.examples) * self.num_trials(point)

  @functools.cached_property
  def compiled(self) -> set:
    """The programs that were run once."""
    return set()

  @functools.cached_property
  def alone(self) -> dict[Point, Outputs]:
    """What the verifier alone wrote, by sampling, where it was decoded."""
    return {}

  @functools.cached_property
  def _shapes(self) -> list[tuple[bool, int, Example]]:
    """(Timed?, length, an example) of each shape that a method runs."""
    found = {}
    single = self.batch_size == 1
    for example in self.timed:
      found.setdefault((True, self.timed_length), example)
    for example in self.examples:
      lengths = [self.timed_length] if single else self.lengths
      length = sources.bucket_of(len(example.tokens), lengths)
      found.setdefault((single, length), example)
    return [(*shape, example) for shape, example in found.items()]

  def programs(self, point: Point) -> dict[tuple, tuple]:
    """Returns {what tells a compiled program: (Batches, an example)}."""
    found = {}
    for timed, length, example in self._shapes:
      run = self.batches(point, timed=timed)
      sampling = run.sampling
      program, _ = run.decoder.program(sampling.greedy)
      static = (sampling.greedy, sampling.top_k, sampling.top_p is None)
      found[program, static, run.batch_size, length] = (run, example)
    return found
