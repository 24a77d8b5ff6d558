"""Kernels as the native code reads them: in panels of 64 columns.

XLA's CPU backend packs a kernel again at every product of two or more rows.
Here a kernel is packed once, when a model is created for decoding.

Column j of a kernel is column j % 64 of its panel j // 64: column 70 is column
6 of panel 1.

In int8 a panel ends with the float32 scales of its columns; see `quantised`.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native.quantised import Quantised, quantise

WIDTH = 64  # PANEL in shared.h
MOST_BYTES = 16 << 20  # of an array that holds several kernels
_ALIGNMENT = 64  # bytes, from which JAX takes a NumPy array without a copy
_SCALE_ROWS = 4  # of 64 bytes each, which hold 64 float32


@struct.dataclass
class Panels:
  """A kernel [in, out] as panels of its columns; it has no gradient.

  Attributes:
    array: [P, in, 64] float32; or [P, ceil(in / 2), 64, 2] bfloat16 with the
      weights of two inputs side by side; or [P, in + 4, 64] int8, where the
      last 256 bytes of a panel are 64 float32 scales. It holds the
      ceil(out / 64) panels of this kernel, and perhaps panels of other kernels.
      Weights past the last input or column are 0.
    shape: (in, out), static.
    rounds: whether rows are rounded to bfloat16 before they are multiplied, as
      a TPU does by default; static. Sums are float32.
    first: the number of the kernel's first panel in the array; static.
  """

  array: jax.Array
  shape: tuple[int, int] = struct.field(pytree_node=False)
  rounds: bool = struct.field(pytree_node=False, default=False)
  first: int = struct.field(pytree_node=False, default=0)

  @property
  def num_out(self) -> int:
    """The number of columns."""
    return self.shape[1]

  def columns(self, index: jax.Array) -> jax.Array:
    """Returns columns [..., in] of the kernel for an int32 index [...].

    An index past an end is read as that end.
    """
    if self.array.dtype == jnp.int8:
      columns = self._quantised(index).columns(jnp.arange(index.size))
      return columns.reshape(*index.shape, self.shape[0])
    index = jnp.clip(index, 0, self.num_out - 1)
    array, dtype = self.array, self.array.dtype
    if dtype == jnp.bfloat16:
      # XLA's CPU backend would make float32 of the whole kernel, to look up a
      # few columns of it. The barrier ties the kernel to the index: XLA would
      # move the conversion out of a loop, where it is a copy of the kernel.
      array, index = jax.lax.optimization_barrier((array, index))
      array = jax.lax.bitcast_convert_type(array, jnp.uint16)
    columns = array[self.first + index // WIDTH, :, index % WIDTH]
    if dtype == jnp.bfloat16:
      columns = jax.lax.bitcast_convert_type(columns, dtype)
    # [..., in], or pairs of inputs [..., ceil(in / 2), 2]. (There may be no
    # column at all, of which a -1 would say nothing.)
    size = math.prod(columns.shape[index.ndim :])
    return columns.reshape(*index.shape, size)[..., : self.shape[0]]

  def cut(self, index: jax.Array) -> "Panels":
    """Returns panels of the columns of an int32 index [N]."""
    dtype = self.array.dtype
    if dtype == jnp.int8:
      return pack(self._quantised(index), dtype)
    return pack(np.asarray(self.columns(index)).T, dtype, self.rounds)

  def _quantised(self, index: jax.Array) -> Quantised:
    """Returns columns of int8 panels, for an index of N numbers."""
    index = jnp.clip(index.reshape(-1), 0, self.num_out - 1)
    panel, column = self.first + index // WIDTH, index % WIDTH
    weights = self.array[panel, : self.shape[0], column]
    # Scale 3 is bytes 12 to 15 after the weights.
    at = (4 * column)[:, None] + jnp.arange(4)[None]
    row = self.shape[0] + at // WIDTH
    scale = self.array[panel[:, None], row, at % WIDTH]
    return Quantised(weights, jax.lax.bitcast_convert_type(scale, jnp.float32))

  def __str__(self) -> str:
    text = (
      f"panels {self.array.dtype}{self.array.shape} from {self.first} on, of a"
      f" kernel {self.shape}"
    )
    return f"{text}, rows rounded" if self.rounds else text

  def fits(self, shape: tuple[int, int], like: "Panels") -> bool:
    """Whether the kernel has this shape, and another's dtype and rounding."""
    dtype = like.array.dtype
    num_panels, *panel = packed_shape(shape, dtype)
    return (
      self.shape == shape
      and self.array.dtype == dtype
      and self.rounds == like.rounds
      and self.array.shape[1:] == tuple(panel)
      and self.first + num_panels <= self.array.shape[0]
    )


