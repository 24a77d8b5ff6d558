"""Checks arrays of older checkpoints of this package, which have CRC-32s.

Until chunks carried checksums of their own (`array_writer`), metadata.json had
them as JSON, by the name of the array:

  {"dtype": "float32", "shape": [32128, 1024], "chunks": [16064, 1024],
   "crc32": [2769301239, 1410392387]}

A checksum is the CRC-32 of a chunk's numbers, as bytes in C order before
compression.
"""

import dataclasses
import itertools
import math
import zlib

import numpy as np

from speccascade.checkpoints.chunks import Part
from speccascade.checkpoints.errors import CheckpointError


@dataclasses.dataclass(frozen=True)
class OldChecksums:
  """The CRC-32s of an array's chunks.

  Attributes:
    dtype: name of the array's dtype.
    shape: the array's shape.
    chunks: the shape of a chunk; the chunks are those on disk.
    crc32: the CRC-32 of each chunk, the chunks in C order.

  Raises:
    ValueError: there are not as many checksums as chunks.
  """

  dtype: str
  shape: list[int]
  chunks: list[int]
  crc32: list[int]

  def __post_init__(self):
    has_chunks = len(self.shape) == len(self.chunks)
    if not has_chunks or len(self.crc32) != math.prod(self._grid()):
      raise ValueError(f"{len(self.crc32)} checksums of {self.shape}")

  def _grid(self) -> list[int]:
    """How many chunks the array has along each axis; they leave no rest."""
    return [size // chunk for size, chunk in zip(self.shape, self.chunks)]

  def read(self, array, part: Part) -> np.ndarray:
    """Returns a part of an array, after checking the chunks that it touches.

    Args:
      array: the array, as tensorstore has opened it.
      part: which part of it to read.

    Raises:
      CheckpointError: the array, or a chunk, is not as it was written.
    """
    if (list(array.shape), array.dtype.name) != (self.shape, self.dtype):
      raise CheckpointError("its shape or dtype is not that of its checksums")
    # Of chunks of 4 rows, the chunks 1 and 2 hold the rows 5 to 9.
    touched = [
      range(axis.start // chunk, -(-axis.stop // chunk))
      for axis, chunk in zip(part, self.chunks)
    ]
    starts = [axis.start * n for axis, n in zip(touched, self.chunks)]
    stops = [axis.stop * n for axis, n in zip(touched, self.chunks)]
    value = array[tuple(map(slice, starts, stops))].read().result()
    sums = np.reshape(self.crc32, self._grid())
    for index in itertools.product(*touched):
      chunk = value[
        tuple(
          slice(i * n - start, i * n - start + n)
          for i, n, start in zip(index, self.chunks, starts)
        )
      ]
      if zlib.crc32(chunk.tobytes()) != sums[index]:
        name = ".".join(map(str, index)) or "0"
        raise CheckpointError(f"chunk {name} is not as it was written")
    return value[
      tuple(
        slice(axis.start - start, axis.stop - start)
        for axis, start in zip(part, starts)
      )
    ]
