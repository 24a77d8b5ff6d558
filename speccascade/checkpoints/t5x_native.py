"""Reads and writes T5X's native layout: one msgpack file and zarr directories.

  checkpoint_<step>/
    checkpoint                     msgpack {"version", "optimizer": {"target",
                                   "state": {"step"[, "param_states"]}}}
    target.<path, joined by dots>/ a zarr array, where the msgpack has a spec

T5X puts an array into the msgpack file or into a directory of its own by how
the array was partitioned when it was saved, not by its name. So both places are
accepted for every array. A spec says where its array was written (file, gfile
or gcs with a placeholder bucket). Only the path in the spec counts, relative to
the place where the checkpoint is now.

Source: t5x/checkpoints.py, versions 2 (bfloat16 stored as uint16 bits) and 3.
"""

from collections.abc import Mapping
import concurrent.futures
import contextlib
import os
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from speccascade.checkpoints import (
  adafactor_slots,
  chunks,
  storage,
  stored_arrays,
)
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.runtime import files

INDEX = "checkpoint"
VERSION = 3
_NUM_WRITERS = 8  # threads, each of which writes one array at a time


def open_arrays(
  directory: storage.Directory, *, optimizer: bool
) -> stored_arrays.StoredArrays:
  """Opens the arrays of a step directory.

  Args:
    directory: the step directory, which holds the file `checkpoint`.
    optimizer: whether to open the optimizer's slots too.

  Raises:
    CheckpointError: a file or array is damaged, missing, or of a kind that is
      not read. The message names it.
  """
  where, index = str(directory), f"{directory}/{INDEX}"
  version, tree = _read_index(directory)
  is_spec = lambda _, leaf: {"driver", "kvstore", "metadata"} <= leaf.keys()
  with storage.parsing(index):
    leaves = {
      name: leaf
      for name, leaf in flatten(tree, is_leaf=is_spec).items()
      # None stands for the slot of a parameter that is not trained.
      if stored_arrays.is_wanted(name, optimizer) and leaf is not None
    }
    if not any(name.startswith("target/") for name in leaves):
      raise CheckpointError(f"{index} has no optimizer/target: no parameters")
    if "state/step" not in leaves:
      raise CheckpointError(f"{index} has no state/step")
    for name, leaf in leaves.items():
      if isinstance(leaf, dict):
        leaves[name] = _spec(directory, name, leaf)
      elif not isinstance(leaf, np.ndarray | np.generic):
        kind = type(leaf).__name__
        raise CheckpointError(f"{name} in {index} is a {kind}, want an array")
      else:
        leaves[name] = np.asarray(leaf)
  return stored_arrays.StoredArrays.open(where, leaves, has_bits=version == 2)


def _read_index(directory: storage.Directory) -> tuple[int, dict]:
  """Returns (version, {"target", "state"}) of the msgpack file."""
  from flax import serialization

  where = f"{directory}/{INDEX}"
  content = directory.read(INDEX)
  if content is None:
    raise CheckpointNotFoundError(f"{where} is missing")
  if b"model_checkpoint_path" in content[:100]:
    raise CheckpointError(
      f"{where} belongs to a TensorFlow checkpoint (Mesh TensorFlow T5); "
      "T5X's conversions of the public ones are under "
      "gs://t5-data/pretrained_models/t5x/"
    )
  try:
    tree = serialization.msgpack_restore(content)
  except Exception as error:  # msgpack raises errors of many types
    raise CheckpointError(
      f"{where} is truncated or no msgpack file ({storage.first_line(error)}): "
      "copy it again"
    ) from error
  if not isinstance(tree, dict):
    raise CheckpointError(f"{where} is not a T5X checkpoint: it holds no map")
  version, train_state = tree.get("version", 0), tree.get("optimizer")
  if not isinstance(version, int) or not 2 <= version <= VERSION:
    raise CheckpointError(
      f"{where} is of version {version!r:.60}; versions 2 and {VERSION} are "
      "read: restore and save it again with T5X"
    )
  if not isinstance(train_state, dict):
    raise CheckpointError(f"{where} has no optimizer/target: no parameters")
  return version, train_state


def _spec(directory: storage.Directory, name: str, spec: dict) -> dict:
  """Returns tensorstore's spec of an array, where the checkpoint is now."""
  if spec["driver"] != "zarr":
    raise CheckpointError(
      f"array {name} of {directory} is stored by {spec['driver']!r}, want zarr"
    )
  # Before tensorstore 0.1.14 the path was a member of the spec itself.
  path = spec["kvstore"].get("path") or spec.get("path") or ""
  path = path.rstrip("/")
  is_inside = path and not path.startswith("/") and ".." not in path.split("/")
  if not is_inside or "\0" in path or len(path) > 255:
    raise CheckpointError(
      f"array {name} of {directory} is at {path!r:.60}, want a path inside the "
      "checkpoint"
    )
  folder = directory / path
  folder.check_files()
  return {"driver": "zarr", "kvstore": folder.kvstore()}


