"""Speculative cascades against lossy speculative decoding: are they better?"""

import itertools
import math

from speccascade.report import frontier
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import PointGroup, grouped
from speccascade.report.measured import Clock
from speccascade.report.tables import METHOD, TEMPERATURE, Column, Table

BASELINES = ("spec_decode_lossy", "spec_decode_lossy_star")
CHALLENGER = "spec_cascade"


def gaps(panel: PointGroup, clock: Clock) -> list[dict]:
  """Returns every speculative cascade against every lossy baseline.

  All gammas together. Where decoding is greedy the baselines are SpecDecode
  itself, so it alone is compared with.

  Returns:
    One method's frontier against another's, by one clock:
      settings: of the first method's first point.
      label: of the first method.
      baseline: label of the second.
      low: where the common latencies begin; None where there are none.
      high: where they end.
      gap: mean quality of the first minus the second's over them.
      verdict: whether the interval of `gap` leaves zero out.
      at_speed: the gap at the latency of the fastest `spec_decode`: the first's
        best quality within it minus the baseline's; NaN where either is slower.
  """
  by_method = grouped(panel.points, lambda point: point.method)
  points_of = lambda method: clock.points(by_method.get(method, ()))
  baselines = BASELINES if panel.settings.temperature > 0 else ("spec_decode",)
  lossless = points_of("spec_decode")
  compared = []
  for method, curve in itertools.product(baselines, panel.methods):
    points, baseline = clock.points(curve.points), points_of(method)
    if not (
      curve.settings.method.startswith(CHALLENGER) and points and baseline
    ):
      continue
    low, high = frontier.common_range(points[0], baseline[0]) or (None, None)
    gap = frontier.estimate(frontier.mean_gap, points, baseline)
    at_speed = IntervalEstimate(math.nan)
    if lossless:
      at_speed = frontier.estimate(_at_speed, points, baseline, lossless)
    compared.append(
      {
        "settings": curve.settings,
        "label": curve.label,
        "baseline": panel.first(method).label,
        "low": low,
        "high": high,
        "gap": gap,
        "verdict": _verdict(gap),
        "at_speed": at_speed,
      }
    )
  return compared


def _at_speed(points: Points, baseline: Points, lossless: Points) -> float:
  budget = lossless.latency.min()
  gap = frontier.quality_within(points, budget)
  gap -= frontier.quality_within(baseline, budget)
  return gap if math.isfinite(gap) else math.nan


def _verdict(gap: IntervalEstimate) -> str:
  if math.isnan(gap.value):
    return "no common latencies"
  if gap.low is None:
    return "no interval"
  if gap.low > 0:
    return "better"
  return "worse" if gap.high < 0 else "not told apart"


def table(study: PointGroup, clock: Clock) -> Table:
  """Returns speculative cascades against lossy speculative decoding."""
  at_speed = f"{study.metric} gap at SpecDecode's latency"
  return Table(
    f"differences_{clock.name}",
    f"Cascades against lossy speculative decoding, {clock.title}",
    "Mean difference of the two frontiers over the latencies that both have,"
    " and the difference within the latency of the fastest SpecDecode point;"
    " [95% paired bootstrap]. Greedy, the lossy variants are SpecDecode"
    " itself.",
    (
      METHOD,
      Column("against", "baseline"),
      TEMPERATURE,
      Column("from latency", "low", 2),
      Column("to", "high", 2),
      Column(f"mean {study.metric} gap", "gap", 2, has_interval=True),
      Column("verdict", "verdict"),
      Column(at_speed, "at_speed", 2, has_interval=True),
    ),
    [line for panel in study.panels for line in gaps(panel, clock)],
  )
