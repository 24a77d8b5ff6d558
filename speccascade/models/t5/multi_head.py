"""Attention of a T5, and its position bias.

Scores are not divided by sqrt(D). The bias is a learned number for each bucket
of distances.

Axes: B rows, N queries, L keys, E model width, H heads, D head width.

Source: Raffel et al. (arXiv 1910.10683; section 2.1 has the bias) and T5X's
`examples/t5`.
"""

import functools
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import param_with_axes
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.models.attention import attend_within
from speccascade.models.cached_stack import MultiHeadAttention
from speccascade.models.layers import Dense
from speccascade.models.t5.config import T5Config

NUM_BUCKETS = 32
MAX_DISTANCE = 128


class Attention(MultiHeadAttention):
  """Multi-head attention, whose keys and values can be computed apart."""

  config: T5Config

  def setup(self):
    cfg = self.config
    init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")

    # T5 folds the 1/sqrt(D) of attention into the initial query kernel.
    def query_init(*args):
      return init(*args) / cfg.head_dim**0.5

    def dense(kernel_init):
      features, axes = cfg.num_heads * cfg.head_dim, ("embed", "joined_kv")
      return Dense(features, axes, cfg.dtype, kernel_init)

    self.query = dense(query_init)
    self.key = dense(init)
    self.value = dense(init)
    self.out = Dense(cfg.emb_dim, ("joined_kv", "embed"), cfg.dtype, init)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def attend(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    *,
    deterministic: bool = True,
    reach: jax.Array | None = None,
  ) -> jax.Array:
    """Returns [B, N, E] for queries [B, N, H, D].

    Args:
      query: [B, N, H, D].
      key: [B, H, D, L].
      value: [B, H, L, D].
      bias: broadcasts to [B, H, N, L]; position bias and mask.
      deterministic: drop no weights.
      reach: [B] int32, how many slots of a row need be looked at, as the bias
        masks those after them; None means all. See `attention.attend_within`.
    """
    if self.out.has_panels() and deterministic:
      context = native.attend(query, key, value, bias, reach)
      return self.out(context.reshape(*query.shape[:2], -1))
    context = attend_within(
      reach,
      query,
      key,
      value,
      bias,
      float32_scores=self.config.float32_attention_logits,
      dropout=functools.partial(self.dropout, deterministic=deterministic),
    )
    return self.out(context.reshape(*query.shape[:2], -1))

  def __call__(
    self,
    x: jax.Array,
    memory: jax.Array,
    bias: jax.Array,
    *,
    deterministic: bool = True,
  ) -> jax.Array:
    """Returns [B, N, E]: x [B, N, E] attends to memory [B, L, E]."""
    key, value = self.keys_values(memory)
    query = self.queries(x)
    return self.attend(query, key, value, bias, deterministic=deterministic)

  def step(self, x: jax.Array, bias: jax.Array) -> jax.Array:
    """Feeds one token, or creates the cache, as T5X's `decode=True` does.

    The collection `cache` holds `cached_key` and `cached_value` [B, H, D, L]
    and `cache_index` [], one index for all rows. Where there is no cache yet, x
    [B, L, E] gives the cache its size, and is not remembered.

    Args:
      x: [B, 1, E], or [B, L, E] where there is no cache yet.
      bias: [1, H, L, L], position bias and causal mask of all L positions.

    Returns:
      [B, 1, E], or [B, L, E].

    Raises:
      ValueError: there is a cache, and x is not one token long.
    """
    query, (key, value) = self.queries_keys_values(x)
    # T5X's cache has values with the axes of keys.
    turned = value.swapaxes(2, 3)
    if not self.has_variable("cache", "cached_key"):
      self.put_variable("cache", "cached_key", jnp.zeros_like(key))
      self.put_variable("cache", "cached_value", jnp.zeros_like(turned))
      self.put_variable("cache", "cache_index", jnp.zeros((), jnp.int32))
      return self.attend(query, key, value, bias)
    if x.shape[1] != 1:
      raise ValueError(
        f"a cached step feeds one token to each row, got {x.shape[1]}"
      )
    index: Any = self.get_variable("cache", "cache_index")

    def put(name, new):
      slots: jax.Array = self.get_variable("cache", name)
      return jax.lax.dynamic_update_slice_in_dim(slots, new, index, axis=3)

    key, turned = put("cached_key", key), put("cached_value", turned)
    self.put_variable("cache", "cached_key", key)
    self.put_variable("cache", "cached_value", turned)
    self.put_variable("cache", "cache_index", index + 1)
    bias = jax.lax.dynamic_slice_in_dim(bias, index, 1, axis=2)
    return self.attend(query, key, turned.swapaxes(2, 3), bias)


