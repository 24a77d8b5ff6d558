"""What a search for advice found: `Advice`."""

import dataclasses

from speccascade.generate.points.point import Point
from speccascade.study.measuring.study import Study
from speccascade.study.rows.results import ResultRow
from speccascade.study.search.candidates import Candidate, by_clock
from speccascade.study.search.draft_vocabularies import Cut
from speccascade.study.search.early_exits import EarlyExits
from speccascade.study.search.offers import Drafting
from speccascade.study.search.wanted import LOSSLESS, Wanted


@dataclasses.dataclass(frozen=True, eq=False)
class TriedCut:
  """A drafter with a cut head, and what it promises of a lossless method.

  Attributes:
    cut: the drafter.
    c: what a step of it costs, in steps of the verifier.
    whole_c: what a step of the drafter with its whole head costs.
    offer: the best gamma, with the expected speed-up.
    whole: the drafter's offer with its whole head.
  """

  cut: Cut
  c: float
  whole_c: float
  offer: Candidate
  whole: Candidate


@dataclasses.dataclass(frozen=True, eq=False)
class TriedExit:
  """An early exit of the verifier, and what it promises of a lossless method.

  Attributes:
    c: what a step of it costs, in steps of the verifier.
    offer: the best gamma, with the expected speed-up.
  """

  c: float
  offer: Candidate

  @property
  def setting(self) -> str:
    """What DRAFTER_CHECKPOINT is set to for it."""
    return self.offer.study.pair.drafters[0].setting


@dataclasses.dataclass(eq=False)
class Advice:
  """What a search found. It grows during the search.

  Attributes:
    study: the study of the first drafter with the verifier.
    point: the lossless method, at the sampling that is asked about.
    wanted: what the user asked.
    num_drafters: how many drafters are in question, early exits of the verifier
      among them.
    exits: the early exits that are in question.
    alone: the row of the verifier alone; None until it was decoded.
    timed: the timed candidates: the lossless candidate of each drafter, and the
      one that fits what is wanted and promises more, if there is one.
    offers: all candidates in question, each at its best gamma.
    decoded: the candidates whose quality is known, in the order of decoding.
    draftings: the drafters and what they cost.
    tried_exits: the early exits that were tried, with what they promise.
    tried: the draft vocabularies of the drafters, with what they promise.
    certified: the share of positions whose first draft is certainly accepted,
      by the key of a candidate, as far as it has certificates; see `certified`.
    warnings: why the answer may be wrong and what to do; often empty.
  """

  study: Study
  point: Point
  wanted: Wanted
  num_drafters: int = 1
  exits: EarlyExits = dataclasses.field(default_factory=EarlyExits)
  alone: ResultRow | None = None
  timed: list[Candidate] = dataclasses.field(default_factory=list)
  offers: list[Candidate] = dataclasses.field(default_factory=list)
  decoded: list[Candidate] = dataclasses.field(default_factory=list)
  draftings: list[Drafting] = dataclasses.field(default_factory=list)
  tried_exits: list[TriedExit] = dataclasses.field(default_factory=list)
  tried: list[TriedCut] = dataclasses.field(default_factory=list)
  certified: dict[tuple, float] = dataclasses.field(default_factory=dict)
  warnings: list[str] = dataclasses.field(default_factory=list)

  @property
  def choice(self) -> Candidate | None:
    """The candidate to use; None where nothing pays, or nothing was timed."""
    paying = [candidate for candidate in self.timed if candidate.pays]
    return min(paying, key=by_clock, default=None)

  @property
  def lossless(self) -> Candidate | None:
    """The fastest timed candidate that has the verifier's distribution."""
    exact = [x for x in self.timed if x.point.method == LOSSLESS]
    return min(exact, key=by_clock, default=None)

  def drafting_of(self, candidate: Candidate) -> Drafting:
    """Returns what the drafter of a candidate costs."""
    (drafting,) = (x for x in self.draftings if x.study is candidate.study)
    return drafting