def save(
  path: str | os.PathLike,
  params: Mapping,
  *,
  step: int,
  optimizer: Mapping | None = None,
  dtype: str = "float32",
) -> None:
  """Writes a checkpoint that T5X reads, whole or not at all.

  As in T5X's checkpoints, parameters go into zarr directories, and Adafactor's
  `v_row`, `v_col` and unused slots go into the msgpack file.

  Args:
    path: the directory to create, called `checkpoint_<step>`.
    params: nested dict in T5X's names. The leaves are arrays, or objects such
      as `stored_arrays.Unread` that become an array when they are written.
    step: training steps taken.
    optimizer: Adafactor's slots, as in `Checkpoint.optimizer`, which stay
      float32. With None, only the step is written.
    dtype: dtype of the parameters on the disk: float32, or bfloat16, to which
      they are rounded (nearest even).

  Raises:
    CheckpointError: something exists at the path, or the path has another name.
  """
  directory = storage.Directory(path)
  if os.path.basename(directory.url) != f"checkpoint_{step}":
    raise CheckpointError(
      f"T5X finds a checkpoint of step {step} by the name checkpoint_{step}, "
      f"got {directory}"
    )
  directory.refuse_existing()
  kinds = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
  if dtype not in kinds:
    raise CheckpointError(f"dtype {dtype!r}: want one of {', '.join(kinds)}")

  # Arrays of the msgpack file, and arrays with a directory of their own.
  inline, stored = {"state/step": np.asarray(step, np.int32)}, {}
  for name, value in flatten(dict(params)).items():
    stored[f"target/{name}"] = _StoredArray(value, kinds[dtype])
  if optimizer is not None:
    states = adafactor_slots.with_momentum(optimizer)
    for name, value in flatten(states).items():
      value, name = np.asarray(value, np.float32), f"state/param_states/{name}"
      if name.endswith("/v") and value.shape != (1,):
        stored[name] = _StoredArray(value, np.float32)
      else:
        inline[name] = value

  if directory.remote:
    # On gs:// nothing is renamed, but each object appears whole. A reader looks
    # for the msgpack file, which `_write` writes last.
    folder = contextlib.nullcontext(directory.url)
  else:
    folder = files.make_whole_folder(directory.url)
  with folder as url:
    _write(storage.Directory(url), inline, stored)


class _StoredArray(NamedTuple):
  """An array that gets a zarr directory of its own."""

  value: Any  # the array, or an object that becomes one
  dtype: Any  # of the array on the disk


def _write(
  directory: storage.Directory,
  inline: dict[str, np.ndarray],
  stored: dict[str, _StoredArray],
) -> None:
  """Writes arrays, several at once, then the msgpack file that names them."""
  from flax import serialization
  import tensorstore as ts

  def write(name: str) -> dict:
    """Writes an array; returns the spec that stands for it in the msgpack."""
    value = np.asarray(stored[name].value).astype(stored[name].dtype)
    folder = name.replace("/", ".")
    size = chunks.CHUNK_BYTES // value.dtype.itemsize
    spec = {
      "driver": "zarr",
      "dtype": value.dtype.name,
      "kvstore": {"driver": "file", "path": f"{folder}/"},
      "metadata": {
        "chunks": chunks.chunk_shape(value.shape, size),
        "compressor": {"id": "gzip", "level": 1},
        "shape": list(value.shape),
      },
    }
    # T5X's spec has the path inside the checkpoint. A chunk of zeros is written
    # too, so that a missing chunk is always damage.
    target = spec | {
      "kvstore": (directory / folder).kvstore(),
      "store_data_equal_to_fill_value": True,
    }
    array = ts.open(target, create=True, open=False, context=storage.context())
    array.result().write(value).result()
    if directory.remote:  # T5X puts the bucket in place of this one
      spec["kvstore"] |= {"driver": "gcs", "bucket": "t5x-dummy-bucket"}
    return spec

  try:
    with concurrent.futures.ThreadPoolExecutor(_NUM_WRITERS) as pool:
      leaves = inline | dict(zip(stored, pool.map(write, stored)))
  except ValueError as error:
    raise CheckpointError(
      f"cannot write {directory}: {storage.first_line(error)}"
    ) from error
  # JAX's map over a tree sorts the keys, as they are sorted in T5X's files.
  optimizer = jax.tree.map(lambda leaf: leaf, unflatten(leaves))
  tree = {"version": VERSION, "optimizer": optimizer}
  # flax's `to_bytes` would turn the lists of a spec into maps, and T5X could
  # not open the array.
  directory.write(INDEX, serialization.msgpack_serialize(tree, in_place=True))
