"""Kernels packed for the native product of a few rows.

XLA's CPU backend packs a kernel anew at every product of two or more rows. Here
it is packed once, when a model is made for decoding.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native import library

WIDTH = 64  # PANEL in shared.h


@struct.dataclass
class Panels:
  """A kernel [in, out] as panels of its columns; it has no gradient.

  Attributes:
    array: [P, in, 64] float32 or bfloat16, P = ceil(out / 64); the columns past
      `out` are 0.
    num_out: static.
  """

  array: jax.Array
  num_out: int = struct.field(pytree_node=False)

  def columns(self, index):
    """Returns columns [..., in] of the kernel, for int32 index [...]."""
    index = jnp.clip(index, 0, self.num_out - 1)
    return self.array[index // WIDTH, :, index % WIDTH]


def pack(kernel, dtype) -> Panels:
  """Returns the panels of a kernel [in, out], in float32 or bfloat16."""
  kernel = np.asarray(kernel)
  num_in, num_out = kernel.shape
  num_panels = -(-num_out // WIDTH)
  array = np.zeros((num_panels, num_in, WIDTH), jnp.dtype(dtype))
  for panel in range(num_panels):
    columns = kernel[:, panel * WIDTH : (panel + 1) * WIDTH]
    array[panel, :, : columns.shape[1]] = columns
  return Panels(jnp.asarray(array), num_out)


def products(x, kernels) -> list:
  """Returns x times each kernel, [..., out], computed and returned in float32.

  A row's result is the same to the bit whatever rows stand beside it.

  Args:
    x: [..., in] float32.
    kernels: `Panels` of one dtype, all with these inputs.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  for kernel in kernels:
    dtypes = (x.dtype, kernels[0].array.dtype)
    num_panels = -(-kernel.num_out // WIDTH)
    fits = kernel.array.shape == (num_panels, x.shape[-1], WIDTH)
    if not fits or dtypes != (jnp.float32, kernel.array.dtype):
      raise ValueError(
        f"rows {x.dtype}{x.shape} do not fit panels {kernel.array.dtype}"
        f"{kernel.array.shape} of {kernel.num_out} columns"
      )
  results = [
    jax.ShapeDtypeStruct((*x.shape[:-1], kernel.num_out), jnp.float32)
    for kernel in kernels
  ]
  call = jax.ffi.ffi_call(
    library.target("RowsTimesPanels"), results, vmap_method="sequential"
  )
  return call(x, *(kernel.array for kernel in kernels))
