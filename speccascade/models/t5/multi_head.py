"""Attention of a T5: heads joined head-major (column h*D + d), no 1/sqrt(D).

Axes: B rows, N queries, L keys, E model width, H heads, D head width.

Source: Raffel et al. 2020 and T5X's `examples/t5`.
"""

import functools

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models.layers import Dense, attend, attend_within, project
from speccascade.models.t5.config import T5Config


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
    look = attend
    if reach is not None:
      look = functools.partial(attend_within, reach)
    context = look(
      query,
      key,
      value,
      bias,
      float32_scores=self.config.float32_attention_logits,
      dropout=functools.partial(self.dropout, deterministic=deterministic),
    )
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
