"""Reads the arrays of a checkpoint, which are a train state of T5X.

Arrays are named by their path in the train state, e.g.
"target/encoder/encoder_norm/scale" and "state/step". T5X's native layout and
Orbax's layout hold the same train state.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import concurrent.futures
import contextlib
import dataclasses
import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from speccascade.checkpoints import adafactor_slots, chunks, ocdbt, storage
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)

_NUM_READERS = 32  # threads, each of which reads one array at a time


@dataclasses.dataclass(frozen=True)
class Unread:
  """An array of a checkpoint that is read by slices, when they are asked for.

  Attributes:
    shape: the array's shape.
    read: a function from a part of the array to its numbers.
  """

  shape: tuple[int, ...]
  read: Callable[[chunks.Part], np.ndarray]

  @property
  def size(self) -> int:
    """How many numbers the array has."""
    return math.prod(self.shape)

  def __getitem__(self, index) -> np.ndarray:
    index = index if isinstance(index, tuple) else (index,)
    return self.read(chunks.bound(index, self.shape))

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    return self[()]

  @property
  def T(self) -> "Unread":
    """The transpose of a matrix, unread too."""

    def read(part):
      return np.ascontiguousarray(self.read(part[::-1]).T)

    return Unread(self.shape[::-1], read)

  def as_float32(self, name: str, where: str) -> "Unread":
    """Returns this array in float32, unread too.

    Args:
      name: the array's name, for messages.
      where: the checkpoint, for messages.
    """

    def read(part):
      return _float32(self.read(part), name, where)

    return dataclasses.replace(self, read=read)


@dataclasses.dataclass(frozen=True)
class StoredArrays:
  """The opened arrays of a checkpoint: their shapes are known, no data is read.

  Attributes:
    where: the checkpoint, for messages.
    arrays: NumPy's or tensorstore's arrays, by name.
    has_bits: whether arrays of uint16 hold the bits of bfloat16.
  """

  where: str
  arrays: Mapping[str, Any]
  _: dataclasses.KW_ONLY
  has_bits: bool = False

  @classmethod
  def open(cls, where: str, leaves: Mapping[str, Any], **kwargs):
    """Opens the arrays of a checkpoint, several at a time.

    Args:
      where: the checkpoint, for messages.
      leaves: tensorstore's specs of arrays, or NumPy's arrays, by name.
      **kwargs: further attributes.

    Raises:
      CheckpointError: an array's file does not exist. The message names both.
    """
    import tensorstore as ts

    def open_leaf(item):
      name, leaf = item
      if not isinstance(leaf, dict):
        return leaf
      # Tensorstore may read a missing chunk as zeros. T5X's native layout
      # leaves out chunks of zeros: a slot of an optimizer may be all zeros. A
      # parameter is not, so that a missing chunk of it is damage.
      fills = leaf["driver"] == "zarr" and not name.startswith("target/")
      spec = {"fill_missing_data_reads": fills} | leaf
      with _explain_errors(name, where):
        array = ts.open(spec, open=True, context=storage.context()).result()
        _refuse_big_endian(array)
      return array

    arrays = dict(zip(leaves, _map_in_threads(open_leaf, leaves.items())))
    return cls(where, arrays, **kwargs)

  @property
  def has_checksums(self) -> bool:
    """Whether every chunk has a checksum, which reading the chunk checks."""
    return all(
      {"name": "crc32c"} in codec.get("codecs", ())
      or (codec.get("compressor") or {}).get("id") == "gzip"
      for codec in self._codecs()
    )

  @property
  def is_zarr3(self) -> bool:
    """Whether an array is stored as zarr3, which T5X does not read."""
    return any(codec["driver"] == "zarr3" for codec in self._codecs())

  def _codecs(self) -> Iterator[dict]:
    """Yields how tensorstore encodes the chunks of each of its arrays."""
    for array in self.arrays.values():
      if not isinstance(array, np.ndarray):
        yield array.codec.to_json()

  @property
  def params(self) -> dict:
    """The arrays under "target", as nested dicts."""
    return unflatten(dict(self.arrays)).get("target", {})

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns whole arrays by name; several are read at a time.

    Raises:
      CheckpointError: a file of an array is missing, damaged, or not as it was
        written, or the machine has not the memory for all arrays. The message
        names the array and the file.
    """
    sizes = {
      name: math.prod(self.arrays[name].shape) * self.dtype(name).itemsize
      for name in names
    }
    num_bytes = sum(sizes.values())
    try:
      # The system refuses here what it cannot give. An array that it grants
      # takes no memory until it is filled.
      np.empty(num_bytes, np.uint8)
    except (MemoryError, OverflowError, ValueError) as error:
      raise CheckpointError(
        f"the arrays of {self.where} take {num_bytes / 2**30:,.1f} GiB, most of"
        f" them {max(sizes, key=sizes.get)}, which this machine does not have"
      ) from error
    return dict(zip(sizes, _map_in_threads(self.read_part, sizes)))

  def dtype(self, name: str) -> np.dtype:
    """Returns the dtype in which an array is stored."""
    dtype = self.arrays[name].dtype
    return dtype if isinstance(dtype, np.dtype) else dtype.numpy_dtype

  def read_part(self, name: str, part: chunks.Part | None = None) -> np.ndarray:
    """Returns an array or a part of it, after checking the chunks.

    Args:
      name: name of the array.
      part: the part; None is the whole array.

    Raises:
      CheckpointError: a chunk is missing, damaged, or not as it was written.
    """
    array = self.arrays[name]
    part = chunks.bound((), array.shape) if part is None else part
    if isinstance(array, np.ndarray):
      value = array[part]
    else:
      with _explain_errors(name, self.where, array):
        value = array[part].read().result()
    is_bits = self.has_bits and value.dtype == np.uint16
    return value.view(ml_dtypes.bfloat16) if is_bits else value

  def step(self) -> int:
    """Returns how many training steps were taken.

    The number may be a float: T5X stores one after it has restored an Orbax
    checkpoint as float32.

    Raises:
      CheckpointError: "state/step" is not a whole number.
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
    """Returns (parameters, step, Adafactor's slots or None) of the train state.

    Args:
      lazy: whether the parameters are left `Unread`.

    Raises:
      CheckpointError: an array cannot be read or holds no floats, or the slots
        are another optimizer's.
    """
    step, params = self.step(), self.params
    wanted = {} if lazy else {"target": params}
    if slots := unflatten(dict(self.arrays))["state"].get("param_states"):
      slots = adafactor_slots.without_momentum(slots, params, where=self.where)
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
    """Returns an array that is read by slices, when they are asked for."""
    read = functools.partial(self.read_part, name)
    return Unread(tuple(self.arrays[name].shape), read)


def _map_in_threads(function, items) -> list:
  """Returns the results of a function for items, called in several threads."""
  with concurrent.futures.ThreadPoolExecutor(_NUM_READERS) as pool:
    return list(pool.map(function, items))


@contextlib.contextmanager
def _explain_errors(name: str, where: str, array=None):
  """Turns an error in reading an array into one line, with OCDBT's files."""
  try:
    yield
  except ValueError as error:
    reason = storage.first_line(error)
    if array is not None and (files := ocdbt.describe_files(array)):
      reason += f"; {files}"
    is_missing = "NOT_FOUND" in str(error)
    kind = CheckpointNotFoundError if is_missing else CheckpointError
    raise kind(
      f"cannot read array {name} of {where}: {reason}; the checkpoint is "
      "incomplete or damaged: copy it again"
    ) from error


def _refuse_big_endian(array) -> None:
  """Raises CheckpointError if an array's numbers are stored big-endian.

  Neither T5X nor this package writes such arrays. One changed bit of .zarray,
  which has no checksum, makes ">" of "<".
  """
  dtype = array.spec().to_json()["metadata"].get("dtype", "")
  if str(dtype).startswith(">"):
    raise CheckpointError(f"its dtype is {dtype!r}, want little-endian numbers")


def is_wanted(name: str, optimizer: bool) -> bool:
  """Returns whether `train_state` reads an array of a name.

  Args:
    name: the array's name.
    optimizer: whether the optimizer's slots are read too.
  """
  folders = ("target/", "state/param_states/") if optimizer else ("target/",)
  return name == "state/step" or name.startswith(folders)


def as_float32(tree: dict, *, where: str) -> dict:
  """Returns nested dicts of arrays in float32; bfloat16 is widened exactly.

  Args:
    tree: nested dicts of arrays.
    where: the checkpoint, for messages.

  Raises:
    CheckpointError: an array holds no floats.
  """
  flat = flatten(tree)
  return unflatten(
    {name: _float32(value, name, where) for name, value in flat.items()}
  )


def _float32(value, name: str, where: str) -> np.ndarray:
  """Returns an array in float32; CheckpointError if it holds no floats."""
  value = np.asarray(value)
  # ml_dtypes' bfloat16 has kind "V" in some numpy versions.
  if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
    raise CheckpointError(
      f"array {name} of {where} has dtype {value.dtype}, want a float"
    )
  return np.ascontiguousarray(value, np.float32)
