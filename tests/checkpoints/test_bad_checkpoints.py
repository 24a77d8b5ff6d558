"""Checks errors of bad checkpoints: one line, at once, with little memory.

What stands in each was not written by any software; `test_damaged_files` has
what is cut short or missing.
"""

import dataclasses
import functools
import json
import operator
import os
import resource
import shutil
import time
import zlib

import msgpack
import numpy as np
import pytest

from speccascade.checkpoints import (
  CheckpointError,
  CheckpointNotFoundError,
  chunks,
  load,
  orbax_io,
  restore,
  storage,
)
from speccascade.checkpoints.stored_arrays import StoredArrays
from tests.checkpoints.conftest import edit, same, shard

HUGE = 10**9
DEEP = 100_000
EMBEDDING = "target.token_embedder.embedding"


# ---------------- Each of these returns what changes a folder. ----------------


def in_place(name, make):
  """Puts something else in the place of a file."""

  def change(path):
    (path / name).unlink()
    make(path / name)

  return change


def content(name, text):
  return lambda path: (path / name).write_bytes(text)


def put(tree, changes):
  """Changes values in nested dicts; a dot in a name goes inside."""
  for name, value in changes.items():
    *outer, name = name.split(".")
    functools.reduce(operator.getitem, outer, tree)[name] = value


def as_json(name, *, without=None, **changes):
  """Changes values in a JSON file, and its checksum where it has one."""

  def change(path):
    values = json.loads((path / name).read_text())
    has_checksum = values.pop("crc32", None) is not None
    values.pop(without, None)
    put(values, changes)
    if has_checksum and "crc32" not in {without, *changes}:
      text = json.dumps(values, sort_keys=True)
      values["crc32"] = zlib.crc32(text.encode())
    (path / name).write_text(json.dumps(values))

  return change


def in_index(**changes):
  """Changes values in T5X's msgpack file."""
  return lambda path: edit(path, lambda tree: put(tree, changes))


def shards(**names):
  """Gives an index of shards, in which some are named otherwise."""

  def change(path):
    shard(path)
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] |= names
    file.write_text(json.dumps(index))

  return change


def header(**entry):
  """Changes an array's entry in the header of model.safetensors."""

  def change(path):
    file = path / "model.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    values = json.loads(data[8:end])
    values["shared.weight"] |= entry
    text = json.dumps(values).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])

  return change


def packed_deep(depth):
  """Returns a msgpack file of maps within maps."""
  start = msgpack.packb({"version": 3})[1:]
  inner = b"\x81\xa1a" * depth + b"\x01"
  return b"\x82" + start + b"\xa9optimizer\x81\xa6target" + inner


def big(path):
  path.touch()
  os.truncate(path, 2**40)  # takes no room on disk


NATIVE = "t5x_native/checkpoint_3000"
ORBAX = "t5x_orbax/checkpoint_3000"
ZARRAY = f"{EMBEDDING}/.zarray"
TARGET = "optimizer.target.encoder.encoder_norm"
SCALE = f"{TARGET}.scale"
SCANNED = {"encoder": {"scale": np.ones(2, np.float32)}}
META = "metadata/metadata.json"
TREE = "state/_METADATA"
CONFIG = "config.json"
DICT_NAME = "('target', 'decoder', 'decoder_norm', 'scale')"
BROKEN = "cannot be parsed"
PIPE = "is not a regular file"

