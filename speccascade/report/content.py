"""What a report says of each study: findings, figures, tables, in one order."""

from collections.abc import Sequence
import dataclasses

from speccascade.inference.rows.results import ResultRow
from speccascade.report import (
  figures,
  findings,
  point_tables,
  slowdowns,
  summaries,
)
from speccascade.report.drawing import Plot
from speccascade.report.groups import PointGroup, studies
from speccascade.report.measured import (
  MEASURED,
  REFERENCE,
  SMALL,
  Clock,
  modelled,
)
from speccascade.report.tables import Table

_GAMMA = 5  # the papers'


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
  """A study as it is reported.

  Attributes:
    study: what it is of.
    prefix: of its files; empty where there is one study.
    clocks: the measured one, and the modelled one where c is known.
    doubts: sentences on a pair that has little to gain, and what to do.
    headline: what it shows, in a sentence; empty where there is no Table 2.
    findings: a temperature each.
    notices: sentences on where speculation loses, and why.
    plots: in order; the first says most.
    tables: likewise.
  """

  study: PointGroup
  prefix: str
  clocks: tuple[Clock, ...]
  doubts: Sequence[str]
  headline: str
  findings: Sequence[findings.Finding]
  notices: Sequence[str]
  plots: Sequence[Plot]
  tables: Sequence[Table]

  @property
  def about(self) -> str:
    """A line on the models, how they were decoded and where."""
    settings, points = self.study.settings, self.study.points
    timed = [r.latency.num_examples for r in self.study.rows if r.latency]
    num_seeds = max(len(point.rows) for point in points)
    gammas = self.study.gammas
    said = (
      *(_model(self.study, role) for role in (REFERENCE, SMALL)),
      gammas and f"gamma {', '.join(map(str, gammas))}",
      f"{settings.num_examples} examples",
      timed and f"{max(timed)} of them timed at batch 1",
      num_seeds > 1 and f"up to {num_seeds} seeds, averaged",
      f"at most {settings.max_decode_len} tokens, {settings.dtype}",
      points[0].rows[0].environment.get("device"),
    )
    return "; ".join(filter(None, said)) + "."

  @property
  def versions(self) -> str:
    """A line on what measured it."""
    versions = self.study.rows[0].environment.get("versions", {}).items()
    return ", ".join(f"{name} {version}" for name, version in versions)


def _model(study: PointGroup, role: str) -> str | None:
  """Returns a model's name, parameters and milliseconds at each temperature."""
  size = study.rows[0].num_parameters.get(role)
  said = [f"{size / 1e6:.3g} million parameters"] if size else []
  for panel in study.panels:
    point, is_greedy = panel.first(role), panel.settings.temperature == 0
    if point and point.milliseconds:
      text, token = point.milliseconds
      a_token = f" ({token:.2g} a token)" if token else ""
      at = "greedy" if is_greedy else f"at {panel.title}"
      said.append(f"{text:.3g} ms a text{a_token} {at}")
  return f"{getattr(study.settings, role)}: {', '.join(said)}" if said else None


def sections(
  rows: Sequence[ResultRow],
  *,
  metric: str | None = None,
  cost_ratio: float | None = None,
) -> list[Section]:
  """Returns a section for each pair and task.

  Args:
    rows: one or more.
    metric: of figures and summaries; None takes the first that all rows have.
    cost_ratio: c of the modelled latency; None takes the measured one.

  Raises:
    ValueError: no rows, one point twice, or no metric.
  """
  if not rows:
    raise ValueError("there are no rows; run a sweep first")
  if len({row.key for row in rows}) != len(rows):
    raise ValueError("a point is there twice; remove one of the equal rows")
  if cost_ratio is not None and not 0 < cost_ratio < float("inf"):
    raise ValueError(f"cost ratio is {cost_ratio:g}; wanted a positive number")
  pairs = studies(rows, metric)
  prefix = "{}_" if len(pairs) > 1 else ""
  return [
    _section(study, cost_ratio or study.cost_ratio, prefix.format(number))
    for number, study in enumerate(pairs, start=1)
  ]


def _section(study: PointGroup, ratio: float | None, prefix: str) -> Section:
  model = ratio and modelled(ratio)
  clocks = (MEASURED, model) if model else (MEASURED,)
  losses = slowdowns.table(study, model)
  by_clock = (summaries.speedup_table, summaries.gap_table)
  tables = [table(study, clock) for clock in clocks for table in by_clock]
  tables += [losses, point_tables.gammas(study, model)]
  tables += [point_tables.points(study, model), point_tables.acceptance(study)]
  return Section(
    study=study,
    prefix=prefix,
    clocks=clocks,
    doubts=findings.doubts(study),
    headline=findings.headline(study, clocks),
    findings=findings.findings(study, clocks),
    notices=findings.notices(losses.lines),
    plots=_plots(study, clocks),
    tables=[table for table in tables if table.lines],
  )


def _plots(study: PointGroup, clocks: Sequence[Clock]) -> list[Plot]:
  """Every figure but the last once for each gamma where there are several."""
  gammas = study.gammas
  if len(gammas) < 2:
    return figures.of_panels(study.panels, clocks)

  def standing(gamma):
    # The most points, then the papers' gamma, then the middle.
    num_points = sum(point.settings.gamma == gamma for point in study.points)
    return num_points, gamma == _GAMMA, gamma == gammas[len(gammas) // 2]

  plots, main = [], max(gammas, key=standing)
  for gamma in gammas:
    panels = [panel.at_gamma(gamma) for panel in study.panels]
    panels = [panel for panel in panels if panel.points]
    aside = "" if gamma == main else f"Figures at gamma {gamma}"
    plots += [
      dataclasses.replace(plot, gamma=gamma, aside=aside)
      for plot in figures.of_panels(panels, clocks)
    ]
  ablation = figures.gamma_ablation(study.panels, clocks)
  plots += [ablation] * bool(ablation.panels)
  place = lambda plot: (bool(plot.aside), plot is ablation)
  return sorted(plots, key=place)
