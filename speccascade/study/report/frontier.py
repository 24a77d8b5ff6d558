"""Frontiers of quality against latency, and intervals of their statistics.

The frontier of a method holds the points of the method, over its alphas, that
no other point of the method beats in both quality and latency. Between two
neighbouring points the frontier is a straight line. The frontier answers two
questions, which are the columns of Narasimhan et al. (arXiv 2405.19261), Table
2: how fast the method is at a given quality, and how good the method is within
a given latency. Nothing is extrapolated: a quality that no point reaches has
the latency infinity, and a latency below every point has the quality -infinity.

Intervals come from the paired bootstrap. Replicate i of every point is computed
from the same resample of the examples. So a statistic of several points is
computed once for each replicate, and the interval of the statistic is taken
from the values of the replicates.

A sample is one array that holds a number and the replicates of the number:
[1 + R] float64, with the number over all examples first. The array is [1] where
there are no replicates.
"""

from collections.abc import Callable, Sequence
import math
from typing import NamedTuple

import numpy as np


class IntervalEstimate(NamedTuple):
  """A number and its 95% interval.

  Attributes:
    value: the number; NaN where the statistic is not defined.
    low: lower end of the interval, which may be infinite; None where there is
      no interval.
    high: upper end of the interval, which may be infinite; None where there is
      no interval.
  """

  value: float
  low: float | None = None
  high: float | None = None

  @property
  def has_interval(self) -> bool:
    """Whether there is an interval that is wider than a point."""
    return self.low is not None and self.high > self.low

  def is_above(self, number: float) -> bool:
    """Returns whether there is an interval, all of which is above a number."""
    return self.has_interval and self.low > number

  @property
  def bounds(self) -> tuple[float, float]:
    """The ends of the interval; the value twice where there is no interval."""
    if self.has_interval:
      return self.low, self.high
    return self.value, self.value


def matched(samples: Sequence[np.ndarray]) -> np.ndarray:
  """Returns N samples in pairs, so that each column is of one resample.

  Args:
    samples: each [1 + R] or [1] float64.

  Returns:
    [N, 1 + R] float64 if all samples have R replicates, else [N, 1] float64.
  """
  return np.stack(_match_replicates(samples))


def _match_replicates(sequences: Sequence[Sequence]) -> Sequence[Sequence]:
  """Returns the sequences, truncated to the shortest."""
  if len({len(sequence) for sequence in sequences}) > 1:
    return [sequence[:1] for sequence in sequences]
  return sequences


class Points(NamedTuple):
  """Points of a method in one resample of the examples. N is their number.

  Attributes:
    latency: [N] float64, relative to the latency of the verifier.
    quality: [N] float64.
  """

  latency: np.ndarray
  quality: np.ndarray


def points_by_replicate(
  latency: Sequence[np.ndarray], quality: Sequence[np.ndarray]
) -> list[Points]:
  """Returns the points over all examples, then the points of each resample.

  Args:
    latency: a sample of each point's latency.
    quality: a sample of each point's quality, in the order of `latency`.

  Returns:
    1 + R entries if all samples of latency and quality have R replicates, else
    one entry.
  """
  # [1 + R, 2 N]: the latencies and then the qualities of a resample in a row.
  samples = matched([*latency, *quality]).T
  num = len(latency)
  return [Points(values[:num], values[num:]) for values in samples]


def frontier(points: Points) -> tuple[Points, np.ndarray]:
  """Returns the points that no other point beats, and their indices.

  One point beats another if it is at least as fast and at least as good, and
  better in one of the two. Of equal points the first stays.

  Args:
    points: N points in any order.

  Returns:
    The points of the frontier by rising latency, so that quality rises too; and
    their indices into `points`, an int array [F].
  """
  # By latency, and from the best to the worst quality where latencies are
  # equal: a point is beaten only by points before it.
  order = np.lexsort((-points.quality, points.latency))
  quality = points.quality[order]
  # Qualities 60, 63, 62, 67 in this order have the best earlier qualities
  # -inf, 60, 63, 63. The third point is beaten, as 62 is no higher than 63.
  best_before = np.maximum.accumulate(np.r_[-np.inf, quality[:-1]])
  index = order[quality > best_before]
  return Points(points.latency[index], points.quality[index]), index


