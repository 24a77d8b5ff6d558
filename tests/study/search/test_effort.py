"""The clock of a search, whether timings scatter, and the command to paste."""

import dataclasses
import types

import numpy as np
import pytest

from speccascade.generate.points.point import Point
from speccascade.runtime.progress import ProgressBar
from speccascade.study.evaluation.efficiency import Costs
from speccascade.study.evaluation.timing import CostLoops
from speccascade.study.measuring import point_timing
from speccascade.study.search import advice_plan, candidates, scatter, writer
from speccascade.study.search.effort import Budget, Effort, Steps, TimeIsUp
from speccascade.study.search.offers import measure_costs
from speccascade.study.search.wanted import Wanted


def test_each_part_has_its_share():
  now = [10.0]
  budget = Budget(100.0, clock=lambda: now[0])
  budget.share = 0.5
  now[0] = 59.9
  assert not budget.leaves_out("trials")
  now[0] = 60.0
  assert budget.is_spent()
  assert budget.cut == []
  assert budget.leaves_out("trials")
  assert budget.leaves_out("trials")
  assert budget.cut == ["trials"]
  # An answer needs some steps, which may begin until the time is over.
  assert not budget.leaves_out("costs", is_needed=True)
  budget.share = 1.0
  assert not budget.is_spent()
  now[0] = 110.0
  with pytest.raises(TimeIsUp, match="costs"):
    budget.begin("costs")
  assert budget.cut == ["trials", "costs"]


def test_timings_end_with_their_share_and_compile_until_the_limit(monkeypatch):
  now, asked = [0.0], []
  point = Point("spec_decode")

  def timed(result):
    def call(*_, tick, is_over, **__):
      now[0] = 70.0
      asked.append(is_over())
      tick(0)  # a program of a step that is needed
      now[0] = 100.0
      tick(1)  # a decode of what is compiled
      with pytest.raises(TimeIsUp):
        tick(0)
      now[0] = 0.0
      return result

    return call

  costs = Costs(1e-3, 0.1, 0.1, {1: 1.0, 2: 1.2}, 0.1, 1.0)
  for name, result in (
    ("time_points", {point: None}),
    ("cost_loops", types.SimpleNamespace(costs=costs)),
    ("check_costs", costs),
  ):
    monkeypatch.setattr(point_timing, name, timed(result))
  budget = Budget(100.0, clock=lambda: now[0], share=0.6)
  with ProgressBar(total=2) as bar:
    steps = Steps(bar, budget)
    candidates.time_in_turns([candidates.Candidate(None, point)], steps, "x")
    measure_costs(None, [point], 1, steps, "costs")
  assert asked == [True] * 3


@pytest.mark.parametrize(
  ("needs_one", "now", "num"),
  [
    (True, 70.0, 1),  # the first alone
    (False, 70.0, 0),
    (True, 100.0, 0),
    (True, 50.0, 3),
  ],
)
def test_one_round_may_begin_between_a_share_and_the_limit(needs_one, now, num):
  clock = iter([0.0, *[now] * 20])
  budget = Budget(100.0, clock=lambda: next(clock), share=0.6)
  measured = candidates.run_rounds(
    lambda measured: [len(measured)] * (len(measured) < 3),
    lambda proposed: proposed,
    budget,
    "rounds",
    needs_one=needs_one,
  )
  assert measured == [*range(num)]
  assert budget.cut == ["rounds"] * (num < 3)


@pytest.mark.parametrize("name", ["rounds", "time_limit_s"])
def test_an_effort_is_positive(name):
  with pytest.raises(ValueError, match=name):
    dataclasses.replace(Effort(), **{name: 0})


def test_scatter_of_rounds():
  assert scatter.scatter([2.0, 2.0, 2.0]) == 0
  # One hiccup in five rounds moves neither the least nor the median.
  assert scatter.scatter([2.0, 2.1, 9.0, 2.0, 2.1]) == pytest.approx(0.05)
  assert scatter.scatter([3.0, 2.0]) == pytest.approx(0.25)
  assert scatter.scatter([2.0]) is None


