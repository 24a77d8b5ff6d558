"""Rows as curves: points averaged over seeds, by method, pair and task."""

from collections.abc import Callable, Iterable
import dataclasses
import functools
import itertools

import numpy as np

from speccascade.decoding.methods import METHODS
from speccascade.decoding.target import lossless
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.results import ResultRow, Settings
from speccascade.report import frontier
from speccascade.report.frontier import Estimate, Sample

REFERENCE, SMALL = "verifier", "drafter"
# Metrics in the order in which one is taken for the figures.
METRICS = {
  "bleu": "BLEU",
  "rouge2": "ROUGE-2",
  "exact_match": "exact match",
  "chrf": "chrF",
  "rouge1": "ROUGE-1",
  "rougeLsum": "ROUGE-Lsum",
  "valid": "valid %",
}


def metric_title(metric: str) -> str:
  """Returns a metric's name as it is printed."""
  return METRICS.get(metric, metric)


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
  """A point: the rows that are equal up to their seed.

  Attributes:
    rows: one or more.
  """

  rows: tuple[ResultRow, ...]

  @property
  def settings(self) -> Settings:
    return self.rows[0].settings

  @property
  def method(self) -> str:
    return self.settings.method

  @property
  def label(self) -> str:
    return self.rows[0].label

  @functools.cached_property
  def counts(self) -> Counts:
    return efficiency.total([row.counts for row in self.rows])

  @functools.cached_property
  def efficiency(self) -> dict:
    return efficiency.summary(self.counts)

  def quality(self, metric: str) -> Sample | None:
    """Returns the mean over seeds, None where a row lacks the metric."""
    scores = [row.quality.get(metric) for row in self.rows]
    if any(score is None for score in scores):
      return None
    return frontier.mean(
      [_sample(score["value"], score.get("replicates")) for score in scores]
    )

  def quality_estimate(self, metric: str) -> Estimate | None:
    """Returns the quality and its interval, of one row as it holds it."""
    sample = self.quality(metric)
    if sample is None:
      return None
    score = self.rows[0].quality[metric]
    return self._estimate(sample, score.get("low"), score.get("high"))

  @functools.cached_property
  def latency(self) -> Sample | None:
    """Measured latency relative to the verifier's; the mean over seeds."""
    timed = [row.latency for row in self.rows]
    if any(one is None for one in timed):
      return None
    return frontier.mean(
      [
        _sample(one.relative_latency, getattr(one, "replicates", None))
        for one in timed
      ]
    )

  @property
  def latency_estimate(self) -> Estimate | None:
    if self.latency is None:
      return None
    one = self.rows[0].latency
    return self._estimate(self.latency, one.relative_low, one.relative_high)

  def _estimate(self, sample, low, high) -> Estimate:
    if len(self.rows) == 1 and low is not None:
      return Estimate(sample.value, low, high)
    return frontier.of_sample(sample)

  def mean(self, value: Callable[[ResultRow], float | None]) -> float | None:
    """Returns the mean over seeds of a row's number; None if one has none."""
    values = [value(row) for row in self.rows]
    if any(one is None for one in values):
      return None
    return float(np.mean(values))

  @property
  def has_large_law(self) -> bool:
    """Whether it writes what the large model would.

    By its law, if its target is lossless; or because every example had the
    greedy verifier's tokens, but for near ties.
    """
    method = METHODS.get(self.method)
    if method is not None and method.target is lossless:
      return self.method != SMALL
    return all(
      row.agreement is not None
      and row.agreement["identical"] + row.agreement["near_ties"]
      == row.agreement["num_examples"]
      for row in self.rows
    )


def _sample(value: float, replicates) -> Sample:
  if replicates is None or not len(replicates):
    return Sample(value)
  return Sample(value, np.asarray(replicates, np.float64))


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
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


def short_label(label: str) -> str:
  """Returns a label that fits beside a line, its colour telling the family.

  >>> [short_label(f"SpecCascade [{x}]") for x in ("OPT", "Diff, log")]
  ['OPT', 'Diff, log']
  >>> short_label("SpecDecode [Lossy]"), short_label("TokenCascade [Chow]")
  ('Lossy', 'TokenCascade Chow')
  >>> short_label("SeqCascade [Chow, per token]")
  'Seq Chow, per token'
  """
  head, bracket, rest = label.partition(" [")
  if head in ("SpecCascade", "SpecDecode") and bracket:
    label = rest
  label = label.replace("[", "").replace("]", "")
  for long, short in _SHORTER:
    if len(label) > 20:
      label = label.replace(long, short)
  return label


