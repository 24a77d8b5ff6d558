"""The random numbers of a row, and the token that one of them draws.

Inside the core randomness is uniforms of keys: a row's own, with the round and
one fixed tag for each use folded in, so that no draw is made twice.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from speccascade import native

Array = jax.Array

DRAFT_TAG, ACCEPT_TAG, DRAW_TAG = range(3)  # uses of a round's key
_BLOCK = 128


def draw(weights: Array, u: Array) -> Array:
  """Returns a token by inverting the cumulative sum; [...] int32.

  The first index whose cumulative sum exceeds u * total, else the last index
  with mass: a token of weight zero is never returned, whatever the rounding.
  Two levels, sums of blocks and then one block, so that the cost is one pass.

  Args:
    weights: [..., V], none negative, some positive; need not sum to 1.
    u: [...] uniforms in [0, 1).
  """
  if native.takes(weights, u):
    return native.draw(weights, u)
  *lead, size = weights.shape
  if size <= 2 * _BLOCK:
    return _first_above(weights, u * jnp.sum(weights, axis=-1))
  blocks = -(-size // _BLOCK)
  pad = [(0, 0)] * len(lead) + [(0, blocks * _BLOCK - size)]
  padded = jnp.pad(weights, pad).reshape(*lead, blocks, _BLOCK)
  sums = jnp.sum(padded, axis=-1)
  goal = u * jnp.sum(sums, axis=-1)
  block = _first_above(sums, goal)
  index = jax.lax.broadcasted_iota(jnp.int32, sums.shape, len(lead))
  before = jnp.sum(jnp.where(index < block[..., None], sums, 0), axis=-1)
  inside = jnp.take_along_axis(padded, block[..., None, None], axis=-2)
  offset = _first_above(jnp.squeeze(inside, -2), goal - before)
  return block * _BLOCK + offset


def _first_above(weights: Array, goal: Array) -> Array:
  """Returns the first index with mass whose cumulative sum exceeds `goal`."""
  size = weights.shape[-1]
  index = jax.lax.broadcasted_iota(jnp.int32, weights.shape, weights.ndim - 1)
  mass = weights > 0
  above = mass & (jnp.cumsum(weights, axis=-1) > goal[..., None])
  first = jnp.min(jnp.where(above, index, size), axis=-1)
  last = jnp.max(jnp.where(mass, index, 0), axis=-1)
  return jnp.where(first < size, first, last)


def uniforms(keys: Array, num: int) -> Array:
  """Returns [B, num] float32 uniforms in [0, 1), a row from each key [B].

  The same numbers as `jax.random.uniform(key, (num,))` of each key.
  """
  counter = jnp.arange(num, dtype=jnp.uint32)[None]
  first, second = _threefry(keys, jnp.zeros_like(counter), counter)
  # 23 bits after the point of a number in [1, 2).
  mantissa = ((first ^ second) >> 9) | jnp.uint32(0x3F800000)
  return jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1


def fold_in(keys: Array, data: Array | int) -> Array:
  """Returns keys [B] with `data`, a number or [B] int32, folded into each.

  The same keys as `jax.random.fold_in`.
  """
  data = jnp.asarray(data, jnp.int32).astype(jnp.uint32)
  data = jnp.broadcast_to(data, keys.shape)[:, None]
  both = _threefry(keys, jnp.zeros_like(data), data)
  return jax.random.wrap_key_data(
    jnp.concatenate(both, axis=-1), impl="threefry2x32"
  )


def _threefry(keys: Array, first: Array, second: Array) -> tuple[Array, Array]:
  """Returns the Threefry-2x32 hash of two words under each key.

  On a CPU JAX compiles its own as a loop of many small operations, which costs
  more than a small drafter's step; written out it is one.

  Args:
    keys: [B] typed threefry keys.
    first: [1 or B, N] uint32.
    second: [1 or B, N] uint32.

  Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
  """
  data = jax.random.key_data(keys)
  k0, k1 = data[:, :1], data[:, 1:]
  schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
  x, y = first + k0, second + k1
  for i in range(5):
    for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
      x = x + y
      y = x ^ ((y << turn) | (y >> (32 - turn)))
    x = x + schedule[(i + 1) % 3]
    y = y + schedule[(i + 2) % 3] + jnp.uint32(i + 1)
  return x, y


def row_keys(
  seed: int, trial: int, example_index: Array | Sequence[int]
) -> Array:
  """Returns one typed threefry key for each row, [B].

  The index is the example's place in the data set, so that a row's output does
  not depend on its neighbours, the batch size or padding.
  """
  key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), trial)
  index = jnp.asarray(example_index, jnp.uint32)
  return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)
