"""What the rows show: which point is fastest, how surely, and what else.

Table 2 interpolates between the alphas that were measured, and nobody can
decode with an interpolated alpha. So the report claims the speed of measured
points alone: their settings can be pasted into a config. A point is called
faster than another point only where the whole 95% interval of the ratio of the
two latencies, taken in pairs, is on one side of 1.

The sentences are in `sentences.txt`, each whole.
"""

from collections.abc import Sequence
import dataclasses
import itertools

from speccascade.inference.rows.results import Settings
from speccascade.report import frontier, templates
from speccascade.report.comparisons import is_fast, overall_frontier, speedups
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import PointGroup, group_by
from speccascade.report.measured import (
  MEASURED,
  REFERENCE,
  SMALL,
  Clock,
  Measured,
  temperature_title,
)
from speccascade.report.point_tables import Slowdown

PLAIN = "spec_decode"


@dataclasses.dataclass(frozen=True, eq=False)
class Contender:
  """A measured point that is as good as the large model.

  Attributes:
    point: the measured point.
    speedup: the large model's latency over the point's latency.
    gain: the point's quality minus the large model's quality.
  """

  point: Measured
  speedup: IntervalEstimate
  gain: IntervalEstimate

  @property
  def is_plain(self) -> bool:
    """Whether this is a point of `spec_decode`."""
    return self.point.method == PLAIN

  @property
  def name(self) -> str:
    """The method as one types it, with its alpha."""
    return PointGroup([self.point]).typed


def candidates(panel: PointGroup, clock: Clock) -> list[Contender]:
  """Returns the points that are as good as the large model, fastest first.

  A point is as good if it follows the large model's distribution, or if its
  measured quality is no lower than the large model's. Equally fast points stay
  in the order in which they were measured.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.

  Returns:
    The candidates; none where the large model has no latency.
  """
  large = panel.large
  if large is None or not clock.select_timed([large]):
    return []
  # A candidate's gain is taken in pairs: both have the same resamples.
  large_points = clock.points([large])
  fits = []
  for point in clock.select_timed(panel.points):
    if point.method in (REFERENCE, SMALL) or not is_fast(point.method):
      continue
    is_as_good = point.quality.value >= large.quality.value
    if not point.has_large_distribution and not is_as_good:
      continue
    speedup = frontier.inverse(clock.latency_of(point))
    gain = frontier.estimate(_gain, clock.points([point]), large_points)
    fits.append(Contender(point, speedup, gain))
  return sorted(fits, key=lambda candidate: -candidate.speedup.value)


