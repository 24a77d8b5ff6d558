"""What the rows show: which point is fastest, how surely, and what else.

Table 2 interpolates between the alphas that were measured, but an
interpolated alpha cannot be decoded with. So the report claims the speed of
measured points alone: their settings can be pasted into a config. A point is
called faster than another point only where the whole 95% interval of the ratio
of the two latencies, taken in pairs, is on one side of 1.

The sentences are in `sentences.txt`, each whole.
"""

from collections.abc import Sequence
import dataclasses
import itertools

from speccascade.generate.points.alpha_phases import PhaseSettings
from speccascade.generate.points.point_settings import PointSettings
from speccascade.settings.fields import values_of
from speccascade.study.report import templates
from speccascade.study.report.comparisons import (
  PLAIN,
  competes,
  overall_frontier,
  speedups,
)
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.groups import (
  MeasuredPanel,
  MeasuredStudy,
  group_by,
)
from speccascade.study.report.measured import (
  SMALL,
  Clock,
  Measured,
  temperature_title,
)
from speccascade.study.report.point_tables import Slowdown, slowdowns

# The fastest points as good as the large model.


def candidates(panel: MeasuredPanel) -> list[Measured]:
  """Returns the points that are as good as the large model, fastest first.

  A point is as good if it follows the large model's distribution, or if its
  measured quality is no lower than the large model's. Equally fast points stay
  in the order in which they were measured.

  Returns:
    The candidates; none where the large model has no latency.
  """
  large = panel.timed_large
  if large is None:
    return []
  fits = [
    point
    for point in panel.points
    if point.is_timed
    and competes(point.method)
    and (
      point.has_large_distribution or point.quality.value >= large.quality.value
    )
  ]
  return sorted(fits, key=lambda point: -point.speed.value)


@dataclasses.dataclass(frozen=True, eq=False)
class Lead:
  """What is known about the fastest points at the large model's quality.

  Attributes:
    case: which differences are significant: a case of `claim` in sentences.txt.
    panel: the points of one temperature, that of the large model among them.
    named: the point that the claim names; None where no point is as good as the
      large model.
    plain: the fastest point of `spec_decode`, or None.
    ratio: how many times as fast as `plain` the point is, in pairs; None where
      the point is not surely faster.
    num_others: how many other methods are as good as the large model.
    num_alike: how many of these the point is not surely faster than.
  """

  case: str
  panel: MeasuredPanel
  named: Measured | None = None
  plain: Measured | None = None
  ratio: IntervalEstimate | None = None
  num_others: int = 0
  num_alike: int = 0

  @property
  def claim(self) -> str:
    """Which differences are significant, in a line."""
    return templates.sentence("claim", self, self.named, self.plain)

  @property
  def sentence(self) -> str:
    """The claim as a report begins with it, after its temperature."""
    return f"{self.panel.title}: {self.claim}."

  @property
  def details(self) -> str:
    """The point's quality, and how many methods may be as fast, in words."""
    if self.named is None:
      return ""
    large = self.panel.large
    gain = self.named.quality_gap(large)
    return templates.sentence("details", self, self.named, large, gain)

  @property
  def settings(self) -> str:
    """The settings of the point, as a config takes them."""
    return bindings(self.named.settings) if self.named else ""

  def __str__(self) -> str:
    parts = (self.claim, self.details, self.settings)
    return "; ".join(filter(None, parts))


def lead_of(panel: MeasuredPanel) -> Lead | None:
  """Returns what is known about the fastest points as good as the large model.

  The point that is named is the fastest one that is surely faster than
  `spec_decode` and than the large model. Without such a point it is the
  fastest.

  Returns:
    The lead; None where the large model has no latency.
  """
  if panel.timed_large is None:
    return None
  fits = candidates(panel)
  if not fits:
    return Lead("none", panel)
  # Candidates are sorted: the first of a method is its fastest.
  plain = next((point for point in fits if point.method == PLAIN), None)
  if panel.clock.cost_ratio is not None:
    return Lead("modelled", panel, fits[0], plain)
  faster = [point for point in fits if point.speed.is_above(1)]
  # A faster point than the one whose lead is sure may scatter.
  for point in faster if plain else ():
    ratio = point.times_as_fast(plain)
    if point.method != PLAIN and ratio.is_above(1):
      others = {each.method: each for each in reversed(fits)}
      del others[point.method]
      alike = [
        each
        for each in others.values()
        if not point.times_as_fast(each).is_above(1)
      ]
      return Lead(
        "faster than both",
        panel,
        point,
        plain,
        ratio,
        num_others=len(others),
        num_alike=len(alike),
      )
  if faster:
    return Lead("faster", panel, faster[0], plain)
  case = "slower" if fits[0].speed.bounds[1] < 1 else "not shown"
  return Lead(case, panel, fits[0], plain)


