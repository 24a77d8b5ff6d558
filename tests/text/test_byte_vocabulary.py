"""Bytes as a vocabulary: seqio's ids and texts, folders, halves of letters."""

import copy
import json

import pytest

from speccascade.generate.pair.shared_tokens import spellings
from speccascade.tasks import seqio_vocabularies
from speccascade.tasks._tf import seqio, tf
from speccascade.text import byte_vocabulary, vocabularies
from speccascade.text.byte_vocabulary import ByteVocabulary
from speccascade.text.prompting import Prompting
from tests.text.tokenizers import TEXT

pytestmark = pytest.mark.needs_tf

# By hand: "A" is byte 65, and "é" the bytes C3 A9.
A, C3, A9 = 65 + 3, 0xC3 + 3, 0xA9 + 3


@pytest.mark.parametrize("extra_ids", [0, 125])
def test_ids_and_texts_are_seqio_s(extra_ids):
  ours = vocabularies.load("bytes", extra_ids)
  theirs = seqio.ByteVocabulary(extra_ids)
  in_task = seqio_vocabularies.of(ours)
  assert isinstance(in_task, seqio.ByteVocabulary)
  assert seqio_vocabularies.of(in_task) is in_task
  names = "vocab_size", "extra_ids", "pad_id", "eos_id", "unk_id", "bos_id"
  ids = [*ours.encode(TEXT[1]), 0, 2, 258, 259, 300, C3, A, 1, A]
  for vocabulary in (ours, in_task, copy.deepcopy(in_task)):
    assert vocabulary == ours
    for name in names:
      assert getattr(vocabulary, name) == getattr(theirs, name)
    for text in (*TEXT, "", "a\n\0é"):
      assert vocabulary.encode(text) == theirs.encode(text)
      assert vocabulary.text(vocabulary.encode(text)) == text
    assert vocabulary.decode(ids) == theirs.decode(ids)
  assert in_task.encode_tf(TEXT[1]).numpy().tolist() == ours.encode(TEXT[1])
  ids = tf.constant(ours.encode("né"))
  assert in_task.decode_tf(ids).numpy().decode() == "né"
  assert ours != ByteVocabulary(extra_ids=3)


def test_what_is_not_utf8():
  bytes_alone = vocabularies.load("bytes")
  assert bytes_alone.encode("Aé") == [A, C3, A9]
  # Half of a letter before an "A"; ids that are not bytes; EOS.
  ids = [A, C3, A, 0, 300, C3, A9, 1, A]
  assert bytes_alone.text(ids) == "A\ufffdAé"
  assert bytes_alone.decode(ids) == "AAé"


@pytest.mark.parametrize(
  ("ids", "num"),
  [
    ([], 0),
    ([A, C3], 1),
    ([A, C3, A9], 3),
    ([A, C3, 300], 1),  # an id that is not a byte ends no letter
    ([A, C3, A], 3),
    ([A9, A9], 2),  # begin no letter
    ([*ByteVocabulary().encode("a🙂")[:-1]], 1),
  ],
)
def test_letters_that_are_not_whole(ids, num):
  assert ByteVocabulary().whole(ids) == num


def test_pieces():
  bytes_alone = ByteVocabulary(extra_ids=2)
  ids = [*range(3), ord(" ") + 3, A, C3, 3, ord("\n") + 3, 259, 260]
  assert [bytes_alone.piece(token) for token in ids] == [
    *("<pad>", "</s>", "<unk>", "\u2581", "A", "<0xC3>", "<0x00>", "<0x0A>"),
    *("<extra_id_0>", "<extra_id_1>"),
  ]
  assert [bytes_alone.is_control(token) for token in ids] == [
    *([True] * 3 + [False] * 5 + [True] * 2)
  ]
  every = spellings(bytes_alone)
  assert every[3:259] == [bytes([i]) for i in range(256)]


def test_a_source_ends_in_eos():
  prompting = Prompting(vocabularies.load("bytes"))
  assert prompting.format == "source"
  assert prompting.tokens("Aé", 9, "", False) == ([A, C3, A9, 1], False)


def test_folders(tmp_path):
  folder = str(tmp_path / "run")
  bytes_alone = vocabularies.load("bytes", 125)
  vocabularies.save(bytes_alone, folder, "MODEL_DIR")
  read = vocabularies.load(folder)
  assert read == bytes_alone
  assert read.vocab_size == 384
  assert (
    read.identity["sha256"] == vocabularies.load("bytes").identity["sha256"]
  )
  vocabularies.save(bytes_alone, folder, "MODEL_DIR")  # it is there
  # As transformers writes it, which may leave out what is its default.
  named = {"tokenizer_class": "ByT5Tokenizer", "model_max_length": 1024}
  config = tmp_path / "run" / "tokenizer_config.json"
  config.write_text(json.dumps(named))
  vocabularies.load.cache_clear()
  assert vocabularies.load(folder).vocab_size == 384
  config.write_text(json.dumps(named | {"extra_ids": "many"}))
  vocabularies.load.cache_clear()
  with pytest.raises(ValueError, match=r"tokenizer_config\.json: extra_ids"):
    vocabularies.load(folder)
  config.write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
  vocabularies.load.cache_clear()
  with pytest.raises(FileNotFoundError, match="no vocabulary in"):
    vocabularies.load(folder)


def test_a_model_with_too_few_rows():
  with pytest.raises(ValueError, match="vocabulary bytes has 259 pieces"):
    vocabularies.check_fits(ByteVocabulary(), 128)
  assert byte_vocabulary.NAME == "bytes"
