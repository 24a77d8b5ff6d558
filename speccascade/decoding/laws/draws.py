"""The random numbers of a row, and the token that one of them draws.

All randomness of the core is uniforms in [0, 1). Every row has its own key;
the number of the round and one fixed tag for each use are folded into it, so no
uniform serves twice. A token is drawn from a uniform by inverting the
cumulative sum of the distribution.

Why not `jax.random.categorical`? It needs V random numbers for each token,
which cost more than a small drafter's step; a uniform costs next to nothing.
And a test can put chosen uniforms in place of random ones: it knows between
which two uniforms a token is drawn, so it can drive a compiled decoder along
every path that the decoder can take.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.native import lowering
from speccascade.native.gpu import row_draws

Array = jax.Array

# What the key of a round is used for: to draft, to accept or reject each draft,
# and to draw the token after the accepted drafts.
DRAFT_TAG, ACCEPT_TAG, DRAW_TAG = range(3)
_BLOCK = 128  # probabilities that are summed before one sum is chosen


def draw(weights: Array, u: Array, otherwise: Array | None = None) -> Array:
  """Returns a token by inverting the cumulative sum; [...] int32.

  The token is the first index whose cumulative sum exceeds u * total. With
  weights .2 .5 .3 the cumulative sums are .2 .7 1: u = .1 draws token 0, u = .2
  draws token 1, and u = .9 draws token 2.

  Rounding may leave no cumulative sum above u * total, where u is next to 1.
  The last index with mass is returned there, so that a token of weight zero is
  never drawn.

  Args:
    weights: [..., V], none negative, some positive; they need not sum to 1.
    u: [...] uniforms in [0, 1).
    otherwise: [..., V], the weights where those of a row are all 0; None where
      no row has such weights.
  """
  size = weights.shape[-1]
  kernel = row_draws.choose(None, weights)
  if kernel != "xla":
    rest = None if otherwise is None else otherwise.reshape(-1, size)
    rows = weights.reshape(-1, size), u.reshape(-1).astype(weights.dtype)
    drawn = row_draws(*rows, otherwise=rest, implementation=kernel)
    return drawn.reshape(u.shape)
  if native.takes(weights, u):
    if otherwise is not None:
      empty = jnp.max(weights, axis=-1, keepdims=True) <= 0
      weights = jnp.where(empty, otherwise, weights)
    return native.draw(weights, u)
  return _inverted(weights, u, otherwise)[0]


def draw_and_sum(weights: Array, u: Array) -> tuple[Array, Array]:
  """Returns a token [...] int32, and the sum of the weights [...].

  Args:
    weights: as of `draw`.
    u: as of `draw`.
  """
  # The last cumulative sum has rounding errors of 1e-6. A sum of its own has
  # smaller ones, and takes two kernels, which count on an accelerator.
  is_plain = row_draws.choose(None, weights) == "xla"
  if is_plain and lowering.platform() != "cpu":
    return _inverted(weights, u)
  return draw(weights, u), jnp.sum(weights, axis=-1)


def _inverted(
  weights: Array, u: Array, otherwise: Array | None = None
) -> tuple[Array, Array]:
  """Returns what `draw` does, by XLA, and the sum of the weights."""
  *lead, size = weights.shape
  if size <= 2 * _BLOCK:
    totals = _cumulative(weights)
    if otherwise is not None:
      empty = totals[..., -1:] <= 0
      totals = jnp.where(empty, _cumulative(otherwise), totals)
      weights = jnp.where(empty, otherwise, weights)
    total = totals[..., -1]
    return _first_above(weights, totals, u * total), total
  # A cumulative sum over a whole vocabulary takes several passes over memory.
  # Two levels take one: sums of blocks of 128, a cumulative sum of those to
  # choose a block, and a cumulative sum inside the chosen block alone.
  blocks = -(-size // _BLOCK)
  pad = [(0, 0)] * len(lead) + [(0, blocks * _BLOCK - size)]

  def in_blocks(weights: Array) -> tuple[Array, Array, Array]:
    padded = jnp.pad(weights, pad).reshape(*lead, blocks, _BLOCK)
    sums = jnp.sum(padded, axis=-1)
    return padded, sums, _cumulative(sums)

  def inside(padded: Array, block: Array) -> Array:
    # (A block is one of them, and need not be compared with their number.)
    return jnp.take_along_axis(
      padded, block[..., None, None], axis=-2, mode="promise_in_bounds"
    )[..., 0, :]

  padded, sums, totals = in_blocks(weights)
  rest = None
  if otherwise is not None:
    # The sums say whether a row has mass: nothing else goes over the rows.
    empty = totals[..., -1:] <= 0
    rest, *others = in_blocks(otherwise)
    sums, totals = (
      jnp.where(empty, other, own) for own, other in zip((sums, totals), others)
    )
  total = totals[..., -1]
  goal = u * total
  block = _first_above(sums, totals, goal)
  # The goal inside the chosen block is what the blocks before it leave of it.
  before = jnp.take_along_axis(
    totals,
    jnp.maximum(block - 1, 0)[..., None],
    axis=-1,
    mode="promise_in_bounds",
  )
  before = jnp.where(block > 0, before[..., 0], 0)
  chosen = inside(padded, block)
  if rest is not None:
    chosen = jnp.where(empty, inside(rest, block), chosen)
  offset = _first_above(chosen, _cumulative(chosen), goal - before)
  return block * _BLOCK + offset, total


def _cumulative(weights: Array) -> Array:
  """Returns the cumulative sums of weights [..., N], none of which falls."""

  def as_sums(weights: Array) -> Array:
    # XLA's own is several kernels on a GPU. Sums of zeros and of more and more
    # weights are one, and in the order of each such sum nothing falls.
    index = jnp.arange(weights.shape[-1], dtype=jnp.int32)
    is_inside = index[None, :] <= index[:, None]
    return jnp.sum(jnp.where(is_inside, weights[..., None, :], 0), axis=-1)

  return jax.lax.platform_dependent(
    weights, cpu=lambda x: jnp.cumsum(x, axis=-1), default=as_sums
  )


def _first_above(weights: Array, totals: Array, goal: Array) -> Array:
  """Returns the first index with mass whose cumulative sum exceeds `goal`.

  Where no sum exceeds the goal, the last index with mass is returned.

  Args:
    weights: [..., N], none negative.
    totals: [..., N], their cumulative sums.
    goal: [...], a share of the sum of the weights.
  """
  size = weights.shape[-1]
  index = jax.lax.broadcasted_iota(jnp.int32, weights.shape, weights.ndim - 1)
  # An index without mass is left out even if its sum exceeds the goal. Rounding
  # can lead there: `goal - before` in `draw` may come out below 0, and then the
  # sum of a block's leading zeros exceeds it.
  mass = weights > 0
  above = mass & (totals > goal[..., None])
  first = jnp.min(jnp.where(above, index, size), axis=-1)
  last = jnp.max(jnp.where(mass, index, 0), axis=-1)
  return jnp.where(first < size, first, last)


def uniforms(keys: Array, num: int) -> Array:
  """Returns [B, num] float32 uniforms in [0, 1), a row from each key [B].

  Row b holds the numbers that `jax.random.uniform(keys[b], (num,))` gives.
  """
  counter = jnp.arange(num, dtype=jnp.uint32)[None]
  first, second = _threefry(keys, jnp.zeros_like(counter), counter)
  # 23 random bits become the fraction of a float32 in [1, 2), of which 1 is
  # subtracted: 0x3F800000 is 1.0.
  mantissa = ((first ^ second) >> 9) | jnp.uint32(0x3F800000)
  return jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1


def fold_in(keys: Array, data: Array | int) -> Array:
  """Returns keys [B] with `data`, a number or [B] int32, folded into each.

  They are the keys that `jax.random.fold_in(keys[b], data[b])` gives.
  """
  data = jnp.asarray(data, jnp.int32).astype(jnp.uint32)
  data = jnp.broadcast_to(data, keys.shape)[:, None]
  both = _threefry(keys, jnp.zeros_like(data), data)
  return jax.random.wrap_key_data(
    jnp.concatenate(both, axis=-1), impl="threefry2x32"
  )


def _threefry(keys: Array, first: Array, second: Array) -> tuple[Array, Array]:
  """Returns the Threefry-2x32 hash of two words under each key.

  On a CPU JAX compiles its own hash as a loop of many small operations, which
  costs more than a small drafter's step. Written out, all rounds of the hash
  fuse into one operation.

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
  # Five groups of four rounds; after each group key words are mixed in.
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

  The key of a row depends on the example and not on the batch, so the output of
  a row depends neither on its neighbours nor on the batch size or padding.

  Args:
    seed: of the run.
    trial: number of the trial, where examples are decoded several times.
    example_index: [B] int, the place of each example in the data set.
  """
  key = jax.random.key(seed, impl="threefry2x32")
  return _row_keys(key, trial, jnp.asarray(example_index, jnp.uint32))


@jax.jit
def _row_keys(key: Array, trial: Array, index: Array) -> Array:
  """Returns [B] keys: `key` with `trial`, then with each index folded in.

  As one program it is compiled once; two calls of `jax.random.fold_in` are two
  programs, which take half a second before the first token.
  """
  # Broadcast before the first of them, the key makes XLA's simplifier go round
  # in a circle and report an error.
  keys = fold_in(key[None], trial)
  return fold_in(jnp.broadcast_to(keys, index.shape), index)
