"""Reads whole files of arrays, and files with damage at every byte."""

import numpy as np
import pytest

from speccascade.runtime import array_files

ARRAYS = {
  "a": np.random.default_rng(0).normal(size=40).astype(np.float32),
  "b": np.arange(300, dtype=np.int32) // 7,
}


def test_what_is_written_is_read(tmp_path):
  np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
  read = array_files.read_npz(tmp_path / "a.npz")
  assert read.keys() == ARRAYS.keys()
  np.save(tmp_path / "a.npy", ARRAYS["a"])
  mapped = array_files.read_npy(tmp_path / "a.npy", mmap_mode="r")
  assert isinstance(mapped, np.memmap)
  for array in (read["a"], mapped, array_files.read_npy(tmp_path / "a.npy")):
    np.testing.assert_array_equal(array, ARRAYS["a"])


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_every_damage_is_one_line_that_names_the_file(tmp_path, suffix):
  read = getattr(array_files, f"read_{suffix}")
  path = tmp_path / f"a.{suffix}"
  if suffix == "npz":
    np.savez_compressed(path, **ARRAYS)
  else:
    np.save(path, ARRAYS["a"])
  whole = path.read_bytes()
  # Files that are cut off, and files with one byte changed. Some bytes of a ZIP
  # file mean nothing, so that not every changed file is damaged.
  damaged = [whole[:end] for end in range(0, len(whole), 23)]
  for place in range(0, len(whole), 7):
    damaged.append(whole[:place] + bytes([whole[place] ^ 255]))
    damaged[-1] += whole[place + 1 :]
  lines = []
  for content in damaged:
    path.write_bytes(content)
    try:
      read(path)
    except ValueError as error:
      lines.append(str(error))
  assert len(lines) >= len(whole[::23])
  for line in lines:
    assert line.startswith(f"{path} is empty, or damaged: ")
    assert "\n" not in line


def test_one_is_not_the_other(tmp_path):
  np.save(tmp_path / "a.npy", ARRAYS["a"])
  np.savez(tmp_path / "a.npz", **ARRAYS)
  with pytest.raises(ValueError, match=r"is one array, and no \.npz"):
    array_files.read_npz(tmp_path / "a.npy")
  with pytest.raises(ValueError, match=r"is a \.npz file, and no \.npy"):
    array_files.read_npy(tmp_path / "a.npz")
  with pytest.raises(FileNotFoundError, match="none"):
    array_files.read_npy(tmp_path / "none.npy")
  np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
  with pytest.raises(ValueError, match="damaged: Object arrays cannot be"):
    array_files.read_npy(tmp_path / "a.npy")
