"""Lossy methods compared with truncation of the large model alone."""

from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from speccascade.decoding.programs.methods import METHODS
from speccascade.inference.rows.results import Settings
from speccascade.report import frontier
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import METHOD, PointGroup
from speccascade.report.measured import Clock, Measured
from speccascade.report.summaries import is_fast, verdict
from speccascade.report.tables import TEMPERATURE, Column, Table

_SPECULATED = "spec_decode"


@dataclasses.dataclass(frozen=True)
class TruncationLine:
  """A lossy method and the large model at other samplings.

  Attributes:
    settings: the settings of the method's first point.
    label: the name of the method in the paper.
    low: the least latency that both frontiers have; None without a common one.
    high: the greatest latency that both frontiers have, or None.
    gap: the mean difference of the two frontiers over these latencies. The
      frontier of the large model has lossless speculation at every sampling.
    verdict: what the interval of the gap says.
    best: the highest quality of the method.
    best_gap: the highest quality of the method minus the highest quality of the
      large model at any sampling.
  """

  settings: Settings
  label: str
  low: float | None
  high: float | None
  gap: IntervalEstimate
  verdict: str
  best: float
  best_gap: IntervalEstimate


def compare(panel: PointGroup, clock: Clock) -> list[TruncationLine]:
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
    low, high = frontier.common_range(points[0], speculated[0]) or (None, None)
    gap = frontier.estimate(frontier.mean_gap, points, speculated)
    best_gap = frontier.estimate(
      _best_gap, _qualities(curve.points), _qualities(others)
    )
    lines.append(
      TruncationLine(
        settings=curve.settings,
        label=curve.label,
        low=low,
        high=high,
        gap=gap,
        verdict=verdict(gap),
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


def table(study: PointGroup, clock: Clock) -> Table:
  """Returns the lossy methods of a study compared with truncation."""
  quality = study.metric
  lines = itertools.chain.from_iterable(
    compare(panel, clock) for panel in study.panels
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
      TEMPERATURE,
      Column("from latency", "low", 2),
      Column("to", "high", 2),
      Column(f"mean {quality} gap", "gap", 2, has_interval=True),
      Column("verdict", "verdict"),
      Column(f"highest {quality}", "best", 1),
      Column("minus the truncated model's", "best_gap", 2, has_interval=True),
    ),
    list(lines),
  )
