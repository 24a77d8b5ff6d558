"""Identifies vocabularies, checks what they fit, and turns ids into text."""

import copy
import hashlib

import pytest

from speccascade.data import (
  sentence_pieces,
  seqio_vocabularies,
  vocabularies,
)
from speccascade.data._tf import seqio
from speccascade.data.sentence_pieces import SentencePieces
from tests.data.conftest import TEXT, train_vocabulary

pytestmark = pytest.mark.needs_tf


def test_ids_and_text(vocabulary, vocabulary_path):
  ids = vocabulary.encode(TEXT[0])
  assert vocabulary.text(ids) == TEXT[0]
  # Text ends before the first end-of-sequence; padding and ids that no piece
  # has are left out.
  size = vocabulary.vocab_size
  assert vocabulary.text([0, *ids, 0, size, size + 31, 1, *ids]) == TEXT[0]
  assert vocabulary.text([1]) == ""
  digest = hashlib.sha256(vocabulary_path.read_bytes()).hexdigest()
  assert vocabulary.identity == {"sha256": digest, "extra_ids": 0}


def test_extra_ids(vocabulary, vocabulary_path):
  more = SentencePieces(str(vocabulary_path), extra_ids=10)
  assert more.vocab_size == vocabulary.vocab_size + 10
  assert more.identity != vocabulary.identity
  assert more != vocabulary
  assert SentencePieces(str(vocabulary_path)) == vocabulary


@pytest.mark.parametrize("extra_ids", [0, 10])
def test_ids_and_texts_are_seqio_s(vocabulary_path, extra_ids):
  ours = SentencePieces(str(vocabulary_path), extra_ids)
  theirs = seqio.SentencePieceVocabulary(str(vocabulary_path), extra_ids)
  in_task = seqio_vocabularies.of(ours)
  names = "vocab_size", "extra_ids", "pad_id", "eos_id", "unk_id", "bos_id"
  size = ours.vocab_size
  ids = [*ours.encode(TEXT[0]), size - 1, size + 4, 1, 5]
  for vocabulary in (ours, in_task, copy.deepcopy(in_task)):
    for name in names:
      assert getattr(vocabulary, name) == getattr(theirs, name)
    assert vocabulary.sp_model == theirs.sp_model
    for text in (*TEXT, "", "no <extra_id_3> \u2603"):
      assert vocabulary.encode(text) == theirs.encode(text)
    assert vocabulary.decode(ids) == theirs.decode(ids)
    assert vocabulary == theirs
    assert theirs == in_task
  assert in_task.encode_tf(TEXT[1]).numpy().tolist() == ours.encode(TEXT[1])


def test_wrong_files(tmp_path):
  SentencePieces("/nowhere/x.model")  # read when it is first used
  with pytest.raises(FileNotFoundError, match="no vocabulary at /nowhere"):
    vocabularies.load("/nowhere/x.model")
  path = train_vocabulary(tmp_path / "ids.model", pad_id=3, eos_id=1, unk_id=0)
  with pytest.raises(ValueError, match="pad id 3"):
    vocabularies.load(str(path))


def test_check_fits(vocabulary):
  size = vocabulary.vocab_size
  vocabularies.check_fits(vocabulary, size)
  vocabularies.check_fits(vocabulary, size + 28)  # rows are padded
  with pytest.raises(ValueError, match=f"the drafter has {size - 1} embedding"):
    vocabularies.check_fits(vocabulary, size - 1, "the drafter")


def test_remote_models_are_fetched_once(
  vocabulary_path, tmp_path, monkeypatch, vocabulary
):
  content = vocabulary_path.read_bytes()
  asked = []

  class Bucket:
    def __init__(self, url):
      self.url = url

    def read(self, name):
      asked.append(f"{self.url}/{name}")
      return None if "missing" in name else content

  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setattr(sentence_pieces.storage, "Directory", Bucket)
  url = "gs://bucket/of/tiny.model"
  assert SentencePieces(url) == vocabulary
  sentence_pieces._fetch.cache_clear()  # as in the next process
  assert SentencePieces(url) == vocabulary
  assert asked == [url]
  with pytest.raises(FileNotFoundError, match=r"gs://bucket/missing\.model"):
    vocabularies.load("gs://bucket/missing.model")
  # T5's own is known: anything else did not arrive whole.
  with pytest.raises(ValueError, match="did not arrive whole"):
    vocabularies.load(sentence_pieces.T5_MODEL)
  sentence_pieces._fetch.cache_clear()


def test_t5_vocabulary(real_data):
  path = real_data / "vocab" / "t5_cc_all_32000.model"
  vocabulary = vocabularies.load(str(path))
  assert vocabulary.identity["sha256"] == sentence_pieces.T5_SHA256
  assert vocabulary.vocab_size == 32100  # the sentinels come by themselves
  ids = vocabulary.encode("translate English to German: That is good.")
  assert ids == [13959, 1566, 12, 2968, 10, 466, 19, 207, 5]
  assert vocabulary.text([*ids, 32127, 1]) == (
    "translate English to German: That is good."
  )
