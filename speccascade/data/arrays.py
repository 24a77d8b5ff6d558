"""A tokenized split as flat arrays: what batches are cut from.

A seqio task is run once, in order, and kept as numbers: 4.5 million sentence
pairs are under 2 GB. Batches are then index arithmetic, so that any step of
training can be had without the steps before it.
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
    tokens: feature -> int32 [all tokens of the feature, one after the other].
    offsets: feature -> int64 [N + 1], where each example starts.
    num_cut: feature -> examples that were longer than the feature length.
    rows: int64 [M], the examples an epoch draws from; a mixture repeats some.
    hidden: of each example, a teacher's hidden states [its targets, E] float16
      that its distributions of these tokens are made of; or None.
  """

  tokens: dict[str, np.ndarray]
  offsets: dict[str, np.ndarray]
  num_cut: dict[str, int]
  rows: np.ndarray
  hidden: Sequence[np.ndarray] | None = None

  @classmethod
  def join(cls, tokens, sizes, num_cut=None) -> "TokenArrays":
    """Returns the arrays of tokens that stand one after the other.

    >>> tokens = {"inputs": np.array([5, 1, 1]), "targets": np.array([7, 8, 1])}
    >>> sizes = {"inputs": [2, 1], "targets": [3, 0]}
    >>> arrays = TokenArrays.join(tokens, sizes)
    >>> arrays.lengths("targets"), arrays.get("inputs", 0)
    (array([3, 0]), array([5, 1]))

    Args:
      tokens: feature -> int32 [all tokens].
      sizes: feature -> [N] tokens of each example.
      num_cut: feature -> examples that were cut; default none.
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
    """Returns [N] numbers of tokens, end-of-sequence included."""
    return np.diff(self.offsets[feature])

  def get(self, feature: str, index: int) -> np.ndarray:
    """Returns the ids of one example."""
    start, end = self.offsets[feature][index : index + 2]
    return self.tokens[feature][start:end]

  @property
  def digest(self) -> str:
    """What tells examples apart, a SHA-256."""
    digest = hashlib.sha256()
    for name in sorted(self.tokens):
      digest.update(np.ascontiguousarray(self.tokens[name]))
      digest.update(np.ascontiguousarray(self.offsets[name]))
    return digest.hexdigest()

  def save(self, path):
    """Writes an .npz file, whole or not at all."""
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
    """Reads what `save` wrote.

    Raises:
      ValueError: the file is not of that form.
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
  """Returns parts one after the other, with rows in proportion to `rates`.

  Every example has a row; the tasks that are drawn from more often than they
  are large repeat theirs.

  Args:
    parts: the examples of one task each.
    rates: each task's share, adding to 1.
  """
  sizes = np.array([len(part) for part in parts])
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
