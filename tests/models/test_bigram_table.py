"""Bigram tables: the published form, our own, and what is not a table."""

import gzip

import numpy as np
import pytest

from speccascade.decoding import MaxGramDrafter
from speccascade.models import bigram_table
from speccascade.training import ngram_counts


def test_published_form(tmp_path):
  plain, packed = tmp_path / "table.json", tmp_path / "table.json.gz"
  plain.write_text("[0, 3, 1, 2]")
  packed.write_bytes(gzip.compress(b"[0, 3, 1, 2]"))
  for path in (plain, packed):
    table = bigram_table.read(path)
    assert table.dtype == np.int32
    assert table.tolist() == [0, 3, 1, 2]


def test_table_of_an_ngram_file(tmp_path):
  path = tmp_path / "counts.npz"
  counts = ngram_counts.count([[2, 3, 2, 3]], vocab_size=4, order=2)
  ngram_counts.smooth(counts, vocab_size=4).save(path)
  # 3 is followed by 2 once, and by the end once: the lower id.
  assert bigram_table.read(path).tolist() == [2, 0, 3, 1]


def test_the_wikipedia_table_of_t5(real_data):
  """As its README says: 32,100 entries, 1,498 of them unknown."""
  path = real_data / "bigram" / "t5_wiki_bigram_next_token.json.gz"
  table = bigram_table.read(path)
  assert table.shape == (32100,)
  assert int((table == 0).sum()) == 1498
  assert table.max() == 31889
  assert table[907] == 1323  # United States
  # The embedding of a checkpoint has 32,128 rows.
  drafter = MaxGramDrafter.create(table, width=4, vocab_size=32128)
  assert drafter.vocab_size == 32128


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("t.json", b'[0, "x"]', "not a list of token ids"),
    ("t.json", b"[0, true]", "not a list of token ids"),
    ("t.json.gz", b"[0, 1]", "not whole"),
    ("t.npz", b"", r"t\.npz is not an n-gram model"),
  ],
)
def test_bad_files(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message):
    bigram_table.read(path)


def test_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError, match="no bigram table at"):
    bigram_table.read(tmp_path / "none.json")
