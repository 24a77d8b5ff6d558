"""Attention of a block of few tokens to a cache, or to a source.

Axes: B rows, N queries, F new tokens, L slots, H query heads, K key heads, D
head width.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation

# A score that no slot can have; its weight is 0.
NO_SCORE = -1e30


class Offsets(NamedTuple):
  """The bias of a chain: a slot's depends on its distance to the query.

  Query n of a row is at slot start + n, and no slot after it is seen.

  Attributes:
    values: [H or 1, N].
    places: [2 L - 1] int32; entry j is the place in `values` of the distance
      j - (L - 1).
  """

  values: jax.Array
  places: jax.Array

  def bias(self, start: jax.Array, num_queries: int) -> jax.Array:
    """Returns the bias [B, H or 1, N, L] float32, mask included."""
    num_slots = (self.places.size + 1) // 2
    query = start[:, None] + jnp.arange(num_queries)[None]
    distance = jnp.arange(num_slots)[None, None] - query[:, :, None]
    entry = jnp.clip(distance + num_slots - 1, 0, 2 * num_slots - 2)
    values = self.values[:, self.places[entry]]
    bias = jnp.moveaxis(values, 0, 1).astype(jnp.float32)
    is_later = jnp.broadcast_to((distance > 0)[:, None], bias.shape)
    return jnp.where(is_later, NO_SCORE, bias)


class BlockAttention(Operation):
  """Writes a block to a cache and attends to it; see `reference`."""

  name = "block_attention"
  modules: ClassVar = {
    "triton": "speccascade.native.gpu.block_attention_triton"
  }

  def reference(
    self,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    bias: jax.Array | Offsets,
    *,
    new: tuple[jax.Array, jax.Array] | None = None,
    start: jax.Array | None = None,
    scale: float = 1.0,
  ) -> tuple[jax.Array, ...]:
    """Writes new keys and values, if any, and attends to what is there.

    Args:
      query: [B, N, H, D].
      keys: [B, K, D, L].
      values: [B, K, L, D].
      bias: [B or 1, H or 1, N or 1, L], position bias and mask; or the
        `Offsets` of a block that is a chain.
      new: keys and values [B, F, K, D] of the tokens that are written to the
        cache; NaN and infinities are written as 0. None attends to keys and
        values that are whole, such as a source's.
      start: [B] int32, the slot of each row's first new token, with start + F
        <= L; slots past the new tokens are not seen. None without new ones.
      scale: factor of the queries.

    Returns:
      ([B, N, H, D] in the dtype of the queries, keys, values), or the first of
      them alone where nothing is new.
    """
    written: tuple[jax.Array, ...] = ()
    seen = jnp.ones((1, keys.shape[3]), bool)
    if new is not None and start is not None:
      new_keys, new_values = (jnp.where(jnp.isfinite(x), x, 0) for x in new)
      turned = new_keys.transpose(0, 2, 3, 1), new_values.transpose(0, 2, 1, 3)
      keys = _write(keys, turned[0], start, 2)
      values = _write(values, turned[1], start, 1)
      written = (keys, values)
      end = start + new_keys.shape[1]
      seen = jnp.arange(keys.shape[3])[None] < end[:, None]
    if isinstance(bias, Offsets):
      assert start is not None, "a whole source has no distances"
      bias = bias.bias(start, query.shape[1])
    group = query.shape[2] // keys.shape[1]
    each = [jnp.repeat(x, group, axis=1) for x in (keys, values)]
    query = (query.astype(jnp.float32) * scale).astype(query.dtype)
    scores = jnp.einsum(
      "bnhd,bhdl->bhnl",
      query,
      each[0],
      preferred_element_type=jnp.float32,
    )
    scores = scores + bias.astype(jnp.float32)
    scores = jnp.where(seen[:, None, None], scores, NO_SCORE)
    weights = jax.nn.softmax(scores).astype(query.dtype)
    mixed = jnp.einsum("bhnl,bhld->bnhd", weights, each[1])
    return (mixed, *written)

  def key(
    self,
    query: jax.Array,
    keys: jax.Array,
    *arrays: jax.Array,
    new: tuple[jax.Array, jax.Array] | None = None,
    **options: object,
  ) -> str:
    """Returns such as "16 heads of 64, 16 of keys, cached, bfloat16"."""
    del arrays, options
    heads, width = query.shape[2:]
    kind = "whole" if new is None else "cached"
    return (
      f"{heads} heads of {width}, {keys.shape[1]} of keys, {kind},"
      f" {query.dtype.name}"
    )


def _write(
  slots: jax.Array, new: jax.Array, start: jax.Array, axis: int
) -> jax.Array:
  """Returns slots [B, ...] with a block from each row's start on."""

  def write_row(slots: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(slots, new, at, axis)

  return jax.vmap(write_row)(slots, new.astype(slots.dtype), start)


block_attention = BlockAttention()
