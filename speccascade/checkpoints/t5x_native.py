"""T5X's native checkpoint format: one msgpack file and zarr directories.

  checkpoint_<step>/
    checkpoint                     msgpack {"version", "optimizer": {"target",
                                   "state": {"step"[, "param_states"]}}}
    target.<path, joined by dots>/ a zarr array, where the msgpack has a spec

Which arrays are in the msgpack was decided by how each was partitioned when it
was saved, never by its name, so both are accepted for every leaf. A spec says
where its array was written (file, gfile or gcs with a placeholder bucket); only
its path counts, relative to wherever the checkpoint is now.

Source: t5x/checkpoints.py, versions 2 (bfloat16 stored as uint16 bits) and 3.
"""

from collections.abc import Mapping
import concurrent.futures
import contextlib
import os

import jax
import ml_dtypes
import numpy as np

from speccascade.checkpoints import chunks, storage, stored_arrays
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.runtime import files

INDEX = "checkpoint"
VERSION = 3
_IN_FLIGHT = 8  # arrays being written at a time


def open_arrays(
  directory: storage.Directory, *, optimizer: bool
) -> stored_arrays.StoredArrays:
  """Returns the arrays of a step directory, opened.

  Args:
    directory: holds the file `checkpoint`.
    optimizer: open its slots too.

  Raises:
    CheckpointError: naming the file or array that is damaged, missing or of a
      kind that is not read.
  """
  where, index = str(directory), f"{directory}/{INDEX}"
  version, tree = _read_index(directory)
  is_spec = lambda _, leaf: {"driver", "kvstore", "metadata"} <= leaf.keys()
  with storage.parsing(index):
    leaves = {
      name: leaf
      for name, leaf in flatten(tree, is_leaf=is_spec).items()
      # None is of an optimizer that leaves a parameter alone.
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
  except Exception as error:  # msgpack raises many kinds, ValueError among them
    raise CheckpointError(
      f"{where} is truncated or no msgpack file ({storage.first_line(error)}): "
      "copy it again"
    ) from error
  if not isinstance(tree, dict):
    raise CheckpointError(f"{where} is no T5X checkpoint: it holds no map")
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
  """Returns a spec that opens the array where the checkpoint is now."""
  if spec["driver"] != "zarr":
    raise CheckpointError(
      f"array {name} of {directory} is stored by {spec['driver']!r}, want zarr"
    )
  # Before tensorstore 0.1.14 the path stood at the top.
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

  As T5X does, arrays go to zarr directories, and Adafactor's `v_row`, `v_col`
  and unused slots into the msgpack file.

  Args:
    path: the directory to make, called `checkpoint_<step>`.
    params: nested dict of arrays in T5X's names, or of what is made an array
      when it is written.
    step: training steps taken.
    optimizer: Adafactor's slots as in `Checkpoint.optimizer`, else only the
      step is written. They stay float32.
    dtype: the parameters' on disk, float32 or bfloat16 (nearest even).

  Raises:
    CheckpointError: the path is taken or has another name.
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

  inline, stored = {"state/step": np.asarray(step, np.int32)}, {}
  for name, value in flatten(dict(params)).items():
    stored[f"target/{name}"] = value, kinds[dtype]
  if optimizer is not None:
    for name, value in flatten(stored_arrays.with_momentum(optimizer)).items():
      value, name = np.asarray(value, np.float32), f"state/param_states/{name}"
      if name.endswith("/v") and value.shape != (1,):
        stored[name] = value, np.float32
      else:
        inline[name] = value

  # On gs:// objects appear whole, and a reader wants the index, the last one.
  remote = contextlib.nullcontext(directory.url)
  local = files.make_whole_folder(directory.url)
  with remote if directory.remote else local as url:
    _write(storage.Directory(url), inline, stored)


def _write(directory: storage.Directory, inline: dict, stored: dict) -> None:
  """Writes arrays, a few at a time, then the msgpack file that names them."""
  from flax import serialization
  import tensorstore as ts

  def write(name: str) -> dict:
    value, dtype = stored[name]
    value, folder = np.asarray(value).astype(dtype), name.replace("/", ".")
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
    target = spec | {
      "kvstore": (directory / folder).kvstore(),
      "store_data_equal_to_fill_value": True,
    }
    array = ts.open(target, create=True, open=False, context=storage.context())
    array.result().write(value).result()
    if directory.remote:
      spec["kvstore"] |= {"driver": "gcs", "bucket": "t5x-dummy-bucket"}
    return spec

  try:
    with concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT) as pool:
      leaves = inline | dict(zip(stored, pool.map(write, stored)))
  except ValueError as error:
    raise CheckpointError(
      f"cannot write {directory}: {storage.first_line(error)}"
    ) from error
  # A map over a tree sorts its keys, as in T5X's files.
  optimizer = jax.tree.map(lambda leaf: leaf, unflatten(leaves))
  tree = {"version": VERSION, "optimizer": optimizer}
  # to_bytes would turn the lists of a spec into maps, which T5X cannot open.
  directory.write(INDEX, serialization.msgpack_serialize(tree, in_place=True))
