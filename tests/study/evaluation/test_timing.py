"""Timing, by a clock that the tests move."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import Sampling
from speccascade.generate.points import pass_loops
from speccascade.models.t5_lm import T5LM
from speccascade.study.evaluation import timing, walltime
from tests.training.conftest import TINY


class Clock:
  """Seconds that pass only during work."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


def race(costs, examples, **settings):
  """Returns what was timed, and the order of calls as (name, example)."""
  clock, calls = Clock(), []

  def decode(name, example):
    calls.append((name, example))
    clock.now += costs[name] * (example + 1)
    return example

  runs = {name: functools.partial(decode, name) for name in costs}
  seconds = timing.interleave(runs, examples, clock=clock, **settings)
  return seconds, calls


def test_seconds_of_each_example():
  seconds, _ = race({"slow": 2.0, "fast": 0.5}, [0, 1, 3], repeats=2)
  np.testing.assert_allclose(seconds["slow"], [[2, 4, 8]] * 2)
  np.testing.assert_allclose(seconds["fast"], [[0.5, 1, 2]] * 2)


def test_warm_up_is_first_and_not_measured():
  _, calls = race({"a": 1.0, "b": 1.0}, [5, 6], repeats=1)
  assert calls[:2] == [("a", 5), ("b", 5)]
  turns = [(name, example) for name in "ab" for example in (5, 5, 6)]
  assert calls[2:] == turns


def test_competitors_take_turns_of_a_few_examples():
  costs = {"a": 1.0, "b": 1.0, "c": 1.0}
  _, calls = race(costs, range(4), repeats=3, turn=2)
  measured = calls[3:]
  assert len(measured) == 3 * 2 * 3 * 3
  first = []
  for start in range(0, len(measured), 9):
    turns = [measured[start + i : start + i + 3] for i in (0, 3, 6)]
    assert all(len({name for name, _ in turn}) == 1 for turn in turns)
    assert {turn[0][0] for turn in turns} == {"a", "b", "c"}
    # The first example is decoded once unmeasured.
    assert {tuple(e for _, e in turn) for turn in turns} in (
      {(0, 0, 1)},
      {(2, 2, 3)},
    )
    first.append(turns[0][0][0])
  assert {first.count(name) for name in "abc"} == {2}


def test_results_are_handed_over_once_and_calls_counted():
  results, ticks = [], []

  def record(*result):
    results.append(result)

  race(
    {"a": 1.0, "b": 1.0},
    [3, 4],
    repeats=3,
    on_result=record,
    tick=ticks.append,
  )
  assert sorted(results) == [(name, i, i) for name in "ab" for i in (3, 4)]
  assert sum(ticks) == 2 * 2 * 3


def test_timing_ends_after_the_repeat_in_which_its_time_is_up():
  ends = iter([False, True])
  seconds, calls = race(
    {"a": 1.0, "b": 2.0}, [0], repeats=9, is_over=lambda: next(ends)
  )
  np.testing.assert_allclose(seconds["a"], [[1], [1]])
  np.testing.assert_allclose(seconds["b"], [[2], [2]])
  assert len(calls) == 2 + 2 * 2 * 2  # once beforehand, twice in each turn


def test_costs_are_those_of_the_least_round():
  seconds = {
    **{"drafter": [0.2, 0.1], "verifier": [0.4, 0.5]},
    **{"c": [0.3, 0.2], "q2": [0.3, 0.4]},
    **{"v1": [2.0, 1.0], "v3": [1.5, 3.0], "v11": [4.0, 5.0]},
  }
  arrays = {name: np.array(times) for name, times in seconds.items()}
  loops = timing.CostLoops(arrays, num_blocks=10)
  assert loops.widths == [1, 3, 11]
  costs = loops.costs
  assert costs.v == {1: 1.0, 3: 1.5, 11: 4.0}
  assert (costs.c, costs.q2, costs.verifier_step_s) == (0.2, 0.3, 0.1)
  assert (costs.drafter_prefill, costs.verifier_prefill) == (1.0, 4.0)


def test_latency_takes_the_median_over_repeats():
  # Medians: ours 2, 4; reference 4, 8. One repeat with a hiccup moves neither.
  ours = np.array([[2.0, 4], [2, 400], [1, 3]])
  reference = np.array([[4.0, 8], [4, 8], [4, 8]])
  result = walltime.latency(ours, reference)
  assert result.walltime_s == 3
  assert result.relative_latency == 0.5
  assert result.relative_low == pytest.approx(0.5)
  assert result.relative_high == pytest.approx(0.5)
  assert result.by_repeat_s == (3, 201, 2)
  assert (result.num_examples, result.repeats) == (2, 3)


