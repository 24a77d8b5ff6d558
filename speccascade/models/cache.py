"""The block cache of a decoder: writing, looking back, keeping a path.

Rows have lengths of their own, so every function takes each row's start.
The keys of a cache are turned, [..., D, L], so that the product of queries and
keys reads neighbours.

Axes: B rows, N fed tokens, L slots, H heads, D head width, K nodes of a path.
"""

from collections.abc import Sequence
import functools
from typing import Any

from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import tree_windows
from speccascade.models.attention import MASKED
from speccascade.models.sharding import partitioning
from speccascade.native.gpu import kept_path

KEY_AXES = ("batch", "heads", "kv", "length")
VALUE_AXES = ("batch", "heads", "length", "kv")
LayerCache = tuple[jax.Array, jax.Array]  # keys [B,H,D,L], values [B,H,L,D]

# With more rows than this, a loop over rows compiles to less code.
MAX_UNROLLED_ROWS = 16
# A TPU writes a block to so many slots by a product, which rewrites all
# slots: docs/slices.md has the cycles of both ways.
MOST_MULTIPLIED_SLOTS = 512
# Of one row a TPU reads slots by a product, if there are no more than these.
MOST_TURNED_SLOTS = 1024


def constrain(cache: LayerCache) -> LayerCache:
  """Returns one layer's cache, constrained to where a layout puts it."""
  keys, values = cache
  return (
    with_sharding_constraint(keys, KEY_AXES),
    with_sharding_constraint(values, VALUE_AXES),
  )


def write_slots(
  slots: jax.Array, new: jax.Array, start: jax.Array, axis: int
) -> jax.Array:
  """Writes new [B, ...] into slots [B, ...]; every platform the same numbers.

  `dynamic_update_slice` moves a start that leaves no room, and good slots would
  be overwritten: the caller sees to it that start + N <= L.

  Args:
    slots: [B, ...] with L slots along `axis`.
    new: [B, ...] with N slots along `axis`; other axes as in `slots`. All
      numbers are finite.
    start: [B] int32, each row's first slot.
    axis: number of the axis, at least 1.
  """
  rows, products, mapped = (
    functools.partial(function, axis=axis)
    for function in (update_rows, add_products, map_rows)
  )
  num_rows, num_slots = slots.shape[0], slots.shape[axis]
  is_cut = partitioning.is_cut()
  if num_rows == 1 and not is_cut:
    return rows(slots, new, start)
  # Of rows that lie on several devices, updates one after another would send
  # every row to every device.
  has_few_rows = num_rows <= MAX_UNROLLED_ROWS and not is_cut
  on_tpu = rows if has_few_rows else mapped
  if num_slots <= MOST_MULTIPLIED_SLOTS:
    on_tpu = products
  return jax.lax.platform_dependent(
    slots,
    new,
    start,
    cpu=mapped if is_cut else rows,
    tpu=on_tpu,
    default=mapped,
  )


def update_rows(
  slots: jax.Array, new: jax.Array, start: jax.Array, *, axis: int
) -> jax.Array:
  """As `write_slots`, by one update for each row.

  `vmap` would make a scatter, which also reads the old values; XLA's CPU
  backend then copies the whole cache at every step of a decoding loop.
  """

  def write_row(b, slots):
    row = jax.lax.dynamic_slice_in_dim(new, b, 1)
    at: list[Any] = [0] * slots.ndim
    at[0], at[axis] = b, start[b]
    return jax.lax.dynamic_update_slice(slots, row, at)

  if slots.shape[0] > MAX_UNROLLED_ROWS:
    return jax.lax.fori_loop(0, slots.shape[0], write_row, slots)
  for b in range(slots.shape[0]):
    slots = write_row(b, slots)
  return slots


def map_rows(
  slots: jax.Array, new: jax.Array, start: jax.Array, *, axis: int
) -> jax.Array:
  """As `write_slots`, by a mapped update, which is a scatter.

  On a GPU it is one kernel for all rows. It needs no row of another device.
  """

  def write_one(slots, new, start):
    return jax.lax.dynamic_update_slice_in_dim(slots, new, start, axis - 1)

  return jax.vmap(write_one)(slots, new, start)


