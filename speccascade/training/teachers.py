"""What is learned of other models: distributions of teachers, an embedding."""

from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.checkpoints import restore, storage
from speccascade.data import training_batches as batching
from speccascade.models.parameters import Config, lying, network
from speccascade.models.sharding.partitioning import fetched
from speccascade.runtime import array_files, files, processes
from speccascade.runtime.progress import ProgressBar
from speccascade.training.states import Teacher

# Texts of a file of hidden states.
PART = 256
TABLE = "token_embedder"


def read(path, model: Config, identity, layout=None) -> Teacher | None:
  """Returns the teacher of a checkpoint, None where none is given.

  Args:
    path: of any layout, or None.
    model: the architecture that learns.
    identity: {"path", "sha256"} of the vocabulary in use, where it is known.
    layout: where its arrays lie; None on one device.

  Raises:
    CheckpointError: it cannot be read.
    ValueError: it is of another kind than the model, or has another vocabulary.
  """
  from speccascade.data import vocabularies

  if not path:
    return None
  checkpoint = restore.load(path, lazy=layout is not None)
  config, known = checkpoint.require_config(), checkpoint.vocabulary
  if not known and storage.Directory(checkpoint.path).vocabulary():
    known = vocabularies.load(checkpoint.path).identity
  faults = {
    "is of another kind than MODEL": type(config) is not type(model),
    f"has {config.vocab_size} vocabulary rows, MODEL {model.vocab_size}": (
      config.vocab_size != model.vocab_size
    ),
    "has another vocabulary than VOCABULARY (their sha256 differ)": (
      identity and known and known["sha256"] != identity["sha256"]
    ),
  }
  for fault, is_so in faults.items():
    if is_so:
      raise ValueError(f"TEACHER_CHECKPOINT {checkpoint.path} {fault}")
  if layout is not None:
    layout.check(config, "TEACHER_CHECKPOINT")
    params = lying(config, checkpoint.params, layout)
  else:
    as_float32 = lambda leaf: jnp.asarray(leaf, "float32")
    params = jax.tree.map(as_float32, checkpoint.params)
  return Teacher(params, network(config))


@functools.partial(jax.jit, static_argnums=0)
def _hidden(module, params, tokens, segment_ids, positions):
  """Returns [B, T, E] float16."""
  args = (tokens, segment_ids, positions)
  hidden = module.apply({"params": params}, *args, method="hidden")
  return hidden.astype(jnp.float16)


def with_hidden(
  teacher: Teacher,
  batches: batching.TrainBatches,
  folder: str | os.PathLike,
  progress: bool = True,
) -> batching.TrainBatches:
  """Returns training batches that bring what the teacher makes of them.

  Its hidden states are read from a folder where they are; what lacks is
  computed, each text once, and written by `PART` texts at a time, whole or not
  at all.

  Args:
    teacher: decoder-only; its last norm's outputs are kept, in float16.
    batches: those without; the teacher reads as many rows, as wide.
    folder: has a folder for each teacher and texts.
    progress: show how far it is.

  Returns:
    The batches of arrays with `TokenArrays.hidden`, mapped from the files.

  Raises:
    ValueError: a state is out of float16's range, or a file is damaged.
  """
  arrays, widest = batches.arrays, batches.buckets[-1]
  width, batch_size = widest.widths[-1], widest.batch_size
  told = hashlib.sha256(f"{teacher.module.config} {arrays.digest}".encode())
  for leaf in jax.tree.leaves(teacher.params):
    told.update(np.ascontiguousarray(fetched(leaf)))
  folder = pathlib.Path(folder).expanduser() / told.hexdigest()[:16]
  size = np.stack([arrays.lengths(name) for name in batching.FEATURES], 1)
  lengths, size = size[:, 1], size.sum(1, keepdims=True) - 1
  hidden = []
  with ProgressBar(
    total=len(arrays), unit="text", desc="teacher", disable=not progress
  ) as bar:
    for first in range(0, len(arrays), PART):
      texts = np.arange(first, min(first + PART, len(arrays)))
      path = folder / f"{first:08d}.npy"
      if not processes.agreed(path.is_file):
        rows = batching.pack_rows(size, texts, (width,), seed=0)
        states = _read_by(teacher, arrays, rows, (width,), batch_size)
        together = np.concatenate([states[text] for text in texts])
        if not np.isfinite(together).all():
          raise ValueError("the teacher's hidden states do not fit float16")
        if processes.is_first():
          with files.whole(path, "wb") as file:
            np.save(file, together)
        processes.meet()
      ends = np.cumsum(lengths[texts])[:-1]
      shape = (int(lengths[texts].sum()), teacher.module.config.emb_dim)
      hidden += np.split(_kept(path, shape), ends)
      bar.update(len(texts))
  arrays = dataclasses.replace(arrays, hidden=hidden)
  return dataclasses.replace(batches, arrays=arrays)


def _kept(path: pathlib.Path, shape: tuple[int, int]) -> np.ndarray:
  """Returns the hidden states of a file, mapped from it.

  Args:
    path: of the file.
    shape: (targets of its texts, width of the teacher).

  Raises:
    ValueError: it holds no such array.
  """
  try:
    states = array_files.read_npy(path, mmap_mode="r")
    if states.shape != shape or states.dtype != np.float16:
      raise ValueError(
        f"{path} has {states.dtype} of shape {states.shape}; wanted float16 of"
        f" {shape}"
      )
  except ValueError as error:
    raise ValueError(
      f"TEACHER_CACHE_DIR: {error}; delete this file, and run again: the"
      " teacher writes it anew"
    ) from error
  return states


def _read_by(teacher, arrays, rows, widths, batch_size) -> dict:
  """Returns {text: its states [targets, E]} of packed rows of texts."""
  states = {}
  for start in range(0, len(rows), batch_size):
    some = rows[start : start + batch_size]
    some += [()] * (batch_size - len(some))
    batch = batching.causal_features(arrays, some, widths, packed=True)
    names = ("input_tokens", "segment_ids", "positions")
    fed = (batch[f"decoder_{name}"] for name in names)
    hidden = fetched(_hidden(teacher.module, teacher.params, *fed))
    segments = batch["decoder_segment_ids"] * batch["decoder_loss_weights"]
    for b, row in enumerate(some):
      for number, text in enumerate(row, 1):
        states[text] = hidden[b, segments[b] == number]
  return states


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
  read = restore.load(path)
  table = read.params[TABLE]["embedding"]
  rows, width = params[TABLE]["embedding"].shape
  if table.shape[0] != rows or table.shape[1] < width:
    raise ValueError(
      f"INITIAL_EMBEDDING_PATH: {read.path} has an embedding of"
      f" {table.shape[0]} rows and width {table.shape[1]}, MODEL one of {rows}"
      f" and {width}; wanted as many rows, and no less width"
    )
  return {**params, TABLE: {"embedding": jnp.asarray(reduced(table, width))}}