def test_loops_of_the_verifier_are_judged():
  seconds = {
    "drafter": [1, 9],
    "verifier": [1, 9],
    "c": [1, 9],
    "q2": [1, 9],
    "v1": [1.0, 1.2],
    "v6": [2.0, 3.2],
  }
  arrays = {name: np.array(times, float) for name, times in seconds.items()}
  assert scatter.scatter_of_loops(CostLoops(arrays, 8)) == {
    "a pass over a single token": pytest.approx(0.1),
    "a pass over 6 tokens": pytest.approx(0.3),
  }


@pytest.mark.parametrize(
  ("passes", "decodes", "part"),
  [
    ({"a": 0.15, "b": 0.01}, {"c": 0.1}, None),
    ({"a": 0.151, "b": 0.4, "c": 0.0}, {}, "median 1.4x the minimum for b; "),
    ({"a": 0.151, "b": 0.4, "c": 0.0}, {}, "over 1.15x for 2 of 3 passes"),
    ({"a": 0.0}, {"d": 0.2}, "median 1.2x the minimum for d; "),
    ({"a": 0.0}, {"d": 0.2}, "over 1.15x for 1 of 1 whole decodes"),
    ({"a": 0.0}, {"d": 0.2}, "Run this again on an idle machine"),
    ({"a": None}, {"d": None}, "everything was timed once"),
    ({"a": None}, {"d": 0.0}, None),
  ],
)
def test_a_busy_machine_is_noticed(passes, decodes, part):
  warning = scatter.warning(passes, decodes)
  assert (warning is None) == (part is None)
  assert part is None or part in warning


def test_steps_are_planned_for_the_most():
  cuts = {"a": 0, "b": 0, "cut": 2, "exit 1": 0, "exit 2": 0}
  vocabularies = types.SimpleNamespace(num_counts=0, num_planned=cuts.get)

  def num(drafters, wanted=Wanted(None)):
    return advice_plan.num_steps(drafters, wanted, vocabularies)

  decoding = Wanted(0.0, num_decoded=24)
  assert num([["a"]]) == 1 + 4 + 1
  assert num([["a"], ["b"]], decoding) == 1 + 8 + 24 + 1
  # The costs of each cut, and of each early exit; one of them is timed.
  assert num([["cut"]]) == 1 + 4 + 2 + 3 + 1
  assert num([["a"], ["exit 1", "exit 2"]]) == 1 + 4 + 4 + 1 + 1


@pytest.mark.parametrize(("num", "total"), [(1, 6), (3, 6), (5, 8)])
def test_the_bar_ends_a_part_where_it_was_planned(num, total):
  with ProgressBar(total=6) as bar:
    steps = Steps(bar, Budget(1.0, clock=lambda: 0.0))
    for _ in range(num):
      with steps.step("a step"):
        pass
    steps.end_part(3)
    assert (bar.n, bar.total) == (max(num, 3), total)
    with steps.step("a step"):
      pass
    steps.end_part(3)
    assert bar.n == bar.total


def test_the_command_keeps_what_was_asked_of_a_decode():
  argv = [
    "advise",
    "--gin_file",
    "my config.gin",
    "--gin_file=runs/advise.gin",
    "--gin_bindings",
    "TEMPERATURE = 0.5",
    "--gin.MAX_LOSS=1",
    "--gin.GAMMA=2",
    "--gin.wanted.Wanted.num_decoded=3",
    "--verbose",
  ]
  command = writer.decode_command(
    argv, {"MAX_LOSS"}, {"METHOD": "spec_cascade_opt", "GAMMA": 4}
  )
  assert command.split(" \\\n  ") == [
    "python -m speccascade.decode --gin_file='my config.gin'"
    " --gin_bindings='TEMPERATURE = 0.5' --verbose",
    "--gin.METHOD='\"spec_cascade_opt\"' --gin.GAMMA=4",
  ]
