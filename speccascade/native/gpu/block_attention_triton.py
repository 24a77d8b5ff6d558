"""Attention of a block of few tokens as one kernel for a GPU, in Pallas.

XLA launches seven kernels for what a block does between two products: it cuts
queries, keys and values out of their product, writes keys and values to the
cache, multiplies queries and keys, adds the bias and takes the softmax, and
mixes the values. On a GPU each launch costs more than a microsecond, and a
decode of a few rows is made of them.

One program computes the queries of one key head in one row. It goes over the
cache in parts, with the running maximum and sum of a softmax, so that no score
leaves it. Sizes are filled up to powers of two, as Triton wants them, and what
is beyond the arrays is neither read nor written.

Axes: B rows, N queries, F new tokens, L slots, H query heads, K key heads, D
head width.
"""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

# A reference to an array in the device's memory.
Ref = Any
# The running maximum and sum of the weights, and the mixed values.
Softmax = tuple[jax.Array, jax.Array, jax.Array]
# A score that no slot can have; its weight is 0.
_NONE = -1e30
_LEAST = 16  # of each side of a product
_SLOTS = 64  # of one part of a cache


def _padded(size: int, least: int = _LEAST) -> int:
  """Returns the power of two that a size is filled up to."""
  return max(least, pl.next_power_of_2(size))


def _kernel(
  start_ref: Ref,
  query_ref: Ref,
  new_keys_ref: Ref,
  new_values_ref: Ref,
  bias_ref: Ref,
  keys_ref: Ref,
  values_ref: Ref,
  out_ref: Ref,
  *written_refs: Ref,
  scale: float,
) -> None:
  """Attends for one row and one key head, and writes the row's new tokens.

  Without `written_refs` no token is new, and all slots are seen.
  """
  row, head = pl.program_id(0), pl.program_id(1)
  num_queries, num_heads, width = query_ref.shape[1:]
  num_key_heads, num_slots = keys_ref.shape[1], keys_ref.shape[3]
  group = num_heads // num_key_heads
  # A line of the products is a query of one of the heads that share keys.
  line = jnp.arange(_padded(group * num_queries))
  is_line = line < group * num_queries
  query_of = line // group
  head_of = head * group + line % group
  d = jnp.arange(_padded(width))
  is_d = d < width
  where = is_line[:, None] & is_d[None, :]
  queries = triton.load(
    query_ref.at[row, query_of[:, None], head_of[:, None], d[None, :]],
    mask=where,
    other=0.0,
  )
  queries = (queries.astype(jnp.float32) * scale).astype(queries.dtype)
  bias_row = jnp.minimum(row, bias_ref.shape[0] - 1)
  bias_head = jnp.minimum(head_of, bias_ref.shape[1] - 1)
  bias_query = jnp.minimum(query_of, bias_ref.shape[2] - 1)

  def biases(slot: jax.Array, is_slot: jax.Array) -> jax.Array:
    return triton.load(
      bias_ref.at[
        bias_row, bias_head[:, None], bias_query[:, None], slot[None, :]
      ],
      mask=is_line[:, None] & is_slot[None, :],
      other=0.0,
    ).astype(jnp.float32)

  def add(
    carry: Softmax,
    keys: jax.Array,
    values: jax.Array,
    slot: jax.Array,
    is_slot: jax.Array,
  ) -> Softmax:
    """Adds slots to the running softmax: keys [D, S], values [S, D]."""
    most, total, mixed = carry
    scores = triton.dot(queries, keys, allow_tf32=False) + biases(slot, is_slot)
    scores = jnp.where(is_slot[None, :], scores, _NONE)
    new_most = jnp.maximum(most, jnp.max(scores, axis=1))
    shrink = jnp.exp(most - new_most)
    weights = jnp.exp(scores - new_most[:, None])
    weights = jnp.where(is_slot[None, :], weights, 0.0)
    total = total * shrink + jnp.sum(weights, axis=1)
    mixed = mixed * shrink[:, None] + triton.dot(
      weights.astype(values.dtype), values, allow_tf32=False
    )
    return new_most, total, mixed

  num_seen = start_ref[row] if written_refs else num_slots
  part = min(_SLOTS, _padded(num_slots))

  def add_part(number: jax.Array, carry: Softmax) -> Softmax:
    slot = number * part + jnp.arange(part)
    is_slot = slot < num_seen
    keys = triton.load(
      keys_ref.at[row, head, d[:, None], slot[None, :]],
      mask=is_d[:, None] & is_slot[None, :],
      other=0.0,
    )
    values = triton.load(
      values_ref.at[row, head, slot[:, None], d[None, :]],
      mask=is_slot[:, None] & is_d[None, :],
      other=0.0,
    )
    return add(carry, keys, values, slot, is_slot)

  lines = line.shape
  carry = (
    jnp.full(lines, _NONE, jnp.float32),
    jnp.zeros(lines, jnp.float32),
    jnp.zeros((*lines, *d.shape), jnp.float32),
  )
  carry = jax.lax.fori_loop(0, pl.cdiv(num_seen, part), add_part, carry)
  if written_refs:
    num_new = new_keys_ref.shape[1]
    new = jnp.arange(_padded(num_new))
    is_new = new < num_new
    where_new = is_new[:, None] & is_d[None, :]
    at = (row, new[:, None], head, d[None, :])
    # NaN and infinities are written as 0: see `cache.write`.
    keys, values = (
      jnp.where(jnp.isfinite(x), x, 0.0)
      for x in (
        triton.load(ref.at[at], mask=where_new, other=0.0)
        for ref in (new_keys_ref, new_values_ref)
      )
    )
    slot = num_seen + new
    written_keys, written_values = written_refs
    triton.store(
      written_keys.at[row, head, d[None, :], slot[:, None]],
      keys,
      mask=where_new,
    )
    triton.store(
      written_values.at[row, head, slot[:, None], d[None, :]],
      values,
      mask=where_new,
    )
    carry = add(carry, keys.T, values, slot, is_new)
  _, total, mixed = carry
  mixed = mixed / jnp.where(is_line, total, 1.0)[:, None]
  triton.store(
    out_ref.at[row, query_of[:, None], head_of[:, None], d[None, :]],
    mixed.astype(out_ref.dtype),
    mask=where,
  )


