"""T5X's native format: each variant read, every fault named, files equal."""

import json
import math

from flax import serialization
import jax
import ml_dtypes
import msgpack
import numpy as np
import pytest

from speccascade.checkpoints import (
  CheckpointError,
  architecture,
  load,
  storage,
  t5x_native,
)

STEP = "checkpoint_3000"
EMBEDDING = "target.token_embedder.embedding"


def edit(path, change):
  """Rewrites the msgpack index after `change(tree)`."""
  index = path / "checkpoint"
  tree = serialization.msgpack_restore(index.read_bytes())
  tree = change(tree) or tree
  index.write_bytes(serialization.msgpack_serialize(tree, in_place=True))


def specs(tree):
  """Yields every spec of the tree."""
  for value in tree.values():
    if isinstance(value, dict):
      if "kvstore" in value:
        yield value
      else:
        yield from specs(value)


# ------------------------------- reading --------------------------------------


def _gfile(spec):
  spec["kvstore"]["driver"] = "gfile"


def _gcs(spec):
  spec["kvstore"] |= {"driver": "gcs", "bucket": "t5x-dummy-bucket"}


def _path_on_top(spec):
  spec["path"] = spec["kvstore"].pop("path")


def _no_slash(spec):
  spec["kvstore"]["path"] = spec["kvstore"]["path"].rstrip("/")


def _lists_as_maps(spec):
  # What flax's to_bytes makes of a list.
  for name in ("shape", "chunks"):
    values = spec["metadata"][name]
    spec["metadata"][name] = {str(i): v for i, v in enumerate(values)}


@pytest.mark.parametrize(
  "change", [_gfile, _gcs, _path_on_top, _no_slash, _lists_as_maps]
)
def test_specs_of_every_age(copy_of, manifest, hashes, change):
  path = copy_of("t5x_native") / STEP

  def all_specs(tree):
    for spec in specs(tree["optimizer"]["target"]):
      change(spec)

  edit(path, all_specs)
  assert hashes(load(path).params) == manifest


def test_arrays_inside_the_index_split_by_flax(
  copy_of, manifest, hashes, golden_params, monkeypatch
):
  path = copy_of("t5x_native") / STEP
  monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 10_000)  # of 1 GiB

  def inline(tree):
    embedding = golden_params["token_embedder"]["embedding"]
    tree["optimizer"]["target"]["token_embedder"]["embedding"] = embedding

  edit(path, inline)
  assert b"__msgpack_chunked_array__" in (path / "checkpoint").read_bytes()
  assert hashes(load(path).params) == manifest


def test_version_2_holds_bfloat16_as_bits(copy_of, hashes, bfloat16_params):
  path = copy_of("t5x_native_bf16") / STEP

  def older(tree):
    tree["version"] = 2
    flat = architecture.flatten(bfloat16_params)
    scale = flat["encoder/encoder_norm/scale"].astype(ml_dtypes.bfloat16)
    tree["optimizer"]["target"]["encoder"]["encoder_norm"]["scale"] = (
      scale.view(np.uint16)
    )

  edit(path, older)
  for array in path.glob("target.*/.zarray"):
    metadata = json.loads(array.read_text())
    array.write_text(json.dumps(metadata | {"dtype": "<u2"}))
  assert hashes(load(path).params) == hashes(bfloat16_params)
  edit(path, lambda tree: tree | {"version": 3})
  with pytest.raises(CheckpointError, match="dtype uint16, want a float"):
    load(path)


def test_mutables_and_dataset_files_are_passed_over(copy_of, manifest, hashes):
  path = copy_of("t5x_native") / STEP
  (path / "train_ds-000-of-001.index").write_bytes(b"x")

  def add(tree):
    tree["optimizer"]["flax_mutables"] = {"cache": {"index": np.zeros(3)}}

  edit(path, add)
  assert hashes(load(path, optimizer=True).params) == manifest


@pytest.mark.parametrize("version", [None, 0, 1, 4])
def test_other_versions_are_refused(copy_of, version):
  path = copy_of("t5x_legacy") / STEP

  def change(tree):
    tree = dict(tree)
    del tree["version"]
    return tree if version is None else tree | {"version": version}

  edit(path, change)
  with pytest.raises(
    CheckpointError, match=rf"version {version or 0}; versions 2 and 3"
  ):
    load(path)


# -------------------------------- faults --------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_truncated_index(copy_of, size):
  path = copy_of("t5x_native") / STEP
  content = (path / "checkpoint").read_bytes()
  (path / "checkpoint").write_bytes(content[:size])
  with pytest.raises(CheckpointError) as error:
    load(path)
  assert f"{path}/checkpoint is truncated" in str(error.value)


