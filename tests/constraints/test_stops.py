"""Stop strings: the automaton over tokens against cutting afterwards."""

import numpy as np
import pytest

from speccascade.constraints import automaton_tables, limits, stops, token_bytes
from speccascade.generate.records import text_of
from speccascade.settings import fields
from speccascade.text import vocabularies
from tests.text.tokenizers import TEXT

WORDS = (
  "A clever witch sells the new car; the cat sat on the mat. Über 42 Straßen"
  " läuft die Katze: naïve café, 你好 🙂 the clever cat sells a new witch."
)


def read(vocabulary):
  return token_bytes.read(vocabulary, lambda ids: text_of(vocabulary, ids))


def end_of(tables, tokens, state: int = 0) -> int | None:
  """Returns how many tokens complete a stop; None if none does."""
  for place, token in enumerate(tokens):
    state = tables.moves[state, tables.classes[token]]
    if tables.ends[state]:
      return place + 1
  return None


def end_by_hand(vocabulary, tokens, strings) -> int | None:
  """Returns the same from the texts of the first tokens, one after another."""
  for num in range(1, len(tokens) + 1):
    text = text_of(vocabulary, tokens[:num])
    if any(string in text for string in strings):
      return num
  return None


def assert_ends(vocabulary, usual, num: int):
  """Asserts that stops of random texts end them where they occur."""
  rng, known, seen = np.random.default_rng(3), read(vocabulary), 0
  for _ in range(num):
    tokens = rng.permutation(usual)[:8].tolist()
    start = rng.integers(0, len(usual) - 5)
    tokens[2:2] = usual[start : start + 5]
    text = text_of(vocabulary, tokens)
    # Strings of the text itself, which begin and end inside of tokens.
    places = rng.integers(0, max(len(text) - 4, 1), 2)
    strings = [text[at : at + rng.integers(1, 6)] or "x" for at in places]
    strings = [x for x in strings if "\ufffd" not in x] + ["no such words"]
    want = end_by_hand(vocabulary, tokens, strings)
    assert end_of(stops.automaton(strings, known), tokens) == want
    seen += want is not None and want < len(tokens)
    cut = stops.cut(text, strings)
    assert text.startswith(cut)
    assert not any(string in cut for string in strings)
  assert seen > num / 3


def test_stops_end_where_the_text_has_one(any_vocabulary):
  usual = any_vocabulary.encode(" ".join([WORDS, *TEXT]))
  assert_ends(any_vocabulary, np.array(usual), 120)


def test_stops_of_t5(real_data):
  path = real_data / "vocab" / "t5_cc_all_32000.model"
  vocabulary = vocabularies.load(str(path))
  assert_ends(vocabulary, np.array(vocabulary.encode(WORDS)), 40)


def test_a_stop_inside_of_another_is_complete_first():
  letters = [letter.encode() for letter in "abcdx"]
  known = token_bytes.TokenBytes(letters, letters)
  tables = stops.automaton(["abcd", "bc"], known)
  assert end_of(tables, [4, 0, 1, 2, 3]) == 4
  assert end_of(tables, [0, 1, 0, 1, 2]) == 5


def test_strings_that_are_banned_never_occur(any_vocabulary):
  known = read(any_vocabulary)
  strings = ["cat", "the c", "t "]
  tables = stops.without(strings, known)
  rng = np.random.default_rng(0)
  usual = any_vocabulary.encode(" ".join([WORDS, *TEXT]))
  num_refused = 0
  for _ in range(50):
    state, text = 0, []
    for token in rng.permutation(usual)[:15].tolist():
      column = tables.classes[token]
      with_it = text_of(any_vocabulary, [*text, token])
      is_banned = any(string in with_it for string in strings)
      assert tables.allowed[state, column] == (not is_banned)
      num_refused += is_banned
      if not is_banned:
        state = tables.moves[state, column]
        text.append(token)
  assert num_refused


