"""Groups of points: a study of a pair, its temperatures, its curves."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import operator

import numpy as np

from speccascade.decoding.laws.sampling import SamplingSettings
from speccascade.decoding.records.decode_settings import BlockShape
from speccascade.inference.rows.results import ResultRow, Settings
from speccascade.report.measured import (
  METRICS,
  REFERENCE,
  Measured,
  metric_title,
  temperature_title,
)
from speccascade.settings.fields import names_of


def _settings_getter(names: Iterable[str]) -> Callable:
  """Returns a function from a row or a point to some of its settings."""
  return operator.attrgetter(*(f"settings.{name}" for name in names))


# Settings that make another curve of the same method.
_VARIED = (*names_of(BlockShape), "draft_threshold")
# Settings of a block as a label says them. A label names another setting by its
# name and its value.
_IN_WORDS = {
  ("verification", "block"): "block verification",
  ("verification", "traversal"): "traversal",
  ("verification", "k_seq"): "k_seq",
  ("bonus", "verifier"): "verifier's bonus",
}
# Settings in which the points of one study may differ.
_POINTS = {*_VARIED, "method", "alpha", "temperature", "seed", "trials"}
_NAMES = [field.name for field in dataclasses.fields(Settings)]

_temperature_of = operator.attrgetter("settings.temperature")
_method_of = operator.attrgetter("settings.method")
_variant_of = _settings_getter(_VARIED)
_study_of = _settings_getter(name for name in _NAMES if name not in _POINTS)
_SAMPLING = names_of(SamplingSettings)
_sampling_of = _settings_getter(_SAMPLING)
_pair_of = _settings_getter(
  name for name in _NAMES if name not in {*_POINTS, *_SAMPLING}
)
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

  A study has all points of one pair on one task, which may be compared with
  each other. A panel has the points of a study at one temperature. A curve has
  the points of a panel of one method over alpha, all other settings being
  equal.

  Attributes:
    points: in the order of temperature, curve and alpha. Only `at_gamma` makes
      a group without points.
    baselines: of a study and its panels, the points of the large model at other
      samplings, which its methods are compared with.
  """

  points: Sequence[Measured]
  baselines: Sequence[Measured] = ()

  @property
  def settings(self) -> Settings:
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

  @functools.cached_property
  def panels(self) -> list["PointGroup"]:
    """The panels of a study, by temperature."""
    by_temperature = group_by(self.points, _temperature_of)
    # Greedily there is nothing that a filter leaves out.
    return [
      PointGroup(points, self.baselines if temperature else ())
      for temperature, points in sorted(by_temperature.items())
    ]

  @functools.cached_property
  def baseline_curves(self) -> list["PointGroup"]:
    """The baselines of a panel: one method and the same changed settings."""
    panel, by_kind = _sampling_of(self), {}
    for point in self.baselines:
      own = _sampling_of(point)
      changed = [n for n, a, b in zip(_SAMPLING, own, panel) if a != b]
      kind = (point.method, _variant_of(point), tuple(changed))
      by_kind.setdefault(kind, []).append(point)
    curves = []
    for (_, _, changed), points in by_kind.items():
      if changed:
        points.sort(key=functools.partial(_in_order, changed))
        curves.append(PointGroup(points))
    return curves

  def sampling_changes(self, point: Measured) -> dict[str, float | None]:
    """Returns in which settings a point is sampled otherwise than a panel."""
    pairs = zip(_SAMPLING, _sampling_of(point), _sampling_of(self))
    return {name: own for name, own, of_panel in pairs if own != of_panel}

  @functools.cached_property
  def curves(self) -> list["PointGroup"]:
    """The curves of a panel, method by method; each by rising alpha."""
    curves = []
    for points in group_by(self.points, _method_of).values():
      for variant in group_by(points, _variant_of).values():
        variant.sort(key=lambda point: point.settings.alpha or 0.0)
        curves.append(PointGroup(variant))
    return curves

  @functools.cached_property
  def methods(self) -> list["PointGroup"]:
    """The methods of a panel: each holds its curves of every gamma."""
    by_name = group_by(self.curves, operator.attrgetter("name"))
    return [
      PointGroup([point for curve in curves for point in curve.points])
      for curves in by_name.values()
    ]

  @property
  def name(self) -> str:
    """The method of a curve in code, and the variant of the method."""
    return self.settings.method + _variant_suffix(self.settings)

  @property
  def typed(self) -> str:
    """The method of a curve as one types it: `name`, and its only alpha."""
    alphas = {point.settings.alpha for point in self.points}
    alpha = alphas.pop() if len(alphas) == 1 else None
    return self.name if alpha is None else f"{self.name} {alpha:g}"

  @property
  def label(self) -> str:
    """The method of a curve as in the paper, and the variant of the method."""
    return self.points[0].label + _variant_suffix(self.settings)

  @property
  def pair(self) -> str:
    """The title of a study."""
    shared = self.settings
    task = f"{shared.task} {shared.split}".strip()
    return f"{shared.drafter} with {shared.verifier} on {task}"

  @property
  def title(self) -> str:
    """The title of a panel."""
    return temperature_title(self.settings.temperature)

  def at_gamma(self, gamma: int | None) -> "PointGroup":
    """Returns the points of one gamma, and the points that have no gamma."""
    gammas = (gamma, None)
    points, others = (
      [point for point in several if point.settings.gamma in gammas]
      for several in (self.points, self.baselines)
    )
    return PointGroup(points, others)

  def first(self, method: str) -> Measured | None:
    """Returns the first point of a method, None where there is no point."""
    return next((p for p in self.points if p.method == method), None)

  @property
  def large(self) -> Measured | None:
    """The point of the large model alone, in a panel; None without one."""
    return self.first(REFERENCE)

  @property
  def gammas(self) -> list[int]:
    """The gammas of the points, by size."""
    return sorted({p.settings.gamma for p in self.points} - {None})

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
  rows: Iterable[ResultRow], metric: str | None = None
) -> list[PointGroup]:
  """Returns the rows as studies, in the order of their first rows.

  Args:
    rows: rows of any pairs and tasks.
    metric: the metric of the points; None takes the first known metric that all
      rows of a study have.

  Raises:
    ValueError: the rows of a study lack the metric.
  """
  rows = list(rows)
  by_pair = {
    pair: _split_baselines(members)
    for pair, members in group_by(rows, _pair_of).items()
  }
  baselines = {row.key for others in by_pair.values() for row in others}
  several = []
  plain = [row for row in rows if row.key not in baselines]
  for members in group_by(plain, _study_of).values():
    others = by_pair[_pair_of(members[0])]
    chosen = _choose_metric(metric, PointGroup([Measured((*members, *others))]))
    study = PointGroup(_points(members, chosen))
    # The order of a study's points is the order of its panels and curves.
    curves = (curve for panel in study.panels for curve in panel.curves)
    points = [p for curve in curves for p in curve.points]
    several.append(PointGroup(points, _points(others, chosen)))
  return several


