"""What one side writes: arrays and texts by name, in a folder."""

from collections.abc import Iterator
import contextlib
import json
import pathlib
from typing import Any

import jax
import numpy as np

ARRAYS, TEXTS = "arrays.npz", "texts.json"


class Record:
  """Arrays and texts by name.

  Attributes:
    arrays: {name: array}.
    texts: {name: text}; what was refused is a text, too.
  """

  def __init__(self):
    self.arrays: dict[str, np.ndarray] = {}
    self.texts: dict[str, str] = {}

  def add(self, name: str, tree: Any):
    """Records all arrays and texts of a tree, each by its path.

    Raises:
      ValueError: the name is taken.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
      key = name + jax.tree_util.keystr(path)
      if key in self.arrays or key in self.texts:
        raise ValueError(f"{key} is recorded twice")
      if isinstance(leaf, str):
        self.texts[key] = leaf
        continue
      array = np.asarray(leaf)
      if array.dtype.kind not in "biuf":  # bfloat16 and its like
        array = array.astype(np.float32)
      self.arrays[key] = array

  @contextlib.contextmanager
  def refusals(self, name: str) -> Iterator[None]:
    """Records the line with which a setting is refused inside the block."""
    try:
      yield
    except ValueError as error:
      self.texts[f"{name} is refused"] = str(error)

  def write(self, folder: pathlib.Path):
    """Writes the record to a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / ARRAYS, **self.arrays)
    text = json.dumps(self.texts, indent=1, sort_keys=True)
    (folder / TEXTS).write_text(text, encoding="utf-8")


def read(folder: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Returns the arrays and the texts that a `Record` wrote to a folder."""
  with np.load(folder / ARRAYS) as arrays:
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    return dict(arrays), texts
