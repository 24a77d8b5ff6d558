"""Cuts arrays into the chunks in which they are stored, with checksums.

The metadata of this package's checkpoints has the checksums of each array, as
JSON:

  {"dtype": "float32", "shape": [32128, 1024], "chunks": [16064, 1024],
   "crc32": [2769301239, 1410392387]}

A checksum is the CRC-32 of a chunk's numbers, as bytes in C order before
compression. The chunks are those on disk. To read a part of an array, whole
chunks have to be decompressed anyway, so that checking the part reads nothing
more.
"""

from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import dataclasses
import json
import math
import zlib

import jax
import numpy as np

CHUNK_BYTES = 64 * 2**20  # T5X's largest chunk
_THREADS = 8  # zlib lets other threads run while it computes a CRC-32

# A part of an array: a slice with start and stop for each axis.
Part = tuple[slice, ...]


def chunk_shape(shape: Sequence[int], max_elements: int) -> list[int]:
  """Returns the shape of the chunks in which an array is stored.

  The chunks divide the array without a rest. The largest axis is cut first.

  Args:
    shape: the array's shape.
    max_elements: the most numbers of a chunk.

  >>> chunk_shape((32128, 1024), 16 * 2**20)
  [16064, 1024]
  """
  chunks = list(shape)
  while math.prod(chunks) > max_elements and max(chunks) > 1:
    # The next smaller divisor of the axis that is the largest now.
    axis = chunks.index(max(chunks))
    size = shape[axis]
    chunks[axis] = max(d for d in range(1, chunks[axis]) if size % d == 0)
  return chunks


def num_chunks(shape: Sequence[int], chunks: Sequence[int]) -> list[int]:
  """Returns how many chunks an array has along each axis."""
  return [-(-size // chunk) for size, chunk in zip(shape, chunks)]


def bound(index: Sequence[slice], shape: Sequence[int]) -> Part:
  """Returns an index as a `Part`; axes that it leaves out are taken whole.

  >>> bound((slice(2, None),), (5, 3))
  (slice(2, 5, None), slice(0, 3, None))
  """
  index = (*index, *[slice(None)] * (len(shape) - len(index)))
  return tuple(slice(*x.indices(n)[:2]) for x, n in zip(index, shape))


@dataclasses.dataclass(frozen=True)
class Checksums:
  """The CRC-32s of an array's chunks.

  Attributes:
    dtype: name of the array's dtype.
    shape: the array's shape.
    chunks: the shape of a chunk.
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
    wanted = math.prod(num_chunks(self.shape, self.chunks))
    if not has_chunks or len(self.crc32) != wanted:
      raise ValueError(f"{len(self.crc32)} checksums of {self.shape}")

  @classmethod
  def of(cls, value: np.ndarray | jax.Array) -> "Checksums":
    """Returns the checksums of an array, in the chunks that Orbax stores.

    Orbax cuts the shards of an array on a mesh, so that no chunk is in two
    shards. The host holds one shard at a time.
    """
    shape, max_elements = value.shape, CHUNK_BYTES // value.dtype.itemsize
    shards, shard_shape = [(bound((), shape), value)], shape
    if isinstance(value, jax.Array):
      shards = [
        (bound(shard.index, shape), shard.data)
        for shard in value.addressable_shards
        if shard.replica_id == 0  # other replicas hold the same numbers
      ]
      shard_shape = value.sharding.shard_shape(shape)
    # An array without numbers has axes of size 0, and chunks of size 1 there.
    sizes = [max(1, size) for size in chunk_shape(shard_shape, max_elements)]
    sums = np.zeros(num_chunks(shape, sizes), np.uint32)
    for part, data in shards:
      data = np.asarray(data)  # to the host
      for index, chunk in _parts(part, shape, sizes):
        sums[index] = _crc32(data[relative_to(chunk, part)])
    return cls(value.dtype.name, list(shape), sizes, sums.ravel().tolist())

  def covering(self, part: Part) -> Part:
    """Returns the smallest part of whole chunks that covers a part.

    Chunks of 4 cover the rows 5 to 6 of 10 rows by the rows 4 to 8, and the
    rows 9 to 10 by the rows 8 to 10: the last chunk ends with the array.
    """
    return tuple(
      slice(at.start // chunk * chunk, min(size, -(-at.stop // chunk) * chunk))
      for at, size, chunk in zip(part, self.shape, self.chunks)
    )

  def changed(self, value: np.ndarray, part: Part) -> str | None:
    """Returns the name of the first chunk that has another checksum, or None.

    Args:
      value: a part of the array, as it was read.
      part: which part of the array it is; whole chunks, as from `covering`.
    """
    sums = np.reshape(self.crc32, num_chunks(self.shape, self.chunks))
    for index, chunk in _parts(part, self.shape, self.chunks):
      if _crc32(value[relative_to(chunk, part)]) != sums[index]:
        return chunk_name(index)
    return None


def checksums(arrays: Mapping[str, np.ndarray | jax.Array]) -> dict[str, dict]:
  """Returns the `Checksums` of arrays as JSON values, by the arrays' names."""
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    sums = pool.map(Checksums.of, arrays.values())
    return {name: vars(each) for name, each in zip(arrays, sums)}


def checksum_of_json(values: Mapping) -> int:
  """Returns a CRC-32 of JSON values that the order of keys does not change."""
  return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def relative_to(part: Part, of: Part) -> Part:
  """Returns a part of an array, as a part of a larger part of the array.

  Args:
    part: the part.
    of: the larger part, in which it lies.

  >>> relative_to((slice(5, 6),), (slice(4, 8),))
  (slice(1, 2, None),)
  """
  return tuple(
    slice(inner.start - outer.start, inner.stop - outer.start)
    for inner, outer in zip(part, of)
  )


def chunk_name(index: Sequence[int]) -> str:
  """Returns zarr's name of a chunk: "1.0" for the index (1, 0)."""
  return ".".join(map(str, index)) or "0"  # an array of no axes has one chunk


def _parts(
  part: Part, shape: Sequence[int], chunks: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Part]]:
  """Yields (index, part of the array) of each chunk in a part of whole chunks.

  Args:
    part: a part of the array, of whole chunks.
    shape: the array's shape.
    chunks: the shape of a chunk.
  """
  first = [axis.start // chunk for axis, chunk in zip(part, chunks)]
  sizes = [axis.stop - axis.start for axis in part]
  for offset in np.ndindex(*num_chunks(sizes, chunks)):
    index = tuple(start + i for start, i in zip(first, offset))
    # Chunks of 4 of an axis of 10: 0 to 4, 4 to 8, and 8 to 10.
    bounds = [
      slice(i * chunk, min(size, i * chunk + chunk))
      for i, chunk, size in zip(index, chunks, shape)
    ]
    yield index, tuple(bounds)


def _crc32(value: np.ndarray) -> int:
  """Returns the CRC-32 of an array's bytes in C order."""
  return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
