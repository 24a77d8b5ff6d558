"""Frontiers against hand-computed cases, and what holds for any points."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from speccascade.study.report import frontier
from speccascade.study.report.frontier import IntervalEstimate, Points


def points(*pairs) -> Points:
  """Points of (latency, quality) pairs."""
  latency, quality = zip(*pairs)
  return Points(np.array(latency, float), np.array(quality, float))


# By hand: (0.5, 62) is beaten by (0.4, 63), (0.9, 66) by (0.8, 67), and
# (0.8, 65) by (0.8, 67).
ONE = points((0.9, 66), (0.4, 63), (0.8, 65), (0.5, 62), (0.8, 67), (0.2, 60))


def test_the_frontier_by_hand():
  best, index = frontier.frontier(ONE)
  assert best.latency.tolist() == [0.2, 0.4, 0.8]
  assert best.quality.tolist() == [60, 63, 67]
  assert index.tolist() == [5, 1, 4]
  # Of equal points the first is kept.
  _, index = frontier.frontier(points((0.5, 60), (0.5, 60), (0.7, 60)))
  assert index.tolist() == [0]


def test_the_two_questions_by_hand():
  qualities = {
    0.19: -math.inf,
    0.2: 60,
    0.3: 61.5,
    0.6: 65,
    0.8: 67,
    0.85: 67,
    5: 67,
  }
  for latency, quality in qualities.items():
    assert frontier.quality_within(ONE, latency) == pytest.approx(quality)
  latencies = {50: 0.2, 60: 0.2, 61.5: 0.3, 65: 0.6, 67: 0.8, 67.1: math.inf}
  for quality, latency in latencies.items():
    assert frontier.latency_at(ONE, quality) == pytest.approx(latency)


@pytest.mark.parametrize(
  ("first", "second", "common", "gap"),
  [
    # From 0.4 to 0.8 the first rises from 63 to 67, mean 65. (0.6, 60) is
    # beaten by (0.4, 60), so the other rises from 60 to 64, mean 62.
    (ONE, points((0.4, 60), (0.6, 60), (0.8, 64)), (0.4, 0.8), 65 - 62),
    # Up to 0.9 both are flat after their last points.
    (ONE, points((0.8, 60), (0.9, 59)), (0.8, 0.9), 7),
    # At 0.2, 0.3 and 0.4 one is 60, 61.5, 63 and the other 60, 62, 62: gaps
    # 0, -0.5, 1, whose trapezoids cancel.
    (
      points((0.2, 60), (0.4, 63)),
      points((0.2, 60), (0.3, 62), (0.4, 61)),
      (0.2, 0.4),
      0,
    ),
    (ONE, points((0.6, 60.0)), (0.6, 0.6), 5),
    (ONE, points((1.2, 70), (1.5, 71)), None, math.nan),
  ],
)
def test_mean_gap_by_hand(first, second, common, gap):
  assert frontier.common_range(first, second) == common
  mean = frontier.mean_gap(first, second)
  assert mean == pytest.approx(gap, nan_ok=True)


def replicated(shifts, latency=0.5, quality=60.0) -> list[Points]:
  """One point whose quality is shifted in each replicate."""
  scores = quality + np.r_[0.0, shifts]
  return frontier.points_by_replicate([np.full_like(scores, latency)], [scores])


def test_pairs_cancel_what_they_share():
  shared = np.random.default_rng(0).normal(0, 5, 200)
  several = (replicated(shared, quality=61.0), replicated(shared))
  gap = frontier.estimate(frontier.mean_gap, *several)
  assert gap == pytest.approx((1, 1, 1))


def test_interval_of_a_statistic():
  shifts = np.arange(201.0)
  np.random.default_rng(1).shuffle(shifts)
  quality = frontier.estimate(lambda x: x.quality[0], replicated(shifts))
  assert quality == IntervalEstimate(60.0, 65.0, 255.0)


def test_infinite_ends_are_kept():
  # In 20 of 200 resamples the quality is never reached.
  latency = frontier.estimate(
    lambda points: frontier.latency_at(points, 60.0),
    replicated([-1.0] * 20 + [0.0] * 180),
  )
  assert latency == IntervalEstimate(0.5, 0.5, math.inf)


@pytest.mark.parametrize(
  ("num", "is_defined"), [(0, True), (10, True), (11, False)]
)
def test_undefined_replicates(num, is_defined):
  """Up to a twentieth of the replicates may be undefined."""
  values = [math.nan] * num + [1.0] * (200 - num)
  assert (frontier.interval(values) is not None) == is_defined


def test_replicates_count_where_all_have_as_many():
  plain, both = [points((0.5, 60.0))], replicated(np.zeros(200))
  for several in ((plain, plain), (both, plain), (both, replicated([0.0]))):
    gap = frontier.estimate(frontier.mean_gap, *several)
    assert gap == IntervalEstimate(0.0)
  assert not IntervalEstimate(1.0, 1.0, 1.0).has_interval
  full, bare, more = np.ones(4), np.ones(1), np.ones(5)
  assert len(frontier.points_by_replicate([full, full], [full, full])) == 4
  assert len(frontier.points_by_replicate([full, bare], [full, full])) == 1
  assert len(frontier.points_by_replicate([full], [more])) == 1
  both = [np.array([1.0, 1.0, 3.0]), np.array([3.0, 5.0, 7.0])]
  assert frontier.matched(both).tolist() == [x.tolist() for x in both]
  cut = frontier.matched([np.ones(3), np.array([3.0])])
  assert cut.tolist() == [[1.0], [3.0]]


often = settings(max_examples=100, deadline=None)
NUMBER = st.integers(0, 40).map(lambda i: i / 8)
SEVERAL = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=9).map(
  lambda pairs: points(*pairs)
)


@given(SEVERAL)
@often
def test_every_point_is_on_or_under_its_frontier(several):
  best, _ = frontier.frontier(several)
  assert (np.diff(best.latency) > 0).all()
  assert (np.diff(best.quality) > 0).all()
  for x, y in zip(several.latency, several.quality):
    assert frontier.quality_within(several, x) >= y
    assert frontier.latency_at(several, y) <= x
  for x, y in zip(best.latency, best.quality):
    assert not np.any(
      ((several.latency < x) & (several.quality >= y))
      | ((several.latency <= x) & (several.quality > y))
    )


@given(SEVERAL, NUMBER)
@often
def test_the_two_questions_are_inverse(several, wanted):
  latency = frontier.latency_at(several, wanted)
  if math.isfinite(latency):
    assert frontier.quality_within(several, latency) >= wanted - 1e-9
    faster = frontier.quality_within(several, latency - 1e-6)
    assert faster < wanted or wanted <= several.quality.min()
  else:
    assert wanted > several.quality.max()


@given(SEVERAL, SEVERAL, NUMBER)
@often
def test_gaps(first, second, shift):
  gap = frontier.mean_gap(first, second)
  back = frontier.mean_gap(second, first)
  assert math.isnan(gap) == math.isnan(back)
  assert math.isnan(gap) or gap == pytest.approx(-back, abs=1e-9)
  assert frontier.mean_gap(first, first) == 0
  raised = Points(first.latency, first.quality + shift)
  assert frontier.mean_gap(raised, first) == pytest.approx(shift)


@given(SEVERAL, SEVERAL)
@settings(max_examples=50, deadline=None)
def test_mean_gap_is_the_mean_of_many_budgets(first, second):
  common = frontier.common_range(first, second)
  if common is None or common[0] == common[1]:
    return
  edges = np.linspace(*common, 4001)
  middles = (edges[1:] + edges[:-1]) / 2

  def best(points):
    return [frontier.quality_within(points, x) for x in middles[::10]]

  gap = np.mean(np.subtract(best(first), best(second)))
  assert frontier.mean_gap(first, second) == pytest.approx(gap, abs=0.02)