def add_products(
  slots: jax.Array, new: jax.Array, start: jax.Array, *, axis: int
) -> jax.Array:
  """As `write_slots`, by a product that moves the block to its slots.

  A TPU multiplies where it would go through the rows one by one. All slots are
  written again. With start 3 the second new token is multiplied by 1 for slot 4
  and by 0 for all other slots, so that sums are exact. Of a float32 number a
  product of bfloat16 would keep 8 bits, so the highest precision is asked for.
  """
  num_slots, num_new = slots.shape[axis], new.shape[axis]
  offset = jnp.arange(num_slots, dtype=jnp.int32)[None] - start[:, None]
  token = jnp.arange(num_new, dtype=jnp.int32)[None, :, None]
  is_token = (offset[:, None] == token).astype(new.dtype)  # [B, N, L]
  axes = "abcdefgh"[: slots.ndim]
  moved = jnp.einsum(
    f"{axes.replace(axes[axis], 'n')},an{axes[axis]}->{axes}",
    new,
    is_token,
    precision=jax.lax.Precision.HIGHEST,
  )
  is_new = (offset >= 0) & (offset < num_new)
  others = [i for i in range(1, slots.ndim) if i != axis]
  return jnp.where(jnp.expand_dims(is_new, others), moved, slots)


def read_slots(slots: jax.Array, index: jax.Array, axis: int) -> jax.Array:
  """Returns some slots of each row; every platform the same numbers.

  Args:
    slots: [B, ...] with L slots along `axis`. All numbers are finite.
    index: [B, K] int32, the slots that are read of each row.
    axis: number of the axis, at least 1.

  Returns:
    `slots` with K slots along `axis`.
  """
  gathered, products = (
    functools.partial(function, axis=axis)
    for function in (gather_slots, read_products)
  )
  is_one = slots.shape[0] == 1 and not partitioning.is_cut()
  if is_one:
    products = functools.partial(read_turned, axis=axis)
    if slots.shape[axis] > MOST_TURNED_SLOTS:
      return gathered(slots, index)
  return jax.lax.platform_dependent(
    slots, index, tpu=products, default=gathered
  )


def gather_slots(slots: jax.Array, index: jax.Array, *, axis: int) -> jax.Array:
  """As `read_slots`, by a gather."""
  others = [i for i in range(1, slots.ndim) if i != axis]
  return jnp.take_along_axis(slots, jnp.expand_dims(index, others), axis=axis)


def read_products(
  slots: jax.Array, index: jax.Array, *, axis: int
) -> jax.Array:
  """As `read_slots`, by a product with 1 where a slot is read, and 0 elsewhere.

  To gather from many rows a TPU copies them all to another layout first.
  """
  slot = jnp.arange(slots.shape[axis], dtype=jnp.int32)[None, :, None]
  is_read = (slot == index[:, None]).astype(slots.dtype)  # [B, L, K]
  axes = "abcdefgh"[: slots.ndim]
  return jnp.einsum(
    f"{axes},a{axes[axis]}n->{axes.replace(axes[axis], 'n')}",
    slots,
    is_read,
    precision=jax.lax.Precision.HIGHEST,
  )


def read_turned(slots: jax.Array, index: jax.Array, *, axis: int) -> jax.Array:
  """As `read_products`, with slots last, as the kernel for one row has them.

  In another layout a TPU would copy a cache for it, and back.
  """
  turned = jax.lax.optimization_barrier(slots.swapaxes(axis, -1))
  read = read_products(turned, index, axis=slots.ndim - 1)
  return read.swapaxes(axis, -1)


