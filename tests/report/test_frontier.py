"""Frontiers against hand-computed cases, and what holds for any points."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from speccascade.report import frontier
from speccascade.report.frontier import Estimate, Points, Sample


def points(*pairs) -> Points:
  """Points of (latency, quality) pairs."""
  latency, quality = zip(*pairs)
  return Points(np.array(latency, float), np.array(quality, float))


# By hand: (0.5, 62) is beaten by (0.4, 63), (0.9, 66) by (0.8, 67), and
# (0.8, 65) by (0.8, 67).
ONE = points((0.9, 66), (0.4, 63), (0.8, 65), (0.5, 62), (0.8, 67), (0.2, 60))


def test_the_frontier_by_hand():
  best = frontier.frontier(ONE)
  assert best.latency.tolist() == [0.2, 0.4, 0.8]
  assert best.quality.tolist() == [60, 63, 67]
  assert best.index.tolist() == [5, 1, 4]
  assert best.slowest == 0.9


def test_of_equal_points_the_first_is_kept():
  best = frontier.frontier(points((0.5, 60), (0.5, 60), (0.7, 60)))
  assert best.index.tolist() == [0]


@pytest.mark.parametrize(
  ("latency", "quality"),
  [
    (0.19, -math.inf),
    (0.2, 60),
    (0.3, 61.5),
    (0.6, 65),
    (0.8, 67),
    (0.85, 67),
    (5, 67),
  ],
)
def test_quality_within_by_hand(latency, quality):
  assert frontier.quality_within(ONE, latency) == pytest.approx(quality)


@pytest.mark.parametrize(
  ("quality", "latency"),
  [(50, 0.2), (60, 0.2), (61.5, 0.3), (65, 0.6), (67, 0.8), (67.1, math.inf)],
)
def test_latency_at_by_hand(quality, latency):
  assert frontier.latency_at(ONE, quality) == pytest.approx(latency)


def test_mean_gap_by_hand():
  # From 0.4 to 0.8 the first rises from 63 to 67, mean 65. (0.6, 60) is beaten
  # by (0.4, 60), so the other rises from 60 to 64, mean 62.
  other = points((0.4, 60), (0.6, 60), (0.8, 64))
  assert frontier.common_range(ONE, other) == (0.4, 0.8)
  assert frontier.mean_gap(ONE, other) == pytest.approx(65 - 62)
  # Up to 0.9 both are flat behind their last points.
  third = points((0.8, 60), (0.9, 59))
  assert frontier.mean_gap(ONE, third) == pytest.approx(7)
  # At 0.2, 0.3 and 0.4 one is 60, 61.5, 63 and the other 60, 62, 62: gaps 0,
  # -0.5, 1, whose trapezoids cancel.
  fourth = points((0.2, 60), (0.3, 62), (0.4, 61))
  assert frontier.mean_gap(
    points((0.2, 60), (0.4, 63)), fourth
  ) == pytest.approx(0)


def test_gap_at_one_common_latency():
  assert frontier.mean_gap(ONE, points((0.6, 60.0))) == pytest.approx(5)


def test_no_common_latency():
  slow = points((1.2, 70), (1.5, 71))
  assert frontier.common_range(ONE, slow) is None
  assert math.isnan(frontier.mean_gap(ONE, slow))


def replicated(shifts, latency=0.5) -> Points:
  """One point whose quality is 60 plus a shift in each replicate."""
  shifts = np.asarray(shifts, float)
  return Points.of(
    [Sample(latency, np.full(len(shifts), latency))],
    [Sample(60.0, 60.0 + shifts)],
  )


def test_pairs_cancel_what_they_share():
  shared = np.random.default_rng(0).normal(0, 5, 200)
  one = Points.of(
    [Sample(0.5, np.full(200, 0.5))], [Sample(61.0, 61.0 + shared)]
  )
  found = frontier.estimate(frontier.mean_gap, one, replicated(shared))
  assert found.value == pytest.approx(1)
  assert found.low == pytest.approx(1)
  assert found.high == pytest.approx(1)


def test_interval_of_a_statistic():
  shifts = np.arange(201.0)
  np.random.default_rng(1).shuffle(shifts)
  found = frontier.estimate(lambda one: one.quality[0], replicated(shifts))
  assert found == Estimate(60.0, 65.0, 255.0)


def test_infinite_ends_are_kept():
  # In 20 of 200 resamples the quality is never reached.
  shifts = np.array([-1.0] * 20 + [0.0] * 180)
  found = frontier.estimate(
    lambda one: frontier.latency_at(one, 60.0), replicated(shifts)
  )
  assert found == Estimate(0.5, 0.5, math.inf)


@pytest.mark.parametrize(("num", "has"), [(0, True), (10, True), (11, False)])
def test_undefined_replicates(num, has):
  """Up to a twentieth may be undefined."""
  values = [math.nan] * num + [1.0] * (200 - num)
  assert (frontier.interval(values) is not None) == has


def test_no_interval_without_replicates():
  plain = points((0.5, 60.0))
  assert frontier.estimate(frontier.mean_gap, plain, plain) == Estimate(0.0)
  both = replicated(np.zeros(200))
  assert frontier.estimate(frontier.mean_gap, both, plain).low is None
  shorter = replicated(np.zeros(100))
  assert frontier.estimate(frontier.mean_gap, both, shorter).low is None
  assert not Estimate(1.0, 1.0, 1.0).has_interval


def test_points_need_replicates_in_all_samples():
  full, bare = Sample(1.0, np.ones(3)), Sample(1.0)
  assert Points.of([full, full], [full, full]).num_replicates == 3
  assert Points.of([full, bare], [full, full]).num_replicates == 0
  assert Points.of([full], [Sample(1.0, np.ones(4))]).num_replicates == 0
  with pytest.raises(ValueError, match="wanted one of each"):
    Points.of([], [])


def test_mean_over_seeds_is_replicate_by_replicate():
  found = frontier.mean(
    [Sample(1.0, np.array([1.0, 3.0])), Sample(3.0, np.array([5.0, 7.0]))]
  )
  assert found.value == 2.0
  assert found.replicates.tolist() == [3.0, 5.0]
  assert (
    frontier.mean([Sample(1.0, np.ones(2)), Sample(3.0)]).replicates is None
  )


NUMBER = st.integers(0, 40).map(lambda i: i / 8)
SEVERAL = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=9).map(
  lambda pairs: points(*pairs)
)


@given(SEVERAL)
@settings(max_examples=100, deadline=None)
def test_every_point_is_on_or_under_its_frontier(several):
  best = frontier.frontier(several)
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
@settings(max_examples=100, deadline=None)
def test_the_two_questions_are_inverse(several, wanted):
  latency = frontier.latency_at(several, wanted)
  if math.isfinite(latency):
    assert frontier.quality_within(several, latency) >= wanted - 1e-9
    faster = frontier.quality_within(several, latency - 1e-6)
    assert faster < wanted or wanted <= several.quality.min()
  else:
    assert wanted > several.quality.max()


@given(SEVERAL, SEVERAL, NUMBER)
@settings(max_examples=100, deadline=None)
def test_gaps(one, other, shift):
  gap = frontier.mean_gap(one, other)
  back = frontier.mean_gap(other, one)
  assert math.isnan(gap) == math.isnan(back)
  assert math.isnan(gap) or gap == pytest.approx(-back, abs=1e-9)
  assert frontier.mean_gap(one, one) == 0
  raised = Points(one.latency, one.quality + shift)
  assert frontier.mean_gap(raised, one) == pytest.approx(shift)


@given(SEVERAL, SEVERAL)
@settings(max_examples=50, deadline=None)
def test_mean_gap_is_the_mean_of_many_budgets(one, other):
  common = frontier.common_range(one, other)
  if common is None or common[0] == common[1]:
    return
  edges = np.linspace(*common, 4001)
  middles = (edges[1:] + edges[:-1]) / 2
  gaps = [
    frontier.quality_within(one, x) - frontier.quality_within(other, x)
    for x in middles[::10]
  ]
  assert frontier.mean_gap(one, other) == pytest.approx(np.mean(gaps), abs=0.02)
