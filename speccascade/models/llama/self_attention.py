"""A layer of Llama, Mistral, Qwen and Gemma, for training and for blocks.

Kernels are [in, out], and heads are joined head-major: column h * D + d.

Axes: B rows, T text length, N fed tokens, R read positions, L cache slots, E
model width, H query heads, K key heads, D head width.
"""

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models import attention, cache, layers
from speccascade.models.block import Block
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig

Angles = tuple[jax.Array, jax.Array]  # of `rotary.angles`


def norm(config: LlamaConfig) -> layers.LayerNorm:
  return layers.LayerNorm(config.dtype, config.norm_epsilon, config.norm_offset)


class GroupedAttention(nn.Module):
  """Attention in which H / K query heads share each key head."""

  config: LlamaConfig

  def setup(self):
    cfg = self.config

    def dense(num_heads):
      axes, features = ("embed", "joined_kv"), num_heads * cfg.head_dim
      return layers.Dense(features, axes, cfg.dtype, use_bias=cfg.qkv_bias)

    self.query = dense(cfg.num_heads)
    self.key = dense(cfg.num_kv_heads)
    self.value = dense(cfg.num_kv_heads)
    axes = ("joined_kv", "embed")
    self.out = layers.Dense(cfg.emb_dim, axes, cfg.dtype, use_bias=cfg.out_bias)
    if cfg.query_key_norm:
      self.query_norm, self.key_norm = norm(cfg), norm(cfg)

  def queries(self, x: jax.Array, angles: Angles | None = None) -> jax.Array:
    """Returns queries [B, N, H, D], scaled; see `queries_keys_values`.

    Args:
      x: [B, N, E].
      angles: of `rotary.angles`, [B, N, D / 2] each; None turns nothing.
    """
    [query] = layers.project(x, self.query)
    return self._query(query, angles)

  def keys_values(self, x: jax.Array) -> cache.LayerCache:
    """Returns keys and values that are not turned, of x [B, L, width].

    The width need not be the model's: that of an encoder is its own.
    """
    key, value = layers.project(x, self.key, self.value)
    return self._key_value(key, value)

  def queries_keys_values(
    self, x: jax.Array, angles: Angles
  ) -> tuple[jax.Array, cache.LayerCache]:
    """Returns the queries, keys and values of a block, from one product.

    Args:
      x: [B, N, E].
      angles: of `rotary.angles`, [B, N, D / 2] each.

    Returns:
      (queries [B, N, H, D], scaled; (keys [B, K, D, N], values [B, K, N, D])).
    """
    query, key, value = layers.project(x, self.query, self.key, self.value)
    return self._query(query, angles), self._key_value(key, value, angles)

  def _split(self, x: jax.Array) -> jax.Array:
    """Returns heads [B, N, heads, D] of x [B, N, heads * D]."""
    x = x.reshape(*x.shape[:2], -1, self.config.head_dim)
    return with_sharding_constraint(x, ("batch", "length", "heads", "kv"))

  def _query(self, query: jax.Array, angles: Angles | None) -> jax.Array:
    query = self._split(query)
    if self.config.query_key_norm:
      query = self.query_norm(query)
    if angles is not None:
      query = rotary.turn(query, *angles)
    return query * self.config.query_factor

  def _key_value(
    self, key: jax.Array, value: jax.Array, angles: Angles | None = None
  ) -> cache.LayerCache:
    key, value = self._split(key), self._split(value)
    if self.config.query_key_norm:
      key = self.key_norm(key)
    if angles is not None:
      key = rotary.turn(key, *angles)
    return key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)

  def attend(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    reach: jax.Array | None = None,
    source: tuple[jax.Array, ...] | None = None,
  ) -> jax.Array:
    """Returns [B, N, E] for queries [B, N, H, D].

    The H / K queries of a token that share a key head become queries of that
    head side by side, so that keys are read once for all of them. With H = 4
    and K = 2, heads 0 and 1 of a token become two queries of key head 0.

    Args:
      query: [B, N, H, D], scaled.
      key: [B, K, D, L].
      value: [B, K, L, D].
      bias: [B, 1, N, L] float32, the mask; or [B, 1, 1, L], one for all tokens.
      reach: [B] int32, how many slots of a row need be looked at, or None.
      source: (keys, values, mask) of a source, in the same softmax, or None.
    """
    rows, num_fed, num_heads, head_dim = query.shape
    num_keys = key.shape[1]
    group = num_heads // num_keys
    query = query.reshape(rows, num_fed, num_keys, group, head_dim)
    query = query.swapaxes(2, 3).reshape(rows, -1, num_keys, head_dim)

    def of_group(bias):
      return jnp.repeat(bias, group, 2) if bias.shape[2] == num_fed else bias

    bias = of_group(bias)
    if source is not None:
      source = (*source[:2], of_group(source[2]))
    cap = self.config.attention_cap
    if self.out.has_panels() and cap is None and source is None:
      context = native.attend(query, key, value, bias, reach)
    else:
      context = attention.attend_within(
        reach,
        query,
        key,
        value,
        bias,
        float32_scores=True,
        cap=cap,
        source=source,
      )
    context = context.reshape(rows, num_fed, group, num_keys, head_dim)
    return self.out(context.swapaxes(2, 3).reshape(rows, num_fed, -1))


