"""Calls are timed until other work no longer shows."""

import pytest

from speccascade.generate.points import least_times


@pytest.mark.parametrize(("budget_s", "turns"), [(1e9, 9), (25.0, 2)])
def test_least_seconds_end_once_nothing_is_less(monkeypatch, budget_s, turns):
  """Other work slows the first turns; each call is called twice a turn."""
  now, called = [0.0], []
  monkeypatch.setattr(least_times.time, "perf_counter", lambda: now[0])

  def call_of(name, usual_s):
    def call():
      called.append(name)
      # The first call compiles. Of the turns the fourth is the first at rest.
      num = called.count(name)
      now[0] += usual_s * (1 + max(8 - num, 0) / 2)

    return call

  calls = {name: call_of(name, s) for name, s in (("a", 1.0), ("b", 2.0))}
  least = least_times.least_seconds(calls, budget_s=budget_s)
  assert called == ["a", "b"] + ["a", "a", "b", "b"] * turns
  assert turns < 9 or least == {"a": 1.0, "b": 2.0}
