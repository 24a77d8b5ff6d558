"""Points in groups: studies of a pair, temperatures, curves over alpha."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import operator

import numpy as np

from speccascade.inference.rows.results import ResultRow, Settings
from speccascade.report.measured import (
  METRICS,
  REFERENCE,
  Measured,
  metric_title,
  temperature_title,
)


def _settings_getter(names: Iterable[str]) -> Callable:
  """Returns a function from a row or a point to some of its settings."""
  return operator.attrgetter(*(f"settings.{name}" for name in names))


# Settings that make another curve of the same method.
_VARIED = ("gamma", "bonus", "verification", "draft_length", "draft_threshold")
# Settings in which the points of one study may differ.
_POINTS = {*_VARIED, "method", "alpha", "temperature", "seed", "trials"}
_NAMES = [field.name for field in dataclasses.fields(Settings)]

_temperature_of = operator.attrgetter("settings.temperature")
_method_of = operator.attrgetter("settings.method")
_variant_of = _settings_getter(_VARIED)
_study_of = _settings_getter(name for name in _NAMES if name not in _POINTS)
_point_of = _settings_getter(name for name in _NAMES if name != "seed")


def group_by(members: Iterable, key: Callable) -> dict[object, list]:
  """Returns lists of members that have equal keys.

  Args:
    members: anything that `key` takes.
    key: a function from a member to a hashable key.

  Returns:
    Lists by key. Keys, and the members of a list, are in first-seen order.
  """
  groups = {}
  for member in members:
    groups.setdefault(key(member), []).append(member)
  return groups


@dataclasses.dataclass(frozen=True, eq=False)
class PointGroup:
  """Points that have settings in common.

  A study has all points of one pair on one task, those that may be compared; a
  panel those of one temperature; a curve those of a method over alpha, all else
  being equal.

  Attributes:
    points: by temperature, curve and alpha; none only where `at_gamma` keeps
      none.
  """

  points: Sequence[Measured]

  @property
  def settings(self) -> Settings:
    """Those of the first point."""
    return self.points[0].settings

  @property
  def rows(self) -> list[ResultRow]:
    """The rows of all points."""
    return [row for point in self.points for row in point.rows]

  @property
  def metric(self) -> str:
    """Name of the quality, as it is printed."""
    return metric_title(self.points[0].metric)

  @functools.cached_property
  def panels(self) -> list["PointGroup"]:
    """A study's panels, by temperature."""
    by_temperature = group_by(self.points, _temperature_of)
    return [PointGroup(points) for _, points in sorted(by_temperature.items())]

  @functools.cached_property
  def curves(self) -> list["PointGroup"]:
    """A panel's curves, method by method."""
    curves = []
    for points in group_by(self.points, _method_of).values():
      for variant in group_by(points, _variant_of).values():
        variant.sort(key=lambda point: point.settings.alpha or 0.0)
        curves.append(PointGroup(variant))
    return curves

  @functools.cached_property
  def methods(self) -> list["PointGroup"]:
    """A panel's methods: each with its curves of every gamma together."""
    by_name = group_by(self.curves, operator.attrgetter("name"))
    return [
      PointGroup([point for curve in curves for point in curve.points])
      for curves in by_name.values()
    ]

  @property
  def name(self) -> str:
    """A curve's method, and what sets it apart from its other curves."""
    return self.settings.method + _variant_suffix(self.settings)

  @property
  def label(self) -> str:
    """The same for people."""
    return self.points[0].label + _variant_suffix(self.settings)

  @property
  def pair(self) -> str:
    """A study's title."""
    shared = self.settings
    task = f"{shared.task} {shared.split}".strip()
    return f"{shared.drafter} with {shared.verifier} on {task}"

  @property
  def title(self) -> str:
    """A panel's title."""
    return temperature_title(self.settings.temperature)

  def at_gamma(self, gamma: int | None) -> "PointGroup":
    """Returns the points of one gamma, with those that have none."""
    gammas = (gamma, None)
    return PointGroup([p for p in self.points if p.settings.gamma in gammas])

  def first(self, method: str) -> Measured | None:
    """Returns the first point of a method, or None."""
    return next((p for p in self.points if p.method == method), None)

  @property
  def large(self) -> Measured | None:
    """A panel's point of the large model alone."""
    return self.first(REFERENCE)

  @property
  def gammas(self) -> list[int]:
    """The gammas of the points, by size."""
    return sorted({p.settings.gamma for p in self.points} - {None})

  @property
  def metrics(self) -> list[str]:
    """The metrics that all rows have, the one for the figures first."""
    first, *rows = self.rows
    shared = [m for m in first.quality if all(m in r.quality for r in rows)]
    known = [name for name in METRICS if name in shared]
    return known + [name for name in shared if name not in METRICS]

  @property
  def cost_ratio(self) -> float | None:
    """The measured c: the median over rows, None where none has costs."""
    ratios = [row.costs.c for row in self.rows if row.costs is not None]
    return float(np.median(ratios)) if ratios else None


def studies(
  rows: Iterable[ResultRow], metric: str | None = None
) -> list[PointGroup]:
  """Returns the rows as studies, in the order of their first rows.

  Args:
    rows: of any pairs and tasks.
    metric: of points; None takes the first that all rows of a study have.

  Raises:
    ValueError: the rows of a study lack it.
  """
  several = []
  for members in group_by(rows, _study_of).values():
    chosen = _choose_metric(metric, PointGroup([Measured(tuple(members))]))
    by_point = group_by(members, _point_of).values()
    study = PointGroup([Measured(tuple(seeds), chosen) for seeds in by_point])
    # The order of a study's points is the order of its panels and curves.
    curves = (curve for panel in study.panels for curve in panel.curves)
    several.append(PointGroup([p for curve in curves for p in curve.points]))
  return several


def _choose_metric(metric: str | None, study: PointGroup) -> str:
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


def _variant_suffix(settings: Settings) -> str:
  """Returns how a curve differs from the method's usual form, gamma aside."""
  parts = []
  if settings.verification == "block":
    parts.append("block verification")
  if settings.bonus == "verifier":
    parts.append("verifier's bonus")
  if settings.draft_length not in (None, "fixed"):
    parts.append(f"{settings.draft_length} {settings.draft_threshold:g}")
  return "".join(f", {part}" for part in parts)
