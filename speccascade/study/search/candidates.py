"""The candidates of a search, what is expected of them, and its rounds.

Every search proposes candidates and measures them, round after
round: what is proposed follows from what was measured; see `run_rounds`. A
sweep and the search for cascades measure whole rows. Advice predicts most of
its figures, and measures the rest.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import NamedTuple, Self, TypeVar

import numpy as np

from speccascade.generate.batches import decode_counts
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import PointSettings
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.papers.blocks import ExpectedBlocks, chain
from speccascade.study.report import tables
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.rows.results import ResultRow
from speccascade.study.search.effort import Budget, Steps
from speccascade.tasks.inputs import Inputs

DRAFTER = "drafter"
# The lower end of a speed-up from which on a point pays. Of two equal programs
# one was measured to be 1.05 [1.01, 1.08] times as fast.
LEAST_SPEEDUP = 1.05
_Candidate = TypeVar("_Candidate")


@dataclasses.dataclass(frozen=True)
class Expected:
  """What blocks of one shape are expected to yield, by acceptance and costs.

  Attributes:
    gamma: drafted levels of a block; 0 where a model decodes alone.
    tokens: tokens that a block writes.
    steps: cost of a block, in steps of the verifier.
    by_position: the chance that the 1st, 2nd, ... draft of a block is accepted
      if it is examined; None where no block examines it.
    latency: of whole decodes, encoders included, against the verifier alone;
      None for trees, of which the passes alone are compared.
  """

  gamma: int
  tokens: float
  steps: float
  by_position: Sequence[float | None]
  latency: Latency | None = None

  @classmethod
  def of(
    cls,
    gamma: int,
    of_texts: ExpectedBlocks,
    lengths: np.ndarray,
    steps: float,
    latency: Latency | None = None,
  ) -> Self:
    """Returns what is expected of blocks that write texts.

    Args:
      gamma: drafted levels of a block.
      of_texts: the blocks of N texts.
      lengths: [N], the tokens of the texts.
      steps: cost of a block, in steps of the verifier.
      latency: of whole decodes, or None.
    """
    accepted, examined = of_texts.accepted.sum(0), of_texts.examined.sum(0)
    shares = [
      decode_counts.ratio(float(part), float(whole))
      for part, whole in zip(accepted, examined)
    ]
    tokens = float(np.asarray(lengths).sum() / of_texts.num.sum())
    return cls(gamma, tokens, steps, tuple(shares), latency)

  def stretched(self, ratio: float) -> Self:
    """Returns what is expected of answers that are `ratio` times as long.

    The blocks are as they are, and there are more of them.
    """
    if self.latency is None:
      return self
    times = {
      name: ratio * getattr(self.latency, name)
      for name in ("relative_latency", "relative_low", "relative_high")
    }
    replicates = tuple(ratio * x for x in self.latency.replicates)
    latency = dataclasses.replace(self.latency, **times, replicates=replicates)
    return dataclasses.replace(self, latency=latency)

  @property
  def speedup(self) -> float:
    """How many times as fast as the verifier alone it is with an answer."""
    if self.latency is None:
      return self.tokens / self.steps
    return 1 / self.latency.relative_latency


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """A method with its settings, in a study, and what is known of it.

  Attributes:
    study: the models, the examples, and how the examples are decoded.
    point: the method with its alpha, and its gamma or its tree.
    here: what is expected on this machine; None where nothing is expected.
    one_step: what is expected where a block costs one step, at the gamma that
      is best there; None for trees.
    optimum: the acceptance at the first place of a block, as a share of the
      largest that any exact verification reaches with drafts drawn so; None
      where it was not worked out.
    row: quality and counts; None until the point was decoded.
    measured: the measured latency; None until the point was timed.
  """

  study: Study
  point: Point
  here: Expected | None = None
  one_step: Expected | None = None
  optimum: float | None = None
  row: ResultRow | None = None
  measured: Latency | None = None

  @property
  def settings(self) -> PointSettings:
    """The settings of the candidate's row; no other row has equal settings."""
    return self.study.settings(self.point)

  def check(self):
    """Raises ValueError where the study's models cannot decode the point."""
    self.study.batches(self.point).check()

  @property
  def method(self) -> tuple[str, str]:
    """The names of the drafter and of the method."""
    return self.study.pair.drafter_name, self.point.method

  @property
  def key(self) -> tuple[str, str, object]:
    """The drafter, the method and its alpha, whatever the block."""
    return *self.method, self.point.alpha

  @property
  def relative_length(self) -> IntervalEstimate | None:
    """How long its answers are relative to the verifier's; None if not known.

    Only a point that was decoded has answers of its own.
    """
    return self.row and tables.relative_length(self.row)

  @property
  def parents(self) -> tuple[int, ...]:
    """The drafts of a block, level by level; -1 is the root."""
    if self.point.is_tree:
      return self.point.draft_tree.parents
    return chain(self.point.gamma)

  @property
  def pays(self) -> bool:
    """Whether the whole interval of its measured speed-up is high enough."""
    if self.measured is None:
      return False
    return 1 / self.measured.relative_high > LEAST_SPEEDUP


