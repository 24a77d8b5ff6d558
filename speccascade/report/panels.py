"""Rows as curves: points by method, temperature, pair and task."""

from collections.abc import Iterable
import dataclasses

import numpy as np

from speccascade.inference.results import ResultRow, Settings
from speccascade.report.measured import (
  METRICS,
  REFERENCE,
  SMALL,
  Measured,
  short_label,
  temperature_title,
)

_COMPARED = (
  *("task", "split", "drafter", "verifier", "num_examples"),
  *("max_decode_len", "dtype", "top_k", "top_p"),
)
_VARIANT = ("gamma", "bonus", "verification", "draft_length", "draft_threshold")


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredCurve:
  """A method over alpha, all else being equal.

  Attributes:
    name: of the method, and what sets it apart from its other curves.
    label: the same for people.
    points: by alpha.
  """

  name: str
  label: str
  points: tuple[Measured, ...]

  @property
  def method(self) -> str:
    return self.points[0].method

  @property
  def gamma(self) -> int | None:
    return self.points[0].settings.gamma

  @property
  def short_label(self) -> str:
    return short_label(self.label)


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
  """What one temperature of a study holds.

  Attributes:
    temperature: 0 is greedy.
    curves: by the order of their first row.
  """

  temperature: float
  curves: tuple[MeasuredCurve, ...]

  @property
  def title(self) -> str:
    return temperature_title(self.temperature)

  @property
  def points(self) -> list[Measured]:
    return [point for curve in self.curves for point in curve.points]

  def at_gamma(self, gamma: int | None) -> "Panel":
    """Returns the curves of one gamma, with those that have none."""
    kept = [c for c in self.curves if c.gamma in (gamma, None)]
    return Panel(self.temperature, tuple(kept))

  def by_method(self) -> list[MeasuredCurve]:
    """Returns a curve for each method: its points of every gamma together."""
    groups = {}
    for curve in self.curves:
      groups.setdefault(curve.name, []).extend(curve.points)
    labels = {curve.name: curve.label for curve in reversed(self.curves)}
    return [
      MeasuredCurve(name, labels[name], tuple(points))
      for name, points in groups.items()
    ]

  def find(self, method: str) -> MeasuredCurve | None:
    """Returns the first curve of a method, or None."""
    return next((c for c in self.curves if c.method == method), None)

  @property
  def large(self) -> Measured | None:
    """The large model alone."""
    curve = self.find(REFERENCE)
    return curve and curve.points[0]

  @property
  def small(self) -> Measured | None:
    """The small model alone."""
    curve = self.find(SMALL)
    return curve and curve.points[0]


@dataclasses.dataclass(frozen=True, eq=False)
class PairStudy:
  """One pair on one task: the rows that may be compared.

  Attributes:
    panels: by temperature.
  """

  panels: tuple[Panel, ...]

  @property
  def points(self) -> list[Measured]:
    return [point for panel in self.panels for point in panel.points]

  @property
  def settings(self) -> Settings:
    return self.points[0].settings

  @property
  def title(self) -> str:
    shared = self.settings
    task = f"{shared.task} {shared.split}".strip()
    return f"{shared.drafter} with {shared.verifier} on {task}"

  @property
  def gammas(self) -> list[int]:
    return sorted({p.settings.gamma for p in self.points} - {None})

  @property
  def metrics(self) -> list[str]:
    """The metrics that all points have, the one for the figures first."""
    shared = [
      name
      for name in self.points[0].rows[0].quality
      if all(name in row.quality for p in self.points for row in p.rows)
    ]
    known = [name for name in METRICS if name in shared]
    return known + [name for name in shared if name not in METRICS]

  @property
  def cost_ratio(self) -> float | None:
    """The measured c: the median over rows, None where none has costs."""
    rows = [row for point in self.points for row in point.rows]
    ratios = [row.costs.c for row in rows if row.costs is not None]
    return float(np.median(ratios)) if ratios else None


def studies(rows: Iterable[ResultRow]) -> list[PairStudy]:
  """Returns the rows as studies, in the order of their first rows."""
  but_seed = [f.name for f in dataclasses.fields(Settings) if f.name != "seed"]
  single = [Measured((row,)) for row in rows]
  points = [
    Measured(tuple(row for point in same for row in point.rows))
    for same in _grouped(single, but_seed)
  ]
  return [
    PairStudy(_panels(members)) for members in _grouped(points, _COMPARED)
  ]


def _panels(points) -> tuple[Panel, ...]:
  panels = [
    Panel(same[0].settings.temperature, tuple(_curves(same)))
    for same in _grouped(points, ["temperature"])
  ]
  return tuple(sorted(panels, key=lambda panel: panel.temperature))


def _grouped(points, names) -> list[list[Measured]]:
  """Returns points that share some settings, in first-seen order."""
  groups = {}
  for point in points:
    key = tuple(getattr(point.settings, name) for name in names)
    groups.setdefault(key, []).append(point)
  return list(groups.values())


def _curves(points) -> Iterable[MeasuredCurve]:
  """Yields the curves of points of one temperature, method by method."""
  for members in _grouped(points, ["method"]):
    for same in _grouped(members, _VARIANT):
      same.sort(key=lambda point: point.settings.alpha or 0.0)
      first, suffix = same[0], _suffix(same[0].settings)
      yield MeasuredCurve(
        first.method + suffix, first.label + suffix, tuple(same)
      )


def _suffix(settings: Settings) -> str:
  """Returns how a curve differs from the method's usual form, gamma aside."""
  said = ""
  if settings.verification == "block":
    said += ", block verification"
  if settings.bonus == "verifier":
    said += ", verifier's bonus"
  if settings.draft_length not in (None, "fixed"):
    said += f", {settings.draft_length} {settings.draft_threshold:g}"
  return said
