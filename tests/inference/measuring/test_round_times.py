"""What rounds cost, where rows choose their own gammas."""

import jax
import numpy as np
import pytest

from speccascade.decoding.drafting.draft_pace import SIZES
from speccascade.evaluation import timing
from speccascade.inference.batches.batching import Batches
from speccascade.inference.measuring import round_times
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.run import Measuring, Run
from tests.search import test_advisor as chains

NUM, LENGTH = 8, 4


@pytest.fixture
def study():
  run = Run(max_decode_len=LENGTH, batch_size=NUM, num_lengths=1)
  return Study(chains.pair(NUM), chains.sources(NUM), run, Measuring())


@pytest.fixture
def prepared(monkeypatch):
  """Collects the batches that are prepared."""
  batches, prepare = [], Batches.prepare

  def collect(*args, **kwargs):
    batches.append(prepare(*args, **kwargs))
    return batches[-1]

  monkeypatch.setattr(Batches, "prepare", collect)
  return batches


def test_costs_are_of_one_round_and_of_one_pass(study, prepared, monkeypatch):
  """In rounds of the verifier alone, of which the longest row takes four."""
  prefills = {"verifier": 3.0, "drafter": 1.0}
  passes = {"catch_up": timing.PASSES * 5.0}

  def least_seconds(calls, *, budget_s):
    assert {*calls} == {*SIZES, *prefills, *passes}
    return dict.fromkeys(SIZES, 4.0 + 2.0 * LENGTH) | prefills | passes

  monkeypatch.setattr(round_times.least_times, "least_seconds", least_seconds)
  costs = round_times.measure(study, Point("spec_decode", gamma="adaptive"))
  assert costs.sizes == SIZES
  # A round of the verifier alone takes 2 s, and a pass that catches up 5 s.
  assert costs.rounds[0] == 1
  assert costs.catch_up == pytest.approx(2.5)
  # Costs that were measured on the draws of a decode would know its texts.
  [timed] = prepared
  draws = np.asarray(jax.random.key_data(timed.rngs))
  batches = study.batches(Point("spec_decode"))
  for trial in range(3):
    decode = batches.prepare(study.examples[:NUM], trial)
    assert np.all(draws != np.asarray(jax.random.key_data(decode.rngs)))
