"""Identifies vocabularies, checks what they fit, and turns ids into text."""

import copy
import hashlib
import json

import pytest

from speccascade.generate.batches.sources import InputError, sources_of_texts
from speccascade.tasks import seqio_vocabularies
from speccascade.tasks._tf import seqio
from speccascade.text import (
  sentence_pieces,
  vocabularies,
)
from speccascade.text.prompting import Prompting
from speccascade.text.sentence_pieces import SentencePieces
from tests.text.conftest import TEXT, train_vocabulary

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


def test_ids_that_the_config_of_a_t5_names(tmp_path):
  # MADLAD-400: unknown 0, "<s>" 1, which is its padding, and EOS 2.
  options = {"pad_id": -1, "eos_id": 2, "unk_id": 0, "bos_id": 1}
  path = train_vocabulary(tmp_path / "spiece.model", **options)
  with pytest.raises(ValueError, match=r"pad id -1.*beside a config\.json"):
    vocabularies.load(str(path))
  config = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
  (tmp_path / "config.json").write_text(json.dumps(config))
  read = vocabularies.load(str(path))
  assert (read.eos_id, read.unk_id) == (2, 0)
  prompting = Prompting(read)
  assert prompting.tokens("the cat", 99, "", False)[0][-1] == 2
  assert read.text([*read.encode("the cat"), 2, 5]) == "the cat"
  with pytest.raises(InputError, match=r"text 0 has .*the id 0"):
    sources_of_texts("\u6771", prompting, max_len=9, truncate=False)


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
