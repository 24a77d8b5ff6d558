"""Checks the lines of a bar in a log: few, and the first and the last state."""

import io
import re
import subprocess
import sys
import types

import pytest

from speccascade.runtime import progress


@pytest.mark.parametrize(("line_s", "num"), [(0.0, 5), (1e9, 2)])
def test_a_log_gets_lines(monkeypatch, line_s, num):
  log = io.StringIO()
  monkeypatch.setattr(sys, "stderr", log)
  monkeypatch.setattr(progress, "LINE_S", line_s)
  monkeypatch.setenv("TQDM_POSITION", "1")  # a bar below another's
  with progress.ProgressBar(
    total=3, desc="train", unit="step", mininterval=0, miniters=1
  ) as bar:
    for _ in range(3):
      bar.update()
  lines = log.getvalue().splitlines()
  assert "\r" not in log.getvalue()
  assert "\x1b" not in log.getvalue()
  assert lines[0].startswith("train: 0 of 3, ")
  assert lines[-1].startswith("train: 3 of 3, ")
  assert " step/s" in lines[-1]
  assert len(lines) == num


def test_what_has_no_known_end_has_no_estimate(monkeypatch):
  monkeypatch.setattr(sys, "stderr", log := io.StringIO())
  with progress.ProgressBar(desc="advise", unit="step") as bar:
    bar.update(2)
  first, last = log.getvalue().splitlines()
  assert first == "advise: 0, 00:00, ? step/s"
  assert last.startswith("advise: 2, 00:0")
  assert " of " not in last
  assert "left" not in last


def test_the_time_left_is_of_the_mean_rate(monkeypatch):
  """Steps that come at once, after a wait, predict nothing of the next ones."""
  monkeypatch.setattr(sys, "stderr", io.StringIO())
  with progress.ProgressBar(
    total=100, initial=20, desc="train", mininterval=0, miniters=1
  ) as bar:
    bar.start_t -= 60
    for _ in range(20):
      bar.update(1)
    assert re.search(r"40 of 100, 01:0\d, 03:0\d left", str(bar))


def test_compiling_is_left_out_of_the_time_that_is_left(monkeypatch):
  monkeypatch.setattr(sys, "stderr", io.StringIO())
  now_s = [1000.0]
  clock = types.SimpleNamespace(
    monotonic=lambda: now_s[0], time=lambda: now_s[0]
  )
  monkeypatch.setattr(progress, "time", clock)
  with progress.ProgressBar(total=100, desc="train", mininterval=0) as bar:
    bar._time = clock.time
    bar.start_t = now_s[0]
    bar.note("compiling 1 of 1", leave_out=True)
    now_s[0] += 600  # of XLA
    bar.update()
    assert re.search(r"1 of 100, 10:00, \? left, \? it/s", str(bar))
    now_s[0] += 9
    bar.update(9)
    assert re.search(r"10 of 100, 10:09, 01:30 left", str(bar))
    bar.note("another note")  # which is of the work itself
    now_s[0] += 10
    bar.update(10)
    assert re.search(r"20 of 100, 10:19, 01:2\d left", str(bar))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_limit_bounds_the_time_that_is_left(monkeypatch, is_terminal):
  stream = io.StringIO()
  stream.isatty = lambda: is_terminal
  monkeypatch.setattr(sys, "stderr", stream)
  bar = progress.ProgressBar(total=40, desc="advise", limit_s=180)
  bar.start_t -= 90  # one step took 90 s: another 39 would end at the limit
  bar.update(1)
  bar.refresh()
  assert re.search(r"about 01:[0-3]\d left", str(bar))
  bar.start_t -= 900
  bar.refresh()
  bar.close()
  first, *_, last = filter(None, re.split(r"[\r\n]+", stream.getvalue()))
  assert "about 03:00 left" in first
  assert ", past its time limit, ending" in last


def test_a_terminal_keeps_its_bar(monkeypatch):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, "stderr", terminal)
  with progress.ProgressBar(total=3, desc="train") as bar:
    bar.update(3)
  assert "\rtrain: 100%|" in terminal.getvalue()


def test_a_bar_that_is_not_shown_writes_nothing(capfd):
  for _ in progress.ProgressBar(range(3), disable=True):
    pass
  assert capfd.readouterr() == ("", "")


def test_a_log_has_what_was_printed_before_a_line_before_it(tmp_path):
  path = tmp_path / "log"
  code = (
    "from speccascade.runtime import progress\n"
    "print('2 training examples')\n"
    "for _ in progress.ProgressBar(range(3), desc='train'): pass\n"
    "print('finished')"
  )
  with path.open("w") as log:
    command = [sys.executable, "-c", code]
    subprocess.run(command, stdout=log, stderr=log, check=True)
  first, *_, last = path.read_text().splitlines()
  assert (first, last) == ("2 training examples", "finished")


def test_a_note_is_said_at_once(monkeypatch):
  log = io.StringIO()
  monkeypatch.setattr(sys, "stderr", log)
  progress.note("no bar is open")
  with progress.ProgressBar(total=3, desc="sweep") as bar:
    progress.note("compiling 1 of 2")
    progress.note("compiling 2 of 2")
    progress.note("")
    bar.update(3)
  progress.note("none is open any more")
  first, *noted, last = log.getvalue().splitlines()
  assert [line[line.find("compiling") :] for line in noted] == [
    "compiling 1 of 2",
    "compiling 2 of 2",
  ]
  assert "compiling" not in first + last
