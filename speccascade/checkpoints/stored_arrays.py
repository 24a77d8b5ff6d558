"""Arrays of a checkpoint and what they make up, as both T5X layouts hold it.

Arrays are named by their path in T5X's train state, e.g.
"target/encoder/encoder_norm/scale" and "state/step".
"""

from collections.abc import Callable, Iterable, Mapping
import concurrent.futures
import contextlib
import dataclasses
import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from speccascade.checkpoints import chunks, storage
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)

SLOTS = ("v_row", "v_col", "v")
_PLACEHOLDER = (1,)  # shape of a slot that Adafactor does not use
_ALONE = "read the parameters alone (convert: --parameters_only)"
_IN_FLIGHT = 32  # arrays being read at a time


@dataclasses.dataclass(frozen=True)
class Unread:
  """An array of a checkpoint, of which slices are read.

  Attributes:
    shape: its own.
    read: from a slice for each axis, with start and stop, to that part.
  """

  shape: tuple[int, ...]
  read: Callable[[chunks.Part], np.ndarray]

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  def __getitem__(self, index) -> np.ndarray:
    index = index if isinstance(index, tuple) else (index,)
    return self.read(chunks.bound(index, self.shape))

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    return self[()]

  @property
  def T(self) -> "Unread":
    """The transpose of a matrix."""
    read = lambda part: np.ascontiguousarray(self.read(part[::-1]).T)
    return Unread(self.shape[::-1], read)

  def as_float32(self, name: str, where: str) -> "Unread":
    """Returns this array in float32.

    Args:
      name: its own, for messages.
      where: the checkpoint, likewise.
    """
    read = lambda part: _float32(self.read(part), name, where)
    return dataclasses.replace(self, read=read)


