"""Reads each variant of T5X's native layout, and compares written files."""

import json
import math
import os

from flax import serialization
import ml_dtypes
import msgpack
import numpy as np
import pytest

from speccascade.checkpoints import (
  CheckpointError,
  chunks,
  load,
  storage,
  t5x_native,
)
from speccascade.checkpoints.architecture import flatten, unflatten
from tests.checkpoints.conftest import edit, hashes, same

STEP = "checkpoint_3000"
EMBEDDING = "target.token_embedder.embedding"


def specs(tree):
  """Yields every spec of the tree."""
  for value in tree.values():
    if isinstance(value, dict):
      yield from [value] if "kvstore" in value else specs(value)


def every_spec(change):
  return lambda tree: [change(x) for x in specs(tree["optimizer"])] and None


def _lists_as_maps(spec):
  # What flax's to_bytes makes of a list.
  for name in ("shape", "chunks"):
    values = spec["metadata"][name]
    spec["metadata"][name] = {str(i): v for i, v in enumerate(values)}


def _mutables(tree):
  tree["optimizer"]["flax_mutables"] = {"cache": {"index": np.zeros(3)}}


GCS = {"driver": "gcs", "bucket": "t5x-dummy-bucket"}
# Specs of every age, and what is passed over.
VARIANTS = {
  "gfile": every_spec(lambda spec: spec["kvstore"].update(driver="gfile")),
  "gcs": every_spec(lambda spec: spec["kvstore"].update(GCS)),
  "path on top": every_spec(
    lambda spec: spec.update(path=spec["kvstore"].pop("path"))
  ),
  "no slash": every_spec(
    lambda spec: spec["kvstore"].update(path=spec["kvstore"]["path"][:-1])
  ),
  "lists as maps": every_spec(_lists_as_maps),
  "mutables": _mutables,
}


# ------------------------------- reading --------------------------------------


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_variants_of_the_index(copy_of, source, change):
  path = copy_of("t5x_native") / STEP
  (path / "train_ds-000-of-001.index").write_bytes(b"x")
  edit(path, change)
  checkpoint = load(path, optimizer=True)
  same(checkpoint.params, source.params)
  same(checkpoint.optimizer, source.optimizer)


def test_arrays_inside_the_index_split_by_flax(
  copy_of, manifest, golden_params, monkeypatch
):
  path = copy_of("t5x_native") / STEP
  monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 10_000)  # of 1 GiB

  def inline(tree):
    embedding = golden_params["token_embedder"]["embedding"]
    tree["optimizer"]["target"]["token_embedder"]["embedding"] = embedding

  edit(path, inline)
  assert b"__msgpack_chunked_array__" in (path / "checkpoint").read_bytes()
  assert hashes(load(path).params) == manifest


def test_version_2_holds_bfloat16_as_bits(copy_of, bfloat16_params):
  path = copy_of("t5x_native_bf16") / STEP

  def older(tree):
    tree["version"] = 2
    norm = tree["optimizer"]["target"]["encoder"]["encoder_norm"]
    scale = bfloat16_params["encoder"]["encoder_norm"]["scale"]
    norm["scale"] = scale.astype(ml_dtypes.bfloat16).view(np.uint16)

  edit(path, older)
  for array in path.glob("target.*/.zarray"):
    metadata = json.loads(array.read_text())
    array.write_text(json.dumps(metadata | {"dtype": "<u2"}))
  assert hashes(load(path).params) == hashes(bfloat16_params)
  edit(path, lambda tree: tree | {"version": 3})
  with pytest.raises(CheckpointError, match="dtype uint16, want a float"):
    load(path)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("encoder/encoder_norm/scale/m", r"has momentum \(encoder/encoder_norm/sc"),
    ("0/mu", "not Adafactor's"),
    ("odd", "has odd, which is not a slot"),
  ],
)
def test_other_optimizers_are_refused_only_when_asked_for(
  copy_of, manifest, name, message
):
  def change(tree):
    state = tree["optimizer"]["state"]
    slots = {} if name == "0/mu" else flatten(state["param_states"])
    odd = {name: np.ones(32, np.float32)}
    state["param_states"] = unflatten(slots | odd)

  path = copy_of("t5x_native") / STEP
  edit(path, change)
  assert hashes(load(path).params) == manifest
  with pytest.raises(CheckpointError, match=message):
    load(path, optimizer=True)


def test_t5x_may_count_steps_in_floats(copy_of):
  path = copy_of("t5x_native") / STEP
  step = {"step": np.float32(3000)}
  edit(path, lambda tree: tree["optimizer"]["state"].update(step))
  assert repr(load(path).step) == "3000"


# ------------------------------- writing --------------------------------------


