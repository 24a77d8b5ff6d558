"""Special tokens as stops and bans, and bytes that are not UTF-8."""

import json

import numpy as np
import pytest

from speccascade.constraints import grammars, limits, stops, token_bytes
from speccascade.constraints.automaton_tables import ConstraintError
from speccascade.constraints.limits import TextLimits
from speccascade.decoding.records.automaton import START
from speccascade.generate.records import text_of
from speccascade.text import vocabularies
from tests.constraints.test_stops import end_by_hand, end_of, read
from tests.text import tokenizers

END = "<|im_end|>"


@pytest.fixture(params=["bytes", "fallback"])
def vocabulary(request, tmp_path):
  return vocabularies.load(str(tokenizers.save(tmp_path / "v", request.param)))


def made(vocabulary, own_stops=(), **given):
  return limits.constraints(
    TextLimits(**given),
    vocabulary,
    lambda ids: text_of(vocabulary, ids),
    eos_ids=vocabulary.eos_ids,
    vocab_size=vocabulary.vocab_size,
    own_stops=own_stops,
  )


def test_a_stop_that_is_a_special_token_is_its_id(vocabulary):
  token = vocabulary.tokenizer.token_to_id(END)
  usual = vocabulary.encode("the cat sat")
  known = read(vocabulary)
  assert known.special[END] == token
  for strings in ([END], ["mat", END], [token], [END, "<|im_start|>"]):
    tables = stops.automaton(strings, known)
    assert end_of(tables, [*usual, token, *usual]) == len(usual) + 1
    assert end_of(tables, [token]) == 1
    assert end_of(tables, usual) is None
  # A text that spells it out has it, too.
  spelled = [t for x in ("<|im", "_end|>") for t in vocabulary.encode(x)]
  text = text_of(vocabulary, spelled)
  if END in text:
    tables = stops.automaton([END], known)
    assert end_of(tables, spelled) == end_by_hand(vocabulary, spelled, [END])


def test_a_ban_of_a_special_token_bans_its_id(vocabulary):
  token = vocabulary.tokenizer.token_to_id("<|im_start|>")
  for banned in (("<|im_start|>",), (token,), ("cat", "<|im_start|>")):
    mask = made(vocabulary, banned=banned)[0].mask
    states = {START}
    for each in vocabulary.encode("the ca"):
      states.add(int(mask.step(max(states), each)))
    assert not any(bool(mask.mask(state)[token]) for state in states)
    assert mask.mask(START)[vocabulary.eos_id]


def test_an_eos_is_a_stop_where_it_ends_nothing_by_itself(vocabulary):
  eos = vocabulary.tokenizer.id_to_token(vocabulary.eos_id)
  stop = made(vocabulary, stop=(eos,), ignore_eos=True)[0].stops
  assert stop.ends[stop.step(START, vocabulary.eos_id)]


def test_lines_have_special_tokens_and_ids_as_stops(vocabulary):
  token = vocabulary.tokenizer.token_to_id(END)
  [other] = vocabulary.encode("cat")[-1:]
  sets = ((), (END,), (other,), ("the",))
  both, begins = made(vocabulary, own_stops=sets, stop=("sat",))
  ends = {
    own: [
      bool(both.stops.ends[both.stops.step(begins[own], each)])
      for each in (token, other)
    ]
    for own in sets
  }
  assert ends[()] == [False, False]
  assert ends[(END,)] == [True, False]
  assert ends[(other,)] == [False, True]
  assert not any(ends[("the",)])


@pytest.mark.parametrize(
  ("given", "words"),
  [
    ({"stop": (f"a{END}",)}, f"STOP has 'a.*{END.replace('|', '.')}' is a spe"),
    ({"stop": (END + END,)}, "give the special token by itself"),
    ({"banned": (f"{END}\n",)}, "BANNED has .* no part of a text"),
    ({"stop": ("a\ufffd",)}, "STOP has .* bytes that are not text"),
    ({"stop": (10**6,)}, "STOP has the id 1000000"),
    ({"own_stops": [(f"x{END}",)]}, "the stop of a line has 'x"),
    ({"own_stops": [(), (10**6,)]}, "the stop of a line has the id"),
    (
      {"grammar": r"yes<\|im_end\|>"},
      "spells '<.im_end.>', which is a special",
    ),
  ],
)
def test_what_never_matches_is_refused_in_a_line(vocabulary, given, words):
  if "grammar" in given:
    pytest.importorskip("outlines_core")
  with pytest.raises(ConstraintError, match=words) as error:
    made(vocabulary, **given)
  assert "\n" not in str(error.value)


