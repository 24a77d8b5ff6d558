"""The product of activations and a kernel, as each platform does it fast."""

import functools
import operator

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models.sharding import partitioning

# The product of one row is cut where the kernel has at least so many weights:
# for fewer, waking a second thread costs more than it saves.
LEAST_SLICED = 3 << 16
NUM_SLICES = 4
# On a GPU a pass of six rows takes no longer than one of two.
LEAST_ROWS = 6


def num_spare(shape: tuple[int, ...], dtype: str) -> int:
  """Returns how many empty tokens to feed after a block.

  XLA turns a product of one row into a sum over columns. On a GPU, in bfloat16,
  it then writes all products of an activation and a weight to memory, rounded,
  and reads them back to add them. On a TPU it adds on the vector unit, which
  takes several times as long, and in float32, where a product of more rows is
  one of bfloat16: the same tokens one by one and in a block would differ at
  near ties. A product of a few rows stays a product.

  Args:
    shape: (B, N), rows and tokens of the block.
    dtype: name of the activations' dtype.
  """
  num_rows, num_tokens = shape
  if num_tokens != 1:
    return 0
  platform = native.platform()
  if platform == "tpu":
    # Attention has a product for each row of the batch.
    return int(num_rows == 1 or dtype == "float32")
  is_padded = (
    platform == "gpu"
    and num_rows == 1
    and dtype == "bfloat16"
    and not partitioning.is_cut()
  )
  return LEAST_ROWS - 1 if is_padded else 0


def num_spare_reads(shape: tuple[int, ...], dtype: str) -> int:
  """Returns how many positions to read once more: on a TPU, as `num_spare`.

  Args:
    shape: (B, R), rows and read positions.
    dtype: name of the activations' dtype.
  """
  return num_spare(shape, dtype) if native.platform() == "tpu" else 0


def _dot(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns x [..., in] times kernel [in, out]; one row in slices on a CPU."""
  is_sliced = (
    not partitioning.is_cut()
    and x.size == x.shape[-1]
    and x.dtype == jnp.float32
    and kernel.size >= LEAST_SLICED
    and kernel.shape[0] % NUM_SLICES == 0
  )
  if not is_sliced:
    return jnp.dot(x, kernel)
  return jax.lax.platform_dependent(
    x, kernel, cpu=_dot_in_slices, default=jnp.dot
  )


def _dot_in_slices(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns one row x [..., in] times kernel, as a sum over slices of `in`."""
  # XLA's CPU backend gives the product of one row to one thread, and a batch of
  # products to all threads; one thread reads memory half as fast as two. With
  # in = 8, slice 1 of 4 is inputs 2 and 3 of the row and rows 2 and 3 of the
  # kernel. The slices are views.
  num_in, num_out = kernel.shape
  rows = x.reshape(NUM_SLICES, 1, num_in // NUM_SLICES)
  slices = kernel.reshape(NUM_SLICES, -1, num_out)
  parts = jnp.matmul(rows, slices)
  # (Not jnp.sum, which would be an operation of its own, and a slow one.)
  return functools.reduce(operator.add, parts).reshape(*x.shape[:-1], num_out)


@jax.custom_vjp
def matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns x [..., in] times kernel [in, out].

  Its gradient is written by hand. The automatic one computes the kernel's
  gradient as [out, in] and transposes the activations for it, which on a CPU
  costs as much as the rest of a training step.
  """
  return _dot(x, kernel)


def _matmul_forward(x, kernel):
  return _dot(x, kernel), (x, kernel)


def _matmul_backward(residuals, slope):
  x, kernel = residuals
  rows = x.reshape(-1, x.shape[-1])
  slopes = slope.reshape(-1, slope.shape[-1])
  return jnp.dot(slope, kernel.T), jnp.dot(rows.T, slopes)


matmul.defvjp(_matmul_forward, _matmul_backward)
