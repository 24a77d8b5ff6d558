"""The cascades that a search compares, and how it measures one of them."""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Annotated, Literal

import jax
import numpy as np

from speccascade.decoding.records.language_model import LanguageModel
from speccascade.generate.pair import cascades
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.points import advice_files
from speccascade.generate.points.point import Point
from speccascade.settings import fields
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.papers import swi
from speccascade.study.search.candidates import Candidate, each_drafter
from speccascade.study.search.ledger import Ledger

_NUM_TIMED = 16  # examples that measure the cost of a drafter's token

Lengths = Annotated[
  Sequence[Annotated[int, fields.Bounds(0, 1024)]], fields.NOT_EMPTY
]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Space:
  """The values of K and lenience that are tried; its values are checked.

  Attributes:
    first: tokens that the largest drafter writes in a block.
    following: tokens that each smaller neural drafter adds to a block.
    inner: tokens that a drafter writes when a larger drafter reviews it.
    copied: tokens that Max-Gram adds to a block, 0 for none.
    inner_copied: tokens that Max-Gram adds when a drafter reviews it.
    leniences: the leniences of reviews by a drafter.
  """

  first: Lengths = (1, 2, 3, 5)
  following: Lengths = (0, 2, 4)
  inner: Lengths = (1, 2)
  copied: Lengths = (0, 4, 8)
  inner_copied: Lengths = (3, 6, 10)
  leniences: Annotated[
    Sequence[Annotated[float, fields.Bounds(1)]], fields.NOT_EMPTY
  ] = (1.0, 2.0, 3.0, 5.0)

  def cascades(self, num_neural: int, **settings) -> list[Cascade]:
    """Returns every cascade of the space.

    Args:
      num_neural: the number of neural drafters.
      **settings: other fields of `Cascade`.
    """
    if num_neural == 0:
      return [Cascade(k=((num,),), **settings) for num in self.copied if num]
    axes = itertools.product(
      self.first,
      itertools.product(self.following, repeat=num_neural - 1),
      itertools.product(self.inner, repeat=num_neural - 1),
      self.copied,
      self.inner_copied,
      self.leniences,
    )
    cascades = []
    for first, following, inner, copied, inner_copied, lenience in axes:
      # Rows are levels of review and columns are drafters, Max-Gram last.
      # first 2, following (3,), inner (1,), copied 4 and inner_copied 6 are
      #   2 3 4   the block that the verifier reviews
      #   0 1 6   the small drafter and Max-Gram, when the large one reviews
      #   0 0 6   Max-Gram, when the small drafter reviews
      k = np.diag([first, *inner, inner_copied])
      k[0] = (first, *following, copied)
      k[1:, -1] = inner_copied
      cascades.append(Cascade(k=_rows(k), lenience=lenience, **settings))
    return cascades


def baselines(num_neural: int, **settings) -> list[Cascade]:
  """Returns plain speculative decoding with each drafter, at a few lengths.

  Args:
    num_neural: the number of neural drafters; Max-Gram is one more drafter.
    **settings: other fields of `Cascade`.
  """
  cascades = []
  for drafter, width in itertools.product(range(num_neural + 1), (3, 5, 8)):
    k = np.zeros((num_neural + 1, num_neural + 1), int)
    k[0, drafter] = width
    cascades.append(Cascade(k=_rows(k), **settings))
  return cascades


def _rows(k: np.ndarray) -> tuple[tuple[int, ...], ...]:
  """Returns the rows of a matrix as tuples, as `Cascade` takes them."""
  return tuple(tuple(row) for row in k.tolist())


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CascadeCandidate(Candidate):
  """A candidate that a cascade drafts for, in one round of a search.

  Its study is that of the pair as it was read. `Contest.study_of` combines the
  drafters where they are needed, so that the tables of one cascade at a time
  are in memory.

  Attributes:
    cascade: how the drafters are combined.
    num_examples: the number of examples of the round, the first ones.
    calls: the number of calls of each neural drafter, largest drafter first;
      empty until the candidate was measured, as the next two are None.
    swi: standardized walltime improvement.
    value: the number by which candidates are ranked; larger is better.
  """

  cascade: Cascade
  num_examples: int
  calls: tuple[int, ...] = ()
  swi: float | None = None
  value: float | None = None