def packed_shape(
  shape: tuple[int, int], dtype: jax.typing.DTypeLike
) -> tuple[int, ...]:
  """Returns the shape of the panels of a kernel [in, out].

  >>> packed_shape((5, 100), "float32"), packed_shape((5, 100), "bfloat16")
  ((2, 5, 64), (2, 3, 64, 2))
  >>> packed_shape((5, 100), "int8")
  (2, 9, 64)
  """
  num_in, num_panels = shape[0], -(-shape[1] // WIDTH)
  if jnp.dtype(dtype) == jnp.bfloat16:
    return num_panels, -(-num_in // 2), WIDTH, 2
  if jnp.dtype(dtype) == jnp.int8:
    return num_panels, num_in + _SCALE_ROWS, WIDTH
  return num_panels, num_in, WIDTH


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Returns zeros at an address from which JAX takes them without a copy."""
  size = math.prod(shape) * dtype.itemsize
  room = np.zeros(size + _ALIGNMENT, np.uint8)
  # From address 72 on, the next multiple of 64 is -72 % 64 = 56 bytes further.
  begin = -room.ctypes.data % _ALIGNMENT
  return room[begin : begin + size].view(dtype).reshape(shape)


def pack(
  kernel: Any, dtype: jax.typing.DTypeLike, rounds: bool = False
) -> Panels:
  """Returns the panels of one kernel.

  Args:
    kernel: as `Packer.add` takes it.
    dtype: "float32", "bfloat16" or "int8".
    rounds: see `Panels`.
  """
  is_quantised = isinstance(kernel, Quantised)
  num_in, num_out = kernel.shape if is_quantised else np.shape(kernel)
  packer = Packer({"": (num_in, num_out)}, dtype, rounds)
  packer.add("", kernel)
  return packer.panels()[""]


@dataclasses.dataclass
class _Stack:
  """An array that kernels with as many inputs are packed into.

  Attributes:
    panel: shape of one panel.
    num_panels: panels of all its kernels.
    missing: kernels that are still to be packed.
    array: [num_panels, *panel]; None before the first kernel is packed.
  """

  panel: list[int]
  num_panels: int = 0
  missing: int = 0
  array: Any = None


class Packer:
  """Packs the kernels of a model into few arrays.

  Each array that a compiled program is called with takes time: with an array
  for each kernel of six layers, a tenth of the time of a short sentence. One
  array holds kernels with as many inputs, up to `MOST_BYTES`, or one larger
  kernel.

  Args:
    shapes: (in, out) of each kernel, by name.
    dtype: "float32", "bfloat16" or "int8".
    rounds: see `Panels`.

  Attributes:
    shapes: (in, out) of each kernel, by name.
  """

  def __init__(
    self,
    shapes: Mapping[str, tuple[int, int]],
    dtype: jax.typing.DTypeLike,
    rounds: bool = False,
  ):
    self.shapes, self._dtype = shapes, jnp.dtype(dtype)
    self._rounds = rounds
    # The stack of each kernel, and the kernel's first panel in it.
    self._places: dict[str, tuple[_Stack, int]] = {}
    latest: dict[int, _Stack] = {}  # by the number of inputs
    for name, shape in shapes.items():
      num_panels, *panel = packed_shape(shape, dtype)
      most = MOST_BYTES // (math.prod(panel) * self._dtype.itemsize)
      stack = latest.setdefault(shape[0], _Stack(panel))
      if stack.missing and stack.num_panels + num_panels > most:
        stack = latest[shape[0]] = _Stack(panel)
      self._places[name] = stack, stack.num_panels
      stack.num_panels += num_panels
      stack.missing += 1

  def add(self, name: str, kernel: Any) -> None:
    """Packs one of the kernels.

    Args:
      name: in `shapes`.
      kernel: [in, out], an array or what NumPy turns into one; or, for int8,
        `Quantised`.
    """
    stack, first = self._places[name]
    if stack.array is None:
      stack.array = _zeros((stack.num_panels, *stack.panel), self._dtype)
    if self._dtype == jnp.int8:
      if not isinstance(kernel, Quantised):
        kernel = quantise(kernel)
      _put_bytes(stack.array[first:], kernel)
    else:
      _put_words(stack.array[first:], np.asarray(kernel))
    stack.missing -= 1
    if not stack.missing:
      stack.array = jax.device_put(stack.array)

  def panels(self) -> dict[str, Panels]:
    """Returns the panels of each kernel, when all kernels were added."""
    return {
      name: Panels(stack.array, self.shapes[name], self._rounds, first)
      for name, (stack, first) in self._places.items()
    }


def _put_words(words: np.ndarray, kernel: np.ndarray) -> None:
  """Writes a kernel [in, out] of floats to panels, the first of `words`."""
  if words.ndim == 3:
    words = words[..., None]
  # Inputs side by side in a word: with two, row 3 of a panel has the weights
  # of inputs 6 and 7, the inputs 0, 2, 4, 6, ... in the first place.
  num_inputs = words.shape[3]
  for panel, i in np.ndindex(-(-kernel.shape[1] // WIDTH), num_inputs):
    part = kernel[i::num_inputs, panel * WIDTH : (panel + 1) * WIDTH]
    words[panel, : part.shape[0], : part.shape[1], i] = part


def _put_bytes(panels: np.ndarray, kernel: Quantised) -> None:
  """Writes a kernel in eight bits to panels, the first of `panels`."""
  num_in, num_out = kernel.shape
  weights, scale = np.asarray(kernel.weights), np.asarray(kernel.scale)
  for number in range(-(-num_out // WIDTH)):
    part = slice(number * WIDTH, (number + 1) * WIDTH)
    columns, panel = weights[part], panels[number]
    panel[:num_in, : len(columns)] = columns.T
    panel[num_in:].reshape(-1).view(np.float32)[: len(columns)] = scale[part]


class Shared:
  """The arrays that hold a call's kernels, each array once.

  Attributes:
    arrays: in the order in which they were first needed.
  """

  def __init__(self) -> None:
    self.arrays: list[jax.Array] = []
    self._numbers: list[int] = []
    self._firsts: list[int] = []

  def add(self, panels: Panels) -> None:
    """Adds a kernel."""
    # (Arrays are compared by identity: equality would compare their numbers.)
    is_same = [array is panels.array for array in self.arrays]
    if True not in is_same:
      self.arrays.append(panels.array)
      is_same.append(True)
    self._numbers.append(is_same.index(True))
    self._firsts.append(panels.first)

  @property
  def numbers(self) -> np.ndarray:
    """[kernels] int32, the number of each kernel's array."""
    return np.asarray(self._numbers, np.int32)

  @property
  def firsts(self) -> np.ndarray:
    """[kernels] int32, each kernel's first panel in its array."""
    return np.asarray(self._firsts, np.int32)
