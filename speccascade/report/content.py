"""The content of a report: findings, figures and tables of each study."""

from collections.abc import Mapping, Sequence
import dataclasses
import math

from speccascade.inference.rows.results import ResultRow
from speccascade.report import (
  block_figures,
  comparisons,
  figures,
  findings,
  point_tables,
  templates,
)
from speccascade.report.groups import PointGroup, studies
from speccascade.report.measured import (
  MEASURED,
  REFERENCE,
  SMALL,
  Clock,
  modelled_clock,
)
from speccascade.report.plots import Plot
from speccascade.report.tables import Table

_GAMMA = 5  # the gamma of the papers


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
  """The part of a report that is about one study.

  Attributes:
    study: all points of a pair on a task.
    prefix: the beginning of the names of the section's files; empty where the
      report has one section.
    clocks: measured latency, and modelled latency where c is known.
    doubts: sentences on a pair that has little to gain, and what to do.
    leads: what the intervals tell apart, a line for each temperature.
    untimed: a line for rows that were not timed, or nothing.
    findings: title of a temperature -> sentences on what it shows.
    notices: sentences on where speculation loses, and why.
    plots: the figures in order; the first is shown first on the page.
    tables: the tables in order.
  """

  study: PointGroup
  prefix: str
  clocks: tuple[Clock, ...]
  doubts: Sequence[str]
  leads: Sequence[findings.Lead]
  untimed: str
  findings: Mapping[str, Sequence[str]]
  notices: Sequence[str]
  plots: Sequence[Plot]
  tables: Sequence[Table]

  @property
  def about(self) -> str:
    """A line on the models, the settings and the device."""
    study = self.study
    return templates.sentence(
      "about",
      study.settings,
      [_describe_model(study, role) for role in (REFERENCE, SMALL)],
      study.gammas,
      max((x.latency.num_examples for x in study.rows if x.latency), default=0),
      max(len(point.rows) for point in study.points),
      study.rows[0].environment.get("device"),
    )

  @property
  def versions(self) -> str:
    """A line on the versions of the libraries that measured the rows."""
    versions = self.study.rows[0].environment.get("versions", {}).items()
    return ", ".join(f"{name} {version}" for name, version in versions)


def _describe_model(
  study: PointGroup, role: str
) -> tuple[str, int | None, list[tuple]]:
  """Returns a model's name, its size, and its times at each temperature."""
  times = []
  for panel in study.panels:
    point = panel.first(role)
    if point is not None and point.milliseconds is not None:
      is_greedy = panel.settings.temperature == 0
      when = "greedy" if is_greedy else f"at {panel.title}"
      times.append((when, *point.milliseconds))
  size = study.rows[0].num_parameters.get(role)
  return getattr(study.settings, role), size, times


def sections(
  rows: Sequence[ResultRow],
  *,
  metric: str | None = None,
  cost_ratio: float | None = None,
) -> list[Section]:
  """Returns a section for each pair and task.

  Args:
    rows: one row or more.
    metric: the metric of figures and summaries; None takes the first known
      metric that all rows have.
    cost_ratio: c of modelled latency, the cost of a drafter step in verifier
      steps; None takes the measured c.

  Raises:
    ValueError: there are no rows, a point is there twice, a metric is missing,
      or the cost ratio is not positive.
  """
  if not rows:
    raise ValueError("there are no rows; run a sweep first")
  if len({row.key for row in rows}) != len(rows):
    raise ValueError("a point is there twice; remove one of the equal rows")
  if cost_ratio is not None and not 0 < cost_ratio < math.inf:
    raise ValueError(f"cost ratio is {cost_ratio:g}; wanted a positive number")
  pairs = studies(rows, metric)
  # All files are in one folder. Numbers keep the files of several studies
  # apart; a single study has plain names.
  return [
    _section(
      study,
      cost_ratio or study.cost_ratio,
      prefix=f"{number}_" if len(pairs) > 1 else "",
    )
    for number, study in enumerate(pairs, start=1)
  ]


def _section(
  study: PointGroup, cost_ratio: float | None, prefix: str
) -> Section:
  """Returns the section of a study; without a ratio nothing is modelled."""
  model = modelled_clock(cost_ratio) if cost_ratio else None
  clocks = (MEASURED, model) if model else (MEASURED,)
  losses = point_tables.losses(study, model)
  # A reader looks for Table 2 first, then for what explains it; the long tables
  # of all points come last.
  tables = []
  for clock in clocks:
    timed = study.by(clock)
    tables.append(comparisons.speedup_table(timed))
    tables.append(comparisons.gap_table(timed))
    tables.append(comparisons.truncation_table(timed))
  tables.append(point_tables.baselines(study, model))
  tables.append(losses)
  tables.append(point_tables.gammas(study, model))
  tables.append(point_tables.points(study, model))
  tables.append(point_tables.acceptance(study))
  tables.append(point_tables.ranks(study))
  return Section(
    study=study,
    prefix=prefix,
    clocks=clocks,
    doubts=findings.doubts(study),
    leads=findings.leads(study.panels, clocks),
    untimed=findings.untimed(study, clocks),
    findings=findings.findings(study, clocks),
    notices=findings.notices(losses.lines),
    plots=_plots(study, clocks),
    tables=[table for table in tables if table.lines],
  )


def _plots(study: PointGroup, clocks: Sequence[Clock]) -> list[Plot]:
  """Returns the figures of a study."""
  gammas = study.gammas
  if len(gammas) < 2:
    return _plots_of_panels(study.panels, clocks)
  main = _main_gamma(study)
  # A page with a dozen figures for each gamma would bury the main ones, so the
  # figures of other gammas are folded under a heading of their own.
  shown, hidden = [], []
  for gamma in gammas:
    panels = [panel.at_gamma(gamma) for panel in study.panels]
    # A temperature may lack a gamma.
    panels = [panel for panel in panels if panel.points]
    for plot in _plots_of_panels(panels, clocks):
      if gamma == main:
        shown.append(dataclasses.replace(plot, gamma=gamma))
      else:
        aside = f"Figures at gamma {gamma}"
        hidden.append(dataclasses.replace(plot, gamma=gamma, aside=aside))
  ablation = block_figures.gamma_ablation(study.panels, clocks)
  if ablation.panels:
    shown.append(ablation)
  return shown + hidden


def _plots_of_panels(
  panels: Sequence[PointGroup], clocks: Sequence[Clock]
) -> list[Plot]:
  """Returns the figures of some panels that have something to show."""
  plots = []
  for clock in clocks:
    timed = [panel.by(clock) for panel in panels]
    plots.append(figures.quality_latency(timed))
    plots.append(figures.by_family(timed))
    plots.append(figures.truncated(timed))
  plots.append(figures.quality_deferral(panels))
  plots.append(block_figures.acceptance_by_position(panels))
  plots.append(block_figures.acceptance_histogram(panels))
  return [plot for plot in plots if plot.panels]


def _main_gamma(study: PointGroup) -> int:
  """Returns the gamma that most points have."""
  middle = study.gammas[len(study.gammas) // 2]

  def rank(gamma: int) -> tuple[int, bool, bool]:
    num_points = sum(point.settings.gamma == gamma for point in study.points)
    return num_points, gamma == _GAMMA, gamma == middle

  return max(study.gammas, key=rank)