def relative_position_bucket(
  relative_position: np.ndarray, *, bidirectional: bool
) -> np.ndarray:
  """Returns the bucket, 0..31, of each distance from query to key.

  Each small distance has a bucket of its own. Larger distances share buckets
  that grow logarithmically, and all distances past 128 share the last one.

  Args:
    relative_position: int array, key position minus query position.
    bidirectional: whether keys after the query have buckets of their own, as in
      an encoder. Else they are all in bucket 0: a decoder masks them.

  Returns:
    int array of the same shape.
  """
  distance = -np.asarray(relative_position)
  first = np.zeros_like(distance)
  num_buckets = NUM_BUCKETS
  if bidirectional:
    num_buckets //= 2
    first = num_buckets * (distance < 0)
    distance = np.abs(distance)
  distance = np.maximum(distance, 0)
  num_exact = num_buckets // 2
  # The tiny number keeps log from 0, and T5X adds it, too: without it distances
  # at an edge would be in other buckets.
  ratio = distance.astype(np.float32) / num_exact + np.finfo(np.float32).eps
  steps = np.log(ratio) / np.log(MAX_DISTANCE / num_exact)
  far = num_exact + (steps * (num_buckets - num_exact)).astype(np.int32)
  far = np.minimum(far, num_buckets - 1)
  return first + np.where(distance < num_exact, distance, far)


class RelativePositions(nn.Module):
  """The position bias of one stack, a table [H, 32] that its layers share.

  Attributes:
    config: the architecture.
    bidirectional: see `relative_position_bucket`.
  """

  config: T5Config
  bidirectional: bool

  def setup(self):
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    shape = (self.config.num_heads, NUM_BUCKETS)
    axes = ("heads", "relpos_buckets")
    self.rel_embedding = param_with_axes(
      "rel_embedding", init, shape, jnp.float32, axes=axes
    )

  def by_distance(self, relative_position: np.ndarray) -> jax.Array:
    """Returns [H, ...], the bias of key minus query position [...]."""
    buckets = relative_position_bucket(
      relative_position, bidirectional=self.bidirectional
    )
    return self.rel_embedding.astype(self.config.dtype)[:, buckets]

  def __call__(self, num_queries: int, num_keys: int) -> jax.Array:
    """Returns the bias [1, H, N, L] between all positions from 0 on.

    The bias depends on key - query only, so only N + L distances are looked up.
    A row of period P = N + L is repeated N times and split into rows of P - 1.
    Row i then starts i places earlier, so that entry [i, j] is the bias of
    distance j - i. With N = 2 and L = 3 the distances 0 1 2 -2 -1 0 1 2 -2 -1
    are split into 0 1 2 -2 and -1 0 1 2, and the first L of each row are
    wanted.
    """
    period = num_queries + num_keys
    offset = np.arange(period)
    offset = np.where(offset < num_keys, offset, offset - period)
    row = self.by_distance(offset)[:, None]
    rows = jnp.broadcast_to(row, (row.shape[0], num_queries, period))
    rows = rows.reshape(row.shape[0], num_queries * period)
    rows = rows[:, : num_queries * (period - 1)]
    rows = rows.reshape(1, row.shape[0], num_queries, period - 1)
    return rows[..., :num_keys]
