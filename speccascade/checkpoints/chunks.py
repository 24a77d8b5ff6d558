"""The chunks in which arrays are stored, and a CRC-32 of each.

The checksums of an array stand as JSON in the metadata of our checkpoints:

  {"dtype": "float32", "shape": [32128, 1024], "chunks": [16064, 1024],
   "crc32": [2769301239, 1410392387]}

They are of the numbers' bytes in C order, before compression. Their chunks are
those on disk: who reads a part of an array checks that part, and reads no more
for it than decompressing it takes anyway.

Which file holds a chunk is asked after something failed. A zarr array's own
files are its chunks. In OCDBT, which Orbax writes, a B-tree says for each chunk
in which data file it lies, from which byte to which; it holds the small ones
itself.
"""

from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import zlib

import jax
import numpy as np

CHUNK_BYTES = 64 * 2**20  # T5X's largest chunk
_THREADS = 8  # zlib lets other threads run

Part = tuple[slice, ...]
Place = tuple[str, int]  # a file, and the byte of it where something ends


def chunk_shape(shape: Sequence[int], max_elements: int) -> list[int]:
  """Returns the chunks of an array: whole divisors, the largest axis cut first.

  >>> chunk_shape((32128, 1024), 16 * 2**20)
  [16064, 1024]
  """
  chunks = list(shape)
  while math.prod(chunks) > max_elements and max(chunks) > 1:
    axis = chunks.index(max(chunks))
    size = shape[axis]
    chunks[axis] = max(d for d in range(1, chunks[axis]) if size % d == 0)
  return chunks


