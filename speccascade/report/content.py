"""The content of a report: findings, figures and tables of each study."""

from collections.abc import Sequence
import dataclasses
import functools
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
from speccascade.report.groups import MeasuredPanel, MeasuredStudy, studies
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
  """The part of a report that is about one study, in the order of a page.

  Attributes:
    study: all points of a pair on a task.
    cost_ratio: c of modelled latency; None models nothing.
    prefix: the beginning of the names of the section's files; empty where the
      report has one section.
  """

  study: MeasuredStudy
  cost_ratio: float | None
  prefix: str = ""

  @property
  def clocks(self) -> tuple[Clock, ...]:
    """Measured latency, and modelled latency where c is known."""
    return (MEASURED, self._model) if self._model else (MEASURED,)

  @property
  def _model(self) -> Clock | None:
    return modelled_clock(self.cost_ratio) if self.cost_ratio else None

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

  @functools.cached_property
  def doubts(self) -> list[str]:
    """Sentences on a pair that has little to gain, and what to do."""
    return findings.doubts(self.study)

  @functools.cached_property
  def leads(self) -> list[findings.Lead]:
    """What the intervals tell apart, a line for each temperature."""
    return findings.leads(self.study.panels, self.clocks)

  @property
  def untimed(self) -> str:
    """A line for rows that were not timed, or nothing."""
    return findings.untimed(self.study, self.cost_ratio)

  @functools.cached_property
  def findings(self) -> dict[str, list[str]]:
    """Title of a temperature -> sentences on what it shows."""
    return findings.findings(self.study, self.clocks)

  @functools.cached_property
  def notices(self) -> list[str]:
    """Sentences on where speculation loses, and why."""
    return findings.notices(self.study)

  @functools.cached_property
  def tables(self) -> list[Table]:
    """The tables in order.

    A reader looks for Table 2 first, then for what explains it; the long tables
    of all points come last.
    """
    study, model, tables = self.study, self._model, []
    for timed in map(study.by, self.clocks):
      tables.append(comparisons.speedup_table(timed))
      tables.append(comparisons.gap_table(timed))
      tables.append(comparisons.truncation_table(timed))
    tables.append(point_tables.baselines(study, model))
    tables.append(point_tables.losses(study, model))
    tables.append(point_tables.gammas(study, model))
    tables.append(point_tables.points(study, model))
    tables.append(point_tables.acceptance(study))
    tables.append(point_tables.ranks(study))
    return [table for table in tables if table.lines]

  @functools.cached_property
  def plots(self) -> list[Plot]:
    """The figures in order; the first is shown first on the page.

    A page with a dozen figures for each gamma would bury the main ones, so the
    figures of other gammas are folded under a heading of their own.
    """
    panels, gammas = self.study.panels, self.study.gammas
    if len(gammas) < 2:
      return _plots_of_panels(panels, self.clocks)
    main, shown, hidden = _main_gamma(self.study), [], []
    for gamma in gammas:
      of_gamma = [panel.at_gamma(gamma) for panel in panels]
      # A temperature may lack a gamma.
      of_gamma = [panel for panel in of_gamma if panel.points]
      for plot in _plots_of_panels(of_gamma, self.clocks):
        if gamma == main:
          shown.append(dataclasses.replace(plot, gamma=gamma))
        else:
          aside = f"Figures at gamma {gamma}"
          hidden.append(dataclasses.replace(plot, gamma=gamma, aside=aside))
    ablation = block_figures.gamma_ablation(panels, self.clocks)
    return [*shown, *([ablation] if ablation.panels else []), *hidden]


def _describe_model(
  study: MeasuredStudy, role: str
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
    Section(
      study,
      cost_ratio or study.cost_ratio,
      prefix=f"{number}_" if len(pairs) > 1 else "",
    )
    for number, study in enumerate(pairs, start=1)
  ]


def _plots_of_panels(
  panels: Sequence[MeasuredPanel], clocks: Sequence[Clock]
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


def _main_gamma(study: MeasuredStudy) -> int:
  """Returns the gamma that most points have."""
  middle = study.gammas[len(study.gammas) // 2]

  def rank(gamma: int) -> tuple[int, bool, bool]:
    num_points = sum(point.settings.gamma == gamma for point in study.points)
    return num_points, gamma == _GAMMA, gamma == middle

  return max(study.gammas, key=rank)
