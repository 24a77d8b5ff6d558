"""Reads files of NumPy arrays; the error for a damaged file is one line.

NumPy's own errors for damaged files are of a dozen types, and most of them do
not name the file.
"""

import os
from typing import Literal

import numpy as np

from speccascade.runtime import files


def read_npz(
  path: str | os.PathLike[str], bounds: files.FileBounds = files.TEXTS
) -> dict[str, np.ndarray]:
  """Returns the arrays of a `.npz` file, by name.

  Args:
    path: path of the file.
    bounds: what the arrays together may hold, as of a compressed file.

  Raises:
    OSError: the file cannot be opened. The error for a missing file is
      FileNotFoundError.
    ValueError: the file is empty or damaged, or it is not a `.npz` file, or it
      holds more than `bounds` allows.
  """
  arrays = _load(path, bounds=bounds)
  if isinstance(arrays, np.ndarray):
    raise ValueError(f"{path} is one array, and no .npz file of several")
  return arrays


def read_npy(
  path: str | os.PathLike[str], mmap_mode: Literal["r"] | None = None
) -> np.ndarray:
  """Returns the array of a `.npy` file.

  Args:
    path: path of the file.
    mmap_mode: "r" maps the file into memory, so that only the parts that are
      used later are read. None reads the whole file.

  Raises:
    OSError: the file cannot be opened. The error for a missing file is
      FileNotFoundError.
    ValueError: the file is empty or damaged, or it is not a `.npy` file.
  """
  array = _load(path, mmap_mode)
  if not isinstance(array, np.ndarray):
    raise ValueError(f"{path} is a .npz file, and no .npy file of one array")
  return array


def _load(
  path: str | os.PathLike[str],
  mmap_mode: Literal["r"] | None = None,
  bounds: files.FileBounds = files.TEXTS,
) -> np.ndarray | dict[str, np.ndarray]:
  """Returns the array of a `.npy` file, or the arrays of a `.npz` file."""
  # A missing file and a file without permission are not damaged. Opening the
  # file here first lets their errors pass with the system's own words.
  with open(path, "rb"):
    pass
  try:
    content = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    if not isinstance(content, np.lib.npyio.NpzFile):
      return content
    # A `.npz` file reads an array when it is asked for. All arrays are read
    # here, so that damage anywhere in the file is found here.
    with content:
      # The sizes stand in the file's own list. zipfile reads no more than they
      # say.
      members = [] if content.zip is None else content.zip.infolist()
      size = sum(member.file_size for member in members)
      most = bounds.of_compressed(os.path.getsize(path))
      if size > most:
        raise ValueError(f"it holds {size:,} bytes, want {most:,} at most")
      return dict(content)
  # One wrong byte may reach NumPy, zipfile, zlib, or Python's own parser, which
  # reads the shapes. Together they raise a dozen types of errors, and many of
  # those are not a ValueError. A shape may promise more than the memory.
  except Exception as error:
    reason = " ".join(str(error).split()) or type(error).__name__
    raise ValueError(f"{path} is empty, or damaged: {reason:.200}") from error
