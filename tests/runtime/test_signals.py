"""What a command says that a signal ends."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest

from speccascade import cli
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.runtime import signals
from speccascade.study.measuring import infer
from speccascade.tasks.inputs import Inputs


def end(number):
  """Sends this process a signal, and waits for it."""
  os.kill(os.getpid(), number)
  time.sleep(5)


@pytest.mark.parametrize(
  ("number", "code"),
  [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
def test_a_signal_says_how_the_work_continues(number, code, capsys):
  former = [signal.getsignal(x) for x in (signal.SIGTERM, signal.SIGHUP)]

  def main():
    with signals.interruptible("the same command continues"):
      end(number)

  assert cli.start(main, "", ["prog"]) == code
  said = capsys.readouterr().err
  name = signal.Signals(number).name
  assert said == f"error: ended by {name}; the same command continues\n"
  handlers = [signal.getsignal(x) for x in (signal.SIGTERM, signal.SIGHUP)]
  assert handlers == former


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_loop_stops_at_each_signal(number):
  with signals.catch() as stop:
    assert not stop
    os.kill(os.getpid(), number)
    assert stop
    assert stop.exit_code == 128 + number
    # The next signal ends the process.
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("caught", [signals.catch, signals.interruptible])
def test_a_signal_that_nohup_ignores_stays_ignored(caught):
  former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with caught(*["on"] * (caught is signals.interruptible)) as stop:
      os.kill(os.getpid(), signal.SIGHUP)
      assert not stop
      assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, former)


BUSY = """
import hashlib, os, signal, sys, threading
from speccascade.runtime import signals
def ask():
  os.kill(os.getpid(), signal.{name})
with signals.{caught} as stop:
  threading.Timer(0.3, ask).start()
  # One call of C that lets other threads run, as XLA's compiler does.
  hashlib.pbkdf2_hmac("sha256", b"a", b"b", {num})
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("caught", ["catch()", "interruptible('continues')"])
def test_a_signal_during_a_long_call_says_that_it_waits(name, caught):
  began = time.monotonic()
  hashlib.pbkdf2_hmac("sha256", b"a", b"b", 500_000)
  num = int(500_000 * 4 / (time.monotonic() - began))
  code = BUSY.format(name=name, caught=caught, num=num)
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )
  said = f"{name} waits until what is compiled or computed now is done\n"
  assert done.stderr.startswith(said)
  if caught == "catch()":
    assert done.stderr == said


def test_a_decode_that_a_signal_ends_says_so(tmp_path, monkeypatch):
  monkeypatch.setattr(infer, "_make_study", lambda *_: end(signal.SIGTERM))
  message = f"ended by SIGTERM; the same command continues .* in {tmp_path}/out"
  with pytest.raises(signals.Interrupted, match=message):
    infer.infer(
      pair=PairSpec(),
      inputs=Inputs({"inputs": 8}, mixture_or_task_name="none"),
      point=Point("verifier"),
      run=Run(str(tmp_path / "out"), max_decode_len=4),
    )