def bindings(settings: PointSettings) -> str:
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
  if settings.phases is not None:
    for name, default in values_of(PhaseSettings(), PhaseSettings).items():
      value = getattr(settings.phases, name)
      values[name.upper()] = value if value != default else None
  return ", ".join(
    f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
    for name, value in values.items()
    if value is not None
  )


def leads(
  panels: Sequence[MeasuredPanel], clocks: Sequence[Clock]
) -> list[Lead]:
  """Returns what a report says first: a lead for each temperature.

  The leads are by the first clock that the large model has a latency by, and
  the temperature of samples comes first.

  Args:
    clocks: the definitions of latency, the preferred one first.
  """
  for clock in clocks:
    several = [lead_of(panel.by(clock)) for panel in reversed(panels)]
    if any(several):
      return list(filter(None, several))
  return []


# The sentences of a report.


def lengths(panels: Sequence[MeasuredPanel]) -> list[str]:
  """Returns a sentence for each temperature whose answers differ in length."""
  return [
    templates.sentence("lengths", panel, panel.other_lengths)
    for panel in panels
    if panel.other_lengths
  ]


def untimed(study: MeasuredStudy, cost_ratio: float | None) -> str:
  """Returns a line for rows that were not timed; empty where one was."""
  if any(point.is_timed for point in study.points):
    return ""
  return templates.sentence("untimed", cost_ratio)


def findings(
  study: MeasuredStudy, clocks: Sequence[Clock]
) -> dict[str, list[str]]:
  """Returns what the models and methods do at each temperature.

  Args:
    clocks: the definitions of latency.

  Returns:
    Title of the temperature -> sentences.
  """
  return {
    panel.title: [
      *_on_models(panel),
      *lengths([panel]),
      *(x for clock in clocks for x in _on_methods(panel.by(clock))),
    ]
    for panel in study.panels
  }


def doubts(study: MeasuredStudy) -> list[str]:
  """Returns why a pair has little to gain, and what to do about it.

  Returns:
    A sentence on the temperatures at which the small model is the better one,
    and a sentence on the temperatures at which the examples do not distinguish
    the two models apart. The list is empty for a good pair.
  """
  by_kind = {}  # whether the small model is surely better -> facts
  for panel in study.panels:
    small, large = panel.first(SMALL), panel.large
    if not small or not large:
      continue
    gap = small.quality_gap(large)
    least, greatest = gap.bounds
    if greatest >= 0:
      facts = panel.title, panel.metric, small.quality, large.quality, gap
      by_kind.setdefault(least > 0, []).append(facts)
  return [
    templates.sentence("doubts", facts, is_better)
    for is_better, facts in by_kind.items()
  ]


def _on_models(panel: MeasuredPanel) -> list[str]:
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


def _on_methods(panel: MeasuredPanel) -> list[str]:
  """Returns the lead, how many methods lack the quality, and the frontier."""
  lines = speedups(panel)
  best = []
  for method, group in itertools.groupby(
    overall_frontier(panel), lambda point: point.method
  ):
    # Neighbouring points of a method are named by the first and the last.
    ends = [f"{x.quality.value:.1f} at {x.speed.value:.2f}" for x in group]
    best.append((method, ends[0], ends[-1]))
  return templates.sentences(
    "methods",
    panel.metric,
    panel.clock,
    lead_of(panel),
    sum(line.speedup.value == 0 for line in lines),
    len(lines),
    best,
  )


def notices(study: MeasuredStudy) -> list[str]:
  """Returns a sentence for each temperature and gamma that loses."""
  lines = [line for panel in study.panels for line in slowdowns(panel)]
  return [_notice(group) for group in group_by(lines, ["temperature", "gamma"])]


def _notice(lines: Sequence[Slowdown]) -> str:
  """Returns which methods of one temperature and gamma are slow, and why."""
  # spec_decode is explained where it is slow, as it is the best known.
  plain = [line for line in lines if line.settings.method == PLAIN]
  line = (plain or lines)[0]
  title = temperature_title(line.settings.temperature)
  return templates.sentence("notice", title, line, len(lines) - 1)
