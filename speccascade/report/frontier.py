"""Frontiers of quality against latency, and intervals of what they say.

A frontier holds the points of a method, over its alphas, that no other of its
points beats in both; between neighbours it is a straight line. It answers two
questions, the columns of Narasimhan et al., Table 2: how fast at a given
quality, and how good within a given latency. Beyond what was measured nothing
is guessed: a quality that no point reaches has latency infinity, a latency that
no point keeps has quality -infinity.

Intervals are of the paired bootstrap. Replicate i of every point comes from the
same resample of the examples, so any statistic of several points is computed
once for each replicate, and its interval is that of the values found.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import NamedTuple

import numpy as np

LEVEL = 0.95


class Sample(NamedTuple):
  """A number and its bootstrap replicates.

  Attributes:
    value: of all examples.
    replicates: [R] float64, or None where there are none.
  """

  value: float
  replicates: np.ndarray | None = None


class Estimate(NamedTuple):
  """A number and its 95% interval.

  Attributes:
    value: NaN where the statistic is not defined.
    low: None where there is no interval; may be infinite, as may `high`.
    high: likewise.
  """

  value: float
  low: float | None = None
  high: float | None = None

  @property
  def has_interval(self) -> bool:
    """Whether there is one, and wider than a point."""
    return self.low is not None and self.high > self.low


def mean(samples: Sequence[Sample]) -> Sample:
  """Returns the mean of samples, replicate by replicate."""
  value = float(np.mean([sample.value for sample in samples]))
  return Sample(value, _stacked(samples, np.mean))


def _stacked(samples, reduce) -> np.ndarray | None:
  """Returns `reduce` over equally many replicates; None if some lack."""
  arrays = [sample.replicates for sample in samples]
  if any(array is None for array in arrays):
    return None
  if len({len(array) for array in arrays}) != 1:
    return None
  return reduce(np.asarray(arrays, np.float64), axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
  """Points of a method. N = points, R = replicates.

  Attributes:
    latency: [N] float64, relative to the verifier.
    quality: [N] float64.
    replicates: ([R, N], [R, N]) latency and quality, or None.
  """

  latency: np.ndarray
  quality: np.ndarray
  replicates: tuple[np.ndarray, np.ndarray] | None = None

  def __post_init__(self):
    shape = np.shape(self.latency)
    if len(shape) != 1 or shape != np.shape(self.quality) or not shape[0]:
      raise ValueError(
        f"latencies {shape} and qualities {np.shape(self.quality)}; wanted one"
        " of each for one or more points"
      )

  @classmethod
  def of(cls, latency: Sequence[Sample], quality: Sequence[Sample]) -> "Points":
    """Returns points; they have replicates if all of their samples do."""
    several = [_stacked(latency, _as_is), _stacked(quality, _as_is)]
    has_all = all(array is not None for array in several)
    is_even = has_all and several[0].shape == several[1].shape
    return cls(
      np.asarray([sample.value for sample in latency], np.float64),
      np.asarray([sample.value for sample in quality], np.float64),
      (several[0].T, several[1].T) if is_even else None,
    )

  @property
  def num_replicates(self) -> int:
    return 0 if self.replicates is None else len(self.replicates[0])

  def replicate(self, index: int) -> "Points":
    """Returns the points of one resample of the examples."""
    latency, quality = self.replicates
    return Points(latency[index], quality[index])


def _as_is(array, axis):
  return array


class Frontier(NamedTuple):
  """The best points, from fast and poor to slow and good. K = points kept.

  Attributes:
    latency: [K] float64, increasing.
    quality: [K] float64, increasing.
    index: [K] their numbers among the points given.
    slowest: latency of the slowest point given; the frontier is known, and
      flat, from its last point to there.
  """

  latency: np.ndarray
  quality: np.ndarray
  index: np.ndarray
  slowest: float


def frontier(points: Points) -> Frontier:
  """Returns the points that no other one beats.

  One point beats another if it is as fast and as good, and better in one of
  the two; of equal points the first is kept.
  """
  order = np.lexsort((-points.quality, points.latency))
  quality = points.quality[order]
  before = np.maximum.accumulate(np.r_[-np.inf, quality[:-1]])
  kept = order[quality > before]
  return Frontier(
    points.latency[kept],
    points.quality[kept],
    kept,
    float(points.latency.max()),
  )


def quality_within(points: Points, latency: float) -> float:
  """Returns the best quality within a latency; -inf if no point is so fast.

  >>> points = Points(np.array([0.4, 0.8]), np.array([60.0, 70.0]))
  >>> [quality_within(points, budget) for budget in (0.3, 0.6, 1.0)]
  [-inf, 65.0, 70.0]
  """
  best = frontier(points)
  if latency < best.latency[0]:
    return -math.inf
  return float(np.interp(latency, best.latency, best.quality))


def latency_at(points: Points, quality: float) -> float:
  """Returns the least latency of a quality; inf if no point reaches it.

  Where even the fastest point is that good, it is the fastest point's.

  >>> points = Points(np.array([0.4, 0.8]), np.array([60.0, 70.0]))
  >>> [round(latency_at(points, wanted), 3) for wanted in (55, 65, 71)]
  [0.4, 0.6, inf]
  """
  best = frontier(points)
  if quality > best.quality[-1]:
    return math.inf
  return float(np.interp(quality, best.quality, best.latency))


def common_range(one: Points, other: Points) -> tuple[float, float] | None:
  """Returns the latencies between which both were measured, or None."""
  low = max(one.latency.min(), other.latency.min())
  high = min(one.latency.max(), other.latency.max())
  return (float(low), float(high)) if low <= high else None


def mean_gap(one: Points, other: Points) -> float:
  """Returns the mean of one frontier's quality minus the other's.

  Over the latencies that both have, each as likely: the area between the two
  lines over its width. NaN where they have none in common.
  """
  common = common_range(one, other)
  if common is None:
    return math.nan
  first, second = frontier(one), frontier(other)
  low, high = common
  nodes = np.concatenate([first.latency, second.latency, common])
  nodes = np.unique(nodes[(nodes >= low) & (nodes <= high)])
  gap = np.interp(nodes, first.latency, first.quality)
  gap -= np.interp(nodes, second.latency, second.quality)
  if len(nodes) == 1:
    return float(gap[0])
  # Both are straight between the nodes: the trapezoids are exact.
  return float(np.trapezoid(gap, nodes) / (high - low))


def estimate(
  statistic: Callable[..., float], *several: Points, level: float = LEVEL
) -> Estimate:
  """Returns a statistic of the points with its interval.

  Args:
    statistic: of as many `Points` as are given.
    *several: points; without replicates in all of them, equally many, there is
      no interval.
    level: of the interval.
  """
  value = float(statistic(*several))
  counts = {points.num_replicates for points in several}
  if len(counts) != 1 or counts == {0}:
    return Estimate(value)
  values = [
    statistic(*(points.replicate(index) for points in several))
    for index in range(counts.pop())
  ]
  return Estimate(value, *(interval(values, level) or (None, None)))


def interval(
  values: Sequence[float], level: float = LEVEL
) -> tuple[float, float] | None:
  """Returns the percentile interval, between two of the values.

  Infinite values count as such. Where more than 1 - level of the values are
  NaN, the statistic is not defined often enough, and there is no interval.

  >>> interval([float(i) for i in range(201)])
  (5.0, 195.0)
  """
  values = np.asarray(values, np.float64)
  defined = np.sort(values[~np.isnan(values)])
  if not len(defined) or len(defined) < level * len(values):
    return None
  tail = (1 - level) / 2 * (len(defined) - 1)
  # 0.025 * 200 is a little more than 5 in floating point.
  low, high = math.floor(tail + 1e-9), math.ceil(len(defined) - 1 - tail - 1e-9)
  return float(defined[low]), float(defined[high])


def of_sample(sample: Sample, level: float = LEVEL) -> Estimate:
  """Returns a sample's value with its interval."""
  if sample.replicates is None:
    return Estimate(sample.value)
  return Estimate(sample.value, *interval(sample.replicates, level))