def test_costs_are_ratios_to_a_verifier_step():
  model = T5LM.init(TINY, jax.random.key(0))
  inputs, sampling = jnp.ones((1, 4), jnp.int32), Sampling.create(1.0)
  sizes = {"max_decode_len": 32, "widths": [3], "rounds": 5}
  costs = timing.cost_loops(model, model, inputs, sampling, **sizes).costs
  assert set(costs.v) == {1, 3}
  assert costs.v[1] == 1
  # Both models are the same one, so a step of either costs the same; the bound
  # is wide because a busy machine moves a 10 us step by tens of percent.
  assert 0.1 < costs.c < 10
  assert costs.verifier_step_s > 0
  assert costs.drafter_prefill > 0


@pytest.mark.parametrize("limit", range(8))
def test_no_loop_is_compiled_after_the_time(monkeypatch, limit):
  """Each program takes a second, and nothing begins at the limit or later."""
  clock, begun = Clock(), set()

  def compiled(*program):
    if program not in begun:
      assert clock.now < limit
      begun.add(program)
      clock.now += 1.0
    return jnp.zeros(1)

  def tick(num):
    if clock.now >= limit:
      raise TimeoutError

  monkeypatch.setattr(pass_loops, "_prefill", lambda model, *_: compiled(model))
  monkeypatch.setattr(
    pass_loops, "_feed_blocks", lambda model, *args: compiled(model, args[-2])
  )
  call = functools.partial(
    timing.cost_loops,
    "small",
    "large",
    jnp.ones((1, 4), jnp.int32),
    Sampling.create(1.0),
    max_decode_len=8,
    widths=[3],
    rounds=2,
    tick=tick,
  )
  # Two encoders, two widths of either model: six programs.
  if limit <= 6:
    with pytest.raises(TimeoutError):
      call()
    assert len(begun) == limit
  else:
    assert call().widths == [1, 3]


def test_replicates_are_paired():
  rng = np.random.default_rng(1)
  reference = rng.uniform(1, 3, (2, 20))
  ours = rng.uniform(1, 3, (2, 20))
  paired = walltime.latency(ours, reference)
  assert len(paired.replicates) == walltime.REPLICATES
  # Resamples hold the same examples for every competitor: a competitor that
  # takes twice as long does so in every replicate, and the reference is 1 in
  # all of them.
  half = walltime.latency(ours * 2, reference)
  np.testing.assert_allclose(
    half.replicates, 2 * np.array(paired.replicates), atol=2e-5
  )
  assert set(walltime.latency(reference, reference).replicates) == {1.0}
  assert np.std(paired.replicates) > 0.01


def test_latency_per_token_forgives_a_longer_text():
  """Twice the seconds for twice the tokens: the seconds per token are equal."""
  reference = np.array([[1.0, 2.0, 3.0]])
  reference_lengths = np.array([10, 20, 30])
  lengths = 2 * reference_lengths
  result = walltime.latency(
    2 * reference, reference, (lengths, reference_lengths)
  )
  assert result.relative_latency == 2
  assert result.per_token == pytest.approx((1, 1, 1))
  assert result.num_tokens == 120
  # Equal seconds, for 120 tokens and for 60.
  uneven = walltime.latency(
    reference, reference, (np.array([40, 20, 60]), reference_lengths)
  )
  value, low, high = uneven.per_token
  assert value == pytest.approx(0.5)
  assert low < value < high <= 1


def test_a_tokens_time_is_found_from_outputs_of_two_lengths():
  lengths = np.array([3, 9, 4, 8, 3, 7, 5, 6])
  times = 0.5 + 0.02 * lengths  # an encoder and a call, and then tokens
  assert walltime.seconds_per_token(times, lengths) == pytest.approx(0.02)
  latency = walltime.latency(times[None], times[None], (lengths, lengths))
  assert latency.token_s == pytest.approx(0.02)
  # One example that was disturbed does not decide.
  times[1] += 5.0
  assert walltime.seconds_per_token(times, lengths) == pytest.approx(0.02)
  # Nothing is said of few examples, of one length, or against the lengths.
  assert walltime.seconds_per_token(times[:7], lengths[:7]) is None
  assert walltime.seconds_per_token(times, np.full(8, 4)) is None
  assert walltime.seconds_per_token(-times, lengths) is None


def test_latency_survives_json():
  tokens = (np.array([3, 5]), np.array([4, 4]))
  result = walltime.latency(
    np.array([[2.0, 4], [2, 5]]), np.ones((2, 2)), tokens
  )
  values = json.loads(json.dumps(dataclasses.asdict(result)))
  assert walltime.Latency(**values) == result
  for name in ("replicates", "num_tokens", "per_token"):
    del values[name]  # rows of older versions have none
  assert walltime.Latency(**values).replicates == ()
