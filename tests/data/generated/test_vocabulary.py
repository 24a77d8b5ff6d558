"""The vocabulary: deterministic, cached whole, without unknown pieces."""

import os
import pathlib

import numpy as np
import pytest

from speccascade.data import generated
from speccascade.data.generated import vocabulary


@pytest.fixture(autouse=True)
def small_training(monkeypatch):
  """Fewer sentences: quicker, and a file of its own in the cache."""
  monkeypatch.setattr(vocabulary, "_TRAINING_PAIRS", 4_000)
  vocabulary._key.cache_clear()
  vocabulary.load.cache_clear()
  yield
  vocabulary._key.cache_clear()
  vocabulary.load.cache_clear()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def test_it_is_trained_once_and_again_the_same(cache, monkeypatch):
  path = vocabulary.model_path()
  assert path.parent == cache / "speccascade"
  content = path.read_bytes()
  assert vocabulary.train() == content
  monkeypatch.setattr(
    vocabulary, "train", lambda size: pytest.fail("trained again")
  )
  assert vocabulary.model_path() == path
  assert os.listdir(path.parent) == [path.name]


def test_ids_and_size():
  processor = vocabulary.load()
  assert len(processor) == vocabulary.SIZE == 1_536
  assert (processor.pad_id(), processor.eos_id()) == (0, 1)
  assert (processor.unk_id(), processor.bos_id()) == (2, -1)


def test_no_unknown_pieces_and_all_text_comes_back():
  """Other pairs than those it was trained from, of every split."""
  texts = [
    text
    for split, start in (("train", 900_000), ("validation", 0), ("test", 0))
    for i in range(300)
    for text in generated.pair(split, start + i)
  ]
  rows = generated.encode(texts)
  for row in rows:
    assert row.dtype == np.int32
    assert row[-1] == vocabulary.EOS
    assert not np.isin(row[:-1], [vocabulary.PAD, vocabulary.EOS, 2]).any()
  assert generated.decode(rows) == texts
  padded = generated.pad(rows, 64)
  assert padded.shape == (len(texts), 64)
  assert generated.decode(padded) == texts
  assert 15 < np.mean([len(row) for row in rows]) < 30


def test_decoding_stops_at_the_end_and_drops_what_is_no_piece():
  (row,) = generated.encode(["Der Mann schläft."])
  noisy = [*row[:-1], 5_000, vocabulary.PAD, vocabulary.EOS, *row]
  assert generated.decode([noisy]) == ["Der Mann schläft."]


def test_a_row_that_does_not_fit():
  rows = generated.encode(["Der Mann schläft."])
  with pytest.raises(ValueError, match="does not fit into 2"):
    generated.pad(rows, 2)


def test_a_broken_write_leaves_nothing(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setattr(vocabulary, "train", lambda size: b"model")

  def fail(source, target):
    raise OSError("disk full")

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
      vocabulary.model_path()
    assert list((tmp_path / "speccascade").iterdir()) == []
  assert vocabulary.model_path().read_bytes() == b"model"


def test_settings_name_the_file(monkeypatch):
  first = vocabulary._key(1_536)
  assert first != vocabulary._key(1_000)
  vocabulary._key.cache_clear()
  monkeypatch.setattr(vocabulary.examples, "VERSION", 99)
  assert vocabulary._key(1_536) != first


def test_the_default_cache(monkeypatch):
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setenv("HOME", "/somewhere")
  wanted = pathlib.Path("/somewhere/.cache/speccascade")
  assert vocabulary.cache_directory() == wanted


def test_a_size_that_cannot_be():
  with pytest.raises(ValueError, match="give 200 to 4096"):
    vocabulary.train(5_000)
