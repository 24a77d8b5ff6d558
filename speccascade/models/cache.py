"""The block cache of a decoder: writing, looking back, keeping a path.

Rows stand at lengths of their own, so that every function takes each row's
start. Axes: B rows, N fed tokens, L slots, H heads, D head width.
"""

from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.models.layers import MASKED
from speccascade.models.sharding import partitioning

KEY_AXES = ("batch", "heads", "kv", "length")
VALUE_AXES = ("batch", "heads", "length", "kv")

# Beyond this many rows a loop over them compiles to less code.
MAX_UNROLLED_ROWS = 16


def constrain(cache):
  """Returns one layer's cache where a `partitioning.Layout` puts it."""
  return tuple(map(with_sharding_constraint, cache, (KEY_AXES, VALUE_AXES)))


def write_slots(slots, new, start, axis):
  """Writes new [B, ...] into slots [B, ...].

  `dynamic_update_slice` moves a start that leaves no room: the caller sees to
  it that start + N <= L.

  Args:
    slots: [B, ...] with L slots along `axis`.
    new: the same with N slots.
    start: [B] int32, each row's first slot.
    axis: of the slots, at least 1.
  """
  if partitioning.is_cut():  # rows on several devices, none picks another's
    put = jax.lax.dynamic_update_slice_in_dim
    of_row = lambda row, part, at: put(row, part, at, axis - 1)
    return jax.vmap(of_row)(slots, new, start)

  def write_row(b, slots):
    row = jax.lax.dynamic_slice_in_dim(new, b, 1)
    at = [0] * slots.ndim
    at[0], at[axis] = b, start[b]
    return jax.lax.dynamic_update_slice(slots, row, at)

  # A scatter, which `vmap` would make, also reads the old values; XLA's CPU
  # backend then copies the whole cache at every step of a decoding loop.
  if slots.shape[0] > MAX_UNROLLED_ROWS:
    return jax.lax.fori_loop(0, slots.shape[0], write_row, slots)
  for b in range(slots.shape[0]):
    slots = write_row(b, slots)
  return slots


def write(cache, new, start):
  """Returns one layer's cache with a block written at slots start [B].

  NaN and infinities are written as 0. The token that brought them has no law,
  which its own logits show; in the cache they would spoil the rows of tokens
  that do not see it, since a masked weight of 0 times NaN is NaN.

  Args:
    cache: keys [B, H, D, L] and values [B, H, L, D].
    new: keys [B, H, D, N] and values [B, H, N, D].
    start: [B] int32; start + N <= L.
  """
  new = tuple(jnp.where(jnp.isfinite(x), x, 0) for x in new)

  def always(cache, new, start):
    return (
      write_slots(cache[0], new[0], start, axis=3),
      write_slots(cache[1], new[1], start, axis=2),
    )

  def if_it_fits(cache, new, start):
    fits = start[0] + new[0].shape[3] <= cache[0].shape[3]
    skip = lambda cache, new, start: cache
    return jax.lax.cond(fits, always, skip, cache, new, start)

  if partitioning.is_cut():
    return constrain(always(cache, new, start))
  if start.shape[0] > 1:
    return always(cache, new, start)
  # The axis of one row is dropped before the products of attention, and XLA's
  # CPU backend then does the update twice, once for them and once for the
  # loop's next step, on three copies of the cache. Not so behind a branch; it
  # is always taken.
  return jax.lax.platform_dependent(
    cache, new, start, cpu=if_it_fits, default=always
  )


def block_bias(by_offset, start, num_fed, depth=None, ancestors=None):
  """Returns the bias [B, H, N, L] of a fed block, mask included.

  Args:
    by_offset: [H, 2 L - 1], entry j is the position bias of a key at distance
      j - (L - 1) from the query.
    start: [B] int32, the slot of each row's first fed token.
    num_fed: N.
    depth: [B, N] int32, place of each token past `start`, at most N - 1; None
      means 0, 1, ..., N-1.
    ancestors: [B, N, N] bool, [b, i, j] says that token i sees token j; None
      means the lower triangle.
  """
  capacity = (by_offset.shape[1] + 1) // 2
  behind = jnp.arange(by_offset.shape[1]) >= capacity
  by_offset = jnp.where(
    jnp.broadcast_to(behind, by_offset.shape),
    jnp.asarray(MASKED, by_offset.dtype),
    by_offset,
  )

  def linear(start):
    """[H, N, L] of N tokens in a row: N windows, each one entry earlier.

    With L = 4 a query at slot 1 sees slots 0, 1 at distances -1, 0: its window
    of 4 begins at entry L - 1 - 1 = 2.
    """
    windows = jax.lax.dynamic_slice_in_dim(
      by_offset, capacity - start - num_fed, capacity + num_fed - 1, axis=1
    )
    first = range(num_fed - 1, -1, -1)
    return jnp.stack([windows[:, i : i + capacity] for i in first], axis=1)

  num_rows = start.shape[0]
  if num_rows <= MAX_UNROLLED_ROWS and not partitioning.is_cut():
    bias = jnp.stack([linear(start[b]) for b in range(num_rows)])
  else:
    bias = jax.vmap(linear)(start)
  if depth is None and ancestors is None:
    return bias
  shape = (num_rows, num_fed)
  if depth is None:
    depth = jnp.broadcast_to(jnp.arange(num_fed, dtype=jnp.int32), shape)
  if ancestors is None:
    lower = jnp.tri(num_fed, dtype=bool)
    ancestors = jnp.broadcast_to(lower, (*shape, num_fed))
  bias = jnp.take_along_axis(bias, depth[:, None, :, None], axis=2)
  # Among the fed tokens, distance is that of depths, not of slots.
  between = depth[:, None, :] - depth[:, :, None]
  block = jnp.moveaxis(by_offset[:, between + (capacity - 1)], 0, 1)
  block = jnp.where(
    jnp.broadcast_to(ancestors[:, None], block.shape),
    block,
    jnp.asarray(MASKED, block.dtype),
  )
  return write_slots(bias, block, start, axis=3)


def keep_path(cache, start, path):
  """Returns one layer's cache with a fed tree's path moved to its front.

  Args:
    cache: keys [B, H, D, L] and values [B, H, L, D].
    start: [B] int32, the slot of each row's first node.
    path: [B, K] int32 nodes, in order of depth.
  """
  slots = start[:, None] + path
  keys = jnp.take_along_axis(cache[0], slots[:, None, None, :], axis=3)
  values = jnp.take_along_axis(cache[1], slots[:, None, :, None], axis=2)
  return write(cache, (keys, values), start)
