"""A layer of Llama, Mistral, Qwen and Gemma, for training and for blocks.

Axes: B rows, T text length, N queries, L keys, E model width, H query heads, K
key heads, D head width.
"""

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models import attention, layers
from speccascade.models.cached_stack import (
  Angles,
  CachedLayer,
  MultiHeadAttention,
)
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig


def norm(config: LlamaConfig) -> layers.LayerNorm:
  return layers.LayerNorm(config.dtype, config.norm_epsilon, config.norm_offset)


class GroupedAttention(MultiHeadAttention):
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

  def _query(self, query: jax.Array, angles: Angles | None) -> jax.Array:
    if self.config.query_key_norm:
      query = self.query_norm(query)
    if angles is not None:
      query = rotary.turn(query, *angles)
    return query * self.config.query_factor

  def _key(self, key: jax.Array, angles: Angles | None) -> jax.Array:
    if self.config.query_key_norm:
      key = self.key_norm(key)
    return key if angles is None else rotary.turn(key, *angles)

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


class SelfAttentionLayer(CachedLayer):
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

  def _attend(
    self, x, query, keys_values, bias, source, reach=None, merged=None
  ):
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