def test_a_tensorflow_checkpoint(tmp_path):
  (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model-10"\n')
  with pytest.raises(CheckpointError, match="Mesh TensorFlow"):
    load(tmp_path)


@pytest.mark.parametrize("size", [0, 1000])
def test_a_truncated_chunk(copy_of, size):
  path = copy_of("t5x_native") / STEP
  chunk = path / EMBEDDING / "0.0"
  chunk.write_bytes(chunk.read_bytes()[:size])
  with pytest.raises(CheckpointError) as error:
    load(path)
  assert "target/token_embedder/embedding" in str(error.value)
  assert str(chunk) in str(error.value)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["0.0", ".zarray", "all"])
def test_a_missing_file_of_an_array(copy_of, missing):
  path = copy_of("t5x_native") / STEP
  for file in (path / EMBEDDING).iterdir():
    if missing in ("all", file.name):
      file.unlink()
  if missing == "all":
    (path / EMBEDDING).rmdir()
  with pytest.raises(FileNotFoundError) as error:
    load(path)
  assert "target/token_embedder/embedding" in str(error.value)
  assert str(path / EMBEDDING) in str(error.value)


def test_damaged_metadata_of_an_array(copy_of):
  path = copy_of("t5x_native") / STEP
  (path / EMBEDDING / ".zarray").write_text('{"chunks": [512')
  with pytest.raises(CheckpointError, match="target/token_embedder/embedding"):
    load(path)


@pytest.mark.parametrize("escape", ["/etc/x", "../x", ""])
def test_a_path_outside_the_checkpoint(copy_of, escape):
  path = copy_of("t5x_native") / STEP

  def change(tree):
    next(specs(tree["optimizer"]["target"]))["kvstore"]["path"] = escape

  edit(path, change)
  with pytest.raises(CheckpointError, match="path inside the checkpoint"):
    load(path)


def test_no_parameters_or_no_step(copy_of):
  path = copy_of("t5x_native") / STEP
  edit(path, lambda tree: tree["optimizer"]["state"].pop("step") and None)
  with pytest.raises(CheckpointError, match="no state/step"):
    load(path)
  edit(path, lambda tree: tree | {"optimizer": {"state": {}}})
  with pytest.raises(CheckpointError, match="no optimizer/target"):
    load(path)


def test_other_optimizers_are_refused_only_when_asked_for(
  copy_of, manifest, hashes
):
  path = copy_of("t5x_native") / STEP

  def momentum(tree):
    states = tree["optimizer"]["state"]["param_states"]
    states["encoder"]["encoder_norm"]["scale"]["m"] = np.ones(32, np.float32)

  edit(path, momentum)
  assert hashes(load(path).params) == manifest
  with pytest.raises(CheckpointError, match="momentum"):
    load(path, optimizer=True)

  def adam(tree):
    tree["optimizer"]["state"]["param_states"] = {"0": {"mu": np.ones(2)}}

  edit(path, adam)
  with pytest.raises(CheckpointError, match="not Adafactor's"):
    load(path, optimizer=True)


def test_scalable_t5_is_refused(copy_of):
  path = copy_of("t5x_native") / STEP

  def scanned(tree):
    target = tree["optimizer"]["target"]
    target["encoder"] = {"encoder": target["encoder"]}

  edit(path, scanned)
  with pytest.raises(CheckpointError, match=r"scanned layers.*scalable_t5"):
    load(path)


# ------------------------------- writing --------------------------------------


def contents(path):
  directory = storage.Directory(path)
  return {name: directory.read(name) for name in directory.files()}


def test_written_files_are_those_of_t5x(golden, tmp_path):
  """Byte for byte, the index included, with and without optimizer."""
  source = load(golden / "t5x_native", optimizer=True)
  t5x_native.save(
    tmp_path / STEP, source.params, step=3000, optimizer=source.optimizer
  )
  assert contents(tmp_path / STEP) == contents(golden / "t5x_native" / STEP)
  assert [path.name for path in tmp_path.iterdir()] == [STEP]


def test_written_bfloat16_files_are_those_of_t5x(golden, tmp_path):
  source = load(golden / "t5x_native")
  t5x_native.save(tmp_path / STEP, source.params, step=3000, dtype="bfloat16")
  want = contents(golden / "t5x_native_bf16" / STEP)
  assert contents(tmp_path / STEP) == want


def test_bfloat16_rounds_ties_to_even(tmp_path):
  # bfloat16 has 7 bits behind the point: steps of 1/128 from 1 on.
  halves = np.float32([1 + 1 / 256, 1 + 3 / 256, -1 - 1 / 256, 1 + 1.01 / 256])
  even = np.float32([1, 1 + 2 / 128, -1, 1 + 1 / 128])
  tree = {"decoder": {"decoder_norm": {"scale": halves}}}
  t5x_native.save(tmp_path / "checkpoint_1", tree, step=1, dtype="bfloat16")
  params, step, slots = t5x_native.read(
    storage.Directory(tmp_path / "checkpoint_1")
  )
  np.testing.assert_array_equal(
    params["decoder"]["decoder_norm"]["scale"], even
  )
  assert (step, slots) == (1, None)