def times_as_fast(
  first: Contender, second: Contender, clock: Clock
) -> IntervalEstimate:
  """Returns the second candidate's latency over the first's, in pairs.

  Args:
    first: the candidate whose speed is asked for.
    second: the candidate to compare with.
    clock: the definition of latency.
  """
  return frontier.estimate(
    _latency_ratio, clock.points([second.point]), clock.points([first.point])
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Lead:
  """What is known about the fastest points at the large model's quality.

  Attributes:
    case: what the intervals tell apart: a case of `claim` in sentences.txt.
    metric: the name of the quality.
    large: the quality of the large model.
    candidate: the point that the claim names; None where no point is as good as
      the large model.
    plain: the fastest point of `spec_decode`, or None.
    ratio: how many times as fast as `plain` the point is, in pairs; None where
      the point is not surely faster.
    num_others: how many other methods are as good as the large model.
    num_alike: how many of these the point is not surely faster than.
  """

  case: str
  metric: str
  large: IntervalEstimate
  candidate: Contender | None = None
  plain: Contender | None = None
  ratio: IntervalEstimate | None = None
  num_others: int = 0
  num_alike: int = 0

  @property
  def claim(self) -> str:
    """What the intervals tell apart, in a line."""
    return templates.sentence("claim", self, self.candidate, self.plain)

  @property
  def details(self) -> str:
    """The point's quality, and how many methods may be as fast, in words."""
    if self.candidate is None:
      return ""
    return templates.sentence("details", self, self.candidate)

  @property
  def settings(self) -> str:
    """The settings of the point, as a config takes them."""
    return bindings(self.candidate.point.settings) if self.candidate else ""

  def __str__(self) -> str:
    parts = (self.claim, self.details, self.settings)
    return "; ".join(filter(None, parts))


def lead_of(panel: PointGroup, clock: Clock) -> Lead | None:
  """Returns what is known about the fastest points as good as the large model.

  The point that is named is the fastest one that is surely faster than
  `spec_decode` and than the large model. Without such a point it is the
  fastest.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.

  Returns:
    The lead; None where the large model has no latency.
  """
  large = panel.large
  if large is None or not clock.select_timed([large]):
    return None
  fits = candidates(panel, clock)
  # Candidates are sorted, so this is the fastest point of `spec_decode`.
  plain = next((candidate for candidate in fits if candidate.is_plain), None)
  faster = [each for each in fits if is_surely_above_one(each.speedup)]
  known = {"metric": panel.metric, "large": large.quality, "plain": plain}
  if not fits:
    return Lead("none", **known)
  if clock.cost_ratio is not None:
    return Lead("modelled", candidate=fits[0], **known)
  # A faster point than the one whose lead is sure may scatter.
  for candidate in faster if plain else ():
    ratio = times_as_fast(candidate, plain, clock)
    if not candidate.is_plain and is_surely_above_one(ratio):
      others = _fastest_of_others(candidate, fits)
      alike = [
        each
        for each in others
        if not is_surely_above_one(times_as_fast(candidate, each, clock))
      ]
      return Lead(
        "faster than both",
        candidate=candidate,
        ratio=ratio,
        num_others=len(others),
        num_alike=len(alike),
        **known,
      )
  if faster:
    return Lead("faster", candidate=faster[0], **known)
  case = "slower" if fits[0].speedup.bounds[1] < 1 else "not shown"
  return Lead(case, candidate=fits[0], **known)


def _fastest_of_others(
  winner: Contender, fits: Sequence[Contender]
) -> list[Contender]:
  """Returns the fastest candidate of each method but the winner's."""
  fastest = {}
  # Candidates are sorted: the first of a method is its fastest.
  for candidate in fits:
    fastest.setdefault(candidate.point.method, candidate)
  del fastest[winner.point.method]
  return list(fastest.values())


def is_surely_above_one(ratio: IntervalEstimate) -> bool:
  """Returns whether a ratio has an interval, all of which is above 1."""
  return ratio.has_interval and ratio.low > 1


def bindings(settings: Settings) -> str:
  """Returns the settings of a point as the config of a decode takes them.

  Settings that have the default of `configs/runs/method.gin` are left out.
  """
  values = {
    "METHOD": settings.method,
    "ALPHA": settings.alpha,
    "GAMMA": settings.gamma,
  }
  for name, value in settings.block_changes.items():
    values[name.upper()] = value
  return ", ".join(
    f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
    for name, value in values.items()
    if value is not None
  )


def _gain(point: Points, large: Points) -> float:
  return float(point.quality[0] - large.quality[0])


def _latency_ratio(first: Points, second: Points) -> float:
  return float(first.latency[0] / second.latency[0])


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
  """What one temperature shows.

  Attributes:
    title: the title of the temperature.
    sentences: what the models and the methods do there.
  """

  title: str
  sentences: Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class TitledLead:
  """What the intervals tell apart at one temperature.

  Attributes:
    title: the title of the temperature.
    lead: the line, the point that it names, and the point's settings.
  """

  title: str
  lead: Lead

  def __str__(self) -> str:
    return f"{self.title}: {self.lead.claim}."


def leads(study: PointGroup, clocks: Sequence[Clock]) -> list[TitledLead]:
  """Returns what a report says first: a line for each temperature.

  The lines are by the first clock that the large model has a latency by, and
  the temperature of samples comes first.

  Args:
    study: all points of a pair.
    clocks: the definitions of latency, the preferred one first.
  """
  for clock in clocks:
    several = [
      TitledLead(panel.title, lead)
      for panel in reversed(study.panels)
      if (lead := lead_of(panel, clock))
    ]
    if several:
      return several
  return []


def untimed(study: PointGroup, clocks: Sequence[Clock]) -> str:
  """Returns a line for rows that were not timed; empty where one was."""
  if MEASURED.select_timed(study.points):
    return ""
  return templates.sentence("untimed", clocks[-1].cost_ratio)


def findings(study: PointGroup, clocks: Sequence[Clock]) -> list[Finding]:
  """Returns what each temperature of a study shows.

  Args:
    study: all points of a pair.
    clocks: the definitions of latency.
  """
  return [
    Finding(
      panel.title,
      [
        *_on_models(panel),
        *(x for clock in clocks for x in _on_methods(panel, clock)),
      ],
    )
    for panel in study.panels
  ]


def doubts(study: PointGroup) -> list[str]:
  """Returns why a pair has little to gain, and what to do about it.

  Returns:
    A sentence on the temperatures at which the small model is the better one,
    and a sentence on the temperatures at which the examples do not tell the two
    models apart. The list is empty for a good pair.
  """
  by_kind = {}  # whether the small model is surely better -> facts
  for panel in study.panels:
    small, large = panel.first(SMALL), panel.large
    if not small or not large:
      continue
    # Twice the mean of s and -l is the difference s - l, in pairs.
    samples = [small.quality_sample, -large.quality_sample]
    gap = frontier.sample_estimate(2 * frontier.mean(samples))
    least, greatest = gap.bounds
    if greatest >= 0:
      facts = panel.title, panel.metric, small.quality, large.quality, gap
      by_kind.setdefault(least > 0, []).append(facts)
  return [
    templates.sentence("doubts", facts, is_better)
    for is_better, facts in by_kind.items()
  ]


def _on_models(panel: PointGroup) -> list[str]:
  """Returns the quality of the two models, and how alike spec_decode writes."""
  doubts_of_c = [row.costs and row.costs.doubt for row in panel.rows]
  plain, agreement = panel.first(PLAIN), None
  if plain and panel.settings.temperature == 0:
    agreement = plain.rows[0].agreement
  return templates.sentences(
    "models",
    panel.metric,
    panel.first(SMALL),
    panel.large,
    next(filter(None, doubts_of_c), None),
    agreement,
  )


def _on_methods(panel: PointGroup, clock: Clock) -> list[str]:
  """Returns the lead, how many methods lack the quality, and the frontier."""
  lines = speedups(panel, clock)
  best = []
  for method, group in itertools.groupby(
    overall_frontier(panel, clock), lambda each: each.point.method
  ):
    # Neighbouring points of a method are named by the first and the last.
    ends = [f"{x.quality.value:.1f} at {1 / each:.2f}" for x, each in group]
    best.append((method, ends[0], ends[-1]))
  return templates.sentences(
    "methods",
    panel.metric,
    clock,
    lead_of(panel, clock),
    sum(line.speedup.value == 0 for line in lines),
    len(lines),
    best,
  )


def notices(lines: Sequence[Slowdown]) -> list[str]:
  """Returns a sentence for each temperature and gamma that loses.

  Args:
    lines: the slow methods of a study, see `point_tables.slowdowns`.
  """
  return [_notice(group) for group in group_by(lines, ["temperature", "gamma"])]


def _notice(lines: Sequence[Slowdown]) -> str:
  """Returns which methods of one temperature and gamma are slow, and why."""
  # spec_decode is explained where it is slow, as it is the best known.
  plain = [line for line in lines if line.settings.method == PLAIN]
  line = (plain or lines)[0]
  title = temperature_title(line.settings.temperature)
  return templates.sentence("notice", title, line, len(lines) - 1)
