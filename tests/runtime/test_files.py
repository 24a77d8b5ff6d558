"""Reads compressed files within bounds, whatever they promise."""

import gzip
import os

import numpy as np
import pytest

from speccascade.models import bigram_table
from speccascade.runtime import array_files, files
from speccascade.study.rows import results

SMALL = files.FileBounds(line=100, size=10_000, ratio=2)


def compressed(path, content):
  """Writes a .gz file."""
  path.write_bytes(gzip.compress(content))
  return path


def test_a_line_is_bounded_and_so_is_what_a_file_holds(tmp_path):
  right = compressed(tmp_path / "right.gz", b"ab\n" * 20)
  with files.open_bytes(right, SMALL) as file:
    assert list(file) == [b"ab\n"] * 20
  with files.open_bytes(right, SMALL) as file:
    assert file.read() == b"ab\n" * 20
  many = compressed(tmp_path / "many.gz", b"\n" * 100_000)
  with (
    pytest.raises(ValueError, match=r"many\.gz holds too much"),
    files.open_bytes(many, SMALL) as file,
  ):
    list(file)
  # A file that is not compressed may have many lines, and no long one.
  plain = tmp_path / "plain"
  plain.write_bytes(b"\n" * 100_000 + b"a" * 101)
  with (
    pytest.raises(
      ValueError, match=r"plain, line 100001 is longer than 100 by"
    ),
    files.open_bytes(plain, SMALL) as file,
  ):
    list(file)
  with (
    pytest.raises(ValueError, match=r"plain holds more than 100 bytes"),
    files.open_bytes(plain, SMALL) as file,
  ):
    file.read()


def test_what_gigabytes_would_need_is_refused_at_its_first_lines(tmp_path):
  """Half a megabyte of gzip holds half a gigabyte."""
  zeros = gzip.compress(b"0" * (1 << 27)) * 4
  for name, read in (
    ("rows.jsonl.gz", results.read_rows),
    ("metrics.json.gz", results.read_row),
    ("bigrams.json.gz", bigram_table.read),
  ):
    (tmp_path / name).write_bytes(zeros)
    with pytest.raises(ValueError, match=name):
      read(tmp_path / name)


def test_arrays_that_promise_too_much(tmp_path):
  path = tmp_path / "zeros.npz"
  np.savez_compressed(path, zeros=np.zeros(1 << 20))
  assert array_files.read_npz(path)["zeros"].size == 1 << 20
  with pytest.raises(ValueError, match="it holds 8,388,"):
    array_files.read_npz(path, SMALL)


def test_a_full_device_is_named_and_not_replaced():
  if not os.path.exists("/dev/full"):
    pytest.skip("Linux alone has /dev/full")
  before = os.stat("/dev/full")
  for content in ("text", b"bytes", ["par", "ts"]):
    with pytest.raises(OSError, match=r"No space left.*'/dev/full'"):
      files.write_whole("/dev/full", content)
  assert os.stat("/dev/full").st_ino == before.st_ino
  files.write_whole("/dev/null", "text")
  assert not os.path.isfile("/dev/null")


def test_a_pipe_is_written_to(tmp_path):
  path = tmp_path / "pipe"
  os.mkfifo(path)
  reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  files.write_whole(path, "text")
  assert os.read(reader, 99) == b"text"
  os.close(reader)
  assert os.listdir(tmp_path) == ["pipe"]