def quality_within(points: Points, latency: float) -> float:
  """Returns the best quality within a latency; -inf if no point is as fast.

  >>> points = Points(np.array([0.4, 0.8]), np.array([60.0, 70.0]))
  >>> [quality_within(points, budget) for budget in (0.3, 0.6, 1.0)]
  [-inf, 65.0, 70.0]
  """
  best, _ = frontier(points)
  if latency < best.latency[0]:
    return -math.inf
  return float(np.interp(latency, best.latency, best.quality))


def latency_at(points: Points, quality: float) -> float:
  """Returns the least latency at a quality; inf if no point is as good.

  Where even the fastest point is better than `quality`, the least latency is
  the latency of the fastest point.

  >>> points = Points(np.array([0.4, 0.8]), np.array([60.0, 70.0]))
  >>> [round(latency_at(points, wanted), 3) for wanted in (55, 65, 71)]
  [0.4, 0.6, inf]
  """
  best, _ = frontier(points)
  if quality > best.quality[-1]:
    return math.inf
  return float(np.interp(quality, best.quality, best.latency))


def common_range(first: Points, second: Points) -> tuple[float, float] | None:
  """Returns the ends of the latency range that both methods were measured in.

  None where the two ranges do not overlap.
  """
  low = max(first.latency.min(), second.latency.min())
  high = min(first.latency.max(), second.latency.max())
  return (float(low), float(high)) if low <= high else None


def mean_gap(first: Points, second: Points) -> float:
  """Returns the mean of the first frontier's quality minus the second's.

  The mean is over the common range of latencies, each latency with equal
  weight: the area between the two frontiers over the width of the range. NaN
  where there is no common range.
  """
  common = common_range(first, second)
  if common is None:
    return math.nan
  low, high = common
  first_best, _ = frontier(first)
  second_best, _ = frontier(second)
  nodes = np.unique([*first_best.latency, *second_best.latency, low, high])
  nodes = nodes[(nodes >= low) & (nodes <= high)]
  gap = np.interp(nodes, first_best.latency, first_best.quality)
  gap -= np.interp(nodes, second_best.latency, second_best.quality)
  if len(nodes) == 1:
    return float(gap[0])
  # Both frontiers are straight between the nodes, so trapezoids are exact.
  return float(np.trapezoid(gap, nodes) / (high - low))


def estimate(
  statistic: Callable[..., float], *methods: Sequence[Points]
) -> IntervalEstimate:
  """Returns a statistic of the points of some methods, with its interval.

  Args:
    statistic: a function that takes the `Points` of each method and returns a
      number.
    *methods: the points of each method by replicate, see `points_by_replicate`.
      There is no interval unless all methods have equally many replicates.
  """
  replicates = zip(*_match_replicates(methods))
  return sample_estimate([statistic(*points) for points in replicates])


def sample_estimate(values: Sequence[float]) -> IntervalEstimate:
  """Returns the number of a sample with the interval of its replicates.

  Args:
    values: a sample, [1 + R] or [1].
  """
  ends = interval(values[1:])
  if ends is None:
    return IntervalEstimate(float(values[0]))
  return IntervalEstimate(float(values[0]), *ends)


def inverse(latency: IntervalEstimate) -> IntervalEstimate:
  """Returns 1 / latency. The upper end of one is the lower end of the other."""
  if latency.low is None:
    return IntervalEstimate(1 / latency.value)
  return IntervalEstimate(1 / latency.value, 1 / latency.high, 1 / latency.low)


def rate_estimate(num: int, total: int) -> IntervalEstimate:
  """Returns a share with Wilson's 95% interval, which takes trials as alike.

  >>> [round(x, 2) for x in rate_estimate(8, 10)]
  [0.8, 0.49, 0.94]
  """
  z = 1.959964  # of the normal distribution
  share = num / total
  middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
  spread = share * (1 - share) / total + z**2 / (4 * total**2)
  reach = z * math.sqrt(spread) / (1 + z**2 / total)
  return IntervalEstimate(share, middle - reach, middle + reach)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
  """Returns the 95% percentile interval; each end is one of the values.

  Infinite values are values like any other. None where there are no values, or
  where more than 5% of them are NaN: the statistic is then not defined often
  enough.

  >>> interval([float(i) for i in range(201)])
  (5.0, 195.0)
  """
  values = np.asarray(values, np.float64)
  defined = values[~np.isnan(values)]
  if not len(defined) or len(defined) < 0.95 * len(values):
    return None
  # Rounding outwards to values keeps inf - inf out of an interpolation.
  low = np.quantile(defined, 0.025, method="lower")
  return float(low), float(np.quantile(defined, 0.975, method="higher"))
