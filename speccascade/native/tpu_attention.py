"""Attention of one row's block as one kernel for a TPU, in Pallas.

XLA makes nine operations of what a block does between two products: it tests
keys and values, turns them, writes them to the cache, multiplies by the keys of
each head, takes the softmax, multiplies by the values of each head, turns the
result. Each costs a TPU more than a microsecond, however small.

Here heads stay joined. Each query is repeated for every head, with zeros in
the columns of the other heads, so that one product gives the scores of all
heads, and one more mixes their values: of its result each line keeps the
columns of its own head. The zeros add nothing to a sum, and a TPU multiplies
128 x 128 numbers at a time in any case. New keys and values are moved to their
slots by a product with 1 and 0, see `cache.add_products`.

The norm before the projections is a factor of each token, which the kernel
computes from what was projected and multiplies the projections by.

Axes: N queries, L slots, H heads, D head width, E model width.
"""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu
import jax.numpy as jnp

# A reference to an array in the device's memory.
Ref = Any
_LINES = 8  # numbers of float32 that lie below each other in a register


def padded_heads(num_heads: int) -> int:
  """Returns the number of lines that a query has in the kernel: H or more."""
  return pl.cdiv(num_heads, _LINES) * _LINES


def lines(bias: jax.Array) -> jax.Array:
  """Returns a bias [H, N, L] as the kernel takes it, [N * lines, L] float32.

  Line n * `padded_heads(H)` + h is query n of head h.
  """
  num_heads, _, num_slots = bias.shape
  more = padded_heads(num_heads) - num_heads
  bias = jnp.pad(bias.swapaxes(0, 1), ((0, 0), (0, more), (0, 0)))
  return bias.reshape(-1, num_slots).astype(jnp.float32)


