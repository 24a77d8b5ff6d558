"""Methods compared: with the large model, with lossy decoding, with truncation.

Table 2 has two summary numbers of each method. Two further tables compare the
frontiers of methods. Latencies are measured or modelled, as the points say.
"""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math

import numpy as np

from speccascade.decoding.programs.methods import METHODS
from speccascade.study.report import frontier, templates
from speccascade.study.report.frontier import IntervalEstimate, Points
from speccascade.study.report.groups import (
  LENGTHS,
  METHOD,
  MeasuredPanel,
  MeasuredStudy,
  MethodLine,
  group_by,
)
from speccascade.study.report.measured import (
  REFERENCE,
  SMALL,
  Measured,
  by_replicate,
)
from speccascade.study.report.tables import TEMPERATURE, Column, Table

# An oracle asks the large model at every token before it decides. So the
# latency of an oracle says nothing about the latency of the oracle's rule.
NOT_FAST = ("oracle_cascade",)
PLAIN = "spec_decode"
BASELINES = ("spec_decode_lossy", "spec_decode_lossy_star")
CHALLENGER = "spec_cascade"
NEVER = {0.0: "never"}  # of a speed-up


def is_fast(method: str) -> bool:
  """Returns whether a method's latency counts; see `NOT_FAST`."""
  return not method.startswith(NOT_FAST)


def competes(method: str) -> bool:
  """Returns whether a method may be fastest: no oracle, and no model alone."""
  return is_fast(method) and method not in (REFERENCE, SMALL)


# Table 2.


@dataclasses.dataclass(frozen=True, eq=False)
class SpeedupLine(MethodLine):
  """A line of Table 2: one method at one temperature.

  Attributes:
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

  gamma: int | None
  num_points: int
  speedup: IntervalEstimate
  way: str
  within: IntervalEstimate
  gain: IntervalEstimate
  best: float
  best_latency: float


def speedups(
  panel: MeasuredPanel, *, gamma: int | None = None
) -> list[SpeedupLine]:
  """Returns a line of Table 2 for each fast method of a panel.

  Args:
    gamma: the gamma of the points; None lets each method take its best.

  Returns:
    The lines; none where the panel lacks the large model's latency.
  """
  if gamma is not None:
    panel = panel.at_gamma(gamma)
  if panel.timed_large is None:
    return []
  large = by_replicate([panel.timed_large])
  lines = []
  for curve in panel.methods:
    timed = [point for point in curve.points if point.is_timed]
    if not timed or not competes(curve.settings.method):
      continue
    points = by_replicate(timed)
    # A lossless point is as good as the large model, whatever its sample of
    # texts scored.
    lossless = [
      place for place, point in enumerate(timed) if point.has_large_distribution
    ]
    # One point is its own: its speed has the interval that it has wherever it
    # is named.
    if len(timed) == len(lossless) == 1 and timed[0].speed.has_interval:
      speedup = timed[0].speed
    else:
      statistic = functools.partial(_speedup, lossless)
      speedup = frontier.estimate(statistic, points, large)
    best, _ = frontier.frontier(points[0])
    lines.append(
      SpeedupLine(
        curve,
        gamma=gamma,
        num_points=len(timed),
        speedup=speedup,
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


def overall_frontier(panel: MeasuredPanel) -> list[Measured]:
  """Returns the points of a panel that no other method beats, fastest first."""
  timed = [p for p in panel.points if p.is_timed and is_fast(p.method)]
  if not timed:
    return []
  _, index = frontier.frontier(by_replicate(timed)[0])
  return [timed[place] for place in index]


def _gamma_or_best(line: SpeedupLine) -> int | str:
  return "best" if line.gamma is None else line.gamma


def speedup_table(study: MeasuredStudy) -> Table:
  """Returns Table 2: the two summary numbers of the paper.

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
    Column(within, "within", 1, templates.NEVER, has_interval=True),
    Column("minus the large model's", "gain", 2, templates.NEVER, True),
    Column(f"highest {title}", "best", 1),
    Column("at latency", "best_latency", 2),
    LENGTHS,
    Column("points", "num_points", 0),
  ]
  return Table(
    f"table2_{study.clock.name}",
    f"Table 2, {study.clock.title}",
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
      for line in speedups(panel, gamma=gamma)
    ],
  )


# Frontiers of two methods.


@dataclasses.dataclass(frozen=True, eq=False)
class FrontierComparison(MethodLine):
  """A comparison of a method's frontier with another frontier.

  Attributes:
    low: the least latency that both frontiers have; None where their ranges of
      latency do not overlap.
    high: the greatest latency that both frontiers have, or None.
    gap: the mean over these latencies of the method's quality minus the
      other's.
  """

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
    return "worse" if self.gap.high < 0 else "not significant"