def write(cache: LayerCache, new: LayerCache, start: jax.Array) -> LayerCache:
  """Returns one layer's cache with a block written at slots start [B].

  NaN and infinities are written as 0. The token that brought them has no
  distribution, which its own logits show; in the cache they would spoil the
  rows of tokens that do not see it, since a masked weight of 0 times NaN is
  NaN.

  Args:
    cache: keys [B, H, D, L] and values [B, H, L, D].
    new: keys [B, H, D, N] and values [B, H, N, D].
    start: [B] int32; start + N <= L.
  """
  finite = tuple(jnp.where(jnp.isfinite(x), x, 0) for x in new)

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
    return constrain(always(cache, finite, start))
  if start.shape[0] > 1:
    return always(cache, finite, start)
  # Attention drops the axis of a single row before its products. XLA's CPU
  # backend then does the update twice, for the products and for the loop's next
  # step, on three copies of the cache. A branch keeps it from doing so; it is
  # always taken.
  return jax.lax.platform_dependent(
    cache, finite, start, cpu=if_it_fits, default=always
  )


def window_by_offset(window: int | None, capacity: int) -> np.ndarray:
  """Returns the `by_offset` [1, 2 L - 1] float32 of `block_bias` of a window.

  Args:
    window: how many slots back a token sees, itself included; None is all.
    capacity: L.
  """
  offset = np.arange(1 - capacity, capacity)
  mask = np.where(offset > -(window or capacity), 0, MASKED)
  return mask[None].astype(np.float32)


def block_bias(
  by_offset: jax.Array | np.ndarray,
  start: jax.Array,
  num_fed: int,
  depth: jax.Array | None = None,
  ancestors: jax.Array | None = None,
) -> jax.Array:
  """Returns the bias [B, H, N, L] of a fed block, mask included.

  Args:
    by_offset: [H, 2 L - 1], entry j is the position bias of a key at distance
      j - (L - 1) from the query.
    start: [B] int32, the slot of each row's first fed token.
    num_fed: N.
    depth: [B, W] int32, how far each token of a tree's window is past the
      window's first slot; see `tree_windows`. None for a chain.
    ancestors: [B, N, W] bool, [b, i, j] says that token i sees the token in
      column j of the window. None for a chain.
  """
  if depth is not None and ancestors is not None:
    return _tree_bias(by_offset, start, num_fed, depth, ancestors)
  capacity = (by_offset.shape[1] + 1) // 2
  # Keys after the query are masked: entries of distance 1 and more.
  is_later = jnp.arange(by_offset.shape[1]) >= capacity
  biases = jnp.where(
    jnp.broadcast_to(is_later, by_offset.shape),
    jnp.asarray(MASKED, by_offset.dtype),
    by_offset,
  )

  rows, mapped, looked_up = (
    functools.partial(function, num_fed=num_fed)
    for function in (bias_of_rows, map_bias, look_up_bias)
  )
  num_rows, is_cut = start.shape[0], partitioning.is_cut()
  if num_rows == 1 and not is_cut:
    return rows(biases, start)
  has_few_rows = num_rows <= MAX_UNROLLED_ROWS and not is_cut
  return jax.lax.platform_dependent(
    biases,
    start,
    cpu=rows if has_few_rows else mapped,
    tpu=looked_up,
    default=mapped,
  )


def _bias_of_row(biases: jax.Array, start: jax.Array, num_fed: int):
  """Returns [H, N, L] for N tokens in a row: each window an entry earlier."""
  # With L = 4 entry j of 7 is at distance j - 3. N = 2 tokens from slot 1 on
  # take entries 1 to 5. The first token sees slots 0, 1 at distances -1, 0: its
  # window is entries 2 to 5. The second one's is entries 1 to 4.
  capacity = (biases.shape[1] + 1) // 2
  windows = jax.lax.dynamic_slice_in_dim(
    biases, capacity - start - num_fed, capacity + num_fed - 1, axis=1
  )
  first = range(num_fed - 1, -1, -1)
  return jnp.stack([windows[:, i : i + capacity] for i in first], axis=1)


def bias_of_rows(
  biases: jax.Array, start: jax.Array, *, num_fed: int
) -> jax.Array:
  """Returns the bias [B, H, N, L] of a chain, by one slice for each row.

  Args:
    biases: [H, 2 L - 1], by distance as in `block_bias`, mask included.
    start: [B] int32, the slot of each row's first fed token.
    num_fed: N.
  """
  return jnp.stack(
    [_bias_of_row(biases, start[b], num_fed) for b in range(len(start))]
  )


