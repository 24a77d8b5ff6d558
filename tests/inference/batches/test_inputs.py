"""Examples from files: what is read, what is refused and how."""

import numpy as np
import pytest

from speccascade.data import prompting
from speccascade.inference.batches import batching, inputs
from speccascade.inference.batches.sources import InputError, Source
from tests.inference import tiny

VOCABULARY = tiny.Vocabulary()


@pytest.fixture
def read(tmp_path):
  def read(text, name="in.txt", **settings):
    path = tmp_path / name
    path.write_text(text)
    settings |= {"vocabulary": VOCABULARY, "input_file": path}
    asked = inputs.Inputs({"inputs": 6}, **settings)
    return asked.read()

  return read


def test_a_file(read):
  sources = read("one two\n\nüber nine\nsix\n", num_examples=3)
  examples = sources.examples
  assert [e.text for e in examples] == ["one two", "", "über nine"]
  assert [e.index for e in examples] == [0, 1, 2]
  assert [e.tokens.tolist() for e in examples] == [[4, 5, 1], [1], [2, 12, 1]]
  assert sources.num_cut == 0
  lines = '{"inputs": "six", "targets": ["a", "b"]}\n\n{"inputs": "two"}\n'
  examples = read(lines, "in.jsonl").examples
  assert [e.references for e in examples] == [("a", "b"), ()]
  assert [e.index for e in examples] == [0, 1]


def test_long_texts_are_refused_or_cut(read):
  text = "one\none two three four five six seven\n"
  with pytest.raises(InputError, match=r"line 2 has 8 tokens.* 6.*truncate"):
    read(text)
  sources = read(text, truncate=True)
  assert sources.num_cut == 1
  assert sources.examples[1].tokens.tolist() == [4, 5, 6, 7, 8, 1]


def test_buckets_are_few_and_hold_all():
  for max_len in (1, 7, 8, 24, 63, 128, 512, 1024):
    lengths = batching.buckets(max_len)
    assert lengths[-1] == max_len
    assert len(lengths) <= 6
    assert lengths == sorted(set(lengths))
  assert batching.bucket_of(9, [8, 16]) == 16
  with pytest.raises(ValueError, match="17 tokens fits none"):
    batching.bucket_of(17, [8, 16])


def test_a_short_batch_repeats_its_last_example():
  batch = [
    Source(4, "", np.array([5, 1], np.int32)),
    Source(5, "", np.array([5, 6, 7, 8, 1], np.int32)),
  ]
  tokens, indices = batching.pad_batch(batch, 4, [3, 6])
  assert tokens.tolist() == [[5, 1, 0, 0, 0, 0], *[[5, 6, 7, 8, 1, 0]] * 3]
  assert indices.tolist() == [4, 5, 5, 5]


def test_vocabulary_without_a_file_has_no_identity():
  assert prompting.identity(VOCABULARY) is None
