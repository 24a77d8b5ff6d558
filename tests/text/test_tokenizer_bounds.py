"""Tokenizers whose texts grow, and panics of their library."""

import base64
import json
import struct
import time

import pytest

from speccascade.text import tokenizer_bounds
from speccascade.text.tokenizer import TokenizerVocabulary
from tests.text import tokenizers

DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BETWEEN = {"type": "Replace", "pattern": {"Regex": ""}, "content": "ab" * 99}
LONG = {"type": "Prepend", "prepend": "a" * 5000}
ALL = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 5000}
NFKC = {"type": "NFKC"}


def table(text):
  """Returns the settings of a table of SentencePiece's with one text."""
  content = struct.pack("<I", 4) + b"\0" * 4 + text + b"\0"
  return {
    "type": "Precompiled",
    "precompiled_charsmap": base64.b64encode(content).decode(),
  }


@pytest.fixture
def made(tmp_path):
  written = {}

  def make(kind="fallback", added=None, **parts):
    folder = tmp_path / "t"
    if kind not in written:
      tokenizers.save(folder, kind)
      path = folder / "tokenizer.json"
      written[kind] = json.loads(path.read_text(encoding="utf-8"))
    path, read = folder / "tokenizer.json", written[kind] | parts
    if added:
      read["added_tokens"] = [
        *read["added_tokens"],
        dict(read["added_tokens"][0], id=len(read["model"]["vocab"]), **added),
      ]
    path.write_text(json.dumps(read), encoding="utf-8")
    return TokenizerVocabulary(str(folder))

  return make


def steps(*normalizers):
  return {"type": "Sequence", "normalizers": [*normalizers]}


@pytest.mark.parametrize(
  "normalizer",
  [
    steps(*[DOUBLE] * 60),
    steps(steps(*[DOUBLE] * 30), {"type": "Lowercase"}),
    steps(BETWEEN, BETWEEN, BETWEEN, BETWEEN),
    steps(LONG, ALL, NFKC),
    steps(*[NFKC] * 3, *[DOUBLE] * 30),
  ],
)
def test_normalizers_that_grow_a_text_are_refused(made, normalizer):
  read = made(normalizer=normalizer)
  start = time.monotonic()
  with pytest.raises(ValueError, match="make over 1,048,576 char") as error:
    read.encode("the cat sat, and " * 4)
  assert "\n" not in str(error.value)
  assert time.monotonic() - start < 10
  for call in (read.prompt, read.continuing().encode):
    with pytest.raises(ValueError, match=r"t/tokenizer\.json make over"):
      call("a cat")


def test_an_added_token_is_normalized_when_it_is_read(made):
  added = {"content": "aa", "normalized": True}
  with pytest.raises(ValueError, match="over 1,048,576 characters of a text"):
    made(added=added, normalizer=steps(*[DOUBLE] * 60))


def test_what_may_grow_and_does_not_is_encoded(made):
  blanks = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
  rare = {"type": "Replace", "pattern": {"String": "~"}, "content": "~" * 99}
  plain = json.loads(made().tokenizer.to_str())["normalizer"]
  text = "the cat sat " * 5000
  ids = made().encode(text)
  assert (
    made(normalizer=steps(*[blanks] * 30, *[rare] * 9, plain)).encode(text)
    == ids
  )
  mapped = made(normalizer=steps(NFKC, NFKC, NFKC, NFKC, plain))
  assert mapped.encode(text) == ids


def test_a_table_grows_by_its_longest_text():
  bounds = tokenizer_bounds.GrowthBounds(
    json.dumps({"normalizer": table(b"x" * 9000)}).encode(), "t"
  )
  bounds.check("a" * 100)
  with pytest.raises(ValueError, match="make over 1,048,576"):
    bounds.check("a" * 1800)
  assert tokenizer_bounds._most(table(b"x" * 9000), 2) == 18000
  assert tokenizer_bounds._most(table(b""), 2) == 2
  # U+FDFA is the longest of NFKC, which many tokenizers have.
  usual = table("\u0635\u0644\u0649 \u0627\u0644".encode() * 3)
  content = json.dumps({"normalizer": usual}).encode()
  assert tokenizer_bounds._most(usual, 1) == 18
  bounds = tokenizer_bounds.GrowthBounds(content, "t")
  assert bounds._steps == [usual]
  broken = {"type": "Precompiled", "precompiled_charsmap": "?"}
  assert tokenizer_bounds._most(broken, 2) == 2


def test_a_name_that_is_spelled_with_escapes():
  content = json.dumps({"normalizer": steps(*[DOUBLE] * 60)})
  content = content.replace('"normalizer"', '"norm\\u0061lizer"').encode()
  bounds = tokenizer_bounds.GrowthBounds(content, "t")
  with pytest.raises(ValueError, match="the normalizers of t make over"):
    bounds.check("a")
  deep = b'{"normalizer": ' + b"[" * 100_000
  with pytest.raises(ValueError, match="t is nested too deep"):
    tokenizer_bounds.GrowthBounds(deep, "t")


def test_decoders_that_grow_a_text_are_refused(made):
  decoder = {"type": "Sequence", "decoders": [*[DOUBLE] * 60]}
  read = made(decoder=decoder)
  ids = read.encode("a cat")
  for call in (read.decode, read.text, read.continuing().text):
    with pytest.raises(ValueError, match=r"the decoders of .* make over"):
      call(ids)


def test_a_panic_is_one_line(made, capfd):
  strip = {"type": "Strip", "content": "a", "start": 3, "stop": 3}
  read = made("bytes", decoder=strip)
  a = read.encode("a")
  for call in (read.decode, read.text):
    with pytest.raises(ValueError, match=r"cannot decode tokens: ") as error:
      call(a)
    assert "\n" not in str(error.value)
    assert "published" in str(error.value)
  assert "Traceback" not in capfd.readouterr().err


class Panic(BaseException):
  """As PyO3's PanicException, of whatever module."""


@pytest.mark.parametrize(
  ("raised", "wanted"),
  [
    (Panic("one\ntwo"), ValueError),
    (Exception("WordLevel error"), ValueError),
    (KeyboardInterrupt(), KeyboardInterrupt),
    (SystemExit(3), SystemExit),
    (TypeError("no text"), TypeError),
  ],
)
def test_what_the_library_raises(raised, wanted):
  with (
    pytest.raises(wanted) as error,
    tokenizer_bounds.one_line("t", "encode a text"),
  ):
    raise raised
  if wanted is ValueError:
    assert str(error.value).startswith("t cannot encode a text: ")
    assert "\n" not in str(error.value)