def num_chunks(shape: Sequence[int], chunks: Sequence[int]) -> list[int]:
  """Returns how many chunks an array has along each axis."""
  return [-(-size // chunk) for size, chunk in zip(shape, chunks)]


def bound(index: Sequence[slice], shape: Sequence[int]) -> Part:
  """Returns an index as a part, of all that it says nothing of."""
  index = (*index, *[slice(None)] * (len(shape) - len(index)))
  return tuple(slice(*x.indices(n)[:2]) for x, n in zip(index, shape))


@dataclasses.dataclass(frozen=True)
class Checksums:
  """The CRC-32s of an array's chunks, and what they are of.

  Attributes:
    dtype: name of the array's.
    shape: of the array.
    chunks: of a chunk.
    crc32: of each chunk, in C order.

  Raises:
    ValueError: they are not as many as the chunks.
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
    """Returns those of an array, in the chunks in which it will be stored.

    Of one that lies on a mesh no chunk is in two shards, and the host holds one
    shard at a time.
    """
    shape, size = value.shape, CHUNK_BYTES // value.dtype.itemsize
    held, widest = [(bound((), shape), value)], shape
    if isinstance(value, jax.Array):
      held = [
        (bound(shard.index, shape), shard.data)
        for shard in value.addressable_shards
        if shard.replica_id == 0
      ]
      widest = value.sharding.shard_shape(shape)
    sizes = [max(1, size) for size in chunk_shape(widest, size)]
    sums = np.zeros(num_chunks(shape, sizes), np.uint32)
    for part, data in held:
      data = np.asarray(data)
      for index, at in _parts(part, shape, sizes):
        sums[index] = _crc32(data[relative_to(at, part)])
    return cls(value.dtype.name, list(shape), sizes, sums.ravel().tolist())

  def covering(self, part: Part) -> Part:
    """Returns the whole chunks that a part of the array lies in."""
    return tuple(
      slice(at.start // chunk * chunk, min(size, -(-at.stop // chunk) * chunk))
      for at, size, chunk in zip(part, self.shape, self.chunks)
    )

  def changed(self, value: np.ndarray, part: Part) -> str | None:
    """Returns the name of the first chunk that is not as it was, or None.

    Args:
      value: what was read of the array.
      part: which part it is, as `covering` gives it.
    """
    sums = np.reshape(self.crc32, num_chunks(self.shape, self.chunks))
    for index, at in _parts(part, self.shape, self.chunks):
      if _crc32(value[relative_to(at, part)]) != sums[index]:
        return chunk_name(index)
    return None


def checksums(arrays: Mapping[str, np.ndarray | jax.Array]) -> dict[str, dict]:
  """Returns the checksums of arrays as JSON, by their names."""
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    sums = pool.map(Checksums.of, arrays.values())
    return {name: vars(each) for name, each in zip(arrays, sums)}


def checksum_of_json(values: Mapping) -> int:
  """Returns a CRC-32 of JSON values, whatever the order of their keys."""
  return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def relative_to(part: Part, of: Part) -> Part:
  """Returns a part of an array as a part of a larger one of it."""
  return tuple(
    slice(at.start - within.start, at.stop - within.start)
    for at, within in zip(part, of)
  )


def chunk_name(index: Sequence[int]) -> str:
  """Returns zarr's name of a chunk."""
  return ".".join(map(str, index)) or "0"


def _parts(
  part: Part, shape: Sequence[int], chunks: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Part]]:
  """Yields (index, its own part) of each chunk of a part of whole chunks."""
  first = [at.start // chunk for at, chunk in zip(part, chunks)]
  sizes = [at.stop - at.start for at in part]
  for offset in np.ndindex(*num_chunks(sizes, chunks)):
    index = tuple(start + i for start, i in zip(first, offset))
    at = (
      slice(i * n, min(m, i * n + n)) for i, n, m in zip(index, chunks, shape)
    )
    yield index, tuple(at)


def _crc32(value: np.ndarray) -> int:
  return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def file_of(array, chunk: str) -> str:
  """Returns the file that holds a chunk of an array, as far as it is known."""
  spec = array.kvstore.spec().to_json()
  if spec["driver"] != "ocdbt":
    return _url(spec, chunk)
  places = _places(array)
  return places.get(chunk, (_url(spec["base"], ""), 0))[0]


def describe_fault(array) -> str | None:
  """Returns in words what is wrong with the files of an array's chunks.

  Tensorstore's errors name those that are an array's own; None then.
  """
  places = _places(array)
  for file, end in places.values():
    if not file.startswith("/"):
      continue
    if not os.path.isfile(file):
      return f"{file} is missing"
    if os.path.getsize(file) < end:
      return f"{file} is truncated"
  files = sorted({file for file, _ in places.values()})
  return f"it is in {' and '.join(files[:2])}" if files else None


def _places(array) -> dict[str, Place]:
  """Returns where each chunk is, of an array in OCDBT whose tree is sound."""
  import tensorstore as ts

  store = array.kvstore
  spec = store.spec().to_json()
  if spec["driver"] != "ocdbt":
    return {}
  base, root = store.base, _url(spec["base"], "")
  places = {}

  def walk(location: str, prefix: str):
    node = ts.ocdbt.dump(base, location).result()
    for entry in node["entries"]:
      name = prefix + entry["key"].decode()
      if "location" in entry:
        cut = entry.get("subtree_common_prefix_length", 0)
        walk(entry["location"], name[: len(prefix) + cut])
      elif name.startswith(spec["path"]):
        place = _place(entry.get("indirect_value", location), root)
        places[name.removeprefix(spec["path"])] = place

  try:
    manifest = ts.ocdbt.dump(base).result()
    walk(manifest["versions"][-1]["root"]["location"], "")
  except (ValueError, LookupError):
    pass  # the tree itself is damaged, which the error says
  return places


def _place(location: str, root: str) -> Place:
  """Returns a place from, e.g., "value:ocdbt.process_0/:d/92bd89:0:6202"."""
  _, *path, start, length = location.split(":")
  return root + "".join(path), int(start) + int(length)


def _url(spec: dict, name: str) -> str:
  if spec["driver"] == "file":
    return str(pathlib.PurePosixPath(spec["path"])) + "/" + name
  return f"{spec['driver']}:{spec.get('bucket', '')}/{spec['path']}{name}"
