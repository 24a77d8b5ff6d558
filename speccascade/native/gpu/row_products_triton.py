"""Products of few rows with a kernel, as one launch for a GPU, in Pallas.

A decoder's pass over a few tokens reads each kernel once and multiplies it with
a handful of rows, so what counts is how many launches a layer has, and how many
bytes each launch keeps on their way. XLA launches one kernel for the norm
before a product, one for the product, one for the sum of its split parts, one
for the activation or the residual after it. Here one program computes some
columns of all of it.

- Rows are walked over once. The factor of a norm is the same for all inputs of
  a row, so it is applied after the product; the squares are summed on the way.
- `configuration` asks for enough parts of a kernel ahead.
- Tensor cores multiply 16 lines at a time, of which 8 rows would fill half, and
  add up inputs one step after another. So inputs are cut into two splits, and a
  line holds one split of one row. Lines and columns of different splits are
  multiplied as well, and thrown away: a row (a b c d) is the lines (a b) and
  (c d), a column (p q r s) is the columns (p q) and (r s), and of their four
  products, ap + bq and cr + ds are added.

The order in which a sum is added up depends on the configuration alone. So the
same call returns the same numbers, and up to 8 rows do not change one another.

Axes: M rows, E inputs, F outputs.
"""

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu import early_launch
from speccascade.native.gpu.row_products import ACTIVATIONS, Gathered