_SHORTER = (
  *(("Cascade", ""), ("CS Drafting", "CS"), (" verification", "")),
  *(("three models", "three"), ("verifier's bonus", "p bonus")),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
  """What one temperature of a study holds.

  Attributes:
    temperature: 0 is greedy.
    curves: by the order of their first row.
  """

  temperature: float
  curves: tuple[Curve, ...]

  @property
  def title(self) -> str:
    return temperature_title(self.temperature)

  @property
  def points(self) -> list[Measured]:
    return [point for curve in self.curves for point in curve.points]

  @property
  def gammas(self) -> list[int]:
    found = {curve.gamma for curve in self.curves}
    return sorted(found - {None})

  def at_gamma(self, gamma: int | None) -> "Panel":
    """Returns the curves of one gamma, with those that have none."""
    kept = [c for c in self.curves if c.gamma in (gamma, None)]
    return Panel(self.temperature, tuple(kept))

  def find(self, method: str) -> Curve | None:
    """Returns the first curve of a method, or None."""
    return next((c for c in self.curves if c.method == method), None)

  @property
  def large(self) -> Measured | None:
    """The large model alone."""
    curve = self.find(REFERENCE)
    return curve and curve.points[0]

  @property
  def small(self) -> Measured | None:
    curve = self.find(SMALL)
    return curve and curve.points[0]


def temperature_title(temperature: float) -> str:
  return "greedy (T = 0)" if temperature == 0 else f"T = {temperature:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
  """One pair on one task: the rows that may be compared.

  Attributes:
    key: the settings that they share.
    panels: by temperature.
  """

  key: tuple
  panels: tuple[Panel, ...]

  @property
  def points(self) -> list[Measured]:
    return [point for panel in self.panels for point in panel.points]

  @property
  def settings(self) -> Settings:
    return self.points[0].settings

  @property
  def title(self) -> str:
    own = self.settings
    task = f"{own.task} {own.split}".strip()
    return f"{own.drafter} with {own.verifier} on {task}"

  @property
  def gammas(self) -> list[int]:
    return sorted({gamma for panel in self.panels for gamma in panel.gammas})

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
    found = [
      row.costs.c
      for point in self.points
      for row in point.rows
      if row.costs is not None
    ]
    return float(np.median(found)) if found else None


_COMPARED = (
  *("task", "split", "drafter", "verifier", "num_examples"),
  *("max_decode_len", "dtype", "top_k", "top_p"),
)
_VARIANT = ("gamma", "bonus", "verification", "draft_length", "draft_threshold")


def studies(rows: Iterable[ResultRow]) -> list[Study]:
  """Returns the rows as studies, in the order of their first rows."""
  points = _merge_seeds(rows)
  found = []
  for key, members in _grouped(points, _COMPARED):
    panels = [
      Panel(temperature, tuple(_curves(same)))
      for (temperature,), same in _grouped(members, ("temperature",))
    ]
    panels.sort(key=lambda panel: panel.temperature)
    found.append(Study(key, tuple(panels)))
  return found


def _merge_seeds(rows) -> list[Measured]:
  fields = {field.name for field in dataclasses.fields(Settings)} - {"seed"}
  groups = _grouped([Measured((row,)) for row in rows], sorted(fields))
  return [
    Measured(tuple(row for point in same for row in point.rows))
    for _, same in groups
  ]


def _grouped(points, names) -> list[tuple[tuple, list[Measured]]]:
  """Returns points by the values of some settings, in first-seen order."""
  groups = {}
  for point in points:
    key = tuple(getattr(point.settings, name) for name in names)
    groups.setdefault(key, []).append(point)
  return list(groups.items())


def _curves(points) -> list[Curve]:
  """Returns the curves of points of one temperature."""
  made = []
  for (method,), own in _grouped(points, ("method",)):
    groups = _grouped(own, _VARIANT)
    for key, same in groups:
      same.sort(key=lambda point: point.settings.alpha or 0.0)
      suffix = _suffix(dict(zip(_VARIANT, key)))
      made.append(Curve(method + suffix, same[0].label + suffix, tuple(same)))
  return made


def _suffix(variant: dict) -> str:
  """Returns how a curve differs from the method's usual form, gamma aside."""
  said = []
  if variant["verification"] == "block":
    said.append("block verification")
  if variant["bonus"] == "verifier":
    said.append("verifier's bonus")
  if variant["draft_length"] not in (None, "fixed"):
    said.append(f"{variant['draft_length']} {variant['draft_threshold']:g}")
  return "".join(f", {one}" for one in said)


def by_method(panel: Panel) -> list[Curve]:
  """Returns a curve for each method: its points of every gamma together."""
  named = itertools.groupby(
    sorted(panel.curves, key=lambda curve: _place(panel, curve)),
    key=lambda curve: curve.name,
  )
  made = []
  for _, same in named:
    same = list(same)
    points = tuple(point for curve in same for point in curve.points)
    made.append(Curve(same[0].name, same[0].label, points))
  return made


def _place(panel: Panel, curve: Curve) -> int:
  return [other.name for other in panel.curves].index(curve.name)
