"""Kernels as the native code reads them: in panels of 64 columns.

XLA's CPU backend packs a kernel anew at every product of two or more rows. Here
it is packed once, when a model is made for decoding.
"""

import dataclasses
import math

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 64  # PANEL in shared.h
MOST_BYTES = 16 << 20  # of an array of several kernels
_ALIGNMENT = 64  # bytes


@struct.dataclass
class Panels:
  """A kernel [in, out] as panels of its columns; it has no gradient.

  Attributes:
    array: [P, in, 64] float32, or [P, ceil(in / 2), 64, 2] bfloat16, weights of
      two inputs side by side: the ceil(out / 64) panels of this kernel, and
      perhaps those of others. What is past an end is 0.
    shape: (in, out), static.
    rounds: whether rows are rounded to bfloat16 before they are multiplied, as
      a TPU does by default; static. Sums are float32.
    first: the kernel's first panel; static.
  """

  array: jax.Array
  shape: tuple[int, int] = struct.field(pytree_node=False)
  rounds: bool = struct.field(pytree_node=False, default=False)
  first: int = struct.field(pytree_node=False, default=0)

  @property
  def num_out(self) -> int:
    return self.shape[1]

  def columns(self, index):
    """Returns columns [..., in] of the kernel, for int32 index [...]."""
    index = jnp.clip(index, 0, self.num_out - 1)
    columns = self.array[self.first + index // WIDTH, :, index % WIDTH]
    return columns.reshape(*index.shape, -1)[..., : self.shape[0]]

  def __str__(self) -> str:
    about = f"panels {self.array.dtype}{self.array.shape}"
    rounded = ", rows rounded" * self.rounds
    return f"{about} from {self.first} on, of a kernel {self.shape}{rounded}"

  def fits(self, shape: tuple[int, int], like: "Panels") -> bool:
    """Whether the kernel has this shape, and the kind of another."""
    dtype = like.array.dtype
    num_panels, *panel = packed_shape(shape, dtype)
    mine = (self.shape, self.array.dtype, self.rounds, self.array.shape[1:])
    is_whole = self.first + num_panels <= self.array.shape[0]
    return is_whole and mine == (shape, dtype, like.rounds, (*panel,))


def packed_shape(shape: tuple[int, int], dtype) -> tuple[int, ...]:
  """Returns the shape of the panels of a kernel [in, out]."""
  num_in, num_panels = shape[0], -(-shape[1] // WIDTH)
  if jnp.dtype(dtype) == jnp.bfloat16:
    return num_panels, -(-num_in // 2), WIDTH, 2
  return num_panels, num_in, WIDTH


def _zeros(shape: tuple[int, ...], dtype) -> np.ndarray:
  """Returns zeros that lie so that JAX takes them as they are, uncopied."""
  size = math.prod(shape) * dtype.itemsize
  room = np.zeros(size + _ALIGNMENT, np.uint8)
  begin = -room.ctypes.data % _ALIGNMENT
  return room[begin : begin + size].view(dtype).reshape(shape)


def pack(kernel, dtype, rounds=False) -> Panels:
  """Returns the panels of a kernel [in, out], in float32 or bfloat16."""
  packer = Packer({"": np.shape(kernel)}, dtype, rounds)
  packer.add("", kernel)
  return packer.panels()[""]


@dataclasses.dataclass
class _Stack:
  """Panels of one shape that fill an array; `missing` kernels are to come."""

  panel: list[int]
  num_panels: int = 0
  missing: int = 0
  array: np.ndarray | jax.Array | None = None


class Packer:
  """Packs the kernels of a model into few arrays.

  A call of a compiled program is held up by each array that it is given: by
  those of a model of six layers for a tenth of a short sentence. One array is
  of kernels with as many inputs, up to `MOST_BYTES` unless it holds one alone.

  Args:
    shapes: (in, out) of each kernel, by name.
    dtype: "float32" or "bfloat16".
    rounds: see `Panels`.
  """

  def __init__(self, shapes: dict[str, tuple[int, int]], dtype, rounds=False):
    self._shapes, self._dtype = shapes, jnp.dtype(dtype)
    self._rounds = rounds
    self._places = {}  # by name, the stack and the first panel
    latest = {}  # stacks, by the number of inputs
    for name, shape in shapes.items():
      num_panels, *panel = packed_shape(shape, dtype)
      most = MOST_BYTES // (math.prod(panel) * self._dtype.itemsize)
      stack = latest.setdefault(shape[0], _Stack(panel))
      if stack.missing and stack.num_panels + num_panels > most:
        stack = latest[shape[0]] = _Stack(panel)
      self._places[name] = stack, stack.num_panels
      stack.num_panels += num_panels
      stack.missing += 1

  def add(self, name: str, kernel):
    """Packs one of the kernels, [in, out]."""
    (stack, first), kernel = self._places[name], np.asarray(kernel)
    if stack.array is None:
      stack.array = _zeros((stack.num_panels, *stack.panel), self._dtype)
    words = stack.array[first:]
    words = words if words.ndim == 4 else words[..., None]
    step = words.shape[3]  # inputs side by side
    for panel, i in np.ndindex(-(-kernel.shape[1] // WIDTH), step):
      part = kernel[i::step, panel * WIDTH : (panel + 1) * WIDTH]
      words[panel, : part.shape[0], : part.shape[1], i] = part
    stack.missing -= 1
    if not stack.missing:
      stack.array = jax.device_put(stack.array)

  def panels(self) -> dict[str, Panels]:
    """Returns the panels of each kernel; all of them were added."""
    return {
      name: Panels(stack.array, self._shapes[name], self._rounds, first)
      for name, (stack, first) in self._places.items()
    }


class Shared:
  """The arrays of a call's kernels, each once.

  Attributes:
    arrays: in order.
  """

  def __init__(self):
    self.arrays, self._numbers, self._firsts = [], [], []

  def add(self, panels: Panels):
    """Adds a kernel."""
    known = [array is panels.array for array in self.arrays]
    if True not in known:
      self.arrays.append(panels.array)
      known.append(True)
    self._numbers.append(known.index(True))
    self._firsts.append(panels.first)

  def places(self) -> dict[str, np.ndarray]:
    """Returns of each kernel the number of its array, and its first panel."""
    return {
      "numbers": np.asarray(self._numbers, np.int32),
      "firsts": np.asarray(self._firsts, np.int32),
    }