@dataclasses.dataclass(frozen=True)
class StoredArrays:
  """The arrays of a checkpoint, opened: shapes are known, nothing is read.

  Attributes:
    where: the checkpoint, for messages.
    arrays: by name; numpy's, or tensorstore's.
    checksums: of each of tensorstore's, or None; see `chunks`.
    has_bits: uint16 stands for the bits of bfloat16.
  """

  where: str
  arrays: Mapping[str, Any]
  _: dataclasses.KW_ONLY
  checksums: Mapping[str, chunks.Checksums] | None = None
  has_bits: bool = False

  @classmethod
  def open(cls, where: str, leaves: Mapping[str, Any], **kwargs):
    """Returns arrays from tensorstore's specs of them, or from themselves.

    Raises:
      CheckpointError: naming the array and the file that is not there.
    """
    import tensorstore as ts

    def open_one(item):
      name, leaf = item
      if not isinstance(leaf, dict):
        return leaf
      with _reading(name, where):
        spec = {"open": True, "context": storage.context()}
        return ts.open(leaf, **spec).result()

    arrays = dict(zip(leaves, _each(open_one, leaves.items())))
    return cls(where, arrays, **kwargs)

  @property
  def params(self) -> dict:
    """The tree under "target", of what has a shape."""
    return unflatten(dict(self.arrays)).get("target", {})

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns arrays by name, several read at a time.

    Raises:
      CheckpointError: naming the array and the file that is missing, damaged,
        or not as it was written; or all of them are larger than the memory.
    """
    sizes = {
      name: math.prod(self.arrays[name].shape) * self.dtype(name).itemsize
      for name in names
    }
    num_bytes = sum(sizes.values())
    try:
      np.empty(num_bytes, np.uint8)  # takes no memory until it is filled
    except (MemoryError, OverflowError, ValueError) as error:
      raise CheckpointError(
        f"the arrays of {self.where} take {num_bytes / 2**30:,.1f} GiB, most of"
        f" them {max(sizes, key=sizes.get)}, which this machine does not have"
      ) from error
    return dict(zip(sizes, _each(self.read_part, sizes)))

  def dtype(self, name: str) -> np.dtype:
    dtype = self.arrays[name].dtype
    return dtype if isinstance(dtype, np.dtype) else dtype.numpy_dtype

  def read_part(self, name: str, part: chunks.Part | None = None) -> np.ndarray:
    """Returns an array, or a part of it, whose chunks are checked.

    Args:
      name: of the array.
      part: a slice for each axis, with start and stop; None is all of it.

    Raises:
      CheckpointError: see `read`.
    """
    array = self.arrays[name]
    part = chunks.bound((), array.shape) if part is None else part
    if isinstance(array, np.ndarray):
      value = array[part]
    else:
      with _reading(name, self.where, array):
        value = self._stored_part(name, part)
    is_bits = self.has_bits and value.dtype == np.uint16
    return value.view(ml_dtypes.bfloat16) if is_bits else value

  def _stored_part(self, name: str, part: chunks.Part) -> np.ndarray:
    array = self.arrays[name]
    if self.checksums is None:
      # Zeros may be left out on disk; slots can be zero, parameters are not.
      if name.startswith("target/"):
        _check_chunks(array)
      return array[part].read().result()
    sums = self.checksums.get(name)
    kind = (list(array.shape), self.dtype(name).name)
    if sums is None or kind != (sums.shape, sums.dtype):
      raise CheckpointError("its shape or dtype is not that of its checksums")
    taken = sums.covering(part)
    value = array[taken].read().result()
    if chunk := sums.changed(value, taken):
      _check_chunks(array)
      file = chunks.file_of(array, chunk)
      raise CheckpointError(f"chunk {chunk} in {file} is not as it was written")
    return value if taken == part else value[chunks.relative_to(part, taken)]

  def step(self) -> int:
    """Returns the training steps taken.

    T5X makes them float32 where it restores an Orbax checkpoint as float32.

    Raises:
      CheckpointError: they are no number.
    """
    step = self.read_part("state/step")
    if (
      step.size != 1
      or step.dtype.kind not in "iuf"
      or not (step.item() >= 0 and float(step.item()).is_integer())
    ):
      raise CheckpointError(
        f"state/step of {self.where} is {step!r:.60}, want a whole number"
      )
    return int(step.item())

  def train_state(self, *, lazy: bool = False) -> tuple[dict, int, dict | None]:
    """Returns (params, step, Adafactor slots or None) of a train state.

    Args:
      lazy: whether the parameters are `Unread`.

    Raises:
      CheckpointError: an array cannot be read or is no float, or the slots are
        not Adafactor's.
    """
    step, params = self.step(), self.params
    wanted = {} if lazy else {"target": params}
    if slots := unflatten(dict(self.arrays))["state"].get("param_states"):
      slots = without_momentum(slots, params, where=self.where)
      wanted["state"] = {"param_states": slots}
    values = unflatten(self.read(flatten(wanted)))
    slots = slots and values["state"]["param_states"]
    if lazy:
      unread = {
        name: self.unread(f"target/{name}").as_float32(name, self.where)
        for name in flatten(params)
      }
      return unflatten(unread), step, slots
    return as_float32(values["target"], where=self.where), step, slots

  def unread(self, name: str) -> Unread:
    """Returns an array whose parts are read when they are asked for."""
    read = functools.partial(self.read_part, name)
    return Unread(tuple(self.arrays[name].shape), read)


def _each(function, items) -> list:
  with concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT) as pool:
    return list(pool.map(function, items))


@contextlib.contextmanager
def _reading(name: str, where: str, array=None):
  """Makes the faults of an array one line that names it, and the file."""
  try:
    yield
  except ValueError as error:
    is_said = array is None or isinstance(error, CheckpointError)
    fault = None if is_said else chunks.describe_fault(array)
    reason = f"{storage.first_line(error)}{f'; {fault}' if fault else ''}"
    is_missing = isinstance(error, FileNotFoundError) or "NOT_FOUND" in str(
      error
    )
    kind = CheckpointNotFoundError if is_missing else CheckpointError
    raise kind(
      f"cannot read array {name} of {where}: {reason}; the checkpoint is "
      "incomplete or damaged: copy it again"
    ) from error


def _check_chunks(array) -> None:
  """Checks that each chunk is there: what is not would be read as zeros."""
  chunk = array.chunk_layout.write_chunk.shape or array.shape
  counts = chunks.num_chunks(array.shape, chunk)
  listed = array.kvstore.list().result()
  keys = {key.decode().replace("/", ".") for key in listed}
  for number in range(min(math.prod(counts), len(keys) + 1)):
    name = chunks.chunk_name(np.unravel_index(number, counts))
    if not {name, f"c.{name}", "c"} & keys:
      file = chunks.file_of(array, name)
      raise CheckpointNotFoundError(f"chunk {name} is missing: {file}")


def is_wanted(name: str, optimizer: bool) -> bool:
  """Says whether `train_state` takes an array, of the optimizer if asked."""
  folders = ("target/", "state/param_states/") if optimizer else ("target/",)
  return name == "state/step" or name.startswith(folders)


def as_float32(tree: dict, *, where: str) -> dict:
  """Returns nested dicts of float32 arrays; bfloat16 widens exactly."""
  flat = flatten(tree)
  return unflatten({x: _float32(flat[x], x, where) for x in flat})


def _float32(value, name: str, where: str) -> np.ndarray:
  value = np.asarray(value)
  # ml_dtypes' bfloat16 has kind "V" in some numpy versions.
  if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
    raise CheckpointError(
      f"array {name} of {where} has dtype {value.dtype}, want a float"
    )
  return np.ascontiguousarray(value, np.float32)


def without_momentum(param_states: dict, params: dict, *, where: str) -> dict:
  """Returns Adafactor's slots of each parameter from T5X's `param_states`.

  Args:
    param_states: nested dict of what has a shape.
    params: of the parameters, likewise.
    where: the checkpoint, for messages.

  Raises:
    CheckpointError: the state is another optimizer's, or has momentum.
  """
  flat, parameters = flatten(param_states), flatten(params)
  slots = {f"{name}/{slot}": name for name in parameters for slot in SLOTS}
  has = f"the optimizer state of {where} has"
  for name, of in slots.items():
    if name not in flat:
      raise CheckpointError(f"{has} no {name}: it is not Adafactor's; {_ALONE}")
    shape = tuple(flat[name].shape)
    # Its chunks may be left out, so that nothing else bounds its size.
    if math.prod(shape) > max(1, math.prod(parameters[of].shape)):
      raise CheckpointError(
        f"{has} {name} of shape {list(shape)}, more than its parameter's "
        f"{list(parameters[of].shape)}; {_ALONE}"
      )
  for name in sorted(flat.keys() - slots.keys()):
    if name.removesuffix("/m") not in parameters:
      raise CheckpointError(
        f"{has} {name}, which is no slot of a parameter; {_ALONE}"
      )
    if flat[name].shape != _PLACEHOLDER:
      raise CheckpointError(
        f"{has} momentum ({name}); only Adafactor without it is read; {_ALONE}"
      )
  return unflatten({name: flat[name] for name in slots})


def with_momentum(slots: Mapping) -> dict:
  """Returns T5X's `param_states`: the slots and an unused `m` beside them."""
  flat = flatten(dict(slots))
  for name in {name.rsplit("/", 1)[0] for name in flat}:
    flat[f"{name}/m"] = np.zeros(_PLACEHOLDER, np.float32)
  return unflatten(flat)