def contents(path):
  directory = storage.Directory(path)
  return {name: directory.read(name) for name in directory.files()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_written_files_are_those_of_t5x(golden, source, tmp_path, dtype):
  """Byte for byte, the index included, with and without optimizer."""
  is_float32 = dtype == "float32"
  t5x_native.save(
    tmp_path / STEP,
    source.params,
    step=3000,
    optimizer=source.optimizer if is_float32 else None,
    dtype=dtype,
  )
  want = golden / ("t5x_native" if is_float32 else "t5x_native_bf16") / STEP
  assert contents(tmp_path / STEP) == contents(want)
  assert [path.name for path in tmp_path.iterdir()] == [STEP]


def test_bfloat16_rounds_ties_to_even_and_zeros_are_stored(tmp_path):
  # bfloat16 has 7 bits after the point: steps of 1/128 from 1 on.
  halves = np.float32([1 + 1 / 256, 1 + 3 / 256, -1 - 1 / 256, 1 + 1.01 / 256])
  even = np.float32([1, 1 + 2 / 128, -1, 1 + 1 / 128])
  tree = {"a": {"scale": halves}, "b": {"scale": np.zeros(4, np.float32)}}
  path = tmp_path / "checkpoint_1"
  t5x_native.save(path, tree, step=1, dtype="bfloat16")
  arrays = t5x_native.open_arrays(storage.Directory(path), optimizer=False)
  params, step, slots = arrays.train_state()
  same(params, {"a": {"scale": even}, "b": tree["b"]})
  assert (step, slots) == (1, None)
  assert (path / "target.b.scale" / "0").is_file()


def test_large_arrays_have_several_chunks(
  source, tmp_path, monkeypatch, manifest
):
  monkeypatch.setattr(chunks, "CHUNK_BYTES", 4096)
  t5x_native.save(tmp_path / STEP, source.params, step=3000)
  # 512 x 32 float32 in chunks of 1,024 elements.
  files = {path.name for path in (tmp_path / STEP / EMBEDDING).iterdir()}
  assert files == {".zarray", *(f"{i}.0" for i in range(16))}
  assert hashes(load(tmp_path).params) == manifest


@pytest.mark.parametrize(
  ("shape", "limit", "want"),
  [
    ((32128, 4096), 2**24, [4016, 4096]),  # 32128 = 2^7 * 251
    ((10, 7), 69, [5, 7]),
    ((7, 7), 1, [1, 1]),
    ((), 100, []),
  ],
)
def test_chunk_shapes(shape, limit, want):
  assert chunks.chunk_shape(shape, limit) == want
  assert math.prod(want) <= limit
  assert all(size % chunk == 0 for size, chunk in zip(shape, want))


def interrupt(*args, **kwargs):
  raise KeyboardInterrupt


def test_an_interrupted_write_leaves_nothing(source, tmp_path, monkeypatch):
  path = tmp_path / "checkpoint_1"
  (tmp_path / f"checkpoint_1.tmp-{os.getpid()}" / "of_a_killed_one").mkdir(
    parents=True
  )
  with monkeypatch.context() as patch:
    patch.setattr(serialization, "msgpack_serialize", interrupt)
    with pytest.raises(KeyboardInterrupt):
      t5x_native.save(path, source.params, step=1)
  assert list(tmp_path.iterdir()) == []
  t5x_native.save(path, source.params, step=1)
  assert load(tmp_path).path == str(path)


def test_gs_is_written_with_its_index_last(
  source, bucket, monkeypatch, manifest
):
  with monkeypatch.context() as patch:
    patch.setattr(serialization, "msgpack_serialize", interrupt)
    with pytest.raises(KeyboardInterrupt):
      t5x_native.save(f"gs://bucket/run/{STEP}", source.params, step=3000)
  assert len(list((bucket / "run" / STEP).iterdir())) == len(manifest)
  with pytest.raises(CheckpointError, match="not a complete checkpoint"):
    load("gs://bucket/run")
  t5x_native.save(
    f"gs://bucket/again/{STEP}",
    source.params,
    step=3000,
    optimizer=source.optimizer,
  )
  again = load("gs://bucket/again", optimizer=True)
  same(again.params, source.params)
  same(again.optimizer, source.optimizer)
  index = (bucket / "again" / STEP / "checkpoint").read_bytes()
  spec = next(specs(msgpack.unpackb(index)["optimizer"]["target"]))
  assert spec["kvstore"]["bucket"] == "t5x-dummy-bucket"
  assert isinstance(spec["metadata"]["shape"], list)


def test_what_cannot_be_written(source, tmp_path):
  params = source.params
  with pytest.raises(CheckpointError, match="by the name checkpoint_7"):
    t5x_native.save(tmp_path / "step_7", params, step=7)
  with pytest.raises(CheckpointError, match="want one of float32, bfloat16"):
    t5x_native.save(tmp_path / "checkpoint_7", params, step=7, dtype="int8")
  (tmp_path / "checkpoint_7").mkdir()
  with pytest.raises(CheckpointError, match="exists already"):
    t5x_native.save(tmp_path / "checkpoint_7", params, step=7)
