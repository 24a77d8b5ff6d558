"""Checks tokenizers that are translated from the metadata of a GGUF file."""

import json

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from speccascade.checkpoints import gguf_tokenizer
from speccascade.checkpoints.errors import CheckpointError
from speccascade.text import vocabularies
from tests.text import tokenizers

TEXTS = [
  *tokenizers.TEXT,
  *["", " ", "a\n\n  b\t 12", "<|im_start|>user\n42<|im_end|>", "don't I'LL"],
]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
  """What tokenizer.json of byte-level BPE holds."""
  folder = tokenizers.save(tmp_path_factory.mktemp("bytes"))
  text = (folder / "tokenizer.json").read_text(encoding="utf-8")
  return json.loads(text) | {"truncation": None}


def metadata_of(original, cut, **more):
  vocabulary = original["model"]["vocab"]
  tokens = sorted(vocabulary, key=vocabulary.get)
  return {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": cut,
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
    "tokenizer.ggml.merges": [" ".join(x) for x in original["model"]["merges"]],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": tokenizers.CHATML,
    **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
  }


def tokenizer_of(files):
  from tokenizers import Tokenizer

  return Tokenizer.from_str(files["tokenizer.json"])


def test_ids_are_those_of_the_tokenizer_that_was_stored(original):
  from tokenizers import Tokenizer

  wanted = Tokenizer.from_str(json.dumps(original))
  files = gguf_tokenizer.files(metadata_of(original, "gpt-2"), "x.gguf")
  read = tokenizer_of(files)
  for text in TEXTS:
    ids = wanted.encode(text).ids
    assert read.encode(text).ids == ids
    assert read.decode(ids, skip_special_tokens=False) == text
  settings = json.loads(files["tokenizer_config.json"])
  assert settings["bos_token"] == "<|im_start|>"
  assert settings["eos_token"] == "<|im_end|>"
  assert settings["add_bos_token"] is False
  assert settings["chat_template"] == tokenizers.CHATML
  generation = json.loads(files["generation_config.json"])
  assert generation == {"bos_token_id": 1, "eos_token_id": 2}
  more = {"eot_token_id": 0, "add_bos_token": True, "padding_token_id": 0}
  files = gguf_tokenizer.files(metadata_of(original, "gpt-2", **more), "x.gguf")
  generation = json.loads(files["generation_config.json"])
  assert generation["eos_token_id"] == [2, 0]
  assert json.loads(files["tokenizer_config.json"])["pad_token"] == (
    "<|endoftext|>"
  )


@pytest.mark.parametrize(
  ("cut", "pieces"),
  [
    ("gpt-2", ["a", "Ġ", "Ġ1234", "'s", "Ċ", "ĠB"]),
    ("smollm", ["a", "ĠĠ", "1", "2", "3", "4", "'s", "Ċ", "ĠB"]),
    ("llama-bpe", ["a", "Ġ", "Ġ", "123", "4", "'s", "Ċ", "ĠB"]),
    ("qwen2", ["a", "Ġ", "Ġ", "1", "2", "3", "4", "'s", "Ċ", "ĠB"]),
  ],
)
def test_texts_are_cut_as_the_file_says(original, cut, pieces):
  files = gguf_tokenizer.files(metadata_of(original, cut), "x.gguf")
  cutter = tokenizer_of(files).pre_tokenizer
  assert [x for x, _ in cutter.pre_tokenize_str("a  1234's\n B")] == pieces


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model": "t5"}, "tokenizer of kind 't5' .* read are byte-level"),
    ({"model": "llama"}, "320 pieces with 0 scores: it is damaged"),
    ({"model": "llama", "scores": ["a"]}, "scores is .* wanted a list of"),
    ({"pre": "tekken"}, "splits texts as 'tekken'; .* gpt-2, llama-bpe"),
    ({"tokens": ["a", "a"], "token_type": [1, 1]}, "2 tokens, 1 of them"),
    ({"token_type": [1]}, "with 1 types: it is damaged"),
    ({"eos_token_id": None}, "says no token that ends a text"),
    ({"eos_token_id": 10**6}, "token 1000000 of 320"),
    ({"merges": ["a"]}, "the merge 'a' is not a pair"),
    ({"merges": [5]}, "merges is .* wanted a list of strings"),
    ({"tokens": 5}, "tokens is 5; .*of strings"),
    ({"token_type": "ab"}, "token_type is 'ab'; .*of whole"),
    ({"pre": ["gpt-2"]}, "pre is .* wanted a string"),
    ({"eos_token_id": "2"}, "eos_token_id is '2'; .*whole number"),
  ],
)
def test_others_are_refused(original, changes, message):
  with pytest.raises(CheckpointError, match=message):
    gguf_tokenizer.files(metadata_of(original, "gpt-2", **changes), "x.gguf")


@pytest.mark.parametrize("blank_before", [True, False])
def test_pieces_cut_as_their_model_does(tmp_path, blank_before):
  """Scores and types of a SentencePiece model, as llama.cpp stores them."""
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(tokenizers.TEXT * 4),
    model_prefix=str(tmp_path / "m"),
    model_type="bpe",
    vocab_size=340,
    hard_vocab_limit=False,
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    add_dummy_prefix=blank_before,
    user_defined_symbols=["<turn>"],
    minloglevel=3,
  )
  content = (tmp_path / "m.model").read_bytes()
  proto = sentencepiece_model_pb2.ModelProto.FromString(content)
  wanted = sentencepiece.SentencePieceProcessor(str(tmp_path / "m.model"))
  metadata = {
    "model": "llama",
    "pre": "default",
    "tokens": [x.piece for x in proto.pieces],
    "scores": [x.score for x in proto.pieces],
    "token_type": [int(x.type) for x in proto.pieces],
  }
  if not blank_before:
    metadata["add_space_prefix"] = False
  metadata = {f"tokenizer.ggml.{name}": x for name, x in metadata.items()}
  files = gguf_tokenizer.files(metadata, "x.gguf")
  for name, text in files.items():
    (tmp_path / name).write_text(text, encoding="utf-8")
  read = vocabularies.load(str(tmp_path))
  for text in (*tokenizers.TEXT, "a  b", "x \u20ac 7\n", "\U0001f642!", " a"):
    assert read.encode(text) == wanted.encode(text)
    assert read.decode(read.encode(text)) == text
  # llama.cpp's ids where the file names none; BOS comes first.
  assert (read.unk_id, read.bos_id, read.eos_id) == (0, 1, 2)
  assert read.prompt("the cat") == [1, *wanted.encode("the cat")]
  turn = wanted.piece_to_id("<turn>")
  assert turn in read.encode("the<turn>cat")
  assert not read.is_control(turn)
