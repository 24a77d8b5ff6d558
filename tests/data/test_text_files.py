"""Line files and JSON lines, right and wrong."""

import gzip
import json

import pytest

from speccascade.data import text_files

pytestmark = pytest.mark.needs_tf


def write(path, text, encoding="utf-8"):
  content = text if isinstance(text, bytes) else text.encode(encoding)
  if path.suffix == ".gz":
    content = gzip.compress(content)
  path.write_bytes(content)
  return path


def test_lines(tmp_path):
  path = write(tmp_path / "a.txt", "eins\r\nzwei\u2028drei\x0bvier\n\nfünf")
  assert text_files.read_lines(path) == [
    "eins",
    "zwei\u2028drei\x0bvier",
    "",
    "fünf",
  ]
  assert text_files.read_lines(write(tmp_path / "b.gz", "x\ny\n")) == ["x", "y"]
  marked = write(tmp_path / "c.txt", b"\xef\xbb\xbfx\n")
  assert text_files.read_lines(marked) == ["x"]


def test_bad_files(tmp_path):
  with pytest.raises(FileNotFoundError, match="no text file at"):
    text_files.read_lines(tmp_path / "none.txt")
  with pytest.raises(ValueError, match=r"empty\.txt is empty"):
    text_files.read_lines(write(tmp_path / "empty.txt", "\n \n"))
  path = write(tmp_path / "latin.txt", b"gut\nsch\xf6n\n")
  with pytest.raises(ValueError, match=r"latin\.txt, line 2: invalid UTF-8"):
    text_files.read_lines(path)
  path = tmp_path / "cut.gz"
  path.write_bytes(gzip.compress(b"a\nb\n" * 100)[:-9])
  with pytest.raises(ValueError, match=r"cut\.gz is not whole gzip"):
    text_files.read_lines(path)


def test_pairs(tmp_path):
  write(tmp_path / "dev.en", "a\nb\n")
  write(tmp_path / "dev.de.gz", "x\ny\n")
  second = write(tmp_path / "second.de", "z\nw\n")
  expected = [
    {"inputs": "a", "targets": "x", "references": ["x"]},
    {"inputs": "b", "targets": "y", "references": ["y"]},
  ]
  # A prefix finds plain and compressed files; a list names them.
  assert text_files.read(tmp_path / "dev") == expected
  files = [tmp_path / "dev.en", tmp_path / "dev.de.gz"]
  assert text_files.read(files) == expected
  assert text_files.read([*files, second])[1] == {
    "inputs": "b",
    "targets": "y",
    "references": ["y", "w"],
  }
  reverse = text_files.read(tmp_path / "dev", ("de", "en"))
  assert reverse[0]["inputs"] == "x"
  short = write(tmp_path / "short.de", "x\n")
  with pytest.raises(ValueError, match=r"2 lines, .*short\.de has 1"):
    text_files.read([files[0], short])
  with pytest.raises(ValueError, match="file of inputs and of targets"):
    text_files.read([files[0]])
  with pytest.raises(FileNotFoundError, match=r"test\.en or .*test\.en\.gz"):
    text_files.read(tmp_path / "test")


def test_jsonl(tmp_path):
  rows = [
    {"id": 1, "inputs": "a", "targets": "x"},
    {"inputs": "b", "targets": "y", "extra_targets": ["z", "w"]},
  ]
  text = "\n".join(map(json.dumps, rows)) + "\n\n"
  path = write(tmp_path / "a.jsonl.gz", text)
  assert text_files.read(path) == [
    {"inputs": "a", "targets": "x", "references": ["x"]},
    {"inputs": "b", "targets": "y", "references": ["y", "z", "w"]},
  ]


@pytest.mark.parametrize(
  "line",
  [
    "no json",
    '"text"',
    "[1]",
    '{"inputs": "a"}',
    '{"inputs": 1, "targets": "x"}',
    '{"inputs": "a", "targets": "x", "extra_targets": [1]}',
    '{"inputs": "a", "targets": "x", "extra_targets": 5}',
  ],
)
def test_bad_jsonl(tmp_path, line):
  good = '{"inputs": "a", "targets": "x"}'
  path = write(tmp_path / "a.jsonl", f"{good}\n{line}\n")
  with pytest.raises(ValueError, match="line 2: want a JSON object"):
    text_files.read(path)


def test_source(tmp_path):
  write(tmp_path / "train.en", "a\nb\n")
  write(tmp_path / "train.de", "x\ny\n")
  source = text_files.TextFileSource(
    {"train": str(tmp_path / "train"), "test": str(tmp_path / "test")}
  )
  assert source.splits == ("train", "test")
  rows = list(source.get_dataset("train", shuffle=False).as_numpy_iterator())
  assert [row["inputs"] for row in rows] == [b"a", b"b"]
  with pytest.raises(FileNotFoundError):  # only a split that is used is read
    source.get_dataset("test", shuffle=False)


def test_real_files(real_data):
  pairs = text_files.read(real_data / "multi30k" / "test_2016_flickr")
  assert len(pairs) == 1000
  rows = text_files.read(real_data / "wmt" / "newstest2014_500.refs.jsonl.gz")
  assert {len(row["references"]) for row in rows} == {11}
