"""Speculative cascades against lossy speculative decoding: are they better?"""

from collections.abc import Sequence
import dataclasses
import math

from speccascade.report import frontier
from speccascade.report.clocks import Clock
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.measured import metric_title
from speccascade.report.panels import MeasuredCurve, PairStudy, Panel
from speccascade.report.tables import Column, Table

BASELINES = ("spec_decode_lossy", "spec_decode_lossy_star")
CHALLENGER = "spec_cascade"


@dataclasses.dataclass(frozen=True)
class Gap:
  """One method's frontier against another's, by one clock.

  Attributes:
    temperature: 0 is greedy.
    label: of the first method.
    baseline: label of the second.
    low: where the common latencies begin; None where there are none.
    high: where they end.
    gap: mean quality of the first minus the second's over them.
    at_speed: the same at the latency of the fastest `spec_decode`: the first's
      best quality within it minus the baseline's; NaN where either is slower.
  """

  temperature: float
  label: str
  baseline: str
  low: float | None
  high: float | None
  gap: IntervalEstimate
  at_speed: IntervalEstimate

  @property
  def verdict(self) -> str:
    """Whether the interval of `gap` leaves zero out."""
    if math.isnan(self.gap.value):
      return "no common latencies"
    if self.gap.low is None:
      return "no interval"
    if self.gap.low > 0:
      return "better"
    return "worse" if self.gap.high < 0 else "not told apart"


def gaps(panel: Panel, clock: Clock, metric: str) -> list[Gap]:
  """Returns every speculative cascade against every lossy baseline.

  All gammas together. Where decoding is greedy the baselines are SpecDecode
  itself, so it alone is compared with.
  """
  curves = panel.by_method()
  baselines = BASELINES if panel.temperature > 0 else ("spec_decode",)
  lossless = _points_of(curves, "spec_decode", clock, metric)
  compared = []
  for method in baselines:
    baseline = _points_of(curves, method, clock, metric)
    if baseline is None:
      continue
    label = next(c.label for c in curves if c.method == method)
    for curve in curves:
      points = clock.points(curve.points, metric)
      if curve.method.startswith(CHALLENGER) and points is not None:
        common = frontier.common_range(points[0], baseline[0])
        compared.append(
          Gap(
            panel.temperature,
            curve.label,
            label,
            *(common or (None, None)),
            gap=frontier.estimate(frontier.mean_gap, points, baseline),
            at_speed=IntervalEstimate(math.nan)
            if lossless is None
            else frontier.estimate(_at_speed, points, baseline, lossless),
          )
        )
  return compared


def _points_of(
  curves: Sequence[MeasuredCurve], method: str, clock: Clock, metric: str
) -> list[Points] | None:
  members = [p for c in curves if c.method == method for p in c.points]
  return clock.points(members, metric)


def _at_speed(points: Points, baseline: Points, lossless: Points) -> float:
  budget = lossless.latency.min()
  gap = frontier.quality_within(points, budget)
  gap -= frontier.quality_within(baseline, budget)
  return gap if math.isfinite(gap) else math.nan


def table(study: PairStudy, clock: Clock, metric: str) -> Table:
  """Returns speculative cascades against lossy speculative decoding."""
  title = metric_title(metric)
  return Table(
    f"differences_{clock.name}",
    f"Cascades against lossy speculative decoding, {clock.title}",
    "Mean difference of the two frontiers over the latencies that both have,"
    " and the difference within the latency of the fastest SpecDecode point;"
    " [95% paired bootstrap]. Greedy, the lossy variants are SpecDecode"
    " itself.",
    (
      Column("method", "label"),
      Column("against", "baseline"),
      Column("T", lambda line: f"{line.temperature:g}"),
      Column("from latency", "low", 2),
      Column("to", "high", 2),
      Column(f"mean {title} gap", "gap", 2, has_interval=True),
      Column("verdict", "verdict"),
      Column(
        *(f"{title} gap at SpecDecode's latency", "at_speed", 2),
        has_interval=True,
      ),
    ),
    [line for panel in study.panels for line in gaps(panel, clock, metric)],
  )