def test_large_arrays_have_several_chunks(
  golden, tmp_path, monkeypatch, manifest, hashes
):
  monkeypatch.setattr(t5x_native, "CHUNK_BYTES", 4096)
  source = load(golden / "t5x_native")
  t5x_native.save(tmp_path / STEP, source.params, step=3000)
  # 512 x 32 float32 in chunks of 1,024 elements.
  files = sorted(path.name for path in (tmp_path / STEP / EMBEDDING).iterdir())
  assert files == sorted([".zarray", *(f"{i}.0" for i in range(16))])
  assert hashes(load(tmp_path).params) == manifest
  (tmp_path / STEP / EMBEDDING / "7.0").unlink()
  with pytest.raises(FileNotFoundError, match=r"15 chunk files, want 16"):
    load(tmp_path)


@pytest.mark.parametrize(
  ("shape", "limit", "want"),
  [
    ((32128, 4096), 2**24, [4016, 4096]),  # 32128 = 2^7 * 251
    ((4096, 10240), 2**24, [4096, 2560]),
    ((10, 7), 69, [5, 7]),
    ((7, 7), 1, [1, 1]),
    ((5,), 100, [5]),
    ((), 100, []),
  ],
)
def test_chunk_shapes(shape, limit, want):
  assert t5x_native.chunk_shape(shape, limit) == want
  assert math.prod(want) <= limit
  assert all(size % chunk == 0 for size, chunk in zip(shape, want))


def test_zeros_are_stored(tmp_path):
  tree = {"decoder": {"decoder_norm": {"scale": np.zeros(4, np.float32)}}}
  t5x_native.save(tmp_path / "checkpoint_0", tree, step=0)
  array = tmp_path / "checkpoint_0" / "target.decoder.decoder_norm.scale"
  assert (array / "0").is_file()


def test_specs_keep_lists(golden, tmp_path):
  source = load(golden / "t5x_native")
  t5x_native.save(tmp_path / STEP, source.params, step=3000)
  tree = msgpack.unpackb((tmp_path / STEP / "checkpoint").read_bytes())
  spec = next(specs(tree["optimizer"]["target"]))
  assert isinstance(spec["metadata"]["shape"], list)


def test_an_interrupted_write_leaves_nothing(golden, tmp_path, monkeypatch):
  source = load(golden / "t5x_native")

  def fail(*args, **kwargs):
    raise KeyboardInterrupt

  monkeypatch.setattr(serialization, "msgpack_serialize", fail)
  with pytest.raises(KeyboardInterrupt):
    t5x_native.save(tmp_path / "checkpoint_1", source.params, step=1)
  assert list(tmp_path.iterdir()) == []


def test_gs_is_written_with_its_index_last(
  golden, bucket, monkeypatch, manifest, hashes
):
  source = load(golden / "t5x_native", optimizer=True)
  url = "gs://bucket/run/checkpoint_3000"
  with monkeypatch.context() as patch:

    def fail(*args, **kwargs):
      raise KeyboardInterrupt

    patch.setattr(serialization, "msgpack_serialize", fail)
    with pytest.raises(KeyboardInterrupt):
      t5x_native.save(url, source.params, step=3000)
  assert len(list((bucket / "run" / STEP).iterdir())) == len(manifest)
  with pytest.raises(CheckpointError, match="no complete checkpoint"):
    load("gs://bucket/run")
  t5x_native.save(
    "gs://bucket/again/checkpoint_3000",
    source.params,
    step=3000,
    optimizer=source.optimizer,
  )
  again = load("gs://bucket/again", optimizer=True)
  assert hashes(again.params) == manifest
  assert jax.tree.all(
    jax.tree.map(np.array_equal, again.optimizer, source.optimizer)
  )
  index = (bucket / "again" / STEP / "checkpoint").read_bytes()
  spec = next(specs(msgpack.unpackb(index)["optimizer"]["target"]))
  assert spec["kvstore"]["bucket"] == "t5x-dummy-bucket"


def test_what_cannot_be_written(golden, tmp_path):
  params = load(golden / "t5x_native").params
  with pytest.raises(CheckpointError, match="by the name checkpoint_7"):
    t5x_native.save(tmp_path / "step_7", params, step=7)
  with pytest.raises(CheckpointError, match="want one of float32, bfloat16"):
    t5x_native.save(tmp_path / "checkpoint_7", params, step=7, dtype="int8")
  (tmp_path / "checkpoint_7").mkdir()
  with pytest.raises(CheckpointError, match="exists already"):
    t5x_native.save(tmp_path / "checkpoint_7", params, step=7)