def _in_order(names: Sequence[str], point: Measured) -> list[tuple]:
  """Returns a key that sorts points by settings, a missing one last."""
  values = [getattr(point.settings, name) for name in names]
  return [(value is None, value or 0.0) for value in values]


def _points(rows: Iterable[ResultRow], metric: str) -> list[Measured]:
  """Returns the points of rows, with the rows of all seeds together."""
  by_point = group_by(rows, _point_of).values()
  return [Measured(tuple(seeds), metric) for seeds in by_point]


def _split_baselines(rows: Sequence[ResultRow]) -> list[ResultRow]:
  """Returns the rows of a pair that are there to be compared with.

  They are samplings above temperature 0 at which only the large model's own
  distribution was measured, next to a sampling with other methods. A sweep
  measures the small model at every sampling of its own.
  """
  sampled = [row for row in rows if row.settings.temperature > 0]
  others, has_methods = [], False
  for members in group_by(sampled, _sampling_of).values():
    if all(Measured((row,)).has_large_distribution for row in members):
      others += members
    else:
      has_methods = True
  return others if has_methods else []


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
  # The way of drawing that a tree has where none is set says nothing.
  usual = BlockShape(gamma=1, drafts=settings.drafts).tree_drawing
  for name, value in settings.block_changes.items():
    if name == "draft_length":
      policy, threshold = value
      parts.append(f"{policy} {threshold:g}")
    elif (name, value) != ("drawing", usual):
      parts.append(_IN_WORDS.get((name, value), f"{name} {value}"))
  return "".join(f", {part}" for part in parts)
