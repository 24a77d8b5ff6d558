"""Frontiers of methods compared: with lossy decoding, and with truncation."""

from collections.abc import Sequence
import dataclasses
import itertools
import math

import numpy as np

from speccascade.decoding.programs.methods import METHODS
from speccascade.inference.rows.results import Settings
from speccascade.report import frontier
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import METHOD, PointGroup, group_by
from speccascade.report.measured import Clock, Measured
from speccascade.report.summaries import is_fast
from speccascade.report.tables import TEMPERATURE, Column, Table

BASELINES = ("spec_decode_lossy", "spec_decode_lossy_star")
CHALLENGER = "spec_cascade"
_SPECULATED = "spec_decode"


@dataclasses.dataclass(frozen=True)
class FrontierComparison:
  """A comparison of a method's frontier with another frontier.

  Attributes:
    settings: the settings of the method's first point.
    label: the method's name in the paper, with its variant.
    low: the least latency that both frontiers have; None where their ranges of
      latency do not overlap.
    high: the greatest latency that both frontiers have, or None.
    gap: the mean over these latencies of the method's quality minus the
      other's.
  """

  settings: Settings
  label: str
  low: float | None
  high: float | None
  gap: IntervalEstimate

  @property
  def verdict(self) -> str:
    """What the interval of `gap` says."""
    if math.isnan(self.gap.value):
      return "no common latencies"
    if self.gap.low is None:
      return "no interval"
    if self.gap.low > 0:
      return "better"
    return "worse" if self.gap.high < 0 else "not told apart"


@dataclasses.dataclass(frozen=True)
class GapLine(FrontierComparison):
  """A comparison of a cascade's frontier with a baseline's frontier.

  Attributes:
    baseline: the baseline's name in the paper.
    against: the baseline's name in code.
    at_speed: the gap within the latency of the fastest `spec_decode` point: the
      cascade's best quality minus the baseline's best quality. NaN where one of
      the two has no point so fast.
  """

  baseline: str
  against: str
  at_speed: IntervalEstimate


@dataclasses.dataclass(frozen=True)
class TruncationLine(FrontierComparison):
  """A comparison of a lossy method with the large model at other samplings.

  The frontier of the large model has lossless speculation at every sampling.

  Attributes:
    best: the highest quality of the method.
    best_gap: the highest quality of the method minus the highest quality of the
      large model at any sampling.
  """

  best: float
  best_gap: IntervalEstimate


def _compare(
  curve: PointGroup, points: Sequence[Points], others: Sequence[Points]
) -> dict:
  """Returns the fields of a `FrontierComparison` of a curve with others."""
  # Entry 0 is over all examples; the others are replicates.
  low, high = frontier.common_range(points[0], others[0]) or (None, None)
  return {
    "settings": curve.settings,
    "label": curve.label,
    "low": low,
    "high": high,
    "gap": frontier.estimate(frontier.mean_gap, points, others),
  }


def _columns(quality: str) -> list[Column]:
  """Returns the columns of what all comparisons have."""
  return [
    TEMPERATURE,
    Column("from latency", "low", 2),
    Column("to", "high", 2),
    Column(f"mean {quality} gap", "gap", 2, has_interval=True),
    Column("verdict", "verdict"),
  ]


def gaps(panel: PointGroup, clock: Clock) -> list[GapLine]:
  """Returns a comparison of every speculative cascade with every baseline.

  Each method takes the points of all its gammas. Where decoding is greedy the
  lossy baselines write what SpecDecode writes, so SpecDecode is the baseline.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.
  """
  baselines = BASELINES if panel.settings.temperature > 0 else (_SPECULATED,)
  points_of = {
    points[0].method: clock.points(points)
    for points in group_by(panel.points, ["method"])
  }
  plain = points_of.get(_SPECULATED)
  lines = []
  for method, curve in itertools.product(baselines, panel.methods):
    if not curve.settings.method.startswith(CHALLENGER):
      continue
    points = clock.points(curve.points)
    baseline = points_of.get(method)
    if not points or not baseline:
      continue
    at_speed = IntervalEstimate(math.nan)
    if plain:
      at_speed = frontier.estimate(_gap_at_speed, points, baseline, plain)
    lines.append(
      GapLine(
        **_compare(curve, points, baseline),
        baseline=panel.first(method).label,
        against=method,
        at_speed=at_speed,
      )
    )
  return lines


