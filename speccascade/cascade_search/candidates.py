"""What a search for cascades tries, and how it measures one candidate."""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Annotated, Literal

import jax
import numpy as np

from speccascade.analysis import swi
from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair import cascades
from speccascade.inference.pair.cascades import Cascade
from speccascade.inference.points import advice_files
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring
from speccascade.inference.rows import results
from speccascade.search import clock, grid
from speccascade.search.grid import StudyPoint
from speccascade.search.ledger import Ledger
from speccascade.settings import fields

Lengths = Annotated[
  Sequence[Annotated[int, fields.Bounds(0, 1024)]], fields.NOT_EMPTY
]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Space:
  """Which K and lenience are tried.

  Attributes:
    first: tokens of the largest drafter in a block.
    following: tokens of each smaller neural drafter after it.
    inner: tokens that a drafter writes under a larger one's review.
    copied: tokens that Max-Gram adds to a block, 0 for none.
    inner_copied: that it adds under a review.
    leniences: of the inner reviews.
  """

  first: Lengths = (1, 2, 3, 5)
  following: Lengths = (0, 2, 4)
  inner: Lengths = (1, 2)
  copied: Lengths = (0, 4, 8)
  inner_copied: Lengths = (3, 6, 10)
  leniences: Annotated[
    Sequence[Annotated[float, fields.Bounds(1)]], fields.NOT_EMPTY
  ] = (1.0, 2.0, 3.0, 5.0)

  def cascades(self, num_neural: int, **how) -> list[Cascade]:
    """Returns every cascade of the space; `how` as fields of `Cascade`."""
    if num_neural == 0:
      return [Cascade(k=((num,),), **how) for num in self.copied if num]
    product = itertools.product(
      self.first,
      itertools.product(self.following, repeat=num_neural - 1),
      itertools.product(self.inner, repeat=num_neural - 1),
      *(self.copied, self.inner_copied, self.leniences),
    )
    tried = []
    for first, following, inner, copied, inner_copied, lenience in product:
      k = np.diag([first, *inner, inner_copied])
      k[0] = (first, *following, copied)
      k[1:, -1] = inner_copied
      tried.append(Cascade(k=_tuples(k), lenience=lenience, **how))
    return tried


def baselines(num_neural: int, **how) -> list[Cascade]:
  """Returns plain speculative decoding with each drafter, at a few lengths."""
  plain = []
  for drafter, width in itertools.product(range(num_neural + 1), (3, 5, 8)):
    k = np.zeros((num_neural + 1, num_neural + 1), int)
    k[0, drafter] = width
    plain.append(Cascade(k=_tuples(k), **how))
  return plain


def _tuples(k: np.ndarray) -> tuple[tuple[int, ...], ...]:
  return tuple(map(tuple, k.tolist()))


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


