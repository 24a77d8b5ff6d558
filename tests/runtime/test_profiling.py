"""A profile has a few steps after a warm-up, and says where it is."""

import atexit

import jax
import jax.numpy as jnp
import pytest

from speccascade.runtime import profiling


@pytest.fixture(autouse=True)
def _own_profiles(monkeypatch):
  """Gives a test profiles of its own, which do not outlive it."""
  monkeypatch.setattr(atexit, "register", lambda function: function)
  profiling._profile.cache_clear()
  yield
  profiling._profile.cache_clear()


def step(x, *, offset=1):
  return {"y": x + offset}


def test_without_a_folder_a_step_is_itself():
  assert profiling.recorded(step, None, 3) is step


def test_a_process_that_is_not_the_first_records_nothing(monkeypatch, tmp_path):
  monkeypatch.setattr(profiling.processes, "is_first", lambda: False)
  assert profiling.recorded(step, tmp_path, 3) is step


def test_steps_after_the_warm_up_are_written(tmp_path, monkeypatch, capsys):
  events, folder = [], tmp_path / "a b"
  start, stop = jax.profiler.start_trace, jax.profiler.stop_trace
  monkeypatch.setattr(
    jax.profiler, "start_trace", lambda x: (events.append("start"), start(x))
  )
  monkeypatch.setattr(
    jax.profiler, "stop_trace", lambda: (events.append("stop"), stop())
  )
  # Two functions of one run are counted together.
  recorded = [profiling.recorded(step, folder, 2) for _ in range(2)]
  for number in range(9):
    result = recorded[number % 2](jnp.int32(number))
    assert int(result["y"]) == number + 1
    events.append(number)
  assert events == [0, 1, "start", 2, 3, 4, 5, "stop", 6, 7, 8]
  assert list(folder.rglob("*.xplane.pb"))
  line = "profile of 5 steps after 2: pip install xprof && xprof"
  assert f"{line} --logdir='{folder}' --port=8791" in capsys.readouterr().out
  profiling._profile(str(folder), 2)._finish()
  assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
  ("num", "said"),
  [
    (2, "no profile in {}: the run had 2 steps, and the first 2 are left out"),
    (4, "profile of 2 steps after 2: "),
  ],
)
def test_a_run_that_is_too_short_says_so(num, said, tmp_path, capsys):
  recorded = profiling.recorded(step, tmp_path, 2)
  for number in range(num):
    recorded(jnp.int32(number))
  assert capsys.readouterr().out == ""
  profiling._profile(str(tmp_path), 2)._finish()
  assert said.format(tmp_path) in capsys.readouterr().out
  assert bool(list(tmp_path.rglob("*.xplane.pb"))) == (num > 2)
