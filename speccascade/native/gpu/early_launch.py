"""Launches of kernels that overlap."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp


def program_id(axis: int, interpret: bool) -> jax.Array:
  """Returns the number of a program, and lets the next kernel be launched.

  The next kernel begins its work when all results of this one are written: XLA
  has every kernel wait for that as it begins, also those of Pallas. Only the
  launch is saved. The number is given through the instruction, or the compiler
  would leave it out.

  Args:
    axis: of the grid.
    interpret: whether the kernel is computed with JAX's operations, where no
      launch is to be saved.

  Returns:
    [1] int32.
  """
  number = jnp.full((1,), pl.program_id(axis), jnp.int32)
  if interpret:
    return number
  [number] = triton.elementwise_inline_asm(
    "griddepcontrol.launch_dependents; mov.b32 $0, $1;",
    args=[number],
    constraints="=r,r",
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct((1,), jnp.int32)],
  )
  return number