_LINES, _DEPTH = 16, 16  # of one product of tensor cores
# Programs that keep a GPU's multiprocessors reading, and the columns of one:
# memory is read in lines of 32 bytes.
_PROGRAMS, _LEAST_COLUMNS, _MOST_COLUMNS = 128, 16, 64
_INPUTS = 128  # of a split that one stage holds
# Bytes on their way in all programs, from which on an H100's memory is busy
# (bandwidth times latency is 1.75 MB), its multiprocessors, and the bytes of
# shared memory that their programs share.
_IN_FLIGHT, _MULTIPROCESSORS, _SHARED = 2.5e6, 132, 227 * 1024


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a product is cut into programs.

  Attributes:
    columns: outputs of each kernel that one program computes.
    splits: parts that the inputs are cut into, which are multiplied side by
      side.
    inputs: of each split that are multiplied at a time.
    stages: times that many inputs, fetched ahead, and one.
    warps: of a program.
  """

  columns: int
  splits: int
  inputs: int
  stages: int
  warps: int = 4


def configuration(
  x: jax.Array | Gathered,
  kernels: tuple[jax.Array, ...],
  *,
  norm: jax.Array | None = None,
  **options: Any,
) -> Configuration:
  """Returns the configuration of a product, by arithmetic."""
  del options
  num_in, num_kernels = x.shape[-1], len(kernels)
  num_out = max(kernel.shape[1] for kernel in kernels)
  columns = _LEAST_COLUMNS
  while columns < _MOST_COLUMNS and num_out // (2 * columns) >= _PROGRAMS:
    columns *= 2
  lines = max(_LINES, pl.next_power_of_2(x.size // num_in))
  is_half = 2 * (x.size // num_in) <= _LINES
  splits = 2 if is_half and num_in % (2 * _DEPTH) == 0 else 1
  inputs = _INPUTS if lines == _LINES else _INPUTS // 2
  num_parts = pl.cdiv(pl.cdiv(num_in, splits), inputs)
  # A stage holds a part of the kernels, of the rows, and of the norm's scale.
  of_kernels = num_kernels * inputs * splits * columns * x.dtype.itemsize
  of_rows = lines * inputs * x.dtype.itemsize * (1 if norm is None else 2)
  programs = pl.cdiv(num_out, columns)
  together = min(pl.cdiv(programs, _MULTIPROCESSORS), 4)
  reading = min(programs, together * _MULTIPROCESSORS)
  ahead = max(2, math.ceil(_IN_FLIGHT / reading / of_kernels))
  most = _SHARED // together // (of_kernels + of_rows) - 1
  return Configuration(
    columns, splits, inputs, 1 + max(1, min(ahead, num_parts, most))
  )


def _kernel(
  *refs: Any,
  num_kernels: int,
  has_norm: bool,
  has_residual: bool,
  gathers: tuple[bool, bool],
  activations: tuple[str, ...],
  epsilon: float,
  configuration: Configuration,
  interpret: bool,
) -> None:
  """Computes some columns of each product; see `run`."""
  given = iter(refs)
  x_ref = next(given)
  index_ref = next(given) if gathers[0] else None
  scale_ref = next(given) if has_norm else None
  kernel_refs = [next(given) for _ in range(num_kernels)]
  residual_ref = next(given) if has_residual else None
  residual_index_ref = next(given) if gathers[1] else None
  out_refs = [*given]
  num_rows, num_in = out_refs[0].shape[0], x_ref.shape[1]
  columns, splits = configuration.columns, configuration.splits
  inputs = configuration.inputs
  rows = max(_LINES // splits, pl.next_power_of_2(num_rows))
  depth = pl.cdiv(num_in, splits)  # inputs of a split
  # (`lax.div` and `lax.rem`, whose results Triton knows to be consecutive.)
  line, place = jnp.arange(splits * rows), jnp.arange(splits * columns)
  row, split = (f(line, jnp.int32(rows)) for f in (jax.lax.rem, jax.lax.div))
  is_row = (row < num_rows)[:, None]
  source = _sources(x_ref, index_ref, row, num_rows)
  first = early_launch.program_id(0, interpret) * columns
  column = first + jax.lax.rem(place, jnp.int32(columns))
  split_of_column = jax.lax.div(place, jnp.int32(columns))
  # What is written. The residual is read before the loop, whose loads would be
  # waited for.
  row_out, column_out = jnp.arange(rows), first + jnp.arange(columns)
  masks = [
    (row_out < num_rows)[:, None] & (column_out < ref.shape[1])[None, :]
    for ref in out_refs
  ]
  residual = None
  if residual_ref is not None:
    at = _sources(residual_ref, residual_index_ref, row_out, num_rows)
    residual = triton.load(
      residual_ref.at[at[:, None], column_out[None, :]],
      mask=masks[0],
      other=0.0,
    )

  def multiply(
    number: jax.Array, carry: tuple[jax.Array, ...]
  ) -> tuple[jax.Array, ...]:
    squares, *sums = carry
    within = number * inputs + jnp.arange(inputs)
    is_within = within < depth
    at = within[None, :]
    if splits > 1:
      at = split[:, None] * depth + at
    is_input = is_within[None, :] & (at < num_in)
    x = triton.load(
      x_ref.at[source[:, None], at], mask=is_row & is_input, other=0.0
    )
    if scale_ref is not None:
      wide = x.astype(jnp.float32)
      squares = squares + wide * wide
      x = x * triton.load(scale_ref.at[at], mask=is_input, other=0.0)
    at = split_of_column[None, :] * depth + within[:, None]
    is_input = is_within[:, None] & (at < num_in)
    results = [squares]
    for ref, before in zip(kernel_refs, sums):
      is_column = (column < ref.shape[1])[None, :]
      kernel = triton.load(
        ref.at[at, column[None, :]], mask=is_input & is_column, other=0.0
      )
      results.append(before + triton.dot(x, kernel, allow_tf32=False))
    return tuple(results)

  # Without a norm nothing is squared.
  squares = jnp.zeros((line.size, inputs if has_norm else 1), jnp.float32)
  zero = jnp.zeros((line.size, place.size), jnp.float32)
  squares, *sums = jax.lax.fori_loop(
    0, pl.cdiv(depth, inputs), multiply, (squares, *[zero] * num_kernels)
  )
  if splits > 1:
    is_own = split[:, None] == split_of_column[None, :]
    # [splits, rows, splits, columns], of which two are the same.
    sums = [
      jnp.where(is_own, x, 0.0)
      .reshape(splits, rows, splits * columns)
      .sum(axis=0)
      .reshape(rows, splits, columns)
      .sum(axis=1)
      for x in sums
    ]
  if has_norm:
    square = squares.sum(axis=1)
    if splits > 1:
      square = square.reshape(splits, rows).sum(axis=0)
    factor = jax.lax.rsqrt(square / num_in + epsilon)
    sums = [x * factor[:, None] for x in sums]
  dtype = out_refs[0].dtype
  results = [x.astype(dtype) for x in sums]
  if activations:
    gates = [
      ACTIVATIONS[name](x.astype(jnp.float32))
      for name, x in zip(activations, results)
    ]
    results = [functools.reduce(operator.mul, gates).astype(dtype)]
  for ref, result, mask in zip(out_refs, results, masks):
    if residual is not None:
      result = result + residual
    place_out = (row_out[:, None], column_out[None, :])
    triton.store(ref.at[place_out], result, mask=mask)


def _sources(
  ref: Any, index_ref: Any | None, row: jax.Array, num_rows: int
) -> jax.Array:
  """Returns the rows of an array, or of a table, that stand for some rows."""
  if index_ref is None:
    return row
  index = triton.load(index_ref.at[row], mask=row < num_rows, other=0)
  return jnp.clip(index, 0, ref.shape[0] - 1)


@functools.partial(
  jax.jit,
  static_argnames=(
    *("configuration", "interpret", "epsilon", "activations", "is_wide"),
  ),
)
def run(
  x: jax.Array | Gathered,
  kernels: tuple[jax.Array, ...],
  *,
  configuration: Configuration,
  interpret: bool,
  norm: jax.Array | None = None,
  epsilon: float = 1e-6,
  activations: tuple[str, ...] = (),
  residual: jax.Array | Gathered | None = None,
  is_wide: bool = False,
) -> list[jax.Array]:
  """Returns what `RowProducts.reference` does."""
  shape = x.shape[:-1]
  widths = [kernel.shape[1] for kernel in kernels]
  num_programs = pl.cdiv(max(widths), configuration.columns)
  if activations:
    widths = widths[:1]
  dtype = jnp.float32 if is_wide else x.dtype
  arrays = [*_flat(x), *([] if norm is None else [norm]), *kernels]
  if residual is not None:
    arrays += _flat(residual)
  results = pl.pallas_call(
    functools.partial(
      _kernel,
      num_kernels=len(kernels),
      has_norm=norm is not None,
      has_residual=residual is not None,
      gathers=(isinstance(x, Gathered), isinstance(residual, Gathered)),
      activations=activations,
      epsilon=epsilon,
      configuration=configuration,
      interpret=interpret,
    ),
    out_shape=[
      jax.ShapeDtypeStruct((math.prod(shape), width), dtype) for width in widths
    ],
    grid=(num_programs,),
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=configuration.stages
    ),
    name="few_rows",
  )(*arrays)
  return [y.reshape(*shape, y.shape[1]) for y in results]


def _flat(x: jax.Array | Gathered) -> list[jax.Array]:
  """Returns rows as the kernel takes them: [M, E], or a table and [M]."""
  if isinstance(x, Gathered):
    return [x.table, x.rows.reshape(-1)]
  return [x.reshape(-1, x.shape[-1])]
