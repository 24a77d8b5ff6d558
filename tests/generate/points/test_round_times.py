"""What rounds cost, where rows choose their own gammas."""

import functools

import jax
import numpy as np
import pytest

from speccascade.decoding.drafting.draft_pace import SIZES
from speccascade.generate.batches.batching import Batches
from speccascade.generate.points import pass_loops, round_times
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from tests import toy
from tests.decoding.drafting import toy_reader
from tests.study.search import test_advisor as chains

NUM, LENGTH = 8, 4


@pytest.fixture
def session():
  run = Run(max_decode_len=LENGTH, batch_size=NUM, num_lengths=1)
  return Session(chains.pair(NUM), chains.sources(NUM), run)


@pytest.fixture
def prepared(monkeypatch):
  """Collects the batches that are prepared."""
  batches, prepare = [], Batches.prepare

  def collect(*args, **kwargs):
    batches.append(prepare(*args, **kwargs))
    return batches[-1]

  monkeypatch.setattr(Batches, "prepare", collect)
  return batches


@pytest.fixture
def measure(session, monkeypatch):
  """Measures by a clock that says what a round of each size takes."""

  def call(method, rounds_s, *, prefill_s=4.0, least_s=None):
    passes_s = {"catch_up": 5.0, "step": 2.5}

    def least_seconds(calls, *, budget_s):
      least = {"verifier": 0.75 * prefill_s, "drafter": 0.25 * prefill_s}
      for name, decode in calls.items():
        if name in rounds_s:
          num = int(np.max(decode().stats.num_blocks))
          least[name] = prefill_s + num * rounds_s[name]
        elif name in passes_s:
          least[name] = pass_loops.PASSES * passes_s[name]
      assert {*calls} == {*least}
      return least | (least_s or {})

    monkeypatch.setattr(round_times.least_times, "least_seconds", least_seconds)
    return round_times.measure(
      Point(method, gamma="adaptive"),
      functools.partial(session.batches, shared=False),
    )

  return call


def test_a_state_reader_is_timed_with_states_of_its_own():
  [_, verifier] = toy.whole(prompted=True)
  verifier = toy_reader.StatesLM(verifier.table, True)
  reader = toy_reader.CountingReader(verifier.vocab_size, True)
  model = pass_loops.alone(reader, verifier, 2)
  inputs = toy.padded([(3,), (4, 1)])
  state = pass_loops.prefill_call(model, inputs)()
  assert np.array_equal(state.length, [0, 0])
  token = pass_loops.pass_loop(model, inputs, toy.GREEDY, 2)()
  assert np.all((token >= 0) & (token < verifier.vocab_size))
  assert pass_loops.alone(verifier, verifier) is verifier


RISING = dict(zip(SIZES, (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)))


def test_costs_are_of_one_round_and_of_one_pass(measure, session, prepared):
  costs = measure("spec_decode", RISING)
  assert costs.sizes == SIZES
  assert costs.rounds == pytest.approx((1, 1.5, 2, 2.5, 3, 3.5))
  assert costs.catch_up == pytest.approx(2.5)
  # Costs that were measured on the draws of a decode would know its texts.
  [timed] = prepared
  draws = np.asarray(jax.random.key_data(timed.rngs))
  batches = session.batches(Point("spec_decode"))
  for trial in range(3):
    decode = batches.prepare(session.examples[:NUM], trial)
    assert np.all(draws != np.asarray(jax.random.key_data(decode.rngs)))


def test_a_disturbed_clock_makes_no_round_free_or_dear(measure):
  # A narrow round takes no longer than a wide one.
  costs = measure("spec_decode", RISING | {1: 4.5, 5: 9.0})
  assert costs.rounds == pytest.approx((1, 2, 2, 2.5, 3.5, 3.5))
  # Where the prefill took longer than a whole decode, half of that is rounds.
  decode_s = dict.fromkeys(SIZES, 24.0)
  slow = {"verifier": 30.0}
  costs = measure("spec_decode", RISING, least_s=decode_s | slow)
  assert costs.rounds[0] == 1
  assert costs.catch_up == pytest.approx(5.0 / (24.0 / 2 / LENGTH))


def test_a_target_that_reads_q_has_the_unit_of_a_pass(measure):
  costs = measure("spec_cascade_opt", RISING)
  assert costs.sizes == SIZES[1:]
  assert costs.rounds == pytest.approx((1.2, 1.6, 2, 2.4, 2.8))
  assert costs.catch_up == pytest.approx(2)
