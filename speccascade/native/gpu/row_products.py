"""Products of few rows, with the norm before and what follows after.

Axes: M rows, E inputs, F outputs.
"""

from collections.abc import Callable
import functools
import operator
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "gelu": jax.nn.gelu,
  "relu": jax.nn.relu,
  "silu": jax.nn.silu,
  "linear": lambda x: x,
}


class Gathered(NamedTuple):
  """Rows of a table, which are read where they are needed.

  Attributes:
    table: [T, E].
    rows: [...] int32, the row that stands at each place; clipped.
  """

  table: jax.Array
  rows: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """(..., E)."""
    return (*self.rows.shape, self.table.shape[1])

  @property
  def size(self) -> int:
    """The numbers of all rows."""
    return self.rows.size * self.table.shape[1]

  @property
  def dtype(self) -> jnp.dtype:
    """The dtype of the table."""
    return self.table.dtype


def whole(x: jax.Array | Gathered) -> jax.Array:
  """Returns rows as an array [..., E]."""
  if isinstance(x, Gathered):
    return x.table.at[x.rows].get(mode="clip")
  return x


class RowProducts(Operation):
  """Products of rows with one kernel or several; see `reference`."""

  name = "row_products"
  modules: ClassVar = {"triton": "speccascade.native.gpu.row_products_triton"}

  def reference(
    self,
    x: jax.Array | Gathered,
    kernels: tuple[jax.Array, ...],
    *,
    norm: jax.Array | None = None,
    epsilon: float = 1e-6,
    activations: tuple[str, ...] = (),
    residual: jax.Array | Gathered | None = None,
    is_wide: bool = False,
  ) -> list[jax.Array]:
    """Returns the products of rows with one kernel or several.

    Args:
      x: [..., E], an array or rows of a table.
      kernels: [E, F] each, in the dtype of `x`; the widths may differ.
      norm: [E], the scale of the root mean square norm that `x` goes through
        first, in the dtype of `x`; None leaves the norm out.
      epsilon: of the norm.
      activations: of each product, keys of `ACTIVATIONS`; the product of their
        results, as of a gated unit, takes the place of all. None are applied
        where there is none.
      residual: [..., F], is added to the one product; None adds nothing.
      is_wide: whether the products are float32, as logits are.

    Returns:
      [..., F] for each product, in the dtype of `x`, or float32.
    """
    x = whole(x)
    dtype = jnp.dtype(jnp.float32) if is_wide else x.dtype
    if norm is not None:
      wide = x.astype(jnp.float32)
      square = jnp.mean(wide * wide, axis=-1, keepdims=True)
      x = (wide * jax.lax.rsqrt(square + epsilon)).astype(x.dtype)
      x = x * jnp.broadcast_to(norm, x.shape)
    results = [
      jnp.dot(x, kernel, preferred_element_type=dtype) for kernel in kernels
    ]
    if activations:
      gates = [
        ACTIVATIONS[name](y.astype(jnp.float32))
        for name, y in zip(activations, results)
      ]
      results = [functools.reduce(operator.mul, gates).astype(dtype)]
    if residual is not None:
      results = [y + whole(residual) for y in results]
    return results

  def key(
    self,
    x: jax.Array | Gathered,
    kernels: tuple[jax.Array, ...],
    *,
    norm: jax.Array | None = None,
    activations: tuple[str, ...] = (),
    is_wide: bool = False,
    **options: object,
  ) -> str:
    """Returns such as "1024 to 2816+2816, normed, gated, 16 rows, bfloat16"."""
    del options
    widths = "+".join(str(kernel.shape[1]) for kernel in kernels)
    words = [f"{x.shape[-1]} to {widths}"]
    if norm is not None:
      words.append("normed")
    if activations:
      words.append("gated")
    if is_wide:
      words.append("wide")
    rows = max(16, 1 << (x.size // x.shape[-1] - 1).bit_length())
    return ", ".join([*words, f"{rows} rows", x.dtype.name])


row_products = RowProducts()
