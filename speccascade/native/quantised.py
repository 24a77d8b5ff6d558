"""Kernels in eight bits: an integer for each weight, a factor for each output.

Column j of a kernel is its integers, from -127 to 127, times scale j; the
largest weight of the column is 127 times it. Activations stay as they are.
Rounding is symmetric and to the nearest, as Dettmers et al. have it for vectors
("LLM.int8()", arXiv 2208.07339), and nothing is calibrated.
"""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

MOST = 127
_AT_ONCE = 4096  # columns, so that copies of a large table stay small


@struct.dataclass
class Quantised:
  """A kernel [in, out] in eight bits; it has no gradient.

  Attributes:
    weights: [out, in] int8.
    scale: [out] float32.
  """

  weights: Any
  scale: Any

  @property
  def shape(self) -> tuple[int, int]:
    """(in, out)."""
    num_out, num_in = self.weights.shape
    return num_in, num_out

  @property
  def num_out(self) -> int:
    """The number of columns."""
    return self.weights.shape[0]

  @property
  def dtype(self) -> Any:
    """The dtype of the weights."""
    return self.weights.dtype

  def rows(self, index: jax.Array) -> "Quantised":
    """Returns the columns of an int32 index [N] as a kernel [in, N]."""
    return Quantised(self.weights[index], self.scale[index])

  def columns(self, index: jax.Array) -> jax.Array:
    """Returns columns [..., in] of the kernel, float32, for an index [...].

    An index past an end is read as that end.
    """
    index = jnp.clip(index, 0, self.num_out - 1)
    columns = self.weights[index].astype(jnp.float32)
    scale = self.scale[index][..., None]
    return columns * jnp.broadcast_to(scale, columns.shape)

  def times(self, x: jax.Array) -> jax.Array:
    """Returns x [..., in] times the kernel, [..., out], in the dtype of x.

    Integers up to 127 are exact in every dtype of activations; sums and the
    scale are float32.
    """
    sums = jax.lax.dot_general(
      x,
      self.weights.astype(x.dtype),
      (((x.ndim - 1,), (1,)), ((), ())),
      preferred_element_type=jnp.float32,
    )
    return (sums * jnp.broadcast_to(self.scale, sums.shape)).astype(x.dtype)


def quantise(kernel: Any) -> Quantised:
  """Returns a kernel in eight bits, as NumPy arrays.

  Args:
    kernel: [in, out], an array or what NumPy turns into one. A column with a
      number that is not finite has results that are none either.
  """
  array = np.asarray(kernel)
  num_in, num_out = array.shape
  weights = np.empty((num_out, num_in), np.int8)
  scale = np.empty(num_out, np.float32)
  for begin in range(0, num_out, _AT_ONCE):
    part = slice(begin, begin + _AT_ONCE)
    columns = array[:, part].T.astype(np.float32)
    with np.errstate(invalid="ignore"):
      scale[part] = np.abs(columns).max(1, initial=0) / MOST
      # A column of zeros has scale 0.
      columns /= np.where(scale[part] == 0, 1, scale[part])[:, None]
    weights[part] = np.rint(np.nan_to_num(columns, copy=False))
  return Quantised(weights, scale)
