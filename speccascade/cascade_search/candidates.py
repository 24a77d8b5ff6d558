"""What a search for cascades tries, and how it measures one candidate."""

from collections.abc import Sequence
import dataclasses
import itertools

import jax
import numpy as np

from speccascade.analysis import swi
from speccascade.evaluation import efficiency, timing
from speccascade.inference import cascades, results
from speccascade.inference import inputs as sources
from speccascade.inference.batching import Batches
from speccascade.inference.cascades import Cascade
from speccascade.inference.inputs import Example
from speccascade.inference.pair import Pair
from speccascade.inference.point import Point


@dataclasses.dataclass(frozen=True)
class Space:
  """Which K and lenience are tried.

  Attributes:
    first: tokens of the largest drafter in a block.
    following: tokens of each smaller neural drafter behind it.
    inner: tokens that a drafter writes under a larger one's review.
    copied: tokens that Max-Gram adds to a block, 0 for none.
    inner_copied: that it adds under a review.
    leniences: of the inner reviews.
  """

  first: Sequence[int] = (1, 2, 3, 5)
  following: Sequence[int] = (0, 2, 4)
  inner: Sequence[int] = (1, 2)
  copied: Sequence[int] = (0, 4, 8)
  inner_copied: Sequence[int] = (3, 6, 10)
  leniences: Sequence[float] = (1.0, 2.0, 3.0, 5.0)

  def cascades(self, num_neural: int, **how) -> list[Cascade]:
    """Returns every cascade of the space; `how` as fields of `Cascade`."""
    if num_neural == 0:
      return [
        Cascade(k=((copied,),), **how) for copied in self.copied if copied
      ]
    more = range(num_neural - 1)
    grid = itertools.product(
      self.first,
      itertools.product(self.following, repeat=len(more)),
      itertools.product(self.inner, repeat=len(more)),
      self.copied,
      self.inner_copied,
      self.leniences,
    )
    return [
      Cascade(
        k=(
          (first, *following, copied),
          *(
            (
              *[0] * (i + 1),
              inner[i],
              *[0] * (num_neural - i - 2),
              inner_copied,
            )
            for i in more
          ),
          (*[0] * num_neural, inner_copied),
        ),
        lenience=lenience,
        **how,
      )
      for first, following, inner, copied, inner_copied, lenience in grid
    ]


def baselines(num_neural: int, **how) -> list[Cascade]:
  """Returns plain speculative decoding with each drafter, at a few lengths."""
  size = num_neural + 1
  made = []
  for drafter, width in itertools.product(range(size), (3, 5, 8)):
    k = np.zeros((size, size), int)
    k[0, drafter] = width
    made.append(Cascade(k=tuple(map(tuple, k.tolist())), **how))
  return made


@dataclasses.dataclass(frozen=True)
class Scored:
  """A candidate and the last round it took part in.

  Attributes:
    cascade: the candidate.
    row: its result row there.
    calls: of each neural drafter, largest first.
    swi: standardized walltime improvement.
    value: what it is ranked by; larger is better.
  """

  cascade: Cascade
  row: results.ResultRow
  calls: tuple[int, ...]
  swi: float
  value: float