@fields.checked
@dataclasses.dataclass(frozen=True)
class Candidates:
  """The cascades that are compared; its values are checked.

  Attributes:
    cascades: cascades that are compared on all examples, in one round. The
      space and the rounds are then not used. None takes cascades of the space.
    space: the values of K and lenience that are tried.
    num_candidates: how many cascades of the space are tried; they are drawn by
      the run's seed. None tries all of them. Plain speculative decoding with
      each drafter is always tried too.
    bigrams: the path of Max-Gram's table, or None.
  """

  cascades: Annotated[Sequence[Cascade], fields.NOT_EMPTY] | None = None
  space: Space = Space()
  num_candidates: fields.Positive | None = 27
  bigrams: fields.Path | None = None

  def all(self, num_neural: int, seed: int) -> list[Cascade]:
    """Returns the cascades that are compared.

    Args:
      num_neural: the number of neural drafters.
      seed: draws the cascades of the space.
    """
    if self.cascades is not None:
      return list(self.cascades)
    cascades = self.space.cascades(num_neural, bigrams=self.bigrams)
    num = self.num_candidates
    if num is not None and num < len(cascades):
      rng = np.random.default_rng(seed)
      drawn = rng.choice(len(cascades), num, replace=False)
      cascades = [cascades[i] for i in sorted(drawn)]
    return [*baselines(num_neural, bigrams=self.bigrams), *cascades]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Criterion:
  """What makes one cascade better than another; its values are checked.

  Attributes:
    name: "swi" ranks by calls, weighed by `costs`; "walltime" ranks by seconds
      at batch 1, timed in turns with the verifier.
    costs: the cost of one call of each neural drafter, where a call of the
      verifier costs 1. "parameters" takes the ratios of the numbers of
      parameters, and "measured" times the models.
    repeats: how often each candidate is timed.
  """

  name: Literal["swi", "walltime"] = "swi"
  costs: (
    Literal["parameters", "measured"]
    | Sequence[Annotated[float, fields.Bounds(0)]]
  ) = "parameters"
  repeats: fields.Size = 3

  @property
  def is_timed(self) -> bool:
    """Whether candidates are ranked by seconds."""
    return self.name == "walltime"

  def weights(self, study: Study, point: Point) -> list[float]:
    """Returns the cost of one call of each neural drafter.

    Args:
      study: the pair as it was read, and the examples.
      point: the method and the sampling.

    Raises:
      ValueError: there are more or fewer costs than drafters.
    """
    drafters = study.pair.drafters
    if self.costs == "parameters":
      whole = _num_parameters(study.pair.verifier.lm)
      return [_num_parameters(drafter.lm) / whole for drafter in drafters]
    if self.costs == "measured":
      timed = dataclasses.replace(
        study, measuring=Measuring(num_timed=_NUM_TIMED, repeats=1)
      )
      alone = point_timing.reference(point)  # no pass is wider than one token
      return [
        point_timing.check_costs(
          drafter_study,
          alone,
          point_timing.measure_costs(drafter_study, [alone]),
        ).c
        for drafter_study in each_drafter(timed)
      ]
    if len(self.costs) != len(drafters):
      raise ValueError(
        f"COSTS is {list(self.costs)}; wanted 'parameters', 'measured', or"
        f" {len(drafters)} number(s), one for each neural drafter"
      )
    return [float(cost) for cost in self.costs]


def _num_parameters(lm: LanguageModel) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(lm))


@dataclasses.dataclass(frozen=True)
class Contest:
  """What all candidates of a search have in common.

  Attributes:
    study: the pair as it was read, and all examples.
    point: the method and the sampling.
    criterion: what makes one candidate better than another.
    weights: the cost of a call of each neural drafter.
  """

  study: Study
  point: Point
  criterion: Criterion
  weights: tuple[float, ...] = ()

  def candidate(self, cascade: Cascade, num: int) -> CascadeCandidate:
    """Returns a candidate of the round that has the first `num` examples."""
    return CascadeCandidate(
      self.study, self.point, cascade=cascade, num_examples=num
    )

  def study_of(self, candidate: CascadeCandidate) -> Study:
    """Returns the study that measures a candidate.

    Raises:
      ValueError: the cascade does not fit the pair.
    """
    num = candidate.num_examples
    sources = self.study.sources
    measuring = Measuring(
      metrics=(),
      num_timed=num if self.criterion.is_timed else 0,
      repeats=self.criterion.repeats,
      agreement=False,
    )
    return dataclasses.replace(self.study, measuring=measuring).with_session(
      pair=self.study.pair.combine_drafters(
        candidate.cascade, self.point.spec, sources.vocabulary_sha256
      ),
      sources=dataclasses.replace(sources, examples=sources.examples[:num]),
    )

  def measure(
    self, candidate: CascadeCandidate, ledger: Ledger
  ) -> CascadeCandidate:
    """Returns a candidate with its row and its score.

    Its examples are decoded unless the ledger has the row.
    """
    study = self.study_of(candidate)
    point = advice_files.resolve_gamma(self.point, study.pair)
    (measured,) = ledger.measure([Candidate(study, point)])
    return self.score(dataclasses.replace(candidate, row=measured.row))

  def score(self, candidate: CascadeCandidate) -> CascadeCandidate:
    """Returns a candidate that has a row with the score that its row gives."""
    row = candidate.row
    lms = [model.lm for model in self.study.pair.drafters]
    drafter = self.study_of(candidate).pair.composed
    calls = cascades.calls_by_drafter(drafter, row.counts.calls_by_model, lms)
    names = ["verifier", *(f"drafter {i}" for i in range(len(lms)))]
    improvement = swi.swi(
      row.counts.num_tokens,
      dict(zip(names, [row.counts.verifier_calls, *calls])),
      dict(zip(names, [1.0, *self.weights])),
    )
    value = improvement
    if self.criterion.is_timed:
      value = row.measured_speedup
    return dataclasses.replace(
      candidate, calls=tuple(calls), swi=improvement, value=value
    )