def _product(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
  """Returns x times y in float32, summed over an axis of each."""
  exact = x.dtype == jnp.float32
  return jax.lax.dot_general(
    x,
    y,
    (((axes[0],), (axes[1],)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if exact else None,
    preferred_element_type=jnp.float32,
  )


def _put(
  slots: jax.Array, new: jax.Array, start: jax.Array, num_new: int
) -> jax.Array:
  """Returns slots [H D, L] with the first of new [N, H D] at their slots."""
  # NaN and infinities are written as 0: see `cache.write`.
  new = jnp.where(jnp.abs(new) < jnp.inf, new, 0.0).astype(slots.dtype)
  shape = new.shape[0], slots.shape[1]
  slot = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  token = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
  goes = (slot == start + token) & (token < num_new)
  moved = _product(new, goes.astype(jnp.float32).astype(slots.dtype), (0, 0))
  slot = jax.lax.broadcasted_iota(jnp.int32, slots.shape, 1)
  is_new = (slot >= start) & (slot < start + num_new)
  return jnp.where(is_new, moved.astype(slots.dtype), slots)


def _attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  bias: jax.Array,
  out_ref: Ref,
  num_heads: int,
) -> None:
  """Writes the mixed values [N, H D] of queries [N, H D] float32."""
  num_queries, width = query.shape
  head_dim, num_lines = width // num_heads, padded_heads(num_heads)
  shape = num_lines, width
  first = jax.lax.broadcasted_iota(jnp.int32, shape, 0) * head_dim
  column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  is_own = (column >= first) & (column < first + head_dim)
  apart = [
    jnp.where(is_own, jnp.broadcast_to(query[n : n + 1], shape), 0.0)
    for n in range(num_queries)
  ]
  queries = jnp.concatenate(apart).astype(keys.dtype)
  scores = _product(queries, keys, (1, 0)) + bias
  scores = scores - jnp.max(scores, axis=1, keepdims=True)
  weights = jnp.exp(scores)
  weights = weights / jnp.sum(weights, axis=1, keepdims=True)
  mixed = _product(weights.astype(values.dtype), values, (1, 1))
  for n in range(num_queries):
    own = jnp.where(is_own, mixed[n * num_lines : (n + 1) * num_lines], 0.0)
    own = jnp.sum(own, axis=0, keepdims=True)
    out_ref[n : n + 1] = own.astype(out_ref.dtype)


def _factor(x_ref: Ref, epsilon: float) -> jax.Array:
  """Returns [N, 1], what a root mean square norm multiplies tokens by."""
  x = x_ref[...].astype(jnp.float32)
  return jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + epsilon)


def _cached_kernel(
  start_ref: Ref,
  x_ref: Ref,
  query_ref: Ref,
  new_keys_ref: Ref,
  new_values_ref: Ref,
  bias_ref: Ref,
  keys_ref: Ref,
  values_ref: Ref,
  out_ref: Ref,
  written_keys_ref: Ref,
  written_values_ref: Ref,
  *,
  num_heads: int,
  num_new: int,
  epsilon: float,
) -> None:
  """Writes new tokens to the cache, and attends to it."""
  factor, start = _factor(x_ref, epsilon), start_ref[0]
  query, new_keys, new_values = (
    ref[...].astype(jnp.float32) * factor
    for ref in (query_ref, new_keys_ref, new_values_ref)
  )
  keys = _put(keys_ref[...], new_keys, start, num_new)
  written_keys_ref[...] = keys
  values = _put(values_ref[...], new_values, start, num_new)
  written_values_ref[...] = values
  _attend(query, keys, values, bias_ref[...], out_ref, num_heads)


def _source_kernel(
  x_ref: Ref,
  query_ref: Ref,
  bias_ref: Ref,
  keys_ref: Ref,
  values_ref: Ref,
  out_ref: Ref,
  *,
  num_heads: int,
  epsilon: float,
) -> None:
  """Attends to keys and values that are whole."""
  query = query_ref[...].astype(jnp.float32) * _factor(x_ref, epsilon)
  keys, values, bias = keys_ref[...], values_ref[...], bias_ref[...]
  _attend(query, keys, values, bias, out_ref, num_heads)


def _cost(
  query: jax.Array, slots: jax.Array, num_heads: int
) -> pl.CostEstimate:
  """Returns what a compiler is told of a kernel's work."""
  num_lines = query.shape[0] * padded_heads(num_heads)
  return pl.CostEstimate(
    flops=4 * num_lines * slots.size,
    bytes_accessed=4 * slots.size * slots.dtype.itemsize,
    transcendentals=num_lines * slots.shape[1],
  )


@functools.partial(
  jax.jit, static_argnames=("num_heads", "num_new", "epsilon", "interpret")
)
def cached_attention(
  x: jax.Array,
  query: jax.Array,
  new_keys: jax.Array,
  new_values: jax.Array,
  bias: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  start: jax.Array,
  *,
  num_heads: int,
  num_new: int,
  epsilon: float = 1e-6,
  interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Writes a block's keys and values, and attends to what was written so far.

  Args:
    x: [N, E], before the norm of which `query`, `new_keys` and `new_values` are
      projections, all but its factor.
    query: [N, H D].
    new_keys: [N, H D]; the first `num_new` are written.
    new_values: [N, H D].
    bias: [N * lines, L] float32, from `lines`.
    keys: [H D, L], the cache.
    values: [H D, L], the cache, turned.
    start: [1] int32, the slot of the first token; start + num_new <= L.
    num_heads: H.
    num_new: how many tokens are cached; the others are spare.
    epsilon: of the norm.
    interpret: compute with JAX's operations, on any platform.

  Returns:
    ([N, H D] in the dtype of the queries, keys, values).
  """
  whole = pl.BlockSpec(memory_space=tpu.VMEM)
  return pl.pallas_call(
    functools.partial(
      _cached_kernel, num_heads=num_heads, num_new=num_new, epsilon=epsilon
    ),
    out_shape=tuple(
      jax.ShapeDtypeStruct(y.shape, y.dtype) for y in (query, keys, values)
    ),
    in_specs=[pl.BlockSpec(memory_space=tpu.SMEM), *[whole] * 7],
    out_specs=[whole] * 3,
    input_output_aliases={6: 1, 7: 2},
    cost_estimate=_cost(query, keys, num_heads),
    interpret=interpret,
    name="block_attention",
  )(start, x, query, new_keys, new_values, bias, keys, values)


@functools.partial(
  jax.jit, static_argnames=("num_heads", "epsilon", "interpret")
)
def source_attention(
  x: jax.Array,
  query: jax.Array,
  bias: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  num_heads: int,
  epsilon: float = 1e-6,
  interpret: bool = False,
) -> jax.Array:
  """Attends to keys and values that are whole, such as a source's.

  Args:
    x: as of `cached_attention`.
    query: [N, H D].
    bias: [1, S] float32, or as of `cached_attention`.
    keys: [H D, S].
    values: [H D, S], turned.
    num_heads: H.
    epsilon: of the norm.
    interpret: compute with JAX's operations, on any platform.

  Returns:
    [N, H D] in the dtype of the queries.
  """
  whole = pl.BlockSpec(memory_space=tpu.VMEM)
  return pl.pallas_call(
    functools.partial(_source_kernel, num_heads=num_heads, epsilon=epsilon),
    out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
    in_specs=[whole] * 5,
    out_specs=whole,
    cost_estimate=_cost(query, keys, num_heads),
    interpret=interpret,
    name="block_attention",
  )(x, query, bias, keys, values)
