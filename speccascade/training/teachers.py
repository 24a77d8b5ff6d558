"""Takes from other models: the distributions of a teacher, an embedding.

A teacher's hidden states can be computed once and stored, because they are the
same in every epoch. The stored arrays are small: E float16 numbers a token,
where the V probabilities that the output projection makes of them would take
more than a hundred times as much.
"""

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
from speccascade.models.architectures import drafts_alone, words_of
from speccascade.models.parameters import Config, network, place_params
from speccascade.models.sharding.partitioning import fetch
from speccascade.runtime import array_files, files, processes
from speccascade.runtime.progress import ProgressBar
from speccascade.text import token_names
from speccascade.training import training_batches
from speccascade.training.states import Teacher

# How many texts one file of hidden states holds. A run that is killed computes
# at most this many texts again.
PART = 256
# The embedding's name in a parameter tree.
TABLE = "token_embedder"


def read(
  path,
  model: Config,
  identity,
  layout=None,
  setting: str = "TEACHER_CHECKPOINT",
) -> Teacher | None:
  """Returns the teacher that a checkpoint holds, or None without a path.

  Args:
    path: a checkpoint of any layout, or None.
    model: the architecture of the model that learns.
    identity: {"path", "sha256"} of the vocabulary in use, or None where it is
      unknown.
    layout: where the teacher's parameters lie; None on one device.
    setting: the setting that names the checkpoint, for messages.

  Raises:
    CheckpointError: the checkpoint cannot be read.
    ValueError: the teacher is of another kind than the model, or has another
      vocabulary.
  """
  from speccascade.text import vocabularies

  if not path:
    return None
  checkpoint = restore.load(path, lazy=layout is not None)
  config, known = checkpoint.require_config(), checkpoint.vocabulary
  if not known and storage.Directory(checkpoint.path).vocabulary():
    known = vocabularies.load(checkpoint.path).identity
  fault = None
  if not drafts_alone(config):
    fault = f"has {words_of(config)}; wanted a language model"
  elif not drafts_alone(model):
    # Heads take their shape from their verifier.
    pass
  elif type(config) is not type(model):
    fault = "is of another kind than MODEL"
  elif config.vocab_size != model.vocab_size:
    fault = f"has {config.vocab_size} vocabulary rows, MODEL {model.vocab_size}"
  if not fault and (differs := token_names.difference(known, identity)):
    fault = f"has another vocabulary than VOCABULARY ({differs})"
  if fault:
    raise ValueError(f"{setting} {checkpoint.path} {fault}")
  if layout is not None:
    layout.check(config, setting)
    params = place_params(config, checkpoint.params, layout)
  else:
    params = jax.tree.map(
      lambda leaf: jnp.asarray(leaf, jnp.float32), checkpoint.params
    )
  return Teacher(params, network(config))


@functools.partial(jax.jit, static_argnums=0)
def _hidden(module, params, tokens, segment_ids, positions):
  """Returns hidden states [B, T, E] float16 of tokens [B, T]."""
  hidden = module.apply(
    {"params": params}, tokens, segment_ids, positions, method="hidden"
  )
  return hidden.astype(jnp.float16)


def with_hidden(
  teacher: Teacher,
  batches: training_batches.TrainBatches,
  folder: str | os.PathLike,
  progress: bool = True,
  *,
  prompts: bool = False,
) -> training_batches.TrainBatches:
  """Returns training batches that hold the teacher's hidden states.

  Hidden states that a folder holds are read from it. The teacher computes the
  others, reading each text once, and writes them in files of `PART` texts, each
  file whole or not at all.

  Args:
    teacher: a decoder-only teacher; the outputs of its last norm are stored, in
      float16.
    batches: the batches without hidden states. The teacher reads batches of the
      shape of the widest bucket.
    folder: holds a folder for each pair of a teacher and a set of texts.
    progress: whether to show a progress bar.
    prompts: whether the states at prompts are stored too. Such files are read
      where the states of targets alone are wanted.

  Returns:
    Batches whose arrays have `TokenArrays.hidden`, mapped from the files.

  Raises:
    ValueError: a hidden state is outside float16's range, or a file is damaged.
  """
  arrays, widest = batches.arrays, batches.buckets[-1]
  width, batch_size = widest.widths[-1], widest.batch_size
  folder, name = (
    pathlib.Path(folder).expanduser(),
    _digest(teacher, arrays)[:16],
  )
  size = np.stack(
    [arrays.lengths(name) for name in training_batches.FEATURES], 1
  )
  # A file holds one state for each target token, or for each fed one. A text's
  # row has one token fewer than prompt and output together, because the last
  # token is not fed.
  targets, size = size[:, 1], size.sum(1, keepdims=True) - 1
  hidden = []
  with ProgressBar(
    total=len(arrays), unit="text", desc="teacher", disable=not progress
  ) as bar:
    for first in range(0, len(arrays), PART):
      texts = np.arange(first, min(first + PART, len(arrays)))
      file_name, fed = f"{first:08d}.npy", size[texts, 0]
      whole = folder / f"{name}-whole" / file_name
      path = whole if prompts else folder / name / file_name
      wanted = fed if prompts else targets[texts]
      lengths = wanted
      # The first process of a job looks whether the file is there. All of them
      # must take the same way: parameters on a mesh need every process. The
      # first process writes the file, and the others wait until it is there.
      if not prompts and processes.agree(whole.is_file):
        path, lengths = whole, fed
      elif not processes.agree(path.is_file):
        rows = training_batches.pack_rows(size, texts, (width,), seed=0)
        by_text = _states_of(
          teacher, arrays, rows, (width,), batch_size, prompts
        )
        states = np.concatenate([by_text[text] for text in texts])
        if not np.isfinite(states).all():
          raise ValueError("the teacher's hidden states do not fit float16")
        if processes.is_first():
          with files.open_whole(path, "wb") as file:
            np.save(file, states)
        processes.meet()
      shape = (int(lengths.sum()), teacher.module.config.emb_dim)
      stored = np.split(_read_states(path, shape), np.cumsum(lengths)[:-1])
      # The states of the targets are the last ones of those of all tokens.
      hidden += [each[len(each) - n :] for each, n in zip(stored, wanted)]
      bar.update(len(texts))
  arrays = dataclasses.replace(arrays, hidden=hidden)
  return dataclasses.replace(batches, arrays=arrays)


