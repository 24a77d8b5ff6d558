"""Products of few rows with a kernel, as one launch for a GPU, in Pallas.

A decoder's pass over a few tokens reads each kernel once and multiplies it with
a handful of rows, so what counts is how many launches a layer has. XLA launches
one for the norm before a product, one for the product, one for the sum of its
split parts, one for the activation or the residual after it. Here the norm is
computed by each program that needs it, from rows which all programs read from
the same cache, and the rest is done by the program that has the numbers.

Axes: M rows, E inputs, F outputs.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu.row_products import ACTIVATIONS

_LEAST_ROWS = 16  # of a product of tensor cores
_INPUTS = 128  # that are multiplied at a time
# Programs that keep a GPU's multiprocessors reading, and the fewest columns of
# one: memory is read in lines of 32 bytes.
_PROGRAMS, _LEAST_COLUMNS, _MOST_COLUMNS = 128, 16, 64


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a product is cut into programs.

  Attributes:
    columns: outputs of each kernel that one program computes.
    stages: parts of a kernel that are fetched ahead, and one.
    warps: of a program.
  """

  columns: int
  stages: int = 3
  warps: int = 4


def configuration(
  x: jax.Array, kernels: tuple[jax.Array, ...], **options: Any
) -> Configuration:
  """Returns the configuration of a product, by its sizes."""
  del x, options
  num_out = max(kernel.shape[1] for kernel in kernels)
  columns = _LEAST_COLUMNS
  while columns < _MOST_COLUMNS and num_out // (2 * columns) >= _PROGRAMS:
    columns *= 2
  return Configuration(columns)


def _kernel(
  *refs: Any,
  num_kernels: int,
  has_norm: bool,
  has_residual: bool,
  activations: tuple[str, ...],
  epsilon: float,
  columns: int,
) -> None:
  """Computes some columns of each product; see `run`."""
  given = iter(refs)
  x_ref = next(given)
  scale_ref = next(given) if has_norm else None
  kernel_refs = [next(given) for _ in range(num_kernels)]
  residual_ref = next(given) if has_residual else None
  out_refs = [*given]
  num_rows, num_in = x_ref.shape
  row = jnp.arange(max(_LEAST_ROWS, pl.next_power_of_2(num_rows)))
  is_row = row < num_rows
  num_parts = pl.cdiv(num_in, _INPUTS)

  def part(number: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns a part of the rows, [M, _INPUTS], and its inputs."""
    inputs = number * _INPUTS + jnp.arange(_INPUTS)
    is_input = inputs < num_in
    x = triton.load(
      x_ref.at[row[:, None], inputs[None, :]],
      mask=is_row[:, None] & is_input[None, :],
      other=0.0,
    )
    return x, inputs, is_input

  factor = None
  if has_norm:

    def square(number: jax.Array, total: jax.Array) -> jax.Array:
      x = part(number)[0].astype(jnp.float32)
      return total + jnp.sum(x * x, axis=1)

    total = jnp.zeros(row.shape, jnp.float32)
    total = jax.lax.fori_loop(0, num_parts, square, total)
    factor = jax.lax.rsqrt(total / num_in + epsilon)

  column = pl.program_id(0) * columns + jnp.arange(columns)

  def multiply(
    number: jax.Array, sums: tuple[jax.Array, ...]
  ) -> tuple[jax.Array, ...]:
    x, inputs, is_input = part(number)
    if scale_ref is not None and factor is not None:
      # Cast before the scale, as `layers.LayerNorm` does.
      x = (x.astype(jnp.float32) * factor[:, None]).astype(x.dtype)
      scale = triton.load(scale_ref.at[inputs], mask=is_input, other=0.0)
      x = x * scale[None, :]
    new = []
    for ref, before in zip(kernel_refs, sums):
      is_column = column < ref.shape[1]
      kernel = triton.load(
        ref.at[inputs[:, None], column[None, :]],
        mask=is_input[:, None] & is_column[None, :],
        other=0.0,
      )
      new.append(before + triton.dot(x, kernel, allow_tf32=False))
    return tuple(new)

  zero = jnp.zeros((*row.shape, columns), jnp.float32)
  sums = (zero,) * num_kernels
  sums = jax.lax.fori_loop(0, num_parts, multiply, sums)
  dtype = x_ref.dtype
  results = [x.astype(dtype) for x in sums]
  if activations:
    gates = [
      ACTIVATIONS[name](x.astype(jnp.float32))
      for name, x in zip(activations, results)
    ]
    results = [functools.reduce(operator.mul, gates).astype(dtype)]
  for ref, result in zip(out_refs, results):
    mask = is_row[:, None] & (column < ref.shape[1])[None, :]
    at = (row[:, None], column[None, :])
    if residual_ref is not None:
      result = result + triton.load(residual_ref.at[at], mask=mask, other=0.0)
    triton.store(ref.at[at], result, mask=mask)


@functools.partial(
  jax.jit,
  static_argnames=("configuration", "interpret", "epsilon", "activations"),
)
def run(
  x: jax.Array,
  kernels: tuple[jax.Array, ...],
  *,
  configuration: Configuration,
  interpret: bool,
  norm: jax.Array | None = None,
  epsilon: float = 1e-6,
  activations: tuple[str, ...] = (),
  residual: jax.Array | None = None,
) -> list[jax.Array]:
  """Returns what `RowProducts.reference` does."""
  *shape, num_in = x.shape
  rows = x.reshape(-1, num_in)
  widths = [kernel.shape[1] for kernel in kernels]
  num_programs = pl.cdiv(max(widths), configuration.columns)
  if activations:
    widths = widths[:1]
  arrays = [rows, *([] if norm is None else [norm]), *kernels]
  if residual is not None:
    arrays.append(residual.reshape(-1, widths[0]))
  results = pl.pallas_call(
    functools.partial(
      _kernel,
      num_kernels=len(kernels),
      has_norm=norm is not None,
      has_residual=residual is not None,
      activations=activations,
      epsilon=epsilon,
      columns=configuration.columns,
    ),
    out_shape=[
      jax.ShapeDtypeStruct((rows.shape[0], width), x.dtype) for width in widths
    ],
    grid=(num_programs,),
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=configuration.stages
    ),
    name="few_rows",
  )(*arrays)
  return [y.reshape(*shape, y.shape[1]) for y in results]