def _call(
  arrays: tuple[jax.Array, ...],
  query: jax.Array,
  keys: jax.Array,
  outputs: tuple[jax.ShapeDtypeStruct, ...],
  aliases: dict[int, int],
  scale: float,
  interpret: bool,
) -> Any:
  """Returns what the kernel writes, of one program a row and key head."""
  return pl.pallas_call(
    functools.partial(_kernel, scale=scale),
    out_shape=(jax.ShapeDtypeStruct(query.shape, query.dtype), *outputs),
    grid=(query.shape[0], keys.shape[1]),
    input_output_aliases=aliases,
    interpret=interpret,
    compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    name="block_attention",
  )(*arrays)


@functools.partial(jax.jit, static_argnames=("scale", "interpret"))
def cached_attention(
  query: jax.Array,
  new_keys: jax.Array,
  new_values: jax.Array,
  bias: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  start: jax.Array,
  *,
  scale: float = 1.0,
  interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Writes a block's keys and values, and attends to what was written so far.

  Args:
    query: [B, N, H, D].
    new_keys: [B, F, K, D], of the tokens that are cached.
    new_values: [B, F, K, D].
    bias: [B or 1, H or 1, N or 1, L], position bias and mask.
    keys: [B, K, D, L], the cache.
    values: [B, K, L, D], the cache.
    start: [B] int32, the slot of each row's first token; start + F <= L.
    scale: factor of the queries.
    interpret: compute with JAX's operations, on any platform.

  Returns:
    ([B, N, H, D] in the dtype of the queries, keys, values).
  """
  arrays = (start, query, new_keys, new_values, bias, keys, values)
  outputs = tuple(
    jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (keys, values)
  )
  return _call(arrays, query, keys, outputs, {5: 1, 6: 2}, scale, interpret)


@functools.partial(jax.jit, static_argnames=("scale", "interpret"))
def attention(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  bias: jax.Array,
  *,
  scale: float = 1.0,
  interpret: bool = False,
) -> jax.Array:
  """Attends to keys and values that are whole, such as a source's.

  Args:
    query: [B, N, H, D].
    keys: [B, K, D, L].
    values: [B, K, L, D].
    bias: [B or 1, H or 1, N or 1, L], position bias and mask.
    scale: factor of the queries.
    interpret: compute with JAX's operations, on any platform.

  Returns:
    [B, N, H, D] in the dtype of the queries.
  """
  start = jnp.zeros(query.shape[:1], jnp.int32)
  arrays = (start, query, query, query, bias, keys, values)
  return _call(arrays, query, keys, (), {}, scale, interpret)[0]
