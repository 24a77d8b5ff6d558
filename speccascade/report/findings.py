"""What the rows show, and where speculation loses.

The sentences are in `sentences.txt`, each whole.
"""

from collections.abc import Sequence
import dataclasses
import itertools

from speccascade.report import frontier, templates, winners
from speccascade.report.groups import PointGroup, group_by
from speccascade.report.measured import (
  MEASURED,
  SMALL,
  Clock,
  temperature_title,
)
from speccascade.report.slowdowns import Slowdown
from speccascade.report.summaries import overall_frontier, speedups
from speccascade.report.winners import Lead


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
      if (lead := winners.lead(panel, clock))
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
  plain, agreement = panel.first(winners.PLAIN), None
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
    winners.lead(panel, clock),
    sum(line.speedup.value == 0 for line in lines),
    len(lines),
    best,
  )


def notices(lines: Sequence[Slowdown]) -> list[str]:
  """Returns a sentence for each temperature and gamma that loses.

  Args:
    lines: the slow methods of a study, see `slowdowns.slowdowns`.
  """
  return [_notice(group) for group in group_by(lines, ["temperature", "gamma"])]


def _notice(lines: Sequence[Slowdown]) -> str:
  """Returns which methods of one temperature and gamma are slow, and why."""
  # spec_decode is explained where it is slow, as it is the best known.
  plain = [line for line in lines if line.settings.method == winners.PLAIN]
  line = (plain or lines)[0]
  title = temperature_title(line.settings.temperature)
  return templates.sentence("notice", title, line, len(lines) - 1)
