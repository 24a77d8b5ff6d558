"""Checks that damage and missing files, in every layout, are named."""

import pytest

from speccascade.checkpoints import (
  CheckpointError,
  CheckpointNotFoundError,
  load,
)
from tests.checkpoints.conftest import shard

NATIVE = "t5x_native/checkpoint_3000"
ARRAY = f"{NATIVE}/target.token_embedder.embedding"
OF_ARRAY = "array target/token_embedder/embedding of "
ORBAX = "t5x_orbax/checkpoint_3000/state"
HF = "hf/model.safetensors"
SHARD = "hf/model-00002-of-00003.safetensors"
INDEX = "hf/model.safetensors.index.json"
DAMAGED, MISSING = CheckpointError, CheckpointNotFoundError

# A file, or all those of a folder; the size that it is cut to, its new content,
# or None where it is removed; the error, and what it says of {file}.
FAULTS = [
  (f"{NATIVE}/checkpoint", 0, DAMAGED, "{file} is truncated"),
  (f"{NATIVE}/checkpoint", 1, DAMAGED, "{file} is truncated"),
  (f"{NATIVE}/checkpoint", 5000, DAMAGED, "{file} is truncated"),
  (
    f"{NATIVE}/checkpoint",
    b'model_checkpoint_path: "model-10"\n',
    DAMAGED,
    "{file} belongs to a TensorFlow checkpoint (Mesh TensorFlow T5)",
  ),
  (f"{ARRAY}/0.0", 0, DAMAGED, "{file}"),
  (f"{ARRAY}/0.0", 1000, DAMAGED, "{file}"),
  (f"{ARRAY}/0.0", None, MISSING, 'stored at local file "{file}" is missing;'),
  (f"{ARRAY}/.zarray", None, MISSING, "{file}"),
  (f"{ARRAY}/.zarray", b'{"chunks": [512', DAMAGED, OF_ARRAY),
  (ARRAY, None, MISSING, "{file}"),
  (f"{ORBAX}/_METADATA", 0, DAMAGED, "{file} cannot be parsed"),
  (f"{ORBAX}/_METADATA", 100, DAMAGED, "{file} cannot be parsed"),
  (f"{ORBAX}/manifest.ocdbt", 0, DAMAGED, "{file}"),
  (f"{ORBAX}/manifest.ocdbt", 100, DAMAGED, "{file}"),
  (f"{ORBAX}/manifest.ocdbt", None, MISSING, "{file} is missing"),
  (f"{ORBAX}/d", 0, DAMAGED, "{file}"),
  (f"{ORBAX}/d", 100, DAMAGED, "{file}"),
  (f"{ORBAX}/d", None, DAMAGED, "{file}"),
  # OCDBT reads a file that is not there as an empty one.
  (f"{ORBAX}/ocdbt.process_0/d", None, DAMAGED, "{file} is missing;"),
  (f"{ORBAX}/ocdbt.process_0/d", 9, DAMAGED, "{file} is truncated;"),
  (HF, 0, DAMAGED, "{file} is truncated or damaged"),
  (HF, 5, DAMAGED, "{file} is truncated or damaged"),
  (HF, 500, DAMAGED, "{file} is truncated or damaged"),
  (HF, -2, DAMAGED, "{file} is truncated or damaged"),
  ("hf/config.json", b'{"d_model": 3', DAMAGED, "{file} cannot be parsed"),
  (SHARD, -1, DAMAGED, "{file} is truncated or damaged"),
  (SHARD, None, MISSING, "{file}, which model.safetensors.index.json names"),
  (SHARD, "another shard", DAMAGED, "{file} has no "),
  (INDEX, b'{"weight_map": {"a', DAMAGED, "{file} cannot be parsed"),
]


@pytest.mark.parametrize(("name", "change", "kind", "message"), FAULTS)
def test_the_file_is_named(copy_of, name, change, kind, message):
  folder, _, rest = name.partition("/")
  path = copy_of(folder)
  if name in (SHARD, INDEX):
    shard(path)
  if change == "another shard":
    change = (path / rest.replace("00002-", "00003-")).read_bytes()
  file = path / rest
  files = list(file.iterdir()) if file.is_dir() else [file]
  for each in files:
    if change is None:
      each.unlink()
    else:
      is_size = isinstance(change, int)
      each.write_bytes(each.read_bytes()[:change] if is_size else change)
  if not name.endswith("/d"):
    files = [file]
  with pytest.raises(kind) as error:
    load(path)
  assert any(message.format(file=file) in str(error.value) for file in files)
  assert "\n" not in str(error.value)
  if name.startswith(ARRAY):
    assert OF_ARRAY in str(error.value)
