"""Arrays of token ids: a tokenized split, and rows of one width.

A seqio task is run once, in order, and its tokens are stored as flat arrays:
4.5 million sentence pairs take less than 2 GB. A batch is then found by index
arithmetic, so that the batch of any training step can be made without the steps
before it.
"""

from collections.abc import Sequence
import dataclasses
import hashlib

import numpy as np

from speccascade.runtime import array_files, files

FEATURES = ("inputs", "targets")


@dataclasses.dataclass(frozen=True)
class TokenArrays:
  """N tokenized examples.

  Attributes:
    tokens: {feature: int32 [number of tokens]}, the tokens of all examples, one
      example after the other.
    offsets: {feature: int64 [N + 1]}, the index in `tokens` at which each
      example starts; the last one is the end of the last example.
    num_cut: {feature: how many examples were longer than the feature length}.
    rows: int64 [M], the examples from which an epoch draws. A mixture repeats
      some.
    hidden: for each example a teacher's hidden states, float16 [number of
      targets, E], from which the teacher's distributions of the targets are
      computed; or None.
  """

  tokens: dict[str, np.ndarray]
  offsets: dict[str, np.ndarray]
  num_cut: dict[str, int]
  rows: np.ndarray
  hidden: Sequence[np.ndarray] | None = None

  @classmethod
  def join(cls, tokens, sizes, num_cut=None) -> "TokenArrays":
    """Returns `TokenArrays` of tokens that lie one after the other.

    >>> tokens = {"inputs": np.array([5, 1, 1]), "targets": np.array([7, 8, 1])}
    >>> sizes = {"inputs": [2, 1], "targets": [3, 0]}
    >>> arrays = TokenArrays.join(tokens, sizes)
    >>> arrays.lengths("targets"), arrays.get("inputs", 0)
    (array([3, 0]), array([5, 1]))

    Args:
      tokens: {feature: int32 [number of tokens]}.
      sizes: {feature: [N] how many tokens each example has}.
      num_cut: {feature: how many examples were truncated}; None means none.
    """
    offsets = {
      name: np.concatenate([[0], np.cumsum(np.asarray(several, np.int64))])
      for name, several in sizes.items()
    }
    num = len(offsets["inputs"]) - 1
    num_cut = num_cut or dict.fromkeys(FEATURES, 0)
    return cls(tokens, offsets, num_cut, np.arange(num))

  def __len__(self) -> int:
    return len(self.offsets["inputs"]) - 1

  def lengths(self, feature: str) -> np.ndarray:
    """Returns [N] how many tokens each example has, EOS included."""
    return np.diff(self.offsets[feature])

  def get(self, feature: str, index: int) -> np.ndarray:
    """Returns the token ids of one example."""
    start, end = self.offsets[feature][index : index + 2]
    return self.tokens[feature][start:end]

  @property
  def digest(self) -> str:
    """A SHA-256 of the tokens and their division into examples."""
    digest = hashlib.sha256()
    for name in sorted(self.tokens):
      digest.update(np.ascontiguousarray(self.tokens[name]))
      digest.update(np.ascontiguousarray(self.offsets[name]))
    return digest.hexdigest()

  def save(self, path):
    """Writes the arrays to an .npz file, whole or not at all.

    `hidden` is not written.
    """
    with files.open_whole(path, "wb") as file:
      np.savez(
        file,
        rows=self.rows,
        **{f"{k}_tokens": v for k, v in self.tokens.items()},
        **{f"{k}_offsets": v for k, v in self.offsets.items()},
        **{f"{k}_cut": v for k, v in self.num_cut.items()},
      )

  @classmethod
  def load(cls, path) -> "TokenArrays":
    """Reads arrays that `save` wrote.

    Raises:
      ValueError: the file is damaged, or `save` did not write it.
    """
    try:
      arrays = array_files.read_npz(path)
      return cls(
        {name: arrays[f"{name}_tokens"] for name in FEATURES},
        {name: arrays[f"{name}_offsets"] for name in FEATURES},
        {name: int(arrays[f"{name}_cut"]) for name in FEATURES},
        arrays["rows"],
      )
    except (KeyError, ValueError, TypeError) as error:
      raise ValueError(
        f"{path} holds no tokenized examples: delete it and run again"
      ) from error


def mix(parts: list[TokenArrays], rates: np.ndarray) -> TokenArrays:
  """Returns the examples of several tasks, with rows in proportion to `rates`.

  Every example has a row. A task whose rate is larger than its share of the
  examples has some examples in several rows.

  Args:
    parts: the examples of each task.
    rates: the rate of each task; they add up to 1.
  """
  sizes = np.array([len(part) for part in parts])
  # The epoch is so long that no task has fewer rows than examples. Tasks of 10
  # and 60 examples with rates of 1/4 and 3/4 have 80 rows, 20 and 60: the
  # examples of the first task come twice.
  total = np.max(sizes / rates)
  starts = np.concatenate([[0], np.cumsum(sizes)])
  rows = [
    starts[i] + np.arange(round(total * rates[i])) % sizes[i]
    for i in range(len(parts))
  ]
  whole = TokenArrays.join(
    {n: np.concatenate([part.tokens[n] for part in parts]) for n in FEATURES},
    {n: np.concatenate([p.lengths(n) for p in parts]) for n in FEATURES},
    {n: sum(part.num_cut[n] for part in parts) for n in FEATURES},
  )
  return dataclasses.replace(whole, rows=np.concatenate(rows))


def order_by_length(tokens: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns the indices [N] of N lists of ids, the shortest list first."""
  return np.argsort(list(map(len, tokens)), kind="stable")


def pad(
  tokens: Sequence[Sequence[int]], num_rows: int, width: int, padding: int = 0
) -> np.ndarray:
  """Returns lists of token ids as an array [num_rows, width] int32.

  If there are fewer lists than rows, the last list is repeated.

  Args:
    tokens: one list of ids or more.
    num_rows: how many rows the array has.
    width: the width of the array.
    padding: the number after the ids of a row.

  >>> pad([[5, 1], [1]], 3, 2)
  array([[5, 1],
         [1, 0],
         [1, 0]], dtype=int32)
  """
  rows = np.full((num_rows, width), padding, np.int32)
  copies = [tokens[-1]] * (num_rows - len(tokens))
  for row, ids in zip(rows, [*tokens, *copies], strict=True):
    row[: len(ids)] = ids
  return rows
