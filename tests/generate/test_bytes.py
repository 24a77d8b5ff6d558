"""An encoder-decoder without a vocabulary file: bytes, in calls and runs."""

import json

import pytest

import speccascade as sc
from tests.generate import tiny

TEXT = "Über naïve cafés"
HOW = {"gamma": 2, "max_decode_len": 24, "temperature": 1.0}
METHOD = "spec_cascade_token_v3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("bytes")
  for seed, name in enumerate(("small", "large")):
    tiny.save(folder / name, seed, vocab_size=384)
  return folder


@pytest.fixture(scope="module")
def pair(folder):
  paths = {"drafter": folder / "small", "verifier": folder / "large"}
  return sc.load_pair(**paths, vocabulary="bytes")


def test_a_stream_shows_no_half_of_a_letter(pair):
  # Two letters of two bytes each, whose first bytes are one.
  grammar = "[éèabü]{12}"
  whole = pair.generate(TEXT, METHOD, grammar=grammar, **HOW)
  text = whole.texts[0]
  assert len(text) == 12
  assert set(text) <= set("éèabü")
  assert set(text) & set("éèü")
  stream = pair.stream(TEXT, METHOD, grammar=grammar, rounds=1, **HOW)
  pieces = list(stream)
  assert "".join(pieces) == text
  assert "\ufffd" not in "".join(pieces)
  assert len(pieces) > 3


def test_a_stop_that_begins_inside_of_a_letter_s_token(pair):
  grammar = "[éèabü]{12}"
  text = pair.generate(TEXT, METHOD, grammar=grammar, **HOW).texts[0]
  stop = text[5:7]
  cut = pair.generate(TEXT, METHOD, grammar=grammar, stop=[stop], **HOW)
  assert cut.texts[0] == text[: text.index(stop)]
  assert cut.records[0]["aux"]["stop_reason"] == "stop"
  ids = pair.vocabulary.encode(text[: text.index(stop)] + stop)
  assert cut.tokens[0, : cut.lengths[0]].tolist() == ids


def test_a_directory_of_byt5_brings_its_vocabulary(folder):
  for name in ("small", "large"):
    settings = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}
    path = folder / name / "tokenizer_config.json"
    path.write_text(json.dumps(settings))
  pair = sc.load_pair(drafter=folder / "small", verifier=folder / "large")
  assert pair.vocabulary.vocab_size == 384
  assert len(pair.generate(TEXT, METHOD, **HOW).texts) == 1