def _read_states(path: pathlib.Path, shape: tuple[int, int]) -> np.ndarray:
  """Returns the hidden states that a file holds, mapped from the file."""
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
      " teacher writes it again"
    ) from error
  return states


def _digest(teacher: Teacher, arrays) -> str:
  """Returns a digest of a teacher and of the texts that it reads."""
  # It covers the parameters themselves: a teacher that was trained further
  # under the same path has other states.
  digest = hashlib.sha256(f"{teacher.module.config} {arrays.digest}".encode())
  for leaf in jax.tree.leaves(teacher.params):
    digest.update(np.ascontiguousarray(fetch(leaf)))
  return digest.hexdigest()


def _states_of(
  teacher: Teacher, arrays, rows, widths, batch_size: int, prompts: bool
) -> dict[int, np.ndarray]:
  """Returns {index of a text: [targets, E] float16}, its hidden states.

  With `prompts` they are those of all fed tokens.
  """
  # A row is a tuple of texts' indices.
  states = {}
  for start in range(0, len(rows), batch_size):
    batch_rows = rows[start : start + batch_size]
    # The last batch is filled with empty rows, so that one shape is compiled.
    batch_rows += [()] * (batch_size - len(batch_rows))
    batch = training_batches.causal_features(
      arrays, batch_rows, widths, packed=True
    )
    hidden = fetch(
      _hidden(
        teacher.module,
        teacher.params,
        batch["decoder_input_tokens"],
        batch["decoder_segment_ids"],
        batch["decoder_positions"],
      )
    )
    # Prompts have weight 0: segments [1, 1, 1, 2, 2] with weights
    # [0, 1, 1, 0, 1] become [0, 1, 1, 0, 2], and the states of text 2 are those
    # at the 2.
    segments = batch["decoder_segment_ids"]
    if not prompts:
      segments = segments * batch["decoder_loss_weights"]
    for b, row in enumerate(batch_rows):
      for number, text in enumerate(row, 1):
        states[text] = hidden[b, segments[b] == number]
  return states


def reduce_width(table: np.ndarray, width: int) -> np.ndarray:
  """Returns a table [V, E] projected onto its `width` principal directions.

  The products of two rows stay as close to the products of the old rows as
  `width` dimensions allow.

  Args:
    table: [V, E] float32, an embedding.
    width: the number of dimensions, at most E.

  Returns:
    [V, width] float32. The mean of the rows is not subtracted: that would
    change the products.

  Source: Eckart and Young 1936.

  >>> table = np.array([[3.0, 4.0], [6.0, 8.0]])
  >>> np.abs(reduce_width(table, 1)).round(4).tolist()
  [[5.0], [10.0]]
  """
  table = np.asarray(table, np.float64)
  # The eigenvectors come in ascending order of their eigenvalues.
  _, directions = np.linalg.eigh(table.T @ table)
  return (table @ directions[:, ::-1][:, :width]).astype(np.float32)


def with_embedding(params: Mapping, path: str | os.PathLike) -> dict[str, Any]:
  """Returns parameters with a checkpoint's embedding, reduced to their width.

  An encoder's own table of tokens is taken from the checkpoint's encoder.

  Args:
    params: a model's parameters.
    path: the checkpoint of a model that is at least as wide, in any layout.

  Raises:
    CheckpointError: the checkpoint cannot be read.
    ValueError: the checkpoint's embedding has another number of rows, or is
      narrower.
  """
  checkpoint = restore.load(path)

  def reduced(params: Mapping, given: Mapping) -> dict[str, Any]:
    rows, width = params[TABLE]["embedding"].shape
    table = given.get(TABLE, {}).get("embedding", np.zeros((0, 0)))
    if table.shape[0] != rows or table.shape[1] < width:
      raise ValueError(
        f"INITIAL_EMBEDDING_PATH: {checkpoint.path} has an embedding of"
        f" {table.shape[0]} rows and width {table.shape[1]}, MODEL one of"
        f" {rows} and {width}; wanted as many rows, and no less width"
      )
    table = jnp.asarray(reduce_width(table, width))
    return {**params, TABLE: {**params[TABLE], "embedding": table}}

  new = reduced(params, checkpoint.params)
  if TABLE in params.get("encoder", {}):
    encoder = checkpoint.params.get("encoder", {})
    new["encoder"] = reduced(params["encoder"], encoder)
  return new
