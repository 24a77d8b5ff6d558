"""The layers and stacks of a T5, which `network` puts together.

Axes: B rows, S source length, T target length, N fed tokens, R read positions,
L cache slots, E model width, H heads, D head width, V vocabulary.
"""

from flax import linen as nn
import jax
import numpy as np

from speccascade.models import cache, layers
from speccascade.models.block import Block
from speccascade.models.cached_stack import CachedLayer, CachedStack
from speccascade.models.t5 import multi_head
from speccascade.models.t5.config import T5Config


class EncoderLayer(nn.Module):
  """Self-attention and MLP, each after a norm and with a residual."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.pre_attention_layer_norm = layers.LayerNorm(cfg.dtype)
    self.attention = multi_head.Attention(cfg)
    self.pre_mlp_layer_norm = layers.LayerNorm(cfg.dtype)
    self.mlp = layers.Mlp(cfg, cfg.dropout_rate)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def __call__(
    self, x: jax.Array, bias: jax.Array, *, deterministic: bool
  ) -> jax.Array:
    """Returns [B, S, E] for x [B, S, E] and a bias with mask, [B, H, S, S]."""
    y = self.pre_attention_layer_norm(x)
    y = self.attention(y, y, bias, deterministic=deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
    return x + self.dropout(y, deterministic=deterministic)


class DecoderLayer(CachedLayer):
  """Self-attention, attention to the source, and MLP, each after a norm."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.pre_self_attention_layer_norm = layers.LayerNorm(cfg.dtype)
    self.self_attention = multi_head.Attention(cfg)
    self.pre_cross_attention_layer_norm = layers.LayerNorm(cfg.dtype)
    self.encoder_decoder_attention = multi_head.Attention(cfg)
    self.pre_mlp_layer_norm = layers.LayerNorm(cfg.dtype)
    self.mlp = layers.Mlp(cfg, cfg.dropout_rate)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def __call__(
    self,
    x: jax.Array,
    encoded: jax.Array,
    bias: jax.Array,
    source_bias: jax.Array,
    *,
    deterministic: bool,
    decode: bool = False,
  ) -> jax.Array:
    """Returns [B, T, E].

    Args:
      x: [B, T, E].
      encoded: [B, S, E], the source.
      bias: [B, H, T, T], position bias and mask.
      source_bias: [B, 1, T, S], the mask of the source.
      deterministic: drop no activations.
      decode: create or use T5X's one-token cache; see `Attention.step`.
    """
    y = self.pre_self_attention_layer_norm(x)
    if decode:
      y = self.self_attention.step(y, bias)
    else:
      y = self.self_attention(y, y, bias, deterministic=deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    key, value = self.source_keys_values(encoded)
    return self._after_self_attention(x, key, value, source_bias, deterministic)

  def _attend(self, x, query, keys_values, bias, source, reach=None):
    x = x + self.self_attention.attend(query, *keys_values, bias, reach=reach)
    return self._after_self_attention(x, *source)

  def _after_self_attention(
    self, x, key, value, source_bias, deterministic=True
  ):
    attention = self.encoder_decoder_attention
    query = attention.queries(self.pre_cross_attention_layer_norm(x))
    y = attention.attend(
      query, key, value, source_bias, deterministic=deterministic
    )
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
    return x + self.dropout(y, deterministic=deterministic)


class EncoderStack(nn.Module):
  """A stack of encoder layers; see `Transformer.encode`.

  Attributes:
    config: the architecture.
    remat: what training computes again, see `layers.REMAT`; None stores all.
  """

  config: T5Config
  remat: str | None = None

  def setup(self):
    cfg = self.config
    self.relpos_bias = multi_head.RelativePositions(cfg, bidirectional=True)
    self.layers = [EncoderLayer(cfg) for _ in range(cfg.num_encoder_layers)]
    self.encoder_norm = layers.LayerNorm(cfg.dtype)
    self.dropout_embedding = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    self.dropout_output = nn.Dropout(cfg.dropout_rate)

  def __call__(
    self, x: jax.Array, mask_bias: jax.Array, deterministic: bool
  ) -> jax.Array:
    """Returns the encoded source [B, S, E].

    Args:
      x: [B, S, E], vectors of tokens.
      mask_bias: [B, 1, S, S], the mask.
      deterministic: drop no activations.
    """
    bias = self.relpos_bias(x.shape[1], x.shape[1]) + mask_bias
    x = self.dropout_embedding(x, deterministic=deterministic)
    for layer in self.layers:
      x = layers.run(layer, self.remat, x, bias, deterministic=deterministic)
    x = self.encoder_norm(x)
    return self.dropout_output(x, deterministic=deterministic)

  def by_offset(self, num_tokens: int) -> jax.Array:
    """Returns [H, 2 S - 1] for S tokens; see `Transformer.encoder_bias`."""
    return self.relpos_bias.by_distance(np.arange(1 - num_tokens, num_tokens))


class DecoderStack(CachedStack):
  """A stack of decoder layers; see `Transformer.decode` and `extend`."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.relpos_bias = multi_head.RelativePositions(cfg, bidirectional=False)
    self.layers = [DecoderLayer(cfg) for _ in range(cfg.num_decoder_layers)]
    self.decoder_norm = layers.LayerNorm(cfg.dtype)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ("embed", "vocab"))

  def __call__(
    self,
    x: jax.Array,
    encoded: jax.Array,
    mask_bias: jax.Array,
    source_bias: jax.Array,
    deterministic: bool,
    decode: bool,
    length: int,
  ) -> jax.Array:
    """Returns normed hidden [B, T, E].

    Args:
      x: [B, T, E], vectors of tokens.
      encoded: [B, S, E], the source.
      mask_bias: [B, 1, L, L], the mask of the decoder's positions.
      source_bias: [B, 1, T, S], the mask of the source.
      deterministic: drop no activations.
      decode: create or use T5X's one-token cache; see `Attention.step`.
      length: L, positions of the decoder: T, or those of the cache.
    """
    bias = self.relpos_bias(length, length) + mask_bias
    x = self.dropout(x, deterministic=deterministic)
    for layer in self.layers:
      self.hand_out(x)
      x = layers.run(
        layer,
        self.remat,
        x,
        encoded,
        bias,
        source_bias,
        deterministic=deterministic,
        decode=decode,
      )
    return self.dropout(self.decoder_norm(x), deterministic=deterministic)

  def by_offset(self, capacity: int) -> jax.Array:
    """Returns [H, 2 L - 1] for L slots; see `Transformer.decoder_bias`."""
    return self.relpos_bias.by_distance(np.arange(1 - capacity, capacity))

  def extend(
    self,
    x: jax.Array,
    block: Block,
    caches: tuple[cache.LayerCache, ...],
    sources: tuple[cache.LayerCache, ...],
    source_bias: jax.Array,
    by_offset: jax.Array,
  ) -> tuple[jax.Array, tuple[cache.LayerCache, ...]]:
    """Returns normed hidden [B, N or R, E], and the caches with the block.

    Args:
      x: [B, N, E], vectors of the fed tokens.
      block: the fed tokens.
      caches: as in `TextNetwork.extend`.
      sources: from `Transformer.start`.
      source_bias: [B, 1, 1, S], masks the source's padding.
      by_offset: from `Transformer.decoder_bias`.
    """
    bias, num_layers = block.bias(by_offset), len(self.layers)
    return self._feed(
      x,
      block,
      caches,
      [bias] * num_layers,
      [None] * num_layers,
      [(*source, source_bias) for source in sources],
    )
