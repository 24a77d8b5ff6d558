"""The few lengths that inputs are padded to, and the padding of a batch."""

from collections.abc import Sequence

import numpy as np

from speccascade.decoding.records import prompts
from speccascade.generate.batches.sources import Source
from speccascade.text.arrays import pad

# Inputs are padded to one of these shares of the longest allowed length,
# rounded up to a multiple.
_BUCKETS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
_MULTIPLE = 8


def buckets(max_len: int, num: int | None = None) -> list[int]:
  """Returns the lengths that inputs are padded to, in ascending order.

  Args:
    max_len: the most tokens that an input may have. It is the last length.
    num: the most lengths to return, evenly spaced; None returns all.

  >>> buckets(64), buckets(100), buckets(4)
  ([8, 16, 24, 32, 48, 64], [16, 32, 40, 56, 80, 100], [4])
  >>> buckets(64, 2), buckets(64, 9) == buckets(64)
  ([24, 64], True)
  """
  lengths = {
    min(max_len, -(-round(share * max_len) // _MULTIPLE) * _MULTIPLE)
    for share in _BUCKETS
  }
  lengths = sorted(length for length in lengths if length > 0)
  most = len(lengths)
  num = min(num or most, most)
  # With num = 2, the lengths 8 16 24 32 48 64 end two halves at number 3 and
  # number 6: 24 and 64.
  return [lengths[most * (i + 1) // num - 1] for i in range(num)]


def width_of(batch: Sequence[Source], lengths: Sequence[int]) -> int:
  """Returns the length that the inputs of a batch are padded to.

  Args:
    batch: the examples. Without any it is the least length.
    lengths: the lengths to choose from, in ascending order.

  Raises:
    ValueError: an input is longer than the last of `lengths`.
  """
  longest = max((len(example.tokens) for example in batch), default=0)
  return bucket_of(longest, lengths)


def bucket_of(length: int, lengths: Sequence[int]) -> int:
  """Returns the length that an input is padded to.

  Args:
    length: the number of tokens of the input.
    lengths: the lengths to choose from, in ascending order.

  Raises:
    ValueError: the input is longer than the last of `lengths`.
  """
  for bucket in lengths:
    if length <= bucket:
      return bucket
  raise ValueError(f"a source of {length} tokens fits none of {list(lengths)}")


def pad_batch(
  batch: Sequence[Source],
  rows: int,
  lengths: Sequence[int],
  *,
  prompted: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """Pads the examples of a batch to one shape.

  Args:
    batch: the examples, at least one and at most `rows`.
    rows: the number of rows of the padded batch. Copies of the last example
      fill the rows that are left; their outputs are not read.
    lengths: the lengths to choose from, in ascending order. S is the least of
      them that holds all examples.
    prompted: whether the examples are prompts. Their padding is `prompts.PAD`,
      because 0 may be a token of a prompt. Sources are padded with 0.

  Returns:
    The tokens [rows, S] int32, and the indices [rows] int32 of the examples.
  """
  width = width_of(batch, lengths)
  padding = prompts.PAD if prompted else 0
  tokens = [example.tokens for example in batch]
  indices = [example.index for example in batch]
  indices += indices[-1:] * (rows - len(batch))
  return pad(tokens, rows, width, padding), np.array(indices, np.int32)