@fields.checked
@dataclasses.dataclass(frozen=True)
class Candidates:
  """Which cascades are compared; checked when made.

  Attributes:
    cascades: compared with each other on all examples, in one round; the space
      and the rounds are then left out.
    space: what is tried without them.
    num_candidates: this many of the space, drawn by the run's seed; None tries
      all. Plain speculative decoding with each drafter is always among them.
    bigrams: Max-Gram's table, or None.
  """

  cascades: Annotated[Sequence[Cascade], fields.NOT_EMPTY] | None = None
  space: Space = Space()
  num_candidates: fields.Positive | None = 27
  bigrams: fields.Path | None = None

  def all(self, num_neural: int, seed: int) -> list[Cascade]:
    """Returns what is compared by a pair with so many neural drafters."""
    if self.cascades is not None:
      return list(self.cascades)
    tried = self.space.cascades(num_neural, bigrams=self.bigrams)
    if self.num_candidates is not None and self.num_candidates < len(tried):
      rng = np.random.default_rng(seed)
      chosen = rng.choice(len(tried), self.num_candidates, replace=False)
      tried = [tried[i] for i in sorted(chosen)]
    return [*baselines(num_neural, bigrams=self.bigrams), *tried]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Criterion:
  """What makes one cascade better than another; checked when made.

  Attributes:
    name: "swi", calls weighed by `costs`; or "walltime", seconds at batch 1 in
      turns with the verifier.
    costs: one call of each neural drafter, the verifier's being 1; or
      "parameters", the ratio of numbers of parameters; or "measured".
    repeats: how often each is timed.
  """

  name: Literal["swi", "walltime"] = "swi"
  costs: (
    Literal["parameters", "measured"]
    | Sequence[Annotated[float, fields.Bounds(0)]]
  ) = "parameters"
  repeats: fields.Size = 3

  @property
  def is_timed(self) -> bool:
    return self.name == "walltime"

  def weights(self, study: Study, point: Point) -> list[float]:
    """Returns the cost of one call of each neural drafter of a study."""
    verifier, asked = study.pair.verifier.lm, self.costs
    lms = [model.lm for model in study.pair.drafters]
    if asked == "parameters":
      leaves = [jax.tree.leaves(lm) for lm in (*lms, verifier)]
      *sizes, whole = [sum(leaf.size for leaf in each) for each in leaves]
      return [size / whole for size in sizes]
    if asked == "measured":
      timed = dataclasses.replace(study, measuring=Measuring(num_timed=1))
      alone = measure.reference(point)  # no pass is wider than one token
      studies = grid.each_drafter(timed)
      return [measure.measure_costs(each, [alone]).c for each in studies]
    if len(asked) != len(lms):
      raise ValueError(
        f"COSTS is {list(asked)}; wanted 'parameters', 'measured', or"
        f" {len(lms)} number(s), one for each neural drafter"
      )
    return [float(cost) for cost in asked]


@dataclasses.dataclass(frozen=True)
class Contest:
  """What all candidates have in common.

  Attributes:
    study: the pair as it was read, and all examples.
    point: method and sampling.
    criterion: what they are ranked by.
    weights: cost of a call of each neural drafter.
  """

  study: Study
  point: Point
  criterion: Criterion
  weights: tuple[float, ...] = ()

  def study_of(self, cascade: Cascade, num: int) -> Study:
    """Returns the study of a candidate on the first `num` examples."""
    sources, repeats = self.study.sources, self.criterion.repeats
    num_timed = num * self.criterion.is_timed
    measuring = Measuring((), num_timed, repeats, agreement=False)
    return dataclasses.replace(
      self.study,
      pair=self.study.pair.combined(
        cascade, self.point.spec, sources.vocabulary_sha256
      ),
      sources=dataclasses.replace(sources, examples=sources.examples[:num]),
      measuring=measuring,
    )

  def measure(self, cascade: Cascade, num: int, ledger: Ledger) -> Scored:
    """Decodes `num` examples with a candidate, unless its row stands."""
    study = self.study_of(cascade, num)
    point = advice_files.resolved(self.point, study.pair)
    (row,) = clock.measure_points([StudyPoint(study, point)], ledger)
    return self.scored(cascade, row)

  def scored(self, cascade: Cascade, row: results.ResultRow) -> Scored:
    """Returns a candidate with what its row says."""
    lms = [model.lm for model in self.study.pair.drafters]
    drafter = self.study_of(cascade, 1).pair.composed
    calls = cascades.calls_by_drafter(drafter, row.counts.calls_by_model, lms)
    names = ["verifier", *(f"drafter {i}" for i in range(len(lms)))]
    improvement = swi.swi(
      row.counts.num_tokens,
      dict(zip(names, [row.counts.verifier_calls, *calls])),
      dict(zip(names, [1.0, *self.weights])),
    )
    value = row.measured_speedup if self.criterion.is_timed else improvement
    return Scored(cascade, row, tuple(calls), improvement, value)
