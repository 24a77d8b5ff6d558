"""Groups of points: a study of a pair, its panels, their curves.

A group is a table of settings, of a row for each point, which pandas groups
and sorts.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
from typing import Self

import numpy as np
import pandas as pd

from speccascade.decoding.laws.sampling import SamplingSettings
from speccascade.decoding.records.decode_settings import BlockShape
from speccascade.generate.points.alpha_phases import PhaseSettings
from speccascade.generate.points.point_settings import PointSettings
from speccascade.settings.fields import names_of
from speccascade.study.report.measured import (
  METRICS,
  REFERENCE,
  SMALL,
  Clock,
  Measured,
  metric_title,
  temperature_title,
  variant,
)
from speccascade.study.report.tables import Column, lookup
from speccascade.study.rows.results import ResultRow

# Settings that make another curve of the same method.
_VARIED = [
  *names_of(BlockShape),
  "draft_threshold",
  *names_of(PhaseSettings),
]
# Settings in which the points of one study may differ.
_POINTS = {*_VARIED, "method", "alpha", "temperature", "seed", "trials"}
_NAMES = [field.name for field in dataclasses.fields(PointSettings)]
_SAMPLING = names_of(SamplingSettings)
_OF_STUDY = [name for name in _NAMES if name not in _POINTS]
_OF_PAIR = [name for name in _OF_STUDY if name not in _SAMPLING]
_OF_POINT = [name for name in _NAMES if name != "seed"]


def settings_table(members: Iterable) -> pd.DataFrame:
  """Returns the settings of rows or points, and each of them in "member"."""
  values = [
    [*(getattr(each.settings, name) for name in _NAMES), each]
    for each in members
  ]
  return pd.DataFrame(values, columns=[*_NAMES, "member"], dtype=object)


def group_by(members: Iterable, names: Sequence[str]) -> list[list]:
  """Returns lists of rows or points with equal settings, in first-seen order.

  Args:
    members: rows or points.
    names: the settings that are compared; a missing one is a value like others.
  """
  table = settings_table(members)
  groups = table.groupby(list(names), sort=False, dropna=False)["member"]
  return [group.tolist() for _, group in groups]


def sort_by(points: Sequence[Measured], names: Sequence[str]) -> list[Measured]:
  """Returns points by rising settings, a missing one last."""
  table = settings_table(points).sort_values(list(names), kind="stable")
  return table["member"].tolist()


@dataclasses.dataclass(frozen=True, eq=False)
class PointGroup:
  """Points that have settings in common.

  Attributes:
    points: in the order of temperature, curve and alpha. Only `at_gamma` makes
      a group without points.
    baselines: the points of the large model at other samplings, which the
      methods are compared with; of studies and panels.
  """

  points: Sequence[Measured]
  baselines: Sequence[Measured] = ()

  def by(self, clock: Clock) -> Self:
    """Returns the points with their latencies by another clock."""
    points, baselines = (
      [point.by(clock) for point in several]
      for several in (self.points, self.baselines)
    )
    return type(self)(points, baselines)

  @property
  def clock(self) -> Clock:
    """The definition of the points' latency."""
    return self.points[0].clock

  @property
  def settings(self) -> PointSettings:
    """The settings of the first point."""
    return self.points[0].settings

  @property
  def rows(self) -> list[ResultRow]:
    """The rows of all points."""
    return [row for point in self.points for row in point.rows]

  @property
  def metric(self) -> str:
    """The name of the quality, as the report prints it."""
    return metric_title(self.points[0].metric)

  def first(self, method: str) -> Measured | None:
    """Returns the first point of a method, None where there is no point."""
    return next((p for p in self.points if p.method == method), None)


class MeasuredCurve(PointGroup):
  """Points of one method over alpha, all other settings being equal.

  A curve of all gammas stands for the method.
  """

  @property
  def name(self) -> str:
    """The method in code, and the variant of the method."""
    return self.points[0].name

  @property
  def typed(self) -> str:
    """The method as one types it: `name`, and its only alpha."""
    alphas = {point.settings.alpha for point in self.points}
    return self.name if len(alphas) > 1 else self.points[0].typed

  @property
  def label(self) -> str:
    """The method as in the paper, and the variant of the method."""
    return self.points[0].label + variant(self.settings)


