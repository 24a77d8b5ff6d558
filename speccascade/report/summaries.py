"""Summary numbers of methods: Table 2, and cascades against lossy decoding."""

import functools
import itertools
import math

from speccascade.report import frontier, tables
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import PointGroup, grouped
from speccascade.report.measured import REFERENCE, SMALL, Clock, Measured
from speccascade.report.tables import METHOD, TEMPERATURE, Column, Table

# An oracle asks the large model at every token before it decides: its latency
# says nothing of what it would be.
NOT_FAST = ("oracle_cascade",)
BASELINES = ("spec_decode_lossy", "spec_decode_lossy_star")
CHALLENGER = "spec_cascade"
NEVER = {0.0: "never"}  # of a speed-up


def is_fast(method: str) -> bool:
  """Whether the method's latency counts; see `NOT_FAST`."""
  return not method.startswith(NOT_FAST)


def speedups(
  panel: PointGroup, clock: Clock, *, gamma: int | None = None
) -> list[dict]:
  """Returns a line for each method that has a frontier; needs the large model.

  Args:
    panel: one temperature.
    clock: which latency.
    gamma: of the curves; None lets each method take its best.

  Returns:
    Lines of Table 2:
      settings: of its first point.
      name: in code, with what sets it apart.
      label: for people.
      gamma: None where all of its gammas are taken together.
      num_points: measured points.
      speedup: 1 / latency at the large model's quality; value 0 where no point
        reaches it.
      how: "interpolated"; "every point" where the fastest reaches it already;
        "same law" where a point of the large model's distribution is faster;
        "never".
      within: best quality within the large model's latency; -inf where no point
        is so fast.
      gain: `within` minus the large model's quality.
      best: highest quality measured.
      best_latency: the latency of that.
  """
  if gamma is not None:
    panel = panel.at_gamma(gamma)
  large = panel.large and clock.points([panel.large])
  if not large:
    return []
  lines = []
  for curve in panel.methods:
    method, timed = curve.settings.method, clock.timed(curve.points)
    if method in (REFERENCE, SMALL) or not (is_fast(method) and timed):
      continue
    points = clock.points(timed)
    same_law = [i for i, point in enumerate(timed) if point.has_large_law]
    best, _ = frontier.frontier(points[0])
    speedup = functools.partial(_speedup, same_law)
    lines.append(
      {
        "settings": curve.settings,
        "name": curve.name,
        "label": curve.label,
        "gamma": gamma,
        "num_points": len(timed),
        "speedup": frontier.estimate(speedup, points, large),
        "how": _how(same_law, points[0], large[0].quality[0]),
        "within": frontier.estimate(_within, points, large),
        "gain": frontier.estimate(_gain, points, large),
        "best": float(best.quality[-1]),
        "best_latency": float(best.latency[-1]),
      }
    )
  return lines


def fastest(lines: list[dict]) -> dict | None:
  """Returns the fastest line of Table 2 at the large model's quality."""
  return max(lines, key=lambda line: line["speedup"].value, default=None)


def _speedup(same_law: list[int], points: Points, large: Points) -> float:
  latency = frontier.latency_at(points, large.quality[0])
  return 1 / min([latency, *points.latency[same_law]])


def _within(points: Points, large: Points) -> float:
  return frontier.quality_within(points, large.latency[0])


def _gain(points: Points, large: Points) -> float:
  return _within(points, large) - large.quality[0]


def _how(same_law: list[int], points: Points, wanted: float) -> str:
  """Returns how the wanted quality is reached."""
  latency = frontier.latency_at(points, wanted)
  if same_law and points.latency[same_law].min() <= latency:
    return "same law"
  if math.isinf(latency):
    return "never"
  best, _ = frontier.frontier(points)
  return "every point" if wanted <= best.quality[0] else "interpolated"


def overall_frontier(
  panel: PointGroup, clock: Clock
) -> list[tuple[Measured, float]]:
  """Returns the points that no method beats, fastest first, and latencies."""
  timed = clock.timed([p for p in panel.points if is_fast(p.method)])
  if not timed:
    return []
  best, index = frontier.frontier(clock.points(timed)[0])
  return [(timed[i], float(x)) for i, x in zip(index, best.latency)]


def speedup_table(study: PointGroup, clock: Clock) -> Table:
  """Returns the paper's two summary numbers by one clock.

  Each method with its best gamma; where there are several gammas, lines for
  each follow.
  """
  title, gammas = study.metric, study.gammas
  several = len(gammas) > 1
  by_gamma = Column("gamma", lambda line: line["gamma"] or "best")
  never = (tables.NEVER, True)
  at_quality = "speed-up at the large model's quality"
  return Table(
    f"table2_{clock.name}",
    f"Table 2, {clock.title}",
    "Speed-up over the large model where the method's frontier reaches its"
    f" {title}, and the best {title} within its latency; [95% intervals]. How:"
    " interpolated between points; every point, where even the fastest reaches"
    " it; same law, where a point writes what the large model would; never,"
    " where no point reaches it: nothing is extrapolated.",
    (
      *(METHOD, TEMPERATURE, *[by_gamma] * several),
      Column(at_quality, *("speedup", 2, NEVER, True)),
      Column("how", "how"),
      Column(f"best {title} within its latency", *("within", 1, *never)),
      Column("minus the large model's", *("gain", 2, *never)),
      Column(f"highest {title}", "best", 1),
      Column("at latency", "best_latency", 2),
      Column("points", "num_points", 0),
    ),
    [
      line
      for gamma in (None, *gammas[: several * len(gammas)])
      for panel in study.panels
      for line in speedups(panel, clock, gamma=gamma)
    ],
  )


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
    is_asked = curve.settings.method.startswith(CHALLENGER)
    if not (is_asked and points and baseline):
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


def gap_table(study: PointGroup, clock: Clock) -> Table:
  """Returns speculative cascades against lossy speculative decoding."""
  at_speed = f"{study.metric} gap at SpecDecode's latency"
  return Table(
    f"differences_{clock.name}",
    f"Cascades against lossy speculative decoding, {clock.title}",
    "Mean difference of the two frontiers over the latencies that both have,"
    " and the difference within the latency of the fastest SpecDecode point;"
    " [95% paired bootstrap]. Greedy, the lossy variants are SpecDecode"
    " itself. Methods that share no latency are left out.",
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
    [
      line
      for panel in study.panels
      for line in gaps(panel, clock)
      if line["low"] is not None or not math.isnan(line["at_speed"].value)
    ],
  )
