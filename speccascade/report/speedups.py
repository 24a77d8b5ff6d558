"""Table 2: how fast at the large model's quality, how good in its time."""

import dataclasses
import math

from speccascade.report import frontier
from speccascade.report.clocks import Clock
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.measured import REFERENCE, SMALL, Measured, metric_title
from speccascade.report.panels import MeasuredCurve, PairStudy, Panel
from speccascade.report.tables import Column, Table

# An oracle asks the large model at every token before it decides: its latency
# says nothing of what it would be.
NOT_FAST = ("oracle_cascade",)
_NEVER = {float("-inf"): "never"}


def is_fast(method: str) -> bool:
  """Whether the method's latency counts; see `NOT_FAST`."""
  return not method.startswith(NOT_FAST)


@dataclasses.dataclass(frozen=True)
class Speedup:
  """A method's line of Table 2, by one clock.

  Attributes:
    temperature: 0 is greedy.
    method: in code.
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

  temperature: float
  method: str
  label: str
  gamma: int | None
  num_points: int
  speedup: IntervalEstimate
  how: str
  within: IntervalEstimate
  gain: IntervalEstimate
  best: float
  best_latency: float


def speedups(
  panel: Panel, clock: Clock, metric: str, *, gamma: int | None = None
) -> list[Speedup]:
  """Returns a line for each method that has a frontier; needs the large model.

  Args:
    panel: one temperature.
    clock: which latency.
    metric: which quality.
    gamma: of the curves; None lets each method take its best.
  """
  if gamma is not None:
    panel = panel.at_gamma(gamma)
  large = panel.large and clock.points([panel.large], metric)
  if large is None:
    return []
  return [
    _speedup(panel, curve, large, clock, metric, gamma)
    for curve in panel.by_method()
    if curve.method not in (REFERENCE, SMALL)
    and is_fast(curve.method)
    and clock.timed(curve.points, metric)
  ]


def _speedup(
  panel: Panel, curve: MeasuredCurve, large, clock, metric, gamma
) -> Speedup:
  timed = clock.timed(curve.points, metric)
  points = clock.points(timed, metric)
  same_law = [i for i, point in enumerate(timed) if point.has_large_law]

  def speedup(points: Points, large: Points) -> float:
    latency = frontier.latency_at(points, large.quality[0])
    return 1 / min([latency, *points.latency[same_law]])

  def within(points: Points, large: Points) -> float:
    return frontier.quality_within(points, large.latency[0])

  def gain(points: Points, large: Points) -> float:
    return within(points, large) - large.quality[0]

  best, _ = frontier.frontier(points[0])
  return Speedup(
    temperature=panel.temperature,
    method=curve.name,
    label=curve.label,
    gamma=gamma,
    num_points=len(timed),
    speedup=frontier.estimate(speedup, points, large),
    how=_how(points[0], large[0].quality[0], same_law),
    within=frontier.estimate(within, points, large),
    gain=frontier.estimate(gain, points, large),
    best=float(best.quality[-1]),
    best_latency=float(best.latency[-1]),
  )


def _how(points: Points, wanted: float, same_law) -> str:
  """Returns how the wanted quality is reached."""
  latency = frontier.latency_at(points, wanted)
  if same_law and points.latency[same_law].min() <= latency:
    return "same law"
  if math.isinf(latency):
    return "never"
  best, _ = frontier.frontier(points)
  return "every point" if wanted <= best.quality[0] else "interpolated"


def overall_frontier(
  panel: Panel, clock: Clock, metric: str
) -> list[tuple[Measured, float]]:
  """Returns the points that no method beats, fastest first, and latencies."""
  members = [point for point in panel.points if is_fast(point.method)]
  timed = clock.timed(members, metric)
  if not timed:
    return []
  best, index = frontier.frontier(clock.points(timed, metric)[0])
  return [(timed[i], float(x)) for i, x in zip(index, best.latency)]


def table(study: PairStudy, clock: Clock, metric: str) -> Table:
  """Returns the paper's two summary numbers by one clock.

  Each method with its best gamma; where there are several gammas, lines for
  each follow.
  """
  title = metric_title(metric)
  gammas = study.gammas if len(study.gammas) > 1 else []
  columns = [
    Column("method", "label"),
    Column("T", lambda line: f"{line.temperature:g}"),
    Column(
      "speed-up at the large model's quality",
      *("speedup", 2, {0.0: "never"}, True),
    ),
    Column("how", "how"),
    Column(f"best {title} within its latency", "within", 1, _NEVER, True),
    Column("minus the large model's", "gain", 2, _NEVER, True),
    Column(f"highest {title}", "best", 1),
    Column("at latency", "best_latency", 2),
    Column("points", "num_points", 0),
  ]
  if gammas:
    columns.insert(2, Column("gamma", lambda line: line.gamma or "best"))
  return Table(
    f"table2_{clock.name}",
    f"Table 2, {clock.title}",
    "Speed-up over the large model where the method's frontier reaches its"
    f" {title}, and the best {title} within its latency; [95% intervals]. How:"
    " interpolated between points; every point, where even the fastest reaches"
    " it; same law, where a point writes what the large model would; never,"
    " where no point reaches it: nothing is extrapolated.",
    columns,
    [
      line
      for gamma in (None, *gammas)
      for panel in study.panels
      for line in speedups(panel, clock, metric, gamma=gamma)
    ],
  )
