"""Attention of a T5, and its position bias.

Heads are joined head-major (column h*D + d), there is no 1/sqrt(D), and the
bias is a learned number for each bucket of distances.

Axes: B rows, N queries, L keys, E model width, H heads, D head width.

Source: Raffel et al. (arXiv 1910.10683; section 2.1 has the bias) and T5X's
`examples/t5`.
"""

import functools

from flax import linen as nn
from flax.linen.partitioning import param_with_axes, with_sharding_constraint
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.models.layers import Dense, attend_within, project
from speccascade.models.t5.config import T5Config

NUM_BUCKETS = 32
MAX_DISTANCE = 128


class Attention(nn.Module):
  """Multi-head attention; keys and values can be made apart and kept."""

  config: T5Config

  def setup(self):
    cfg = self.config
    init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    # T5 folds the 1/sqrt(D) of attention into the initial query kernel.
    query_init = lambda *args: init(*args) / cfg.head_dim**0.5
    dense = functools.partial(
      Dense, cfg.num_heads * cfg.head_dim, ("embed", "joined_kv"), cfg.dtype
    )
    self.query = dense(kernel_init=query_init)
    self.key = dense(kernel_init=init)
    self.value = dense(kernel_init=init)
    self.out = Dense(cfg.emb_dim, ("joined_kv", "embed"), cfg.dtype, init)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def _split(self, x):
    x = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
    return with_sharding_constraint(x, ("batch", "length", "heads", "kv"))

  def queries(self, x):
    """Returns queries [B, N, H, D] of x [B, N, E]."""
    return self._split(self.query(x))

  def keys_values(self, x):
    """Returns keys [B, H, D, L] and values [B, H, L, D] of x [B, L, E]."""
    return self._kept(*project(x, self.key, self.value))

  def queries_keys_values(self, x):
    """Returns `queries` and `keys_values` of x [B, L, E], from one product."""
    query, key, value = project(x, self.query, self.key, self.value)
    return self._split(query), self._kept(key, value)

  def _kept(self, key, value):
    """Returns keys and values [B, L, H * D] as a cache keeps them."""
    key, value = self._split(key), self._split(value)
    return key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)

  def attend(self, query, key, value, bias, *, deterministic=True, reach=None):
    """Returns [B, N, E] for queries [B, N, H, D]; see the function `attend`.

    With `reach` [B] only so many slots of a row need be looked at, as those
    behind are masked; see `attend_within`.
    """
    if self.out.has_panels() and deterministic:
      context = native.attend(query, key, value, bias, reach)
      return self.out(context.reshape(*query.shape[:2], -1))
    options = {
      "float32_scores": self.config.float32_attention_logits,
      "dropout": functools.partial(self.dropout, deterministic=deterministic),
    }
    context = attend_within(reach, query, key, value, bias, **options)
    return self.out(context.reshape(*query.shape[:2], -1))

  def __call__(self, x, memory, bias, *, deterministic=True):
    """Returns [B, N, E]: x [B, N, E] attends to memory [B, L, E]."""
    key, value = self.keys_values(memory)
    query = self.queries(x)
    return self.attend(query, key, value, bias, deterministic=deterministic)

  def step(self, x, bias):
    """Feeds one token, or makes the cache, as T5X's `decode=True` does.

    The collection `cache` holds `cached_key` and `cached_value` [B, H, D, L]
    and `cache_index` [], one index for all rows. Without it, x [B, L, E] fixes
    its size and is not remembered.

    Args:
      x: [B, 1, E], or [B, L, E] where there is no cache yet.
      bias: [1, H, L, L], position bias and causal mask of all L positions.

    Raises:
      ValueError: if there is a cache and x is not one token long.
    """
    query, (key, value) = self.queries_keys_values(x)
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
    index = self.get_variable("cache", "cache_index")
    put = lambda name, new: jax.lax.dynamic_update_slice_in_dim(
      self.get_variable("cache", name), new, index, axis=3
    )
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

  Small distances have a bucket each, larger ones share logarithmically wider
  buckets, and everything past 128 shares the last one.

  Args:
    relative_position: int array, key position minus query position.
    bidirectional: whether keys after the query have buckets of their own
      (encoder); otherwise they all fall into bucket 0 (decoder).
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
  # The tiny number guards log(0), and T5X's bucket edges include it.
  ratio = distance.astype(np.float32) / num_exact + np.finfo(np.float32).eps
  steps = np.log(ratio) / np.log(MAX_DISTANCE / num_exact)
  far = num_exact + (steps * (num_buckets - num_exact)).astype(np.int32)
  far = np.minimum(far, num_buckets - 1)
  return first + np.where(distance < num_exact, distance, far)


class RelativePositions(nn.Module):
  """The position bias of one stack, a table [H, 32] shared by its layers."""

  config: T5Config
  bidirectional: bool

  def setup(self):
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    shape = (self.config.num_heads, NUM_BUCKETS)
    axes = ("heads", "relpos_buckets")
    self.rel_embedding = param_with_axes(
      "rel_embedding", init, shape, jnp.float32, axes=axes
    )

  def by_distance(self, relative_position: np.ndarray):
    """Returns [H, ...], the bias of key minus query position [...]."""
    buckets = relative_position_bucket(
      relative_position, bidirectional=self.bidirectional
    )
    return self.rel_embedding.astype(self.config.dtype)[:, buckets]

  def __call__(self, num_queries: int, num_keys: int):
    """Returns the bias [1, H, N, L] between all positions from 0 on.

    Bias depends on key - query only, so only N + L distances are looked up. A
    row of period P = N + L is repeated N times and cut into rows of P - 1:
    row i then starts i places earlier, so that entry [i, j] is that of j - i.
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
