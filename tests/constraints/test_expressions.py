"""Grammars as automata over tokens, against Python's own expressions."""

import json
import re

import numpy as np
import pytest

from speccascade.constraints import (
  automaton_tables,
  expression_compiler,
  expressions,
  limits,
)
from speccascade.constraints.automaton_tables import ConstraintError
from speccascade.constraints.limits import TextLimits
from speccascade.generate.records import text_of
from speccascade.text import vocabularies
from tests.constraints.conftest import Words
from tests.constraints.test_stops import read
from tests.text import tokenizers

pytest.importorskip("outlines_core")


def texts(vocabulary, automaton, eos_id, num=60, most=40):
  """Yields texts of a uniform walk, and whether each of them has ended."""
  rng = np.random.default_rng(1)
  for _ in range(num):
    state, tokens = 0, []
    while len(tokens) < most:
      may = np.flatnonzero(automaton.allowed[state][automaton.classes])
      # Letters are many: an end is taken where there is one, at times.
      if eos_id in may and rng.random() < 0.3:
        break
      may = may[may != eos_id] if len(may) > 1 else may
      token = int(rng.choice(may))
      if token == eos_id:
        break
      tokens.append(token)
      state = automaton.moves[state, automaton.classes[token]]
    yield text_of(vocabulary, tokens), len(tokens) < most


