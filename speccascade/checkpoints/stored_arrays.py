"""Arrays of a checkpoint: read many at once, cast, and Adafactor's slots."""

from collections.abc import Hashable, Mapping
import math

import numpy as np

from speccascade.checkpoints import storage
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)

SLOTS = ("v_row", "v_col", "v")
_PLACEHOLDER = (1,)  # shape of a slot that Adafactor does not use
_IN_FLIGHT = 32  # arrays being read at a time


def read_all(
  specs: Mapping[Hashable, dict], *, where: str, whole: bool = False
) -> dict[Hashable, np.ndarray]:
  """Reads tensorstore arrays, several at a time.

  Args:
    specs: driver and key-value store of each; the stored metadata says the
      rest.
    where: the checkpoint, for messages.
    whole: refuse an array of which a chunk is not there. Tensorstore reads
      such a chunk as zeros.

  Raises:
    CheckpointError: naming the array and the file.
  """
  import tensorstore as ts

  values = {}
  names = list(specs)
  for start in range(0, len(names), _IN_FLIGHT):
    batch = names[start : start + _IN_FLIGHT]
    opened = {
      name: ts.open(specs[name], open=True, context=storage.context())
      for name in batch
    }
    reads = {}
    for name in batch:
      try:
        array = opened[name].result()
        if whole:
          _check_chunks(array, specs[name]["kvstore"]["path"])
        reads[name] = array.read()
      except ValueError as error:
        raise _error(name, where, error) from error
    for name in batch:
      try:
        values[name] = reads[name].result()
      except ValueError as error:
        raise _error(name, where, error) from error
  return values


def _check_chunks(array, path: str) -> None:
  keys = array.kvstore.list().result()
  chunks = [key for key in keys if not key.startswith(b".")]
  want = math.prod(
    -(-size // chunk)
    for size, chunk in zip(array.shape, array.chunk_layout.read_chunk.shape)
  )
  if len(chunks) < want:
    raise CheckpointNotFoundError(
      f"{path} has {len(chunks)} chunk files, want {want}"
    )


def _error(name, where: str, error: ValueError) -> CheckpointError:
  name = "/".join(name) if isinstance(name, tuple) else name
  text = storage.first_line(error)
  missing = isinstance(error, FileNotFoundError) or "NOT_FOUND" in str(error)
  kind = CheckpointNotFoundError if missing else CheckpointError
  return kind(
    f"cannot read array {name} of {where}: {text}; the checkpoint is "
    "incomplete or damaged: copy it again"
  )


def as_float32(tree: dict, *, where: str) -> dict:
  """Returns nested dicts of float32 arrays; bfloat16 widens exactly."""
  flat = flatten(tree)
  for name, value in flat.items():
    value = np.asarray(value)
    # ml_dtypes' bfloat16 has kind "V" in some numpy versions.
    if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
      raise CheckpointError(
        f"array {name} of {where} has dtype {value.dtype}, want a float"
      )
    flat[name] = np.ascontiguousarray(value, np.float32)
  return unflatten(flat)


def without_momentum(param_states: dict, params: dict, *, where: str) -> dict:
  """Returns Adafactor's slots of each parameter from T5X's `param_states`.

  Raises:
    CheckpointError: the state is another optimizer's, or has momentum.
  """
  flat = flatten(param_states)
  slots = {}
  for name in flatten(params):
    try:
      slots |= {f"{name}/{slot}": flat.pop(f"{name}/{slot}") for slot in SLOTS}
      m = flat.pop(f"{name}/m", np.zeros(_PLACEHOLDER, np.float32))
    except KeyError as error:
      raise CheckpointError(
        f"the optimizer state of {where} has no {error.args[0]}: it is not "
        "Adafactor's; read the parameters alone"
      ) from error
    if m.shape != _PLACEHOLDER:
      raise CheckpointError(
        f"the optimizer state of {where} has momentum ({name}/m); only "
        "Adafactor without it is read: read the parameters alone"
      )
  if flat:
    raise CheckpointError(
      f"the optimizer state of {where} has {min(flat)}, which is no slot of a "
      "parameter: read the parameters alone"
    )
  return unflatten(slots)


def with_momentum(slots: Mapping) -> dict:
  """Returns T5X's `param_states`: the slots and an unused `m` beside them."""
  flat = flatten(dict(slots))
  for name in {name.rsplit("/", 1)[0] for name in flat}:
    flat[f"{name}/m"] = np.zeros(_PLACEHOLDER, np.float32)
  return unflatten(flat)