@dataclasses.dataclass(frozen=True)
class Study:
  """What all candidates have in common; fields as arguments of `search`.

  Attributes:
    weights: cost of a call of each neural drafter.
  """

  pair: Pair
  vocabulary: object
  examples: Sequence[Example]
  point: Point
  task: str
  split: str
  max_decode_len: int
  batch_size: int
  repeats: int
  seed: int
  objective: str
  weights: tuple[float, ...] = ()

  def settings(self, drafter: str, num_examples: int) -> results.Settings:
    """Returns what a row is known by."""
    return self.point.settings(
      max_decode_len=self.max_decode_len,
      task=self.task,
      split=self.split,
      num_examples=num_examples,
      drafter=drafter,
      verifier=self.pair.verifier_name,
      seed=self.seed,
      trials=1,
    )

  def costs(self, asked) -> list[float]:
    """Returns the cost of one call of each neural drafter."""
    verifier = self.pair.verifier.lm
    lms = [model.lm for model in self.pair.drafters]
    if asked == "parameters":
      sizes = [_num_parameters(lm) for lm in (*lms, verifier)]
      return [size / sizes[-1] for size in sizes[:-1]]
    if asked == "measured":
      inputs = sources.pad_batch(self.examples[:1], 1, self._lengths)[0]
      return [
        timing.measure_costs(
          lm,
          verifier,
          inputs,
          self.point.sampling,
          max_decode_len=self.max_decode_len,
          widths=[1],
        ).c
        for lm in lms
      ]
    if isinstance(asked, str) or len(asked) != len(lms):
      raise ValueError(
        f"COSTS is {asked!r}; wanted 'parameters', 'measured', or"
        f" {len(lms)} number(s), one for each neural drafter"
      )
    return [float(cost) for cost in asked]

  @property
  def _lengths(self) -> list[int]:
    longest = max(len(example.tokens) for example in self.examples)
    if self.objective == "walltime":
      return sources.buckets(longest)[-1:]
    return sources.buckets(longest)

  def batches(self, pair: Pair, point: Point, batch_size: int) -> Batches:
    return Batches(
      pair,
      point,
      self.vocabulary,
      lengths=self._lengths,
      batch_size=batch_size,
      max_decode_len=self.max_decode_len,
      seed=self.seed,
    )

  def combined(self, cascade: Cascade) -> Pair:
    """Returns the pair with a candidate in the place of its drafter."""
    identity = sources.identity(self.vocabulary) or {}
    return cascades.combine(
      self.pair, cascade, self.point.spec, identity.get("sha256")
    )

  def scored(self, cascade: Cascade, row: results.ResultRow) -> Scored:
    """Returns a candidate with what its row says."""
    lms = [model.lm for model in self.pair.drafters]
    drafter = self.combined(cascade).composed
    calls = cascades.calls_by_drafter(drafter, row.counts.calls_by_model, lms)
    names = [f"drafter {i}" for i in range(len(lms))]
    value = improvement = swi.swi(
      row.counts.num_tokens,
      {"verifier": row.counts.verifier_calls, **dict(zip(names, calls))},
      {"verifier": 1.0, **dict(zip(names, self.weights))},
    )
    if self.objective == "walltime":
      value = row.measured_speedup
    return Scored(cascade, row, tuple(calls), improvement, value)

  def measure(self, cascade: Cascade, num: int) -> results.ResultRow:
    """Decodes the first `num` examples with a candidate."""
    pair, part = self.combined(cascade), self.examples[:num]
    counts, latency = [], None
    if self.objective == "walltime":
      alone = dataclasses.replace(self.point, method="verifier", alpha=None)
      own = self.batches(pair, self.point, 1)
      runs = {"own": own, "verifier": self.batches(self.pair, alone, 1)}

      def keep(name, index, decoded):
        if name == "own":
          counts.append(efficiency.row_counts(decoded)[0])

      seconds = timing.interleaved(
        {
          name: lambda index, run=run: run.run([part[index]])
          for name, run in runs.items()
        },
        range(len(part)),
        repeats=self.repeats,
        on_result=keep,
      )
      latency = timing.latency(seconds["own"], seconds["verifier"])
    else:
      run = self.batches(pair, self.point, self.batch_size)
      order = sorted(part, key=lambda example: len(example.tokens))
      for start in range(0, len(order), self.batch_size):
        batch = order[start : start + self.batch_size]
        counts += efficiency.row_counts(run.run(batch))[: len(batch)]
    total = efficiency.total(counts)
    return results.ResultRow(
      settings=self.settings(pair.drafter_name, num),
      label=self.point.spec.label,
      counts=total,
      efficiency=efficiency.summary(total),
      quality={},
      latency=latency,
      measured_speedup=latency and 1 / latency.relative_latency,
      environment=results.environment(timing.device_name()),
    )


def _num_parameters(lm) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(lm))