def map_bias(biases: jax.Array, start: jax.Array, *, num_fed: int) -> jax.Array:
  """As `bias_of_rows`, mapped, which needs no row of another device."""
  return jax.vmap(lambda first: _bias_of_row(biases, first, num_fed))(start)


def look_up_bias(
  biases: jax.Array, start: jax.Array, *, num_fed: int
) -> jax.Array:
  """As `bias_of_rows`, entry by entry: a TPU maps slices one after another."""
  capacity = (biases.shape[1] + 1) // 2
  slot = jnp.arange(capacity, dtype=jnp.int32)[None, None]
  query = start[:, None] + jnp.arange(num_fed, dtype=jnp.int32)[None]
  entry = slot + (capacity - 1) - query[:, :, None]  # [B, N, L]
  return jnp.moveaxis(biases[:, entry], 0, 1)


def _tree_bias(
  by_offset: jax.Array | np.ndarray,
  start: jax.Array,
  num_fed: int,
  depth: jax.Array,
  ancestors: jax.Array,
) -> jax.Array:
  """Returns the bias [B, H, N, L] of tokens of a tree, mask included."""
  # All positions count from the window's first slot. A slot before the window
  # holds a token of the chain, whose position is below 0: with the window's
  # first slot at 9, slot 7 is at position -2.
  capacity = (by_offset.shape[1] + 1) // 2
  window = depth.shape[1]
  first = tree_windows.first_slot(start, num_fed, depth)
  slots = jnp.arange(capacity, dtype=jnp.int32)[None]
  column = slots - first[:, None]  # [B, L], of the window
  is_chain = column < 0
  is_inside = ~is_chain & (column < window)
  column_inside = jnp.clip(column, 0, window - 1)
  key_place = jnp.take_along_axis(depth, column_inside, axis=1)
  key_place = jnp.where(is_inside, key_place, column)
  query_place = tree_windows.depth_of_fed(depth, num_fed)
  distance = key_place[:, None, :] - query_place[:, :, None]  # [B, N, L]
  is_ancestor = jnp.take_along_axis(
    ancestors, column_inside[:, None, :], axis=2
  )
  is_seen = is_chain[:, None, :] | (is_inside[:, None, :] & is_ancestor)
  # Distances past the ends are distances of slots that are not seen.
  index = jnp.clip(distance + (capacity - 1), 0, 2 * capacity - 2)
  bias = jnp.moveaxis(jnp.asarray(by_offset)[:, index], 0, 1)
  return jnp.where(
    jnp.broadcast_to(is_seen[:, None], bias.shape),
    bias,
    jnp.asarray(MASKED, bias.dtype),
  )


def keep_path(
  caches: Sequence[LayerCache],
  start: jax.Array,
  path: jax.Array,
  count: jax.Array,
) -> tuple[LayerCache, ...]:
  """Returns the caches of layers with a fed tree's path moved to its front.

  Args:
    caches: keys [B, H, D, L] and values [B, H, L, D] of each layer.
    start: [B] int32, the slot of each row's first node.
    path: [B, K] int32 nodes, in order of depth.
    count: [B] int32, how many of the K nodes are kept.
  """
  num_slots = caches[0][0].shape[3]
  # More nodes than slots are never kept.
  path = path[:, :num_slots]
  if not path.shape[1]:
    return tuple(caches)
  slots, first = tree_windows.kept_slots(num_slots, start, path, count)
  kernel = kept_path.choose(None, caches)
  if kernel != "xla" and not partitioning.is_cut():
    return kept_path(caches, slots, first, implementation=kernel)

  def keep(cache: LayerCache) -> LayerCache:
    kept = (
      read_slots(cache[0], slots, axis=3),
      read_slots(cache[1], slots, axis=2),
    )
    return write(cache, kept, first)

  return tuple(map(keep, caches))
