"""Gives the golden checkpoints, copies that tests damage, and their hashes."""

import hashlib
import json
import shutil

from flax import serialization
import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file

from speccascade.checkpoints import (
  adafactor_slots,
  architecture,
  chunks,
  load,
  orbax_io,
  storage,
)


@pytest.fixture(scope="session")
def manifest(golden) -> dict[str, str]:
  """SHA-256 of each parameter, written when the golden files were made."""
  entries = json.loads((golden / "params_manifest.json").read_text())
  return {name: entry["sha256"] for name, entry in entries.items()}


@pytest.fixture
def copy_of(golden, tmp_path):
  """Returns a function from a golden folder to a copy that may be damaged."""

  def copy(name):
    target = tmp_path / name
    shutil.copytree(golden / name, target, copy_function=shutil.copyfile)
    return target

  return copy


@pytest.fixture
def bfloat16_params(golden_params):
  """The golden parameters rounded to bfloat16 and widened again."""
  rounded = lambda leaf: leaf.astype(ml_dtypes.bfloat16).astype(np.float32)
  return jax.tree.map(rounded, golden_params)


@pytest.fixture(scope="session")
def source(golden):
  """The golden checkpoint with Adafactor's slots."""
  return load(golden / "t5x_native", optimizer=True)


@pytest.fixture(scope="session")
def saved(tmp_path_factory, source, golden_config):
  """A checkpoint of ours with optimizers' states."""
  path = tmp_path_factory.mktemp("ours") / "checkpoint_7"
  orbax_io.save(
    path,
    source.params,
    golden_config,
    step=7,
    opt_state={"mu": source.params},
    slots=source.optimizer,
    vocabulary={"path": "v", "sha256": "x"},
  )
  return path


class Zarr3Writer(ocp.type_handlers.NumpyHandler):
  """Writes zarr3 with a checksum after each chunk of up to 8,192 bytes."""

  async def _open_and_write(self, value, tspec, ts_context):
    grid = chunks.chunk_shape(value.shape, 8192 // value.dtype.itemsize)
    tspec["metadata"] = {
      "shape": value.shape,
      "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
      "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 1}},
        {"name": "crc32c"},
      ],
    }
    await super()._open_and_write(value, tspec, ts_context)


@pytest.fixture(scope="session")
def saved_zarr3(saved, tmp_path_factory, source):
  """The same with arrays of zarr3, which Orbax can write."""
  path = tmp_path_factory.mktemp("zarr3") / "checkpoint_7"
  shutil.copytree(saved / "metadata", path / "metadata")
  registry = ocp.type_handlers.create_type_handler_registry(
    *[(kind, Zarr3Writer()) for kind in (np.ndarray, np.number)]
  )
  for item, tree in trees(source).items():
    handler = ocp.PyTreeCheckpointHandler(
      use_zarr3=True, type_handler_registry=registry
    )
    with ocp.Checkpointer(handler) as saver:
      saver.save(path / item, args=ocp.args.PyTreeSave(tree))
  return path


def trees(source):
  """Returns what `saved` holds, by the item of the step directory."""
  slots = adafactor_slots.with_momentum(source.optimizer)
  state = {"step": np.int32(7), "param_states": slots}
  return {
    "state": {"target": source.params, "state": state},
    "opt_state": {"mu": source.params},
  }


def hashes(params):
  """Returns the SHA-256 of each array of a parameter tree."""
  return {
    name: hashlib.sha256(value.astype("<f4").tobytes()).hexdigest()
    for name, value in architecture.flatten(params).items()
  }


def same(one, other):
  """Checks that two trees hold the same numbers."""
  jax.tree.map(np.testing.assert_array_equal, one, other)


def edit(path, change):
  """Rewrites the msgpack index of a step after `change(tree)`."""
  index = path / "checkpoint"
  tree = serialization.msgpack_restore(index.read_bytes())
  tree = change(tree) or tree
  index.write_bytes(serialization.msgpack_serialize(tree, in_place=True))


def shard(path, count=3):
  """Splits model.safetensors as transformers does."""
  values = load_file(path / "model.safetensors")
  (path / "model.safetensors").unlink()
  files = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
  weight_map = {n: files[i % count] for i, n in enumerate(sorted(values))}
  for file in files:
    part = {n: v for n, v in values.items() if weight_map[n] == file}
    save_file(part, path / file)
  index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
  (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def bucket(tmp_path, monkeypatch):
  """A folder that stands in for `gs://bucket`, through tensorstore.

  Everything remote goes through `storage.kvstore_spec`; here it answers with
  the driver for files, so all but the driver itself is what runs on `gs://`.
  """
  root = tmp_path / "bucket"
  root.mkdir()

  def spec(url):
    assert url.startswith("gs://bucket"), url
    relative = url.removeprefix("gs://bucket").lstrip("/")
    return {"driver": "file", "path": str(root / relative)}

  monkeypatch.setattr(storage, "kvstore_spec", spec)
  return root