class MeasuredPanel(PointGroup):
  """The points of a study at one temperature."""

  @property
  def title(self) -> str:
    """The temperature, as a heading."""
    return temperature_title(self.settings.temperature)

  @functools.cached_property
  def curves(self) -> list[MeasuredCurve]:
    """The curves, method by method; each by rising alpha."""
    return [
      MeasuredCurve(sort_by(variant, ["alpha"]))
      for points in group_by(self.points, ["method"])
      for variant in group_by(points, _VARIED)
    ]

  @functools.cached_property
  def methods(self) -> list[MeasuredCurve]:
    """The methods: each holds its curves of every gamma."""
    by_name = {}
    for curve in self.curves:
      by_name.setdefault(curve.name, []).extend(curve.points)
    return [MeasuredCurve(points) for points in by_name.values()]

  @functools.cached_property
  def baseline_curves(self) -> list[MeasuredCurve]:
    """The baselines: one method and the same changed settings."""
    curves = []
    for points in group_by(self.baselines, ["method", *_VARIED]):
      changes = {point: tuple(self.sampling_changes(point)) for point in points}
      for names in dict.fromkeys(changes.values()):
        if names:
          alike = [point for point in points if changes[point] == names]
          curves.append(MeasuredCurve(sort_by(alike, names)))
    return curves

  def sampling_changes(self, point: Measured) -> dict[str, float | None]:
    """Returns in which settings a point is sampled otherwise than the panel."""
    own, others = vars(point.settings), vars(self.settings)
    return {n: own[n] for n in _SAMPLING if own[n] != others[n]}

  def at_gamma(self, gamma: int | None) -> "MeasuredPanel":
    """Returns the points of one gamma, and the points that have no gamma."""
    gammas = (gamma, None)
    points, others = (
      [point for point in several if point.settings.gamma in gammas]
      for several in (self.points, self.baselines)
    )
    return MeasuredPanel(points, others)

  @property
  def large(self) -> Measured | None:
    """The point of the large model alone; None without one."""
    return self.first(REFERENCE)

  @property
  def other_lengths(self) -> list[Measured]:
    """The points whose answers differ in length, the longest first.

    The models alone are left out.
    """
    unlike = [
      point
      for point in self.points
      if point.method not in (REFERENCE, SMALL) and point.has_other_lengths
    ]
    return sorted(unlike, key=lambda point: -point.relative_length.value)

  @property
  def timed_large(self) -> Measured | None:
    """The point of the large model alone, if it is timed."""
    large = self.large
    return large if large is not None and large.is_timed else None


class MeasuredStudy(PointGroup):
  """All points of one pair on one task, which may be compared."""

  @property
  def pair(self) -> str:
    """The title: the two models and the task."""
    shared = self.settings
    task = f"{shared.task} {shared.split}".strip()
    return f"{shared.drafter} with {shared.verifier} on {task}"

  @functools.cached_property
  def panels(self) -> list[MeasuredPanel]:
    """The panels, by temperature."""
    groups = group_by(self.points, ["temperature"])
    # Greedily there is nothing that a filter leaves out.
    return [
      MeasuredPanel(
        points, self.baselines if points[0].settings.temperature else ()
      )
      for points in sorted(groups, key=lambda x: x[0].settings.temperature)
    ]

  @property
  def gammas(self) -> list[int | str]:
    """The gammas of the points, by size; "adaptive" comes last."""
    gammas = {p.settings.gamma for p in self.points} - {None}
    return sorted(gammas, key=lambda gamma: (isinstance(gamma, str), gamma))

  @property
  def lengths_differ(self) -> bool:
    """Whether answers of a method are surely of other lengths; see `Clock`."""
    return any(panel.other_lengths for panel in self.panels)

  @property
  def metrics(self) -> list[str]:
    """The metrics that all rows have; the metric of the figures comes first."""
    first, *rows = self.rows
    shared = [m for m in first.quality if all(m in r.quality for r in rows)]
    known = [name for name in METRICS if name in shared]
    return known + [name for name in shared if name not in METRICS]

  @property
  def cost_ratio(self) -> float | None:
    """The median over rows of the measured c, None where no row has costs."""
    ratios = [row.costs.c for row in self.rows if row.costs is not None]
    return float(np.median(ratios)) if ratios else None


