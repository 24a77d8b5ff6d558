"""Examples from files: what is read, what is refused and how."""

import gzip

import numpy as np
import pytest

from speccascade.inference import batching, inputs
from tests.inference import tiny

VOCABULARY = tiny.Vocabulary()


def read(path, **settings):
  own = inputs.Inputs({"inputs": 6}, VOCABULARY, input_file=path, **settings)
  return own.read()


def test_lines(tmp_path):
  path = tmp_path / "in.txt"
  path.write_bytes("one two\r\n\nüber nine\n".encode())
  found = read(path)
  assert [e.text for e in found.examples] == ["one two", "", "über nine"]
  assert [e.index for e in found.examples] == [0, 1, 2]
  assert [e.tokens.tolist() for e in found.examples] == [
    [4, 5, 1],
    [1],
    [2, 12, 1],
  ]
  assert found.num_cut == 0


def test_jsonl_gz_with_references(tmp_path):
  path = tmp_path / "in.jsonl.gz"
  lines = (
    '{"inputs": "one", "targets": "two"}\n\n'
    '{"inputs": "six", "targets": ["a", "b"]}\n'
    '{"inputs": "two"}\n'
  )
  path.write_bytes(gzip.compress(lines.encode()))
  found = read(path)
  assert [e.references for e in found.examples] == [("two",), ("a", "b"), ()]
  assert [e.index for e in found.examples] == [0, 1, 2]


def test_first_examples(tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("one\ntwo\nthree\n")
  assert len(read(path, num_examples=2).examples) == 2


def test_long_texts_are_refused_or_cut(tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("one\n" + "one two three four five six seven\n")
  with pytest.raises(
    inputs.InputError, match=r"line 2 has 8 tokens.* 6 .*truncate"
  ):
    read(path)
  found = read(path, truncate=True)
  assert found.num_cut == 1
  assert found.examples[1].tokens.tolist() == [4, 5, 6, 7, 8, 1]


# Without the time of day, which would be part of the test's name.
TORN = gzip.compress(b"one\n" * 99, mtime=0)[:-12]


@pytest.mark.parametrize(
  ("name", "data", "message"),
  [
    ("a.txt", b"", "is empty"),
    ("a.txt", b"\n \n", "is empty"),
    ("a.txt", b"one\n\xff\xfe\n", r"line 2 is not UTF-8 \(byte 0\)"),
    ("a.jsonl", b"", "is empty"),
    ("a.jsonl", b'{"inputs": "one"}\n{"inputs"\n', "line 2 is not JSON"),
    ("a.jsonl", b'["one"]\n', 'line 1 has no text "inputs"'),
    ("a.jsonl", b'{"inputs": "a", "targets": 3}\n', 'line 1: "targets" is'),
    ("a.txt.gz", b"one\n", "not a whole gzip file"),
    ("a.txt.gz", TORN, "not a whole gzip file"),
  ],
)  # fmt: skip
def test_bad_files(tmp_path, name, data, message):
  path = tmp_path / name
  path.write_bytes(data)
  with pytest.raises(inputs.InputError, match=message):
    read(path)


def test_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"INPUT_FILE .* does not exist"):
    read(tmp_path / "none.txt")


@pytest.mark.parametrize(
  "settings", [{}, {"input_file": "a", "mixture_or_task_name": "b"}]
)
def test_one_source(settings):
  with pytest.raises(inputs.InputError, match="one of them"):
    inputs.Inputs({"inputs": 4}, VOCABULARY, **settings)


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
    inputs.Source(4, "", np.array([5, 1], np.int32)),
    inputs.Source(5, "", np.array([5, 6, 7, 8, 1], np.int32)),
  ]
  tokens, indices = batching.pad_batch(batch, 4, [3, 6])
  assert tokens.tolist() == [
    [5, 1, 0, 0, 0, 0],
    [5, 6, 7, 8, 1, 0],
    [5, 6, 7, 8, 1, 0],
    [5, 6, 7, 8, 1, 0],
  ]
  assert indices.tolist() == [4, 5, 5, 5]


def test_vocabulary_without_a_file_has_no_identity():
  assert inputs.identity(VOCABULARY) is None


@pytest.mark.parametrize(
  ("lengths", "message"),
  [
    ({}, "wanted a length for inputs"),
    (5, "TASK_FEATURE_LENGTHS is 5"),
    ({"inputs": 0}, "TASK_FEATURE_LENGTHS is 0; wanted 1 or more"),
    ({"inputs": 2.5}, "wanted a whole number"),
  ],
)
def test_lengths_are_checked(lengths, message):
  with pytest.raises(ValueError, match=message):
    inputs.Inputs(lengths, input_file="a")
