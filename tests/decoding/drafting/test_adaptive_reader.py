"""State readers whose rows choose their gammas: texts, and what was missed.

The verifier's states sum up the whole text, and the reader continues from any
such state: it is right where it reads the states that belong to the text, and
nowhere else.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import Sampling, Stream, row_keys
from speccascade.decoding.drafting import draft_pace
from speccascade.decoding.drafting.adaptive_reader import ChoosingReader
from speccascade.decoding.drafting.draft_pace import PaceCosts
from tests import toy
from tests.decoding.drafting import toy_reader
from tests.decoding.drafting.test_adaptive import alike
from tests.decoding.drafting.test_state_drafter import (
  INPUTS,
  LENGTH,
  NEVER,
  SAMPLING,
  assert_law,
  decoder_of,
  law,
  random_laws,
  reader_of,
  verifier_of,
)

SIZES = (0, 1, 2)


def choosing(reader, rounds, sizes=SIZES):
  costs = PaceCosts(jnp.asarray(rounds, jnp.float32), jnp.float32(0.3))
  return ChoosingReader(reader, costs, sizes)


def gammas_of(decoded):
  inside = np.arange(decoded.tokens.shape[1])[None] < decoded.lengths[:, None]
  return decoded.trace.extra["gamma"], inside


def test_a_reader_that_knows_the_verifier_is_right_after_idle_rounds(
  monkeypatch,
):
  # Drafts do not pay, and are tried again and again: every state that was held
  # meanwhile belongs to its token.
  monkeypatch.setattr(draft_pace, "TRIAL_SHARE", 0.2)
  verifier = verifier_of()
  jax.clear_caches()
  decoded = toy.decode(
    "spec_decode",
    (choosing(reader_of(verifier), (1.0, 1.9, 2.9)), verifier),
    sampling=Sampling.create(1.0),
    inputs=jnp.asarray(INPUTS, jnp.int32),
    eos_id=NEVER,
    max_decode_len=100,
    gamma=2,
    trace=True,
  )
  jax.clear_caches()
  gammas, _ = gammas_of(decoded)
  assert set(np.ravel(gammas).tolist()) == {0, 1}
  assert "1" + "0" * 12 in "".join(map(str, gammas[0]))
  assert np.sum(decoded.stats.examined) > 12
  assert np.all(decoded.stats.examined == decoded.stats.accepted)


def test_a_row_alone_is_that_row_in_a_batch_refilled_and_in_turns():
  # Which gammas a row takes depends on its own past alone, and so do its texts.
  num, limit, rounds = 6, 20, (1.0, 1.62, 2.25)
  verifier = verifier_of()
  drafter = choosing(reader_of(verifier, blur=0.2), rounds)
  program = decoder_of(2, limit, trace=True)
  inputs = toy.padded([*toy.PROMPTS, (3,)])
  keys = row_keys(0, 0, np.arange(num))
  point = 0.0, Sampling.create(1.0)
  alone = [
    program(drafter, verifier, inputs[[row]], keys[np.array([row])], *point)
    for row in range(num)
  ]
  alone = jax.tree.map(lambda *x: np.concatenate(x), *alone)
  gammas, inside = gammas_of(alone)
  assert set(gammas[inside].tolist()) == set(SIZES)
  call = drafter, verifier, inputs, keys, *point
  for places, part in toy.refilled(program, *call, rows=4, refill=2):
    alike(part, jax.tree.map(lambda x, at=places: x[at], alone))
  stream = Stream(program, *call, room=60)
  alike(jax.device_get(toy.finish(stream, rounds=2)), alone)


def test_a_turn_is_read_with_its_states():
  verifier, keys = verifier_of(), row_keys(0, 0, jnp.arange(3))
  drafter = choosing(reader_of(verifier), (1.0, 1.45, 1.8))
  inputs = np.asarray(INPUTS, np.int32)
  point = 0.0, Sampling.create(1.0)
  stream = Stream(
    decoder_of(2, 9), drafter, verifier, inputs, keys, *point, room=60
  )
  for turn in (None, [[5, 2, 6], [1], [1, 1]], [[2], [3, 3], [4, 4, 0, 1]]):
    if turn is not None:
      stream.turn(toy.padded(turn, width=4), keys)
    decoded = jax.device_get(toy.finish(stream))
    assert np.sum(decoded.stats.examined) > 6
    assert np.all(decoded.stats.examined == decoded.stats.accepted)


def test_samples_have_the_verifiers_law():
  # The reader has laws of its own wherever it reads its own states.
  table, p = random_laws()
  reader = toy_reader.TableReader(jnp.asarray(table, jnp.float32))
  drafter = choosing(reader, (1.0, 1.55, 2.05))
  decoded = toy.decode(
    "spec_decode",
    (drafter, toy.MarkovLM(jnp.asarray(p, jnp.float32)[None])),
    sampling=SAMPLING,
    inputs=jnp.zeros((200, 1), jnp.int32),
    max_decode_len=LENGTH,
    gamma=2,
    trace=True,
  )
  gammas, inside = gammas_of(decoded)
  assert any(len({*row[own]}) > 1 for row, own in zip(gammas, inside))
  want = law("spec_decode", 0.0, SAMPLING, 2, table, p)
  assert_law(drafter, p, want, num=20_000)


def test_a_target_that_reads_q_is_refused():
  verifier = verifier_of()
  models = choosing(reader_of(verifier), (1.0, 1.5), (1, 2)), verifier
  inputs = jnp.asarray(INPUTS, jnp.int32)
  with pytest.raises(ValueError, match="depends on where a block begins"):
    toy.decode("spec_cascade_opt", models, gamma=2, inputs=inputs)
