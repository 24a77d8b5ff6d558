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

import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu import early_launch
from speccascade.native.gpu.block_attention import NO_SCORE, Offsets

# A reference to an array in the device's memory.
Ref = Any
# The running maximum and sum of the weights, and the mixed values.
Softmax = tuple[jax.Array, jax.Array, jax.Array]
_LEAST = 16  # of each side of a product


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a program goes over a cache.

  Attributes:
    slots: of one part of a cache.
    stages: parts that are fetched ahead, and one.
    warps: of a program.
  """

  slots: int = 64
  stages: int = 2
  warps: int = 4


def configuration(*arrays: jax.Array, **options: Any) -> Configuration:
  """Returns the configuration of every size."""
  del arrays, options
  return Configuration()


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
  *refs: Ref,
  by_distance: bool,
  scale: float,
  slots: int,
  interpret: bool,
) -> None:
  """Attends for one row and one key head, and writes the row's new tokens.

  Without written caches no token is new, and all slots are seen.
  """
  places_ref = refs[0] if by_distance else None
  out_ref, *written_refs = refs[by_distance:]
  row, head = pl.program_id(0), pl.program_id(1)
  num_queries, num_heads, width = query_ref.shape[1:]
  num_key_heads, num_slots = keys_ref.shape[1], keys_ref.shape[3]
  group = num_heads // num_key_heads
  # A line of the products is a query of one of the heads that share keys.
  line = jnp.arange(_padded(group * num_queries))
  is_line = line < group * num_queries
  query_of = line // group
  head_of = early_launch.program_id(1, interpret) * group + line % group
  d = jnp.arange(_padded(width))
  is_d = d < width
  where = is_line[:, None] & is_d[None, :]
  queries = triton.load(
    query_ref.at[row, query_of[:, None], head_of[:, None], d[None, :]],
    mask=where,
    other=0.0,
  )
  queries = (queries.astype(jnp.float32) * scale).astype(queries.dtype)
  first_slot = start_ref[row]

  def biases(slot: jax.Array, is_slot: jax.Array) -> jax.Array:
    mask = is_line[:, None] & is_slot[None, :]
    if places_ref is not None:
      distance = slot[None, :] - (first_slot + query_of)[:, None]
      entry = jnp.clip(distance + num_slots - 1, 0, 2 * num_slots - 2)
      index = triton.load(places_ref.at[entry], mask=mask, other=0)
      bias_head = jnp.minimum(head_of, bias_ref.shape[0] - 1)[:, None]
      bias = triton.load(bias_ref.at[bias_head, index], mask=mask, other=0.0)
      return jnp.where(distance > 0, NO_SCORE, bias.astype(jnp.float32))
    bias_row = jnp.minimum(row, bias_ref.shape[0] - 1)
    bias_head = jnp.minimum(head_of, bias_ref.shape[1] - 1)
    bias_query = jnp.minimum(query_of, bias_ref.shape[2] - 1)
    return triton.load(
      bias_ref.at[
        bias_row, bias_head[:, None], bias_query[:, None], slot[None, :]
      ],
      mask=mask,
      other=0.0,
    ).astype(jnp.float32)

  def add(
    carry: Softmax,
    keys: jax.Array,
    values: jax.Array,
    bias: jax.Array,
    is_slot: jax.Array,
  ) -> Softmax:
    """Adds slots to the running softmax: keys [D, S], values [S, D]."""
    most, total, mixed = carry
    scores = triton.dot(queries, keys, allow_tf32=False) + bias
    scores = jnp.where(is_slot[None, :], scores, NO_SCORE)
    new_most = jnp.maximum(most, jnp.max(scores, axis=1))
    shrink = jnp.exp(most - new_most)
    weights = jnp.exp(scores - new_most[:, None])
    weights = jnp.where(is_slot[None, :], weights, 0.0)
    total = total * shrink + jnp.sum(weights, axis=1)
    mixed = mixed * shrink[:, None] + triton.dot(
      weights.astype(values.dtype), values, allow_tf32=False
    )
    return new_most, total, mixed

  num_seen = first_slot if written_refs else num_slots
  new = None
  if written_refs:
    # Read before the loop, whose products would be waited for.
    num_new = new_keys_ref.shape[1]
    at_new = jnp.arange(_padded(num_new))
    is_new = at_new < num_new
    where_new = is_new[:, None] & is_d[None, :]
    at = (row, at_new[:, None], head, d[None, :])
    # NaN and infinities are written as 0: see `cache.write`.
    keys, values = (
      jnp.where(jnp.isfinite(x), x, 0.0)
      for x in (
        triton.load(ref.at[at], mask=where_new, other=0.0)
        for ref in (new_keys_ref, new_values_ref)
      )
    )
    slot = num_seen + at_new
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
    new = keys.T, values, biases(slot, is_new), is_new
  part = min(slots, _padded(num_slots))

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
    return add(carry, keys, values, biases(slot, is_slot), is_slot)

  lines = line.shape
  carry = (
    jnp.full(lines, NO_SCORE, jnp.float32),
    jnp.zeros(lines, jnp.float32),
    jnp.zeros((*lines, *d.shape), jnp.float32),
  )
  carry = jax.lax.fori_loop(0, pl.cdiv(num_seen, part), add_part, carry)
  if new is not None:
    carry = add(carry, *new)
  _, total, mixed = carry
  mixed = mixed / jnp.where(is_line, total, 1.0)[:, None]
  triton.store(
    out_ref.at[row, query_of[:, None], head_of[:, None], d[None, :]],
    mixed.astype(out_ref.dtype),
    mask=where,
  )


@functools.partial(
  jax.jit, static_argnames=("configuration", "interpret", "scale")
)
def run(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  bias: jax.Array | Offsets,
  *,
  configuration: Configuration,
  interpret: bool,
  new: tuple[jax.Array, jax.Array] | None = None,
  start: jax.Array | None = None,
  scale: float = 1.0,
) -> tuple[jax.Array, ...]:
  """Returns what `BlockAttention.reference` does."""
  outputs, aliases = [query], {}
  places: list[jax.Array] = []
  if isinstance(bias, Offsets):
    places, bias = [bias.places], bias.values
  if new is None or start is None:
    new, start = (query, query), jnp.zeros(query.shape[:1], jnp.int32)
  else:
    outputs += [keys, values]
    aliases = {5: 1, 6: 2}
  return pl.pallas_call(
    functools.partial(
      _kernel,
      by_distance=bool(places),
      scale=scale,
      slots=configuration.slots,
      interpret=interpret,
    ),
    out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs),
    grid=(query.shape[0], keys.shape[1]),
    input_output_aliases=aliases,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=configuration.stages
    ),
    name="block_attention",
  )(start, query, *new, bias, keys, values, *places)
