"""Arrays of a checkpoint and what they make up, as both T5X layouts hold it.

Arrays are named by their path in T5X's train state, e.g.
"target/encoder/encoder_norm/scale" and "state/step".
"""

from collections.abc import Collection, Mapping
import concurrent.futures
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
  specs: Mapping[str, dict], *, where: str, whole: Collection[str] = ()
) -> dict[str, np.ndarray]:
  """Reads tensorstore arrays, several at a time.

  Args:
    specs: driver and key-value store of each; the stored metadata says the
      rest.
    where: the checkpoint, for messages.
    whole: arrays to refuse if a chunk is not there. Tensorstore reads such a
      chunk as zeros.

  Raises:
    CheckpointError: naming the array and the file.
  """
  import tensorstore as ts

  def read(name):
    try:
      array = ts.open(specs[name], open=True, context=storage.context())
      array = array.result()
      if name in whole:
        _check_chunks(array, specs[name]["kvstore"]["path"])
      return array.read().result()
    except ValueError as error:
      is_missing = isinstance(error, FileNotFoundError)
      is_missing |= "NOT_FOUND" in str(error)
      kind = CheckpointNotFoundError if is_missing else CheckpointError
      raise kind(
        f"cannot read array {name} of {where}: {storage.first_line(error)}; "
        "the checkpoint is incomplete or damaged: copy it again"
      ) from error

  with concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT) as pool:
    return dict(zip(specs, pool.map(read, specs)))


def _check_chunks(array, path: str) -> None:
  keys = array.kvstore.list().result()
  num = sum(not key.startswith(b".") for key in keys)
  sizes = zip(array.shape, array.chunk_layout.read_chunk.shape)
  wanted = math.prod(-(-size // chunk) for size, chunk in sizes)
  if num < wanted:
    raise CheckpointNotFoundError(
      f"{path} has {num} chunk files, want {wanted}"
    )


def is_wanted(name: str, optimizer: bool) -> bool:
  """Says whether `train_state` takes an array, of the optimizer if asked."""
  folders = ("target/", "state/param_states/") if optimizer else ("target/",)
  return name == "state/step" or name.startswith(folders)


def train_state(
  values: Mapping[str, np.ndarray], *, where: str
) -> tuple[dict, int, dict | None]:
  """Returns (params, step, Adafactor slots or None) of a train state.

  Args:
    values: its arrays by name, `state/step` among them.
    where: the checkpoint, for messages.

  Raises:
    CheckpointError: an array is no float, or the slots are not Adafactor's.
  """
  tree = unflatten(dict(values))
  params = as_float32(tree["target"], where=where)
  slots = tree["state"].get("param_states")
  if slots is not None:
    slots = without_momentum(slots, params, where=where)
  return params, int(tree["state"]["step"]), slots


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
  flat, parameters = flatten(param_states), flatten(params)
  slots = [f"{name}/{slot}" for name in parameters for slot in SLOTS]
  has = f"the optimizer state of {where} has"
  for name in slots:
    if name not in flat:
      raise CheckpointError(
        f"{has} no {name}: it is not Adafactor's; read the parameters alone"
      )
  for name in sorted(flat.keys() - set(slots)):
    if name.removesuffix("/m") not in parameters:
      raise CheckpointError(
        f"{has} {name}, which is no slot of a parameter: read the parameters "
        "alone"
      )
    if flat[name].shape != _PLACEHOLDER:
      raise CheckpointError(
        f"{has} momentum ({name}); only Adafactor without it is read: read the "
        "parameters alone"
      )
  return unflatten({name: flat[name] for name in slots})


def with_momentum(slots: Mapping) -> dict:
  """Returns T5X's `param_states`: the slots and an unused `m` beside them."""
  flat = flatten(dict(slots))
  for name in {name.rsplit("/", 1)[0] for name in flat}:
    flat[f"{name}/m"] = np.zeros(_PLACEHOLDER, np.float32)
  return unflatten(flat)