def test_settings_of_ids_and_of_the_byte_0():
  assert TextLimits(stop=(np.int64(3), "a")).limits_text == '{"stop": [3, "a"]}'
  assert TextLimits(stop=["\0"], banned=["a\0"]).stop == ("\0",)
  with pytest.raises(ValueError, match=r"stop has the id -1; .*from 0"):
    TextLimits(stop=(-1,))
  with pytest.raises(ValueError, match="a list of strings or whole numbers"):
    TextLimits(stop=("\ud800",))


def test_a_text_ends_before_an_id(vocabulary):
  tokens = vocabulary.encode("the cat sat on the mat")
  place = len(tokens) // 2
  stop = tokens[place]
  place = tokens.index(stop)
  for include in (False, True):
    how = TextLimits(stop=(stop, "no such words"), include_stop=include)
    want = text_of(vocabulary, tokens[: place + include])
    assert text_of(vocabulary, tokens, how) == want


def test_tokens_of_bytes_are_read_as_they_are_decoded(any_vocabulary):
  """Texts of byte tokens among others, valid and not, against their texts."""
  rng, known = np.random.default_rng(4), read(any_vocabulary)
  pieces = dict(zip(known.tokens, range(len(known.tokens))))
  lone = [
    pieces[bytes([byte])]
    for byte in b"\xc3\xa9w\xe2\x82\xac\xf0\x9f\xff a"
    if bytes([byte]) in pieces
  ]
  byte_of = getattr(any_vocabulary, "tokenizer", None)
  if hasattr(byte_of, "token_to_id"):
    ids = [
      byte_of.token_to_id(f"<0x{b:02X}>") for b in b"\xc3\xa9w\xe2\x82\xac"
    ]
    lone += [each for each in ids if each is not None]
  usual = any_vocabulary.encode("the cat a w")
  strings = ["w", "é", "t€", "ée", "at"]
  tables = stops.automaton(strings, known)
  banned = stops.without(strings, known)
  seen = set()
  for _ in range(400):
    tokens = rng.choice([*lone, *lone, *usual], 6).tolist()
    want = end_by_hand(any_vocabulary, tokens, strings)
    assert end_of(tables, tokens) == want, text_of(any_vocabulary, tokens)
    state = START
    for place, token in enumerate(tokens, 1):
      column = banned.classes[token]
      assert banned.allowed[state, column] == (place != want)
      if place == want:
        break
      state = banned.moves[state, column]
    seen.add(want)
  assert len(seen) > 2


def test_a_run_that_is_not_utf8_has_no_stop(tmp_path):
  folder = tokenizers.save(tmp_path / "v", "fallback")
  vocabulary = vocabularies.load(str(folder))
  half, letter = map(vocabulary.tokenizer.token_to_id, ("<0xC3>", "<0x77>"))
  assert text_of(vocabulary, [half, letter]) == "\ufffd" * 2
  tables = stops.automaton(["w"], read(vocabulary))
  assert end_of(tables, [half, letter]) is None
  assert end_of(tables, [letter]) == 1
  assert len(read(vocabulary).byte_tokens) == 256


class Marks:
  """A vocabulary of byte-level BPE with odd pieces."""

  vocab_size, eos_id = 5, 0
  PIECES = (b"", "\u2581".encode(), b"<0x41>", b" a", b"\xe2\x96")

  def is_control(self, token):
    return token == 0

  def piece(self, token):
    return ("</s>", "\u2581", "<0x41>", "\u2581a", "<0xE2><0x96>")[token]

  def token_bytes(self, token):
    return self.PIECES[token]


def test_signs_of_a_spelling_are_not_blanks_or_bytes():
  known = token_bytes.read(Marks(), lambda ids: "")
  assert tuple(known.tokens) == Marks.PIECES


def test_a_token_with_the_letter_of_a_blank_is_that_letter(tmp_path):
  folder = tokenizers.save(tmp_path / "v", "bytes")
  read_json = json.loads((folder / "tokenizer.json").read_text())
  model = read_json["model"]
  size = len(model["vocab"])
  # E2 96 81, which is not a blank for byte-level BPE.
  spelled = "\u00e2\u0138\u0123"
  model["vocab"][spelled] = size
  (folder / "tokenizer.json").write_text(json.dumps(read_json))
  vocabulary = vocabularies.load(str(folder))
  known = read(vocabulary)
  assert known.tokens[size] == text_of(vocabulary, [size]).encode()


def test_a_grammar_needs_a_token_that_ends_a_text():
  pytest.importorskip("outlines_core")
  known = token_bytes.TokenBytes([b"", b"a"], [b"", b"a"])
  with pytest.raises(ConstraintError, match="no token that ends a text"):
    grammars.automaton("a+", known, [7])
