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


def _by(*names: str):
  """Returns what tells members apart by some of their settings."""
  return operator.attrgetter(*(f"settings.{name}" for name in names))


_VARIED = ("gamma", "bonus", "verification", "draft_length", "draft_threshold")
_VARIANT = _by(*_VARIED)
_POINTS = {*_VARIED, "method", "alpha", "temperature", "seed", "trials"}
_NAMES = [field.name for field in dataclasses.fields(Settings)]
_COMPARED = _by(*(name for name in _NAMES if name not in _POINTS))
_ALL_BUT_SEED = _by(*(name for name in _NAMES if name != "seed"))


def grouped(members: Iterable, key: Callable) -> dict[object, list]:
  """Returns members by their keys, all in first-seen order."""
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
    return [row for point in self.points for row in point.rows]

  @property
  def metric(self) -> str:
    """Name of the quality, as it is printed."""
    return metric_title(self.points[0].metric)

  @functools.cached_property
  def panels(self) -> list["PointGroup"]:
    """A study's panels, by temperature."""
    groups = grouped(self.points, _by("temperature"))
    return [PointGroup(same) for _, same in sorted(groups.items())]

  @functools.cached_property
  def curves(self) -> list["PointGroup"]:
    """A panel's curves, method by method."""
    return [
      PointGroup(sorted(same, key=lambda p: p.settings.alpha or 0.0))
      for members in grouped(self.points, _by("method")).values()
      for same in grouped(members, _VARIANT).values()
    ]

  @functools.cached_property
  def methods(self) -> list["PointGroup"]:
    """A panel's methods: each with its curves of every gamma together."""
    return [
      PointGroup([point for curve in same for point in curve.points])
      for same in grouped(self.curves, lambda curve: curve.name).values()
    ]

  @property
  def name(self) -> str:
    """A curve's method, and what sets it apart from its other curves."""
    return self.settings.method + _suffix(self.settings)

  @property
  def label(self) -> str:
    """The same for people."""
    return self.points[0].label + _suffix(self.settings)

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
  for same in grouped(rows, _COMPARED).values():
    chosen = _checked(metric, PointGroup([Measured(tuple(same))]))
    seeds = grouped(same, _ALL_BUT_SEED).values()
    study = PointGroup([Measured(tuple(rows), chosen) for rows in seeds])
    curves = (curve for panel in study.panels for curve in panel.curves)
    several.append(PointGroup([p for curve in curves for p in curve.points]))
  return several


def _checked(metric: str | None, study: PointGroup) -> str:
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


def _suffix(settings: Settings) -> str:
  """Returns how a curve differs from the method's usual form, gamma aside."""
  said = ", block verification" * (settings.verification == "block")
  said += ", verifier's bonus" * (settings.bonus == "verifier")
  if settings.draft_length not in (None, "fixed"):
    said += f", {settings.draft_length} {settings.draft_threshold:g}"
  return said
