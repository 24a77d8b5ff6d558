"""What a report says of each study: findings, figures, tables, in one order."""

from collections.abc import Sequence
import dataclasses

from speccascade.inference.results import ResultRow
from speccascade.report import curves, findings, plots, report_tables
from speccascade.report.clocks import MEASURED, Clock, modelled
from speccascade.report.curves import Study
from speccascade.report.drawing import Plot
from speccascade.report.report_tables import Table


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
  """A study as it is reported.

  Attributes:
    study: what it is of.
    metric: of figures and summaries.
    prefix: of its files; empty where there is one study.
    clocks: the measured one, and the modelled one where c is known.
    findings: a temperature each.
    notices: sentences on where speculation loses, and why.
    plots: in order.
    tables: in order; the last two are long.
  """

  study: Study
  metric: str
  prefix: str
  clocks: tuple[Clock, ...]
  findings: Sequence[findings.Finding]
  notices: Sequence[str]
  plots: Sequence[Plot]
  tables: Sequence[Table]

  @property
  def about(self) -> str:
    """A line on what was measured, where, with which versions."""
    own, row = self.study.settings, self.study.points[0].rows[0]
    said = [f"{own.num_examples} examples"]
    timed = {
      row.latency.num_examples
      for point in self.study.points
      for row in point.rows
      if row.latency is not None
    }
    if timed:
      said.append(f"{max(timed)} of them timed at batch 1")
    seeds = {len(point.rows) for point in self.study.points}
    if max(seeds) > 1:
      said.append(f"up to {max(seeds)} seeds, averaged")
    said.append(f"at most {own.max_decode_len} tokens, {own.dtype}")
    device = row.environment.get("device")
    if device:
      said.append(device)
    versions = row.environment.get("versions", {})
    known = [f"{name} {version}" for name, version in versions.items()]
    return "; ".join([*said, ", ".join(known)]).rstrip("; ") + "."


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
  found = curves.studies(rows)
  prefixes = [f"{number}_" for number in range(1, len(found) + 1)]
  if len(found) == 1:
    prefixes = [""]
  return [
    _section(study, metric, cost_ratio, prefix)
    for study, prefix in zip(found, prefixes)
  ]


def _section(study: Study, metric, cost_ratio, prefix) -> Section:
  metric = _metric(study, metric)
  ratio = study.cost_ratio if cost_ratio is None else cost_ratio
  model = None if ratio is None else modelled(ratio)
  clocks = (MEASURED,) if model is None else (MEASURED, model)
  tables = []
  for clock in clocks:
    tables.append(report_tables.table_2(study, clock, metric))
    tables.append(report_tables.differences(study, clock, metric))
  losses = report_tables.losses(study, model)
  tables.append(losses)
  tables.append(report_tables.gamma_ablation(study, metric, model))
  tables.append(report_tables.points(study, model))
  tables.append(report_tables.acceptance(study))
  return Section(
    study=study,
    metric=metric,
    prefix=prefix,
    clocks=clocks,
    findings=findings.findings(study, clocks, metric),
    notices=findings.notices(losses.lines),
    plots=_plots(study, clocks, metric),
    tables=[table for table in tables if table.lines],
  )


def _metric(study: Study, metric: str | None) -> str:
  if not study.metrics:
    raise ValueError(
      f"the rows of {study.title} share no metric; they need references to be"
      " compared"
    )
  if metric is None:
    return study.metrics[0]
  if metric not in study.metrics:
    raise ValueError(
      f"metric {metric!r} is not in all rows of {study.title}; they have"
      f" {', '.join(study.metrics)}"
    )
  return metric


def _plots(study: Study, clocks, metric) -> list[Plot]:
  """Every figure but the last once for each gamma where there are several."""
  if len(study.gammas) < 2:
    return _of_gamma(study.panels, clocks, metric, "", "")
  made = {
    gamma: _of_gamma(
      [panel.at_gamma(gamma) for panel in study.panels],
      clocks,
      metric,
      f", gamma {gamma}",
      f"_gamma{gamma}",
    )
    for gamma in study.gammas
  }
  main = max(made, key=lambda gamma: _standing(study, gamma))
  ablation = plots.gamma_ablation(study.panels, metric, clocks, "gamma")
  shown = made.pop(main) + [plot for plot in [ablation] if plot is not None]
  for gamma, others in made.items():
    aside = f"Figures at gamma {gamma}"
    shown += [dataclasses.replace(plot, aside=aside) for plot in others]
  return shown


def _of_gamma(panels, clocks, metric, about: str, end: str) -> list[Plot]:
  made = []
  for clock in clocks:
    drawn = (panels, clock, metric)
    name = f"figure2_{clock.name}"
    made.append(plots.quality_latency(*drawn, f"{name}{end}", about))
    made.append(
      plots.quality_latency(*drawn, f"{name}_detail{end}", about, detail=True)
    )
  made += [
    plots.quality_deferral(panels, metric, f"figure1{end}", about),
    plots.acceptance_by_position(
      panels, metric, f"acceptance_by_position{end}", about
    ),
    plots.acceptance_histogram(
      panels, metric, f"acceptance_histogram{end}", about
    ),
  ]
  return [plot for plot in made if plot is not None]


_GAMMA = 5  # the papers'


def _standing(study: Study, gamma: int) -> tuple:
  """How well a gamma's figures stand for all: the most points, then the
  papers' gamma, then the middle."""
  points = sum(point.settings.gamma == gamma for point in study.points)
  middle = study.gammas[len(study.gammas) // 2]
  return points, gamma == _GAMMA, gamma == middle
