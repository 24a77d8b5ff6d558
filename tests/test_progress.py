"""Bars in a log, and what they say while programs compile."""

import io
import sys

from speccascade import progress


def test_a_log_gets_lines(monkeypatch):
  monkeypatch.setattr(progress, "_EVERY_S", 1000.0)
  stream = io.StringIO()
  monkeypatch.setattr(sys, "stderr", stream)
  progress.note("no bar yet")
  with progress.bar(total=50, desc="decode", mininterval=0) as bar:
    progress.note("compiling 1 of 2")
    for _ in range(50):
      bar.update()
    progress.note("")
  progress.note("no bar any more")
  first, note, last = stream.getvalue().splitlines()
  assert first.startswith("decode:   0%")
  assert note == "decode: compiling 1 of 2"
  assert last.startswith("decode: 100%")
  assert "50/50" in last
  assert "\r" not in stream.getvalue()


def test_a_bar_that_is_not_shown(capfd):
  with progress.bar(total=2, shown=False) as bar:
    progress.note("compiling 1 of 2")
    bar.update(2)
  assert capfd.readouterr() == ("", "")
