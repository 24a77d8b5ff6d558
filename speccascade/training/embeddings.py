"""A small model's first embedding, made of a large one's."""

from collections.abc import Mapping
import os
from typing import Any

import jax.numpy as jnp
import numpy as np

from speccascade import checkpoints

TABLE = "token_embedder"


def reduced(table: np.ndarray, width: int) -> np.ndarray:
  """Returns a table [V, E] in `width` dimensions, those that hold most of it.

  Products of its rows are as near to the old ones as so few dimensions allow.

  Args:
    table: [V, E] float32.
    width: at most E.

  Returns:
    [V, width] float32, the projection on the principal directions; the mean of
    the rows is not taken off, so that products are kept.

  Source: Eckart and Young 1936.

  >>> np.abs(reduced(np.array([[3.0, 4.0], [6.0, 8.0]]), 1)).round(4).tolist()
  [[5.0], [10.0]]
  """
  table = np.asarray(table, np.float64)
  _, directions = np.linalg.eigh(table.T @ table)
  return (table @ directions[:, ::-1][:, :width]).astype(np.float32)


def begun(params: Mapping, path: str | os.PathLike) -> dict[str, Any]:
  """Returns parameters whose embedding is that of a checkpoint, reduced.

  Args:
    params: of a model that is not wider.
    path: of the checkpoint, of any layout.

  Raises:
    CheckpointError: it cannot be read.
    ValueError: it has another vocabulary, or is narrower.
  """
  read = checkpoints.load(path)
  table = read.params[TABLE]["embedding"]
  rows, width = params[TABLE]["embedding"].shape
  if table.shape[0] != rows or table.shape[1] < width:
    raise ValueError(
      f"INITIAL_EMBEDDING_PATH: {read.path} has an embedding of"
      f" {table.shape[0]} rows and width {table.shape[1]}, MODEL one of {rows}"
      f" and {width}; wanted as many rows, and no less width"
    )
  return {**params, TABLE: {"embedding": jnp.asarray(reduced(table, width))}}