PATTERNS = (
  r"[0-9]{1,3}(,[0-9]{3})*",
  r"(yes|no|maybe so)\.?",
  r"the ([a-z]{2,5} ?){1,4}",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_match(any_vocabulary, pattern):
  if type(any_vocabulary).__name__ == "Words":
    pattern = "(the |a)?cats?( sat)*"
  known = read(any_vocabulary)
  eos_id = any_vocabulary.eos_id
  try:
    automaton = expressions.automaton(pattern, known, [eos_id])
  except ConstraintError as error:
    # A vocabulary may lack digits, say, and the error says which.
    lacking = re.search("no token for '(.)'", str(error))
    spelled = set().union(*known.tokens)
    assert lacking is None or not set(lacking[1].encode()) <= spelled
    assert not {*b"0123456789"} <= spelled or "0-9" not in pattern
    return
  ended = 0
  for text, is_whole in texts(any_vocabulary, automaton, eos_id):
    assert not is_whole or re.fullmatch(pattern, text), text
    ended += is_whole
  assert ended > 20


def test_every_way_of_spelling_is_allowed(tmp_path):
  folder = tokenizers.save(tmp_path / "v", "bytes", size=290)
  vocabulary = vocabularies.load(str(folder))
  known = read(vocabulary)
  automaton = expressions.automaton(
    "the cat|the dog", known, [vocabulary.eos_id]
  )
  for text, matches in (("the cat", True), ("the dogs", False)):
    for tokens in (vocabulary.encode(text), [*text.encode()]):
      spelled = tokens
      if tokens == [*text.encode()]:
        piece = {known.tokens[i]: i for i in range(vocabulary.vocab_size)}
        spelled = [piece[bytes([byte])] for byte in tokens]
      state, is_allowed = 0, True
      for token in [*spelled, vocabulary.eos_id]:
        column = automaton.classes[token]
        is_allowed &= bool(automaton.allowed[state, column])
        state = automaton.moves[state, column]
      assert is_allowed == matches


SCHEMA = {
  "type": "object",
  "properties": {"name": {"enum": ["cat", "dog"]}, "sat": {"type": "boolean"}},
  "required": ["name", "sat"],
}


def test_a_schema_gives_json(tmp_path):
  vocabulary = vocabularies.load(str(tokenizers.save(tmp_path / "v", "bytes")))
  pattern = expressions.of_schema(json.dumps(SCHEMA))
  automaton = expressions.automaton(
    pattern, read(vocabulary), [vocabulary.eos_id]
  )
  ended = 0
  for text, is_whole in texts(vocabulary, automaton, vocabulary.eos_id):
    if is_whole:
      value = json.loads(text)
      assert value["name"] in ("cat", "dog")
      assert isinstance(value["sat"], bool)
      ended += 1
  assert ended > 20
  # Bytes have one way to be spelled with: keys and braces are forced.
  known = read(vocabularies.load("bytes"))
  for each in (pattern, "a[0-9]b"):
    tables = expressions.automaton(each, known, [1])
    device = tables.to_device()
    for state, token in enumerate(tables.forced):
      may = np.flatnonzero(np.asarray(device.mask(state)))
      assert device.forced[state] == token
      assert token == (may[0] if len(may) == 1 else -1)
    assert np.mean(tables.forced >= 0) > 0.5
    assert np.all(np.asarray(device.forced)[len(tables.forced) :] == -1)


def test_a_mask_without_forced_tokens_names_none():
  banned = limits.TextLimits(banned=(3,), min_decode_len=4)
  made, _ = limits.constraints(banned, Words(), str, eos_ids=[1], vocab_size=9)
  assert made.mask.forced is None


RECURSIVE = {
  "$ref": "#/$defs/node",
  "$defs": {
    "node": {
      "type": "object",
      "properties": {"next": {"$ref": "#/$defs/node"}},
    }
  },
}


@pytest.mark.parametrize(
  ("schema", "words"),
  [("{", "not JSON"), (json.dumps(RECURSIVE), "refers to itself")],
)
def test_schemas_that_are_refused(schema, words):
  with pytest.raises(ConstraintError, match=words):
    expressions.of_schema(schema)


def test_letters_that_no_token_spells_are_named():
  known = read(Words())
  with pytest.raises(ConstraintError, match=r"no token for '\{', '\\n'"):
    expressions.automaton(r"\{cat\n", known, [1])
  with pytest.raises(ConstraintError, match="cannot be compiled"):
    expressions.automaton("(cat", known, [1])


def test_limits_that_allow_nothing_together_are_refused():
  vocabulary = Words()
  kwargs = {"eos_ids": [1], "vocab_size": 9}
  text = lambda ids: text_of(vocabulary, ids)
  both = TextLimits(grammar="cats?", min_decode_len=9)
  with pytest.raises(ConstraintError, match="allows no text at all"):
    limits.constraints(both, vocabulary, text, **kwargs)
  fine = TextLimits(grammar="(cat|on)+", min_decode_len=4, banned=("on",))
  made, _ = limits.constraints(fine, vocabulary, text, **kwargs)
  state = 0
  for step in range(5):
    may = np.flatnonzero(np.asarray(made.mask.mask(state)))
    assert may.tolist() == ([3] if step < 3 else [1, 3]), step
    state = int(made.mask.step(state, 3))


def test_tables_that_are_too_large_are_refused(monkeypatch):
  monkeypatch.setattr(automaton_tables, "MOST_BYTES", 4000)
  with pytest.raises(ConstraintError, match=r"[\d,]+ states or more.*MB"):
    expressions.automaton("(cat|on| sat){90}", read(Words()), [1])


@pytest.mark.parametrize(
  ("pattern", "said"),
  [
    ("[a-", "the [ at character 1 is not closed"),
    ("a[b(", "the [ at character 2 is not closed"),
    ("x[]", "the [ at character 2 is not closed"),
    ("[[:alpha:]", "the [ at character 1 is not closed"),
    ("(a|[b])(c", "the ( at character 8 is not closed"),
    ("a)", "the ) at character 2 closes nothing"),
    ("a{2", "the { at character 2 is not closed"),
    ("a\\", "it ends in a \\ with nothing after it"),
    *((right, "") for right in ("[(]", "[]a]", "[^]a]", "\\[a", "(a{2})", "")),
  ],
)
def test_what_an_expression_does_not_close_is_named(pattern, said):
  assert expression_compiler.unclosed(pattern) == said