def read_study(
  pair: PairSpec, inputs: Inputs, run: Run, measuring: Measuring
) -> Study:
  """Returns the study of all examples, which are padded and timed alike.

  Args:
    pair: the models.
    inputs: the examples.
    run: how examples are decoded.
    measuring: what is measured of them.

  Raises:
    ValueError: a model or an input does not fit, or tokens are to be masked.
  """
  if run.masks:
    names = " and ".join(name.upper() for name in run.masks)
    raise ValueError(
      f"{names} would mask tokens, and what is accepted is measured of the"
      " models as they are: leave it out here, and set it where you decode"
    )
  sources = inputs.read(pair.vocabulary_path).fit_padding()
  session = Session(
    pair.load(sources.vocabulary),
    sources,
    dataclasses.replace(run, num_lengths=1),
  )
  return Study(
    session, dataclasses.replace(measuring, num_timed=len(sources.examples))
  )


def each_drafter(study: Study) -> list[Study]:
  """Returns a study of each drafter alone with the verifier, largest first."""
  return [
    study.with_session(
      pair=dataclasses.replace(study.pair, drafters=(drafter,))
    )
    for drafter in study.pair.drafters
  ]


def by_clock(candidate: Candidate) -> float:
  """Returns the relative latency of a timed candidate."""
  return candidate.measured.relative_latency


def by_promise(candidate: Candidate) -> float:
  """Returns the speed-up that is expected of a candidate."""
  return candidate.here.speedup


class Loss(NamedTuple):
  """How much less a point has of the first metric than the verifier alone.

  Attributes:
    value: the difference.
    low: the lower end of its 95% interval.
    high: the upper end.
  """

  value: float
  low: float
  high: float


def loss(row: ResultRow, alone: ResultRow) -> Loss:
  """Returns how much less a row has of the first metric than the verifier.

  Args:
    row: the row of a point, with quality.
    alone: the row of the verifier alone on the same examples.
  """
  (mine, *_), (large, *_) = row.quality.values(), alone.quality.values()
  # Replicates of both rows are resampled from the same examples, so they are
  # compared in pairs.
  differences = np.subtract(large["replicates"], mine["replicates"])
  low, high = np.quantile(differences, [0.025, 0.975])
  return Loss(large["value"] - mine["value"], float(low), float(high))


def time_in_turns(
  candidates: Sequence[Candidate], steps: Steps, name: str
) -> list[Candidate]:
  """Returns candidates of one study with their latency, timed in turns.

  Args:
    candidates: one candidate or more.
    steps: the steps of the search, of which this timing is one. It ends after
      the repeat in which its part of the time is used up.
    name: the name of the step.

  Raises:
    TimeIsUp: the time was over before all programs were compiled.
  """
  with steps.step(name):
    latencies = point_timing.time_points(
      candidates[0].study,
      [candidate.point for candidate in candidates],
      tick=steps.budget.tick_of(name),
      is_over=steps.budget.is_spent,
    )
  return [
    dataclasses.replace(candidate, measured=latencies[candidate.point])
    for candidate in candidates
  ]


def run_rounds(
  propose: Callable[[Sequence[_Candidate]], Sequence[_Candidate]],
  measure: Callable[[Sequence[_Candidate]], Sequence[_Candidate]],
  budget: Budget,
  rounds: str,
  *,
  needs_one: bool = False,
) -> list[_Candidate]:
  """Measures what is proposed, round after round; returns what was measured.

  Args:
    propose: returns the candidates of the next round, given all that were
      measured; none ends the search.
    measure: returns the measured candidates of a round.
    budget: the time that the search may take. No round begins after it.
    rounds: the name of the rounds, for what is said of those left out.
    needs_one: whether the first round may begin after the share of this part
      of the search, if there is time left at all.
  """
  measured: list[_Candidate] = []
  while candidates := propose(measured):
    if budget.leaves_out(rounds, is_needed=needs_one and not measured):
      break
    measured += measure(candidates)
  return measured