@pytest.mark.parametrize(
  ("text", "strings", "want", "included"),
  [
    ("one. two", ["."], "one", "one."),
    ("abcd", ["bcd", "bc"], "a", "abc"),  # "bc" is complete first
    ("abcd", ["c", "bc"], "a", "abc"),  # both at one place: the longest
    ("abcd", ["x"], "abcd", "abcd"),
    ("aab", ["ab"], "a", "aab"),
  ],
)
def test_cuts(text, strings, want, included):
  assert stops.cut(text, strings) == want
  assert stops.cut(text, strings, include=True) == included


def test_what_may_begin_a_stop_is_held_back():
  assert stops.held_back("a\n", ["\n\nQ:"]) == 1
  assert stops.held_back("a\n\nQ", ["\n\nQ:", "x"]) == 3
  assert stops.held_back("abab", ["ababc"]) == 4
  assert stops.held_back("abc", ["d", "x"]) == 0


def test_texts_with_stops_of_their_own_share_one_automaton(any_vocabulary):
  known = read(any_vocabulary)
  rng = np.random.default_rng(1)
  sets = [("the", " c"), (), ("e",), (" cat", "sat on")]
  parts = [stops.automaton(strings, known) for strings in sets]
  joined, begins = automaton_tables.side_by_side(parts, "the union")
  assert len(joined.moves) == sum(len(part.moves) for part in parts)
  usual = np.array(any_vocabulary.encode(WORDS))
  ended = set()
  for _ in range(20):
    tokens = rng.choice(usual, 12).tolist()
    for part, begin in zip(parts, begins):
      want = end_of(part, tokens)
      assert end_of(joined, tokens, begin) == want
      ended.add((begin, want is None))
  assert (begins[1], False) not in ended  # without a stop nothing ends
  assert (begins[2], False) in ended


@pytest.mark.parametrize(
  ("given", "name"),
  [
    ({"stop": ("the cat sat",) * 3, "banned": (3,)}, "STOP"),
    ({"banned": ("the cat", "sat on")}, "BANNED"),
    ({"min_decode_len": 200}, "MIN_DECODE_LEN"),
  ],
)
def test_limits_that_are_too_large_are_refused(
  any_vocabulary, monkeypatch, given, name
):
  monkeypatch.setattr(automaton_tables, "MOST_BYTES", 300)
  with pytest.raises(automaton_tables.ConstraintError, match=f"^{name} makes"):
    limits.constraints(
      limits.TextLimits(**given),
      any_vocabulary,
      lambda ids: text_of(any_vocabulary, ids),
      eos_ids=[1],
      vocab_size=any_vocabulary.vocab_size,
    )


def test_no_token_is_left(any_vocabulary):
  size = any_vocabulary.vocab_size
  kwargs = {"eos_ids": [size], "vocab_size": size}
  kwargs["text_of"] = lambda ids: text_of(any_vocabulary, ids)
  none = limits.TextLimits(banned=tuple(range(size)))
  message = "BANNED allows no text at all"
  with pytest.raises(automaton_tables.ConstraintError, match=message):
    limits.constraints(none, any_vocabulary, **kwargs)
  # No token is an EOS.
  least = limits.TextLimits(min_decode_len=3)
  made, _ = limits.constraints(least, any_vocabulary, **kwargs)
  assert made.mask.mask(0).all()


def test_an_empty_grammar_needs_an_eos():
  limits.TextLimits(grammar="")
  with pytest.raises(fields.SettingError, match="a grammar ends in an EOS"):
    limits.TextLimits(grammar="", ignore_eos=True)


def test_too_many_stops_of_lines_are_refused(any_vocabulary, monkeypatch):
  monkeypatch.setattr(automaton_tables, "MOST_BYTES", 2000)
  parts = [stops.automaton(["a", "the"], read(any_vocabulary))] * 40
  message = "the union makes an automaton of .* states"
  with pytest.raises(automaton_tables.ConstraintError, match=message):
    automaton_tables.side_by_side(parts, "the union")