# A folder, a function that damages a copy of it, and a pattern of the message.
CASES = {
  **{
    f"native chunk {name}": (
      NATIVE,
      in_place(f"{EMBEDDING}/0.0", make),
      message,
    )
    for name, make, message in (
      ("dangling link", lambda p: p.symlink_to("/nowhere"), "link to nothing"),
      ("link to itself", lambda p: p.symlink_to(p), "link to nothing"),
      ("device", lambda p: p.symlink_to("/dev/zero"), PIPE),
      ("pipe", os.mkfifo, PIPE),
      ("folder", os.mkdir, "is missing"),
    )
  },
  **{
    f"pipe {name}": (folder, in_place(name, os.mkfifo), PIPE)
    for folder, name in (
      (NATIVE, ZARRAY),
      (NATIVE, "checkpoint"),
      (ORBAX, TREE),
      (ORBAX, "state/manifest.ocdbt"),
      ("ours", META),
      ("hf", CONFIG),
      ("hf", "model.safetensors"),
    )
  },
  **{
    f"terabyte {name}": (folder, in_place(name, big), "bytes, want")
    for folder, name in ((ORBAX, TREE), ("ours", META), ("hf", CONFIG))
  },
  **{
    f"nested {name}": (folder, content(name, b"[" * DEEP), BROKEN)
    for folder, name in ((ORBAX, TREE), ("ours", META), ("hf", CONFIG))
  },
  "nested .zarray": (NATIVE, content(ZARRAY, b"[" * DEEP), "Invalid JSON"),
  "nested msgpack": (
    NATIVE,
    content("checkpoint", packed_deep(DEEP)),
    "msgpack",
  ),
  "deep msgpack": (NATIVE, content("checkpoint", packed_deep(990)), "."),
  "no version": (
    NATIVE,
    lambda path: edit(path, lambda tree: {"optimizer": tree["optimizer"]}),
    "version 0; versions 2 and 3",
  ),
  **{
    f"msgpack {changes}": (NATIVE, in_index(**changes), message)
    for changes, message in (
      ({"version": 0}, "version 0; versions 2 and 3"),
      ({"version": 1}, "version 1; versions 2 and 3"),
      ({"version": 4}, "version 4; versions 2 and 3"),
      ({"version": "3"}, "version '3'"),
      ({"version": float("nan")}, "version nan"),
      ({"version": [3]}, r"version \[3\]"),
      ({"optimizer": [1]}, "no optimizer/target"),
      ({"optimizer": {"state": {}}}, "no optimizer/target"),
      ({"optimizer.target": "abc"}, "no optimizer/target"),
      ({"optimizer.target": [1, 2]}, "no optimizer/target"),
      ({"optimizer.target.encoder": SCANNED}, "scanned layers.*scalable_t5"),
      ({"optimizer.state": 5}, "no state/step"),
      ({"optimizer.state": {}}, "no state/step"),
      ({"optimizer.state.step": "7"}, "state/step .*is a str"),
      ({"optimizer.state.step": np.float32(7.5)}, "want a whole number"),
      ({"optimizer.state.step": np.float32(np.nan)}, "want a whole number"),
      ({"optimizer.state.step": np.int32([7, 8])}, "want a whole number"),
      ({"optimizer.state.step": np.int32(-7)}, "want a whole number"),
      ({SCALE: "abc"}, "scale .*is a str"),
      ({SCALE: 1.5}, "scale .*is a float"),
      ({SCALE: np.ones(32, np.complex64)}, "complex64, want a float"),
      ({SCALE: np.array(["x"])}, "want a float|msgpack"),
      ({f"{TARGET}.5": {5: np.ones(2)}}, "msgpack"),
      ({f"{SCALE}.driver": 5}, "stored by 5"),
      ({f"{SCALE}.kvstore": None}, BROKEN),
      ({f"{SCALE}.kvstore": "x"}, BROKEN),
      ({f"{SCALE}.kvstore.path": 5}, BROKEN),
      ({f"{SCALE}.kvstore.path": ""}, "path inside the checkpoint"),
      ({f"{SCALE}.kvstore.path": "../x"}, "path inside"),
      ({f"{SCALE}.kvstore.path": "/etc/x"}, "path inside"),
      ({f"{SCALE}.kvstore.path": "a\0b"}, "path inside"),
      ({f"{SCALE}.kvstore.path": "x" * 5000}, "path inside"),
    )
  },
  "terabytes": (
    NATIVE,
    as_json(ZARRAY, shape=[10**12, 32], chunks=[10**12, 32]),
    "GiB, most of them target/token_embedder/embedding",
  ),
  **{
    f"chunks of {shape}": (
      NATIVE,
      as_json(ZARRAY, shape=shape, chunks=[1, 1]),
      message,
    )
    for shape, message in (
      ([10**18, 10**18], "."),
      ([HUGE, 1], "is missing|End of data expected"),
    )
  },
  "a slot of gigabytes": (
    NATIVE,
    as_json(
      "state.param_states.encoder.encoder_norm.scale.v/.zarray",
      shape=[4 * HUGE],
      chunks=[4 * HUGE],
    ),
    "more than its parameter's",
  ),
  **{
    f"metadata {changes}": ("ours", as_json(META, **changes), message)
    for changes, message in (
      ({"format": ["x"]}, "has format"),
      ({"format": "other"}, "has format 'other'"),
      ({"crc32": 1}, "is not as it was written"),
      ({"crc32": None}, "is not as it was written"),
      ({"kind": "other"}, "kind is 'other'"),
      ({"version": "1"}, BROKEN),
      ({"version": 2}, "of version 2"),
      ({"config": [1]}, "config is"),
      ({"config": {"layers": 3}}, "cannot be parsed.*layers"),
      ({"config.num_encoder_layers": 1000}, "only 52 arrays"),
      ({"config.num_encoder_layers": HUGE}, "num_encoder_layers is|52 arrays"),
      ({"config.emb_dim": "32"}, "emb_dim is '32'"),
      ({"config.vocab_size": 10**30}, "vocab_size is 1000"),
      ({"config.mlp_activations": [1]}, r"mlp_activations is \[1\]"),
      ({"vocabulary": "abc"}, "vocabulary is 'abc'"),
      ({"vocabulary": {"path": 5}}, "vocabulary is"),
      ({"extra": [1]}, "extra is"),
    )
  },
  "metadata without checksum": (
    "ours",
    as_json(META, without="crc32"),
    "crc32",
  ),
  "metadata without kind": ("ours", as_json(META, without="kind"), "kind"),
  "metadata cut": ("ours", content(META, b'{"format": "specc'), BROKEN),
  "metadata no object": ("ours", content(META, b"[1, 2]"), BROKEN),
  "metadata not UTF-8": ("ours", content(META, b'{"a": "\xff"}'), BROKEN),
  **{
    f"tree {changes}": (ORBAX, as_json(TREE, **changes), message)
    for changes, message in (
      ({"tree_metadata": [1]}, BROKEN),
      ({"tree_metadata": {"5": {}}}, BROKEN),
      ({"tree_metadata": {"(" * DEEP: {"value_metadata": {}}}}, BROKEN),
      ({"tree_metadata": {"('target',)": {"value_metadata": {}}}}, "'target'"),
      ({f"tree_metadata.{DICT_NAME}": 5}, BROKEN),
      ({"tree_metadata": {"('..', 'x')": {"value_metadata": {}}}}, "no array"),
      (
        {"tree_metadata.('target', 'decoder')": {"value_metadata": {}}},
        "target/decoder",
      ),
    )
  },
  **{
    f"config {changes}": ("hf", as_json(CONFIG, **changes), message)
    for changes, message in (
      ({"num_layers": 1000}, "only 52 arrays"),
      ({"num_layers": HUGE}, "num_layers is|52 arrays"),
      ({"num_layers": -1}, "num_layers is -1"),
      ({"d_model": "32"}, "d_model is '32'"),
      ({"feed_forward_proj": ["relu"]}, "feed_forward_proj="),
      ({"feed_forward_proj": "gelu"}, "_proj='gelu'; read are relu"),
      ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no'"),
      ({"model_type": ["t5"]}, "model_type"),
      ({"model_type": "umt5"}, "'umt5': its relative positions are per layer"),
      ({"model_type": "longt5"}, "'longt5'; the architectures read are t5, mt"),
      ({"pad_token_id": {"a": 1}}, "pad_token_id="),
      ({"pad_token_id": 1, "decoder_start_token_id": None}, "pad_token_id=1"),
      ({"relative_attention_num_buckets": 64}, "num_buckets=64; .* has 32"),
      ({"relative_attention_max_distance": 256}, "distance=256; .* has 128"),
      ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05"),
      ({"decoder_start_token_id": 2}, "decoder_start_token_id=2"),
      ({"quantization_config": {}}, "quantized"),
      ({"num_heads": 2}, r"has shape \[32, 32\] as T5X stores it, \[32, 16\]"),
      ({"num_layers": 3}, r"missing: encoder\.block\.2"),
      ({"num_layers": 1}, r"unexpected: encoder\.block\.1"),
    )
  },
  "config no object": ("hf", content(CONFIG, b"[1, 2]"), BROKEN),
  **{
    f"shard {name!r}": ("hf", shards(**{"shared.weight": name}), message)
    for name, message in (
      ("../model.safetensors", "want one next to it"),
      ("/etc/passwd", "want one next to it"),
      ("..", "want one next to it"),
      ("", "want one next to it"),
      (5, BROKEN),
      (None, BROKEN),
    )
  },
  "header of terabytes": ("hf", header(shape=[10**12, 32]), "damaged"),
  "header dtype": ("hf", header(dtype="F99"), "damaged"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_line_at_once(copy_of, saved, tmp_path, case):
  folder, change, message = case
  name, _, step = folder.partition("/")
  if name == "ours":
    path = tmp_path / "ours"
    shutil.copytree(saved, path)
  else:
    path = copy_of(name) / step
  change(path)
  before = sorted(tmp_path.rglob("*"))
  start, memory = time.process_time(), peak()
  with pytest.raises(CheckpointError, match=message) as error:
    load(path, optimizer=True).require_config()
  assert time.process_time() - start < 5
  assert peak() - memory < 200_000
  line = str(error.value)
  assert "\n" not in line
  assert len(line) < 1000
  assert str(path) in line
  assert sorted(tmp_path.rglob("*")) == before


def peak():
  """Returns the largest memory that this process has had, in kB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_copy_without_slots_is_enough_for_the_parameters(copy_of, source):
  path = copy_of("t5x_native")
  (slot,) = path.rglob("*.encoder_norm.scale.v/0")
  in_place("0", lambda file: file.symlink_to("/nowhere"))(slot.parent)
  same(load(path).params, source.params)
  with pytest.raises(CheckpointError, match="link to nothing"):
    load(path, optimizer=True)


def test_more_layers_than_a_checkpoint_holds_build_nothing(
  golden, golden_config
):
  config = dataclasses.replace(golden_config, num_decoder_layers=1000)
  for name in ("t5x_native", "t5x_orbax", "hf"):
    with pytest.raises(CheckpointError, match="num_decoder_layers=1000"):
      load(golden / name, config=config)


@pytest.mark.parametrize(
  "path", ["", "a\0b", "\ud800", "x" * 5000, "s3://a/b", "http://a", "S3://", 5]
)
def test_paths_of_no_directory(path):
  with pytest.raises(
    CheckpointError, match=r"not a path|not supported"
  ) as error:
    load(path)
  assert len(str(error.value)) < 150


@pytest.mark.parametrize(
  ("folder", "wanted"),
  [
    ("saved", "metadata.json"),
    ("saved", "/d/"),
    ("saved_zarr3", "/d/"),
    pytest.param("saved", "", marks=pytest.mark.slow),
    pytest.param("saved_zarr3", "", marks=pytest.mark.slow),
  ],
)
def test_a_changed_byte_is_found(request, tmp_path, folder, wanted):
  """After damage to any file: an error, or the values have not changed."""
  path = tmp_path / "checkpoint_7"
  shutil.copytree(request.getfixturevalue(folder), path)
  like = {"mu": load(path).params}

  def read():
    values = vars(load(path, optimizer=True)) | {"config": None}
    return values | orbax_io.read_opt_state(path, like)

  rng, want = np.random.default_rng(0), read()
  files = [file for file in path.rglob("*") if file.is_file()]
  files = [file for file in files if wanted in str(file)]
  if wanted:
    files = [max(files, key=lambda file: file.stat().st_size)]
  for file in sorted(files):
    data = file.read_bytes()
    for place in rng.integers(len(data), size=4):
      changed = bytearray(data)
      changed[place] ^= 1 << rng.integers(8)
      file.write_bytes(changed)
      try:
        values = read()
      except CheckpointError:
        continue
      assert not wanted
      same(values, want)
    file.write_bytes(data)


PART = (slice(100, 130), slice(3, 9))  # of the chunks 1 and 2 of 8
NAME = "target/token_embedder/embedding"


def test_a_part_of_an_array_is_checked_alone(
  source, golden_config, tmp_path, monkeypatch
):
  """A process that reads one shard reads and checks the chunks of that."""
  monkeypatch.setattr(chunks, "CHUNK_BYTES", 8192)  # 64 rows of 128 bytes
  path = tmp_path / "checkpoint_1"
  orbax_io.save(path, source.params, golden_config, step=1)
  arrays, _ = restore.open_arrays(*restore.resolve(path), optimizer=False)
  assert arrays.arrays[NAME].chunk_layout.write_chunk.shape == (64, 32)
  part = source.params["token_embedder"]["embedding"][PART]
  same(arrays.read_part(NAME, PART), part)
  stored = arrays.arrays[NAME].kvstore
  del stored["3.0"]
  same(arrays.read_part(NAME, PART), part)
  whole = stored["2.0"]
  for byte in (-1, -5, -9, 100):  # of the size, the checksum, the numbers
    damaged = bytearray(whole)
    damaged[byte] ^= 1
    stored["2.0"] = bytes(damaged)
    message = f"array {NAME} of .*2.0.*inflate.*; it is in .*/d/.*: copy it"
    with pytest.raises(CheckpointError, match=message):
      arrays.read_part(NAME, PART)
  with pytest.raises(
    CheckpointNotFoundError, match=r"chunk \{3, 0\} .*missing"
  ):
    arrays.read_part(NAME, (slice(200, 201), slice(0, 1)))


@pytest.mark.parametrize("item", ["state", "opt_state"])
def test_a_missing_chunk_of_zeros_is_found(saved, tmp_path, item):
  """Every chunk is written, also where an optimizer's state is zero."""
  path = tmp_path / "checkpoint_7"
  shutil.copytree(saved, path)
  arrays = orbax_io.open_item(storage.Directory(path), item)
  for name in arrays.arrays:
    stored = arrays.arrays[name].kvstore
    [chunk] = [key for key in stored.list().result() if key != b".zarray"]
    del stored[chunk]
    with pytest.raises(CheckpointNotFoundError, match=f"array {name} of"):
      arrays.read_part(name)


@pytest.mark.parametrize(
  "name", [NAME, pytest.param("state/step", marks=pytest.mark.slow)]
)
def test_a_changed_bit_of_an_arrays_description_is_found(saved, tmp_path, name):
  """Each bit of .zarray: an error, another shape, or the same values."""
  path = tmp_path / "checkpoint_7"
  shutil.copytree(saved, path)
  item = orbax_io.open_item(storage.Directory(path), "state")
  stored = item.arrays[name].kvstore
  spec = {"driver": "zarr", "kvstore": stored.spec().to_json()}
  spec["fill_missing_data_reads"] = False

  def read():
    return StoredArrays.open(str(path), {name: spec}).read_part(name)

  want = read()
  text, refused = stored[".zarray"], 0
  for place in range(8 * len(text)):
    changed = bytearray(text)
    changed[place // 8] ^= 1 << place % 8
    stored[".zarray"] = bytes(changed)
    try:
      value = read()
    except CheckpointError:
      refused += 1
      continue
    if value.shape == want.shape:
      same(value, want)
  assert refused > 4 * len(text)
  stored[".zarray"] = text.replace(b"<", b">")
  with pytest.raises(CheckpointError, match=r"dtype is '>.4', want little-end"):
    read()


def test_zarr3_is_read(saved_zarr3, source):
  like = {"mu": source.params}
  arrays, _ = restore.open_arrays(*restore.resolve(saved_zarr3), optimizer=True)
  assert arrays.has_checksums
  checkpoint = load(saved_zarr3, optimizer=True)
  same(checkpoint.params, source.params)
  same(checkpoint.optimizer, source.optimizer)
  same(orbax_io.read_opt_state(saved_zarr3, like), like)