def studies(
  rows: Iterable[ResultRow],
  metric: str | None = None,
  exact: Sequence[ResultRow] = (),
) -> list[MeasuredStudy]:
  """Returns the rows as studies, in the order of their first rows.

  Args:
    rows: rows of any pairs and tasks.
    metric: the metric of the points; None takes the first known metric that all
      rows of a study have.
    exact: more rows of the verifier alone, which lengths are relative to.

  Raises:
    ValueError: the rows of a study lack the metric.
  """
  rows = list(rows)
  baselines_of = {}  # a row's key -> the baselines of its pair
  for of_pair in group_by(rows, _OF_PAIR):
    baselines = _split_baselines(of_pair)
    baselines_of |= {row.key: baselines for row in of_pair}
  keys = {row.key for several in baselines_of.values() for row in several}
  pairs = []
  for members in group_by(
    [row for row in rows if row.key not in keys], _OF_STUDY
  ):
    others = baselines_of[members[0].key]
    chosen = _choose_metric(
      metric, MeasuredStudy([Measured((*members, *others))])
    )
    study = MeasuredStudy(_points(members, chosen, [*rows, *exact]))
    # The order of a study's points is the order of its panels and curves.
    curves = (curve for panel in study.panels for curve in panel.curves)
    points = [p for curve in curves for p in curve.points]
    pairs.append(MeasuredStudy(points, _points(others, chosen, rows)))
  return pairs


def _points(
  rows: Iterable[ResultRow], metric: str, others: Sequence[ResultRow]
) -> list[Measured]:
  """Returns the points of rows, with the rows of all seeds together.

  Args:
    rows: the rows of the points.
    metric: the metric of the points.
    others: rows among which those of the verifier alone are looked for.
  """
  # The verifier alone has its texts whichever drafter it is beside.
  names = [*(x for x in _OF_STUDY if x != "drafter"), "temperature"]
  exact_of = {
    tuple(getattr(alone[0].settings, name) for name in names): tuple(alone)
    for alone in group_by(
      [row for row in others if row.settings.method == REFERENCE], names
    )
  }
  return [
    Measured(
      tuple(seeds),
      metric,
      exact=exact_of.get(
        tuple(getattr(seeds[0].settings, name) for name in names), ()
      ),
    )
    for seeds in group_by(rows, _OF_POINT)
  ]


def _split_baselines(rows: Sequence[ResultRow]) -> list[ResultRow]:
  """Returns the rows of a pair that are there to be compared with."""
  sampled = [row for row in rows if row.settings.temperature > 0]
  others, has_methods = [], False
  for members in group_by(sampled, _SAMPLING):
    if all(Measured((row,)).has_large_distribution for row in members):
      others += members
    else:
      has_methods = True
  return others if has_methods else []


def _choose_metric(metric: str | None, study: MeasuredStudy) -> str:
  """Returns the metric of a study, or raises ValueError where it lacks it."""
  metrics = study.metrics
  if not metrics:
    raise ValueError(
      f"the rows of {study.pair} share no metric; they need references to be"
      " compared"
    )
  if metric not in (None, *metrics):
    raise ValueError(
      f"metric {metric!r} is not in all rows of {study.pair}; they have"
      f" {', '.join(metrics)}"
    )
  return metric or metrics[0]


@dataclasses.dataclass(frozen=True, eq=False)
class MethodLine:
  """A line of a table that is about one method at one temperature.

  Attributes:
    curve: the points of the method.
  """

  curve: MeasuredCurve

  @property
  def settings(self) -> PointSettings:
    """The settings of the method's first point."""
    return self.curve.settings

  @property
  def label(self) -> str:
    """The method's name in the paper, with its variant."""
    return self.curve.label

  @property
  def lengths(self) -> str | None:
    """The least and the greatest relative length of the method's points."""
    known = [
      point.relative_length.value
      for point in self.curve.points
      if point.relative_length is not None
    ]
    if not known:
      return None
    ends = [f"{end(known):.2f}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def _name(line) -> str:
  """Returns the method of a point or of a line of a table, as one types it."""
  settings = lookup(line, "settings")
  return settings.method + variant(settings)


# The method in a table: a CSV has the paper's label, a page what one types.
METHOD = (
  Column("method", "label", only="csv"),
  Column("method", _name, only="page"),
)
# How long the answers of a method's points are.
LENGTHS = Column("relative lengths", "lengths")
