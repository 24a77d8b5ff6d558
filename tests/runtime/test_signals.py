"""What a command says that a signal ends."""

import os
import signal
import time

import pytest

from speccascade import cli
from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.measuring import infer
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.run import Run
from speccascade.runtime import signals


def end(number):
  """Sends this process a signal, and waits for it."""
  os.kill(os.getpid(), number)
  time.sleep(5)


@pytest.mark.parametrize(
  ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_says_how_the_work_goes_on(number, code, capsys):
  former = signal.getsignal(signal.SIGTERM)

  def main():
    with signals.interruptible("the same command goes on"):
      end(number)

  assert cli.start(main, "", ["prog"]) == code
  said = capsys.readouterr().err
  name = signal.Signals(number).name
  assert said == f"error: ended by {name}; the same command goes on\n"
  assert signal.getsignal(signal.SIGTERM) == former


def test_a_decode_that_a_signal_ends_says_so(tmp_path, monkeypatch):
  monkeypatch.setattr(infer, "_make_study", lambda *_: end(signal.SIGTERM))
  message = f"ended by SIGTERM; the same command goes on .* in {tmp_path}/out"
  with pytest.raises(signals.Interrupted, match=message):
    infer.infer(
      pair=PairSpec(),
      inputs=Inputs({"inputs": 8}, mixture_or_task_name="none"),
      point=Point("verifier"),
      run=Run(str(tmp_path / "out"), max_decode_len=4),
    )
