"""Files of NumPy arrays, read so that a damaged one is named in one line."""

import os
from typing import Literal

import numpy as np


def read_npz(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Returns the arrays of a `.npz` file, by name.

  Raises:
    OSError: the file cannot be opened; a missing one is FileNotFoundError.
    ValueError: it is empty, not whole, or no such file.
  """
  arrays = _loaded(path)
  if isinstance(arrays, np.ndarray):
    raise ValueError(f"{path} is one array, and no .npz file of several")
  return arrays


def read_npy(
  path: str | os.PathLike, mmap_mode: Literal["r"] | None = None
) -> np.ndarray:
  """Returns the array of a `.npy` file.

  Args:
    path: of the file.
    mmap_mode: "r" maps the file, and reads what is asked of it later.

  Raises:
    OSError: the file cannot be opened; a missing one is FileNotFoundError.
    ValueError: it is empty, not whole, or no such file.
  """
  array = _loaded(path, mmap_mode)
  if not isinstance(array, np.ndarray):
    raise ValueError(f"{path} is a .npz file, and no .npy file of one array")
  return array


def _loaded(path, mmap_mode=None) -> np.ndarray | dict[str, np.ndarray]:
  with open(path, "rb"):
    pass  # What stops this is no damage, and keeps its own words.
  try:
    content = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    if not isinstance(content, np.lib.npyio.NpzFile):
      return content
    with content:
      return dict(content)
  # Where a byte is wrong, NumPy, zipfile, zlib and Python's parser, which reads
  # the shapes, raise a dozen kinds, of which many are no ValueError.
  except Exception as error:
    reason = " ".join(str(error).split()) or type(error).__name__
    raise ValueError(f"{path} is empty, or damaged: {reason:.200}") from error
