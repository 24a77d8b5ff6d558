"""Frontiers of quality against latency, and intervals of what they say.

A frontier holds the points of a method, over its alphas, that no other of its
points beats in both; between neighbours it is a straight line. It answers two
questions, the columns of Narasimhan et al. (arXiv 2405.19261), Table 2: how
fast at a given quality, and how good within a given latency. Beyond what was
measured nothing is guessed: a quality that no point reaches has latency
infinity, a latency that no point keeps has quality -infinity.

Intervals are of the paired bootstrap. Replicate i of every point comes from the
same resample of the examples, so any statistic of several points is computed
once for each replicate, and its interval is that of the values found.

A number with its replicates is one array, a sample: [1 + R] float64, the number
of all examples first; [1] where there are none.
"""

from collections.abc import Callable, Sequence
import math
from typing import NamedTuple

import numpy as np


class IntervalEstimate(NamedTuple):
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

  @property
  def surely(self) -> tuple[float, float]:
    """What it is at least and at most: the value where there is no interval."""
    return self[1:] if self.has_interval else (self.value, self.value)


def mean(samples: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the mean of samples, replicate by replicate."""
  return np.mean(_paired(samples), axis=0)


def _paired(several: Sequence[Sequence]) -> Sequence[Sequence]:
  """Returns samples, without replicates unless all have as many."""
  if len({*map(len, several)}) > 1:
    return [values[:1] for values in several]
  return several


class Points(NamedTuple):
  """Points of a method in one resample of the examples. N = points.

  Attributes:
    latency: [N] float64, relative to the verifier.
    quality: [N] float64.
  """

  latency: np.ndarray
  quality: np.ndarray


def resampled(
  latency: Sequence[np.ndarray], quality: Sequence[np.ndarray]
) -> list[Points]:
  """Returns points as all examples give them, then as each resample does.

  Args:
    latency: a sample for each point.
    quality: likewise; the points are resampled if all of both are.
  """
  samples = np.stack(_paired([*latency, *quality])).T
  num = len(latency)
  return [Points(values[:num], values[num:]) for values in samples]


def frontier(points: Points) -> tuple[Points, np.ndarray]:
  """Returns the points that no other one beats, by latency, and their numbers.

  One point beats another if it is as fast and as good, and better in one of
  the two; of equal points the first is kept. So both numbers increase.
  """
  order = np.lexsort((-points.quality, points.latency))
  quality = points.quality[order]
  before = np.maximum.accumulate(np.r_[-np.inf, quality[:-1]])
  kept = order[quality > before]
  return Points(points.latency[kept], points.quality[kept]), kept


def quality_within(points: Points, latency: float) -> float:
  """Returns the best quality within a latency; -inf if no point is so fast.

  >>> points = Points(np.array([0.4, 0.8]), np.array([60.0, 70.0]))
  >>> [quality_within(points, budget) for budget in (0.3, 0.6, 1.0)]
  [-inf, 65.0, 70.0]
  """
  best, _ = frontier(points)
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
  best, _ = frontier(points)
  if quality > best.quality[-1]:
    return math.inf
  return float(np.interp(quality, best.quality, best.latency))


def common_range(first: Points, second: Points) -> tuple[float, float] | None:
  """Returns the latencies between which both were measured, or None."""
  low = max(first.latency.min(), second.latency.min())
  high = min(first.latency.max(), second.latency.max())
  return (float(low), float(high)) if low <= high else None


def mean_gap(first: Points, second: Points) -> float:
  """Returns the mean of the first frontier's quality minus the second's.

  Over the latencies that both have, each as likely: the area between the two
  lines over its width. NaN where they have none in common.
  """
  common = common_range(first, second)
  if common is None:
    return math.nan
  low, high = common
  (first, _), (second, _) = frontier(first), frontier(second)
  nodes = np.unique([*first.latency, *second.latency, low, high])
  nodes = nodes[(nodes >= low) & (nodes <= high)]
  gap = np.interp(nodes, first.latency, first.quality)
  gap -= np.interp(nodes, second.latency, second.quality)
  if len(nodes) == 1:
    return float(gap[0])
  # Both are straight between the nodes: the trapezoids are exact.
  return float(np.trapezoid(gap, nodes) / (high - low))


def estimate(
  statistic: Callable[..., float], *several: Sequence[Points]
) -> IntervalEstimate:
  """Returns a statistic of the points with its interval.

  Args:
    statistic: of as many `Points` as are given.
    *several: each `resampled`; unless all are equally often, there is no
      interval.
  """
  return of_sample([statistic(*points) for points in zip(*_paired(several))])


def of_sample(values: Sequence[float]) -> IntervalEstimate:
  """Returns a sample's number with the interval of its replicates."""
  ends = interval(values[1:]) or (None, None)
  return IntervalEstimate(float(values[0]), *ends)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
  """Returns the 95% percentile interval, between two of the values.

  Infinite values count as such. Where more than 5% of the values are NaN, or
  there are none, the statistic is not defined often enough: None.

  >>> interval([float(i) for i in range(201)])
  (5.0, 195.0)
  """
  values = np.asarray(values, np.float64)
  defined = values[~np.isnan(values)]
  if not len(defined) or len(defined) < 0.95 * len(values):
    return None
  low = np.quantile(defined, 0.025, method="lower")
  return float(low), float(np.quantile(defined, 0.975, method="higher"))
