"""BiLD as its authors run it: fallback, window, rollback."""

import jax
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  DraftLength,
  Stream,
  row_keys,
)
from speccascade.decoding.loops import bild as bild_lib
from speccascade.decoding.records.block_records import BONUS, DRAFT, RESIDUAL
from tests import toy, toy_chains


def bild_by_hand(q, p, fallback, rollback, length):
  """Decodes one source as the authors' code decides; greedy, one by one.

  Args:
    q: [V, V] drafter distributions by the last token.
    p: [V, V].
    fallback: threshold on max q.
    rollback: threshold on -log p of a drafted token.
    length: most tokens.

  Returns:
    (tokens, large calls, small tokens that were rescored).
  """
  tokens, large, small = [], 0, 0
  ask_large_only = True  # it starts with a large step
  while True:
    last = here = tokens[-1] if tokens else 0
    window = []
    while not ask_large_only and len(window) < bild_lib.WINDOW:
      if q[here].max() < fallback:
        break  # the small prediction is discarded
      here = int(np.argmax(q[here]))
      window.append(here)
    large += 1
    small += len(window)
    ask_large_only = False
    before = [last, *window]
    for m, token in enumerate(window):
      if -np.log(p[before[m], token]) > rollback:
        best = int(np.argmax(p[before[m]]))
        if best != token:
          window = [*window[:m], best]
          ask_large_only = True
        break  # later offenders are not looked at
    if not ask_large_only:
      window.append(int(np.argmax(p[before[-1]])))
    for token in window:
      tokens.append(token)
      if token == toy_chains.EOS or len(tokens) == length:
        return tokens, large, small


@pytest.mark.parametrize("gamma", [2, 5])
def test_bild_against_its_decisions_by_hand(gamma):
  # gamma means nothing to it.
  models = toy.sources(num=200, vocab_size=5, eos=-1.0)
  q, p = (np.asarray(jax.nn.softmax(m.table, axis=-1)) for m in models)
  for fallback, rollback in ((0.45, 1.2), (0.6, 2.0), (0.0, 0.7), (1.0, 5.0)):
    decoded = toy.decode(
      "bild",
      models,
      rollback,
      gamma=gamma,
      max_decode_len=30,
      draft_length=DraftLength("max_prob", fallback),
    )
    for row in range(200):
      tokens, large, small = bild_by_hand(
        q[row], p[row], fallback, rollback, 30
      )
      assert decoded.tokens[row, : decoded.lengths[row]].tolist() == tokens
      assert decoded.stats.verifier_calls[row] == large
      assert decoded.stats.drafted[row] == small


def circling():
  """Five tokens; 2 -> 3 -> 4 -> 2 for the small model, sure of itself.

  The large model agrees with 2 -> 3, dislikes 3 -> 4 (its own is 0), and starts
  with 2.
  """
  q = {0: 2, 2: 3, 3: 4, 4: 2, 1: 0}
  return toy.moving(q, 5), toy.moving(q | {3: 0}, 5)


def test_bild_worked():
  # Large: 2. Small: 3 4 2 3 4 2 3 4 2 3 (a window of ten); 4 has -log p = 3.9,
  # so it is replaced by 0 and the rest dropped: 2 3 0. One large step alone:
  # 2. Small again: 3 4 ... : 3 0. Large alone: 2 ...
  decoded = toy.decode(
    "bild", circling(), 3.0, max_decode_len=9, trace=True, log_probs=True
  )
  np.testing.assert_array_equal(decoded.tokens[0], [2, 3, 0, 2, 3, 0, 2, 3, 0])
  np.testing.assert_array_equal(
    decoded.trace.block[0], [0, 1, 1, 2, 3, 3, 4, 5, 5]
  )
  np.testing.assert_array_equal(
    decoded.trace.source[0], [BONUS, DRAFT, RESIDUAL] * 3
  )
  np.testing.assert_array_equal(decoded.trace.writer[0], [-1, 0, -1] * 3)
  # No target says what it draws from. The models have .92 for their choice; a
  # block of no draft asks the drafter nothing.
  likely, rest, nan = np.log(0.92), np.log(0.02), np.nan
  for field, values_of_turn in (
    ("pi", [nan] * 3),
    ("p", [0.0] * 3),
    ("p1", [likely] * 3),
    ("q", [nan, 0, -np.inf]),
    ("q1", [nan, likely, rest]),
  ):
    values = getattr(decoded.log_probs, field)[0]
    np.testing.assert_allclose(
      values, values_of_turn * 3, atol=1e-5, err_msg=field
    )
  assert decoded.stats.verifier_calls[0] == 6
  assert decoded.stats.drafted[0] == 30
  # A threshold above 3.9 lets it all pass: window and bonus, 11 a call.
  decoded = toy.decode("bild", circling(), 4.0, max_decode_len=12)
  np.testing.assert_array_equal(decoded.tokens[0], [*[2, 3, 4] * 3, 2, 3, 0])
  assert decoded.stats.verifier_calls[0] == 2


def test_bild_defaults():
  assert (bild_lib.WINDOW, bild_lib.FALLBACK) == (10, 0.6)
  assert METHODS["bild"].default_alpha == 5.0
  at_default, never = (
    {"draft_length": DraftLength("max_prob", x)} for x in (0.6, 0.0)
  )
  by_default, as_default, without_fallback = (
    toy.decode("bild", toy.sources(), 5.0, **options).stats.drafted
    for options in ({}, at_default, never)
  )
  np.testing.assert_array_equal(by_default, as_default)
  assert np.any(by_default < without_fallback)


def test_every_turn_begins_with_the_verifier():
  """Even one that is as long as what the limit cut off from a block."""
  limit, model = 8, toy.whole()[1]
  stream = Stream(
    Decoder(
      METHODS["bild"],
      gamma=3,
      max_decode_len=limit,
      eos_id=8,  # no token
      draft_length=DraftLength("max_prob", 0.0),  # without fallback
      trace=True,
    ),
    *(model, model),
    toy.padded([(3, 2)]),
    row_keys(0, 0, np.arange(1)),
    *(9.0, toy.GREEDY),
    room=60,
  )
  # A step of the verifier, and a window of 10 with a bonus, of whose 11 tokens
  # the limit leaves 7.
  wanted = [BONUS, *[DRAFT] * 7]
  sources = [jax.device_get(toy.finish(stream)).trace.source[0].tolist()]
  stream.turn(toy.padded([(5, 6, 5, 6)]), row_keys(0, 1, np.arange(1)))
  sources.append(jax.device_get(toy.finish(stream)).trace.source[0].tolist())
  assert sources == [wanted, wanted]
