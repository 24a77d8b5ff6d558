"""Points of a grid: those of a sweep and those of advice are the same."""

import pytest

from speccascade.inference.points.point import Point
from speccascade.search import grid
from speccascade.search.alpha_grids import Grid
from speccascade.search.plans import Plan
from speccascade.search.wanted import Wanted


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_advice_asks_about_the_points_of_a_sweep(temperature):
  common = Point("verifier", gamma=3, temperature=temperature, top_k=9)
  points = Wanted(gammas=[3]).points(common, 100)
  names = [point.method for point in points]
  plan = Plan(gammas=[3], temperatures=[temperature])
  curves = plan.curves(common, 100, list(dict.fromkeys(names)))
  measured = [point for curve in curves for point in curve.points]
  alone = ("drafter", "verifier")
  assert points == [x for x in measured if x.method not in alone]
  # Rules that are defined at temperature 0 only come at temperature 0 only.
  assert any(point.spec.greedy_only for point in points) == (temperature == 0)
  assert len(points) == len(set(points)) > len(set(names))
  assert names[0] == "spec_decode"


def test_a_method_without_alphas_has_one_point():
  (curve,) = grid.curves(
    Point("verifier"),
    ["spec_decode", "spec_decode"],
    lambda point: Grid(()),
    temperatures=[0.0],
    gammas=[4],
    seeds=[7, 8],
  )
  assert curve.points == [curve.middle] == [curve.base]
  assert (curve.base.gamma, curve.seed) == (4, 7)