def _gap_at_speed(points: Points, baseline: Points, plain: Points) -> float:
  """Returns the gap within the latency of SpecDecode, NaN where it is not."""
  budget = plain.latency.min()
  gap = frontier.quality_within(points, budget)
  gap -= frontier.quality_within(baseline, budget)
  return gap if math.isfinite(gap) else math.nan


def gap_table(study: PointGroup, clock: Clock) -> Table:
  """Returns speculative cascades compared with lossy speculative decoding."""
  at_speed = f"{study.metric} gap at SpecDecode's latency"
  return Table(
    f"differences_{clock.name}",
    f"Cascades compared with lossy speculative decoding, {clock.title}",
    "The mean difference of the two frontiers over the latencies that both"
    " have, and the difference within the latency of the fastest SpecDecode"
    " point; [95% intervals of the paired bootstrap]. The lossy variants write"
    " what SpecDecode writes when decoding is greedy, so cascades are then"
    " compared with SpecDecode. Methods that share no latency are left out.",
    (
      *METHOD,
      Column("against", "baseline", only="csv"),
      Column("against", "against", only="page"),
      *_columns(study.metric),
      Column(at_speed, "at_speed", 2, has_interval=True),
    ),
    [
      line
      for panel in study.panels
      for line in gaps(panel, clock)
      if line.low is not None or not math.isnan(line.at_speed.value)
    ],
  )


def truncations(panel: PointGroup, clock: Clock) -> list[TruncationLine]:
  """Returns a line for each lossy method of a panel that has baselines.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.
  """
  own = [point for point in panel.points if point.has_large_distribution]
  others = [*panel.baselines, *own]
  speculated = clock.points([p for p in others if p.method == _SPECULATED])
  if not panel.baselines or not speculated:
    return []
  lines = []
  for curve in panel.methods:
    method = METHODS.get(curve.settings.method)
    is_lossy = method is None or not method.is_lossless
    points = clock.points(curve.points)
    if not is_lossy or not is_fast(curve.settings.method) or not points:
      continue
    best_gap = frontier.estimate(
      _best_gap, _qualities(curve.points), _qualities(others)
    )
    lines.append(
      TruncationLine(
        **_compare(curve, points, speculated),
        best=max(point.quality.value for point in curve.points),
        best_gap=best_gap,
      )
    )
  return lines


def _qualities(points: Sequence[Measured]) -> list[Points]:
  """Returns the qualities of points by replicate, with latencies of 0."""
  qualities = [point.quality_sample for point in points]
  return frontier.points_by_replicate(
    [np.zeros_like(quality) for quality in qualities], qualities
  )


def _best_gap(points: Points, others: Points) -> float:
  return float(points.quality.max() - others.quality.max())


def truncation_table(study: PointGroup, clock: Clock) -> Table:
  """Returns the lossy methods of a study compared with truncation."""
  quality = study.metric
  lines = itertools.chain.from_iterable(
    truncations(panel, clock) for panel in study.panels
  )
  return Table(
    f"truncation_{clock.name}",
    f"Lossy methods compared with the truncated large model, {clock.title}",
    "The mean difference of two frontiers over the latencies that both have: a"
    " lossy method's, and lossless speculation's with the large model at all of"
    " its samplings; and the difference of the highest qualities, whatever the"
    " latency; [95% intervals of the paired bootstrap].",
    (
      *METHOD,
      *_columns(quality),
      Column(f"highest {quality}", "best", 1),
      Column("minus the truncated model's", "best_gap", 2, has_interval=True),
    ),
    list(lines),
  )
