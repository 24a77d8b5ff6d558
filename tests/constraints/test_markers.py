"""Markers: the phase after each token against looking for them in the text."""

import numpy as np
import pytest

from speccascade.constraints import markers, token_bytes
from speccascade.constraints.automaton_tables import ConstraintError
from speccascade.generate.records import text_of
from tests.constraints.test_stops import WORDS, end_by_hand, read
from tests.text.tokenizers import TEXT


def walked(tables, tokens) -> list[bool]:
  """Returns whether the marker is complete after each token, on the host."""
  state, complete = 0, []
  for token in tokens:
    state = tables.moves[state, tables.classes[token]]
    complete.append(bool(tables.ends[state]))
  return complete


def phases(automaton, tokens) -> list[bool]:
  """Returns the same of the automaton of a decoder."""
  states = automaton.follow(np.zeros(1, np.int32), np.array([tokens], np.int32))
  return np.asarray(automaton.ends)[np.asarray(states)[0]].tolist()


def test_a_text_stays_in_the_phase_after_its_marker(any_vocabulary):
  # However tokens spell it, and whatever begins or ends inside of a token.
  usual = np.array(any_vocabulary.encode(" ".join([WORDS, *TEXT])))
  rng, known, seen = np.random.default_rng(4), read(any_vocabulary), 0
  for _ in range(20):
    tokens = rng.permutation(usual)[:12].tolist()
    start = rng.integers(0, len(usual) - 5)
    tokens[2:2] = usual[start : start + 5]
    text = text_of(any_vocabulary, tokens)
    at = rng.integers(0, max(len(text) // 2, 1))
    marker = text[at : at + rng.integers(1, 7)] or "x"
    if "\ufffd" in marker:
      continue
    end = end_by_hand(any_vocabulary, tokens, [marker]) or len(tokens) + 1
    got = walked(markers.automaton([marker], known), tokens)
    assert got == [place >= end for place in range(1, len(tokens) + 1)]
    seen += end < len(tokens)
  assert seen > 5


def test_a_marker_in_pieces_and_an_id():
  known = token_bytes.TokenBytes(
    [b"#", b"##", b"###", b" #", b"a", b"a##", b"####b"],
    [b"#", b"##", b"###", b" #", b"a", b"a##", b"####b"],
  )
  marker = markers.automaton(["####"], known).to_device()
  for tokens, wanted in (
    ([0, 0, 0, 0, 4], [0, 0, 0, 1, 1]),
    ([2, 4, 2, 0], [0, 0, 0, 1]),
    ([5, 1, 4, 4], [0, 1, 1, 1]),
    ([3, 2, 3], [0, 1, 1]),
    ([6, 4], [1, 1]),
    ([1, 3, 1], [0, 0, 0]),
  ):
    assert phases(marker, tokens) == [bool(x) for x in wanted]
  both = markers.automaton(["####", 4], known).to_device()
  assert phases(both, [1, 4, 1]) == [False, True, True]


def test_a_marker_that_no_text_has_is_refused(any_vocabulary):
  size = len(read(any_vocabulary).tokens)
  for marker, message in (
    ([size + 5], f"MARKER has the id {size + 5}, and the models have {size}"),
    (["a\ufffdb"], "MARKER has 'a\ufffdb', which no text has"),
  ):
    with pytest.raises(ConstraintError, match=message) as error:
      markers.compiled(
        marker, any_vocabulary, lambda ids: text_of(any_vocabulary, ids), size
      )
    assert "\n" not in str(error.value)
