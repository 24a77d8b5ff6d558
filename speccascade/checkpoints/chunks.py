"""Splits arrays into the chunks in which they are stored."""

from collections.abc import Sequence
import math

CHUNK_BYTES = 64 * 2**20  # T5X's largest chunk

# A part of an array: a slice with start and stop for each axis.
Part = tuple[slice, ...]


def chunk_shape(shape: Sequence[int], max_elements: int) -> list[int]:
  """Returns the shape of the chunks in which an array is stored.

  The chunks divide the array without a rest. The largest axis is split first.

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


def bound(index: Sequence[slice], shape: Sequence[int]) -> Part:
  """Returns an index as a `Part`; axes that it leaves out are taken whole.

  >>> bound((slice(2, None),), (5, 3))
  (slice(2, 5, None), slice(0, 3, None))
  """
  index = (*index, *[slice(None)] * (len(shape) - len(index)))
  return tuple(slice(*x.indices(n)[:2]) for x, n in zip(index, shape))