class SelfAttentionLayer(nn.Module):
  """Self-attention and MLP, each after a norm and with a residual.

  With post norms the output of each is normed before it is added.
  """

  config: LlamaConfig

  def setup(self):
    cfg = self.config
    self.pre_self_attention_layer_norm = norm(cfg)
    self.self_attention = GroupedAttention(cfg)
    self.pre_mlp_layer_norm = norm(cfg)
    self.mlp = layers.Mlp(cfg)
    if cfg.post_norms:
      self.post_self_attention_layer_norm = norm(cfg)
      self.post_mlp_layer_norm = norm(cfg)

  def _queries_keys_values(self, x, angles):
    y = self.pre_self_attention_layer_norm(x)
    return self.self_attention.queries_keys_values(y, angles)

  def _attend(
    self, x, query, keys_values, bias, source, reach=None, merged=None
  ):
    """Returns x after attention to keys and values, and all that follows."""
    y = self.self_attention.attend(query, *keys_values, bias, reach, merged)
    if self.config.post_norms:
      y = self.post_self_attention_layer_norm(y)
    return self._after_attention(x + y, *source)

  def _after_attention(self, x):
    """Returns x after the MLP."""
    y = self.mlp(self.pre_mlp_layer_norm(x))
    if self.config.post_norms:
      y = self.post_mlp_layer_norm(y)
    return x + y

  def __call__(
    self, x: jax.Array, angles: Angles, bias: jax.Array, *source: jax.Array
  ) -> jax.Array:
    """Returns [B, T, E] for x [B, T, E] and a mask [B, 1, T, T].

    Args:
      x: [B, T, E].
      angles: of the tokens.
      bias: the mask.
      *source: what a layer with a source attends to besides; none has one here.
    """
    query, keys_values = self._queries_keys_values(x, angles)
    return self._attend(x, query, keys_values, bias, source)

  def extend(
    self,
    x: jax.Array,
    block: Block,
    angles: Angles,
    layer_cache: cache.LayerCache,
    bias: jax.Array,
    *source: jax.Array,
    is_last: bool,
  ) -> tuple[jax.Array, cache.LayerCache]:
    """Feeds a block; its tokens are cached, and the read positions go on.

    Args:
      x: [B, N, E].
      block: the fed tokens.
      angles: of the fed tokens.
      layer_cache: keys [B, K, D, L] and values [B, K, L, D].
      bias: [B, 1, N, L] float32, the mask.
      *source: as of a call.
      is_last: whether only the read positions are needed after this layer.

    Returns:
      ([B, N or R, E], the cache with the block).
    """
    query, new = self._queries_keys_values(x, angles)
    layer_cache = block.write(layer_cache, new)
    if is_last:
      x, query, bias = block.read_positions(x, query, bias)
      if not x.shape[1]:
        return x, layer_cache
    x = self._attend(x, query, layer_cache, bias, source, block.reach)
    return x, layer_cache
