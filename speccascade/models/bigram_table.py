"""Greedy bigram tables: the likeliest token after each, for Max-Gram.

A table is read from our own n-gram files, or from the form that Chen et al.
(arXiv 2312.11462) publish: a JSON list, plain or gzipped. Entry t is the
likeliest token after token t, 0 where none is known.
"""

import os
import pathlib

import numpy as np

from speccascade.models.ngram_lm import NgramLM
from speccascade.runtime import files
from speccascade.settings import fields

# Of a table of 2^24 tokens, more than any vocabulary has.
_BOUNDS = files.FileBounds(line=10 << 24)


def read(path: str | os.PathLike) -> np.ndarray:
  """Returns [V] int32, the likeliest token after each token.

  Args:
    path: a `.json` or `.json.gz` file, or an `.npz` file of `NgramLM.save`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file holds no such table, or is not whole.
  """
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    raise FileNotFoundError(
      f"no bigram table at {path}; give a .json, .json.gz or .npz file, or make"
      " one with python -m speccascade.ngrams"
    )
  if path.suffix == ".npz":
    return NgramLM.load(path).greedy_bigrams()
  try:
    with files.open_bytes(path, _BOUNDS) as file:
      table = fields.of_json(file.read())
  except (OSError, ValueError) as error:
    raise ValueError(
      f"{path} is not a JSON list, or not whole ({error}); fetch it again"
    ) from error
  is_list = isinstance(table, list) and len(table) > 0
  # (isinstance would take true and false for ids.)
  if not is_list or not all(type(value) is int for value in table):
    raise ValueError(
      f"{path} is not a list of token ids; wanted entry t to be the id of the"
      " likeliest token after t"
    )
  low, high = min(table), max(table)
  if low < 0 or high >= 2**31:
    raise ValueError(
      f"{path} names token {low if low < 0 else high}; wanted ids of a"
      " vocabulary, 0 or more"
    )
  return np.asarray(table, np.int32)
