"""Summary numbers of methods: Table 2, and the frontier of all of them."""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import NamedTuple

from speccascade.inference.rows.results import Settings
from speccascade.report import frontier, tables
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import METHOD, PointGroup
from speccascade.report.measured import REFERENCE, SMALL, Clock, Measured
from speccascade.report.tables import TEMPERATURE, Column, Table

# An oracle asks the large model at every token before it decides. So the
# latency of an oracle says nothing about the latency of the oracle's rule.
NOT_FAST = ("oracle_cascade",)
NEVER = {0.0: "never"}  # of a speed-up


@dataclasses.dataclass(frozen=True)
class SpeedupLine:
  """A line of Table 2: one method at one temperature.

  Attributes:
    settings: the settings of the method's first point.
    name: the method's name in code, with its variant.
    label: the method's name in the paper, with its variant.
    gamma: the gamma of the points; None where the line takes all gammas.
    num_points: the number of measured points.
    speedup: 1 / latency at the large model's quality. The value is 0 where no
      point reaches that quality.
    way: how the method reaches that quality. "interpolated": between two
      points; "every point": the fastest point reaches it already; "same
      distribution": a point that follows the large model's distribution is
      faster; "never": no point reaches it.
    within: the best quality within the large model's latency. The value is -inf
      where no point is as fast.
    gain: `within` minus the large model's quality.
    best: the highest measured quality.
    best_latency: the latency of the point with the highest quality.
  """

  settings: Settings
  name: str
  label: str
  gamma: int | None
  num_points: int
  speedup: IntervalEstimate
  way: str
  within: IntervalEstimate
  gain: IntervalEstimate
  best: float
  best_latency: float


class FrontierPoint(NamedTuple):
  """A point of the frontier of all methods.

  Attributes:
    point: the measured point.
    latency: the point's relative latency.
  """

  point: Measured
  latency: float


def is_fast(method: str) -> bool:
  """Returns whether a method's latency counts; see `NOT_FAST`."""
  return not method.startswith(NOT_FAST)


def speedups(
  panel: PointGroup, clock: Clock, *, gamma: int | None = None
) -> list[SpeedupLine]:
  """Returns a line of Table 2 for each fast method of a panel.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.
    gamma: the gamma of the points; None lets each method take its best.

  Returns:
    The lines; none where the panel lacks the large model's latency.
  """
  if gamma is not None:
    panel = panel.at_gamma(gamma)
  large = clock.points([panel.large]) if panel.large else []
  if not large:
    return []
  lines = []
  for curve in panel.methods:
    timed = clock.select_timed(curve.points)
    method = curve.settings.method
    if method in (REFERENCE, SMALL) or not is_fast(method) or not timed:
      continue
    points = clock.points(timed)
    # A lossless point is as good as the large model, whatever its sample of
    # texts scored.
    lossless = [
      place for place, point in enumerate(timed) if point.has_large_distribution
    ]
    speedup = functools.partial(_speedup, lossless)
    # One point is its own: its speed has the interval that it has wherever it
    # is named.
    own = None
    if len(timed) == len(lossless) == 1:
      latency = clock.latency_of(timed[0])
      own = frontier.inverse(latency) if latency.has_interval else None
    best, _ = frontier.frontier(points[0])
    lines.append(
      SpeedupLine(
        settings=curve.settings,
        name=curve.name,
        label=curve.label,
        gamma=gamma,
        num_points=len(timed),
        speedup=own or frontier.estimate(speedup, points, large),
        way=_way_to_quality(lossless, points[0], large[0].quality[0]),
        within=frontier.estimate(_within, points, large),
        gain=frontier.estimate(_gain, points, large),
        best=float(best.quality[-1]),
        best_latency=float(best.latency[-1]),
      )
    )
  return lines


def fastest(lines: Sequence[SpeedupLine]) -> SpeedupLine | None:
  """Returns the line with the highest speed-up, None where there is no line."""
  return max(lines, key=lambda line: line.speedup.value, default=None)


def _speedup(lossless: list[int], points: Points, large: Points) -> float:
  """Returns the speed-up at the large model's quality."""
  latency = frontier.latency_at(points, large.quality[0])
  return 1 / min([latency, *points.latency[lossless]])


def _within(points: Points, large: Points) -> float:
  return frontier.quality_within(points, large.latency[0])


def _gain(points: Points, large: Points) -> float:
  return _within(points, large) - large.quality[0]


def _way_to_quality(lossless: list[int], points: Points, wanted: float) -> str:
  """Returns how a method reaches a quality, see `SpeedupLine.way`."""
  latency = frontier.latency_at(points, wanted)
  if lossless and points.latency[lossless].min() <= latency:
    return "same distribution"
  if math.isinf(latency):
    return "never"
  best, _ = frontier.frontier(points)
  return "every point" if wanted <= best.quality[0] else "interpolated"


def overall_frontier(panel: PointGroup, clock: Clock) -> list[FrontierPoint]:
  """Returns the points of a panel that no other method beats, fastest first."""
  timed = clock.select_timed([p for p in panel.points if is_fast(p.method)])
  if not timed:
    return []
  best, index = frontier.frontier(clock.points(timed)[0])
  return [
    FrontierPoint(timed[place], float(latency))
    for place, latency in zip(index, best.latency)
  ]


def _gamma_or_best(line: SpeedupLine) -> int | str:
  return "best" if line.gamma is None else line.gamma


def speedup_table(study: PointGroup, clock: Clock) -> Table:
  """Returns Table 2: the two summary numbers of the paper, by one clock.

  Each method has a line with its best gamma. Where the study has several
  gammas, lines of the points of each gamma follow.
  """
  title = study.metric
  columns = [*METHOD, TEMPERATURE]
  gammas = [None]
  if len(study.gammas) > 1:
    columns.append(Column("gamma", _gamma_or_best))
    gammas += study.gammas
  at_quality = "speed-up at the large model's quality"
  within = f"best {title} within its latency"
  columns += [
    Column(at_quality, "speedup", 2, NEVER, has_interval=True),
    Column("how", "way"),
    Column(within, "within", 1, tables.NEVER, has_interval=True),
    Column("minus the large model's", "gain", 2, tables.NEVER, True),
    Column(f"highest {title}", "best", 1),
    Column("at latency", "best_latency", 2),
    Column("points", "num_points", 0),
  ]
  return Table(
    f"table2_{clock.name}",
    f"Table 2, {clock.title}",
    "The speed-up over the large model where the method's frontier reaches the"
    f" large model's {title}, and the best {title} within the large model's"
    ' latency; [95% intervals]. The column "how" says how a method reaches'
    f" that {title}: interpolated, between two points; every point, where even"
    " the fastest point is that good; same distribution, where a point writes"
    " what the large model would write; never, where no point is that good, as"
    " nothing is extrapolated.",
    columns,
    [
      line
      for gamma in gammas
      for panel in study.panels
      for line in speedups(panel, clock, gamma=gamma)
    ],
  )