@dataclasses.dataclass(frozen=True, eq=False)
class GapLine(FrontierComparison):
  """A comparison of a cascade's frontier with a baseline's frontier.

  Attributes:
    baseline: the first point of the baseline.
    at_speed: the gap within the latency of the fastest `spec_decode` point: the
      cascade's best quality minus the baseline's best quality. NaN where one of
      the two has no point so fast.
  """

  baseline: Measured
  at_speed: IntervalEstimate


@dataclasses.dataclass(frozen=True, eq=False)
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


def _compare(points: Sequence[Points], others: Sequence[Points]) -> dict:
  """Returns low, high and gap of a `FrontierComparison`."""
  # Entry 0 is over all examples; the others are replicates.
  low, high = frontier.common_range(points[0], others[0]) or (None, None)
  gap = frontier.estimate(frontier.mean_gap, points, others)
  return {"low": low, "high": high, "gap": gap}


def _columns(quality: str) -> list[Column]:
  """Returns the columns of what all comparisons have."""
  return [
    TEMPERATURE,
    Column("from latency", "low", 2),
    Column("to", "high", 2),
    Column(f"mean {quality} gap", "gap", 2, has_interval=True),
    Column("verdict", "verdict"),
    LENGTHS,
  ]


def gaps(panel: MeasuredPanel) -> list[GapLine]:
  """Returns a comparison of every speculative cascade with every baseline.

  Each method takes the points of all its gammas. Where decoding is greedy the
  lossy baselines write what SpecDecode writes, so SpecDecode is the baseline.
  """
  baselines = BASELINES if panel.settings.temperature > 0 else (PLAIN,)
  points_of = {
    points[0].method: by_replicate(points)
    for points in group_by(panel.points, ["method"])
  }
  plain = points_of.get(PLAIN)
  lines = []
  for method, curve in itertools.product(baselines, panel.methods):
    if not curve.settings.method.startswith(CHALLENGER):
      continue
    points, baseline = by_replicate(curve.points), points_of.get(method)
    if not points or not baseline:
      continue
    at_speed = IntervalEstimate(math.nan)
    if plain:
      at_speed = frontier.estimate(_gap_at_speed, points, baseline, plain)
    lines.append(
      GapLine(
        curve,
        **_compare(points, baseline),
        baseline=panel.first(method),
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


def gap_table(study: MeasuredStudy) -> Table:
  """Returns speculative cascades compared with lossy speculative decoding."""
  at_speed = f"{study.metric} gap at SpecDecode's latency"
  return Table(
    f"differences_{study.clock.name}",
    f"Cascades compared with lossy speculative decoding, {study.clock.title}",
    "The mean difference of the two frontiers over their common latency range,"
    " and the difference within the latency of the fastest SpecDecode"
    " point; [95% intervals of the paired bootstrap]. The lossy variants write"
    " what SpecDecode writes when decoding is greedy, so cascades are then"
    " compared with SpecDecode. Methods that share no latency are left out.",
    (
      *METHOD,
      Column("against", "baseline.label", only="csv"),
      Column("against", "baseline.method", only="page"),
      *_columns(study.metric),
      Column(at_speed, "at_speed", 2, has_interval=True),
    ),
    [
      line
      for panel in study.panels
      for line in gaps(panel)
      if line.low is not None or not math.isnan(line.at_speed.value)
    ],
  )


def truncations(panel: MeasuredPanel) -> list[TruncationLine]:
  """Returns a line for each lossy method of a panel that has baselines."""
  own = [point for point in panel.points if point.has_large_distribution]
  others = [*panel.baselines, *own]
  speculated = by_replicate([p for p in others if p.method == PLAIN])
  if not panel.baselines or not speculated:
    return []
  lines = []
  for curve in panel.methods:
    method = METHODS.get(curve.settings.method)
    is_lossy = method is None or not method.is_lossless
    points = by_replicate(curve.points)
    if not is_lossy or not is_fast(curve.settings.method) or not points:
      continue
    samples = [point.quality_sample for point in (*curve.points, *others)]
    of_method, of_others = np.split(
      frontier.matched(samples), [len(curve.points)]
    )
    best, best_of_others = of_method.max(axis=0), of_others.max(axis=0)
    lines.append(
      TruncationLine(
        curve,
        **_compare(points, speculated),
        best=float(best[0]),
        best_gap=frontier.sample_estimate(best - best_of_others),
      )
    )
  return lines


def truncation_table(study: MeasuredStudy) -> Table:
  """Returns the lossy methods of a study compared with truncation."""
  quality = study.metric
  return Table(
    f"truncation_{study.clock.name}",
    f"Lossy methods compared with the truncated large model,"
    f" {study.clock.title}",
    "The mean difference of two frontiers over their common latency range: a"
    " lossy method's, and lossless speculation's with the large model at all of"
    " its samplings; and the difference of the highest qualities, whatever the"
    " latency; [95% intervals of the paired bootstrap].",
    (
      *METHOD,
      *_columns(quality),
      Column(f"highest {quality}", "best", 1),
      Column("minus the truncated model's", "best_gap", 2, has_interval=True),
    ),
    [line for panel in study.panels for line in truncations(panel)],
  )
