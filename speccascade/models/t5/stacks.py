"""The layers and stacks of T5; `network` makes a model of them.

Axes: B rows, S source length, T target length, N fed tokens, R read positions,
L cache slots, E model width, H heads, D head width, V vocabulary.
"""

from flax import linen as nn
import jax.numpy as jnp
import numpy as np

from speccascade.models import cache, layers
from speccascade.models.t5 import multi_head
from speccascade.models.t5.config import T5Config


class EncoderLayer(nn.Module):
  """Self-attention and MLP, each behind a norm and with a residual."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.pre_attention_layer_norm = layers.LayerNorm(cfg.dtype)
    self.attention = multi_head.Attention(cfg)
    self.pre_mlp_layer_norm = layers.LayerNorm(cfg.dtype)
    self.mlp = layers.Mlp(cfg, cfg.dropout_rate)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def __call__(self, x, bias, *, deterministic):
    y = self.pre_attention_layer_norm(x)
    y = self.attention(y, y, bias, deterministic=deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
    return x + self.dropout(y, deterministic=deterministic)


class DecoderLayer(nn.Module):
  """Self-attention, attention to the source, and MLP."""

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
    self, x, encoded, bias, source_bias, *, deterministic, decode=False
  ):
    """Returns [B, T, E] for x [B, T, E] and encoded [B, S, E]."""
    y = self.pre_self_attention_layer_norm(x)
    if decode:
      y = self.self_attention.step(y, bias)
    else:
      y = self.self_attention(y, y, bias, deterministic=deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    source = self.encoder_decoder_attention.keys_values(encoded)
    return self._after_self_attention(x, source, source_bias, deterministic)

  def _after_self_attention(self, x, source, source_bias, deterministic=True):
    attention = self.encoder_decoder_attention
    query = attention.queries(self.pre_cross_attention_layer_norm(x))
    y = attention.attend(
      query, *source, source_bias, deterministic=deterministic
    )
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
    return x + self.dropout(y, deterministic=deterministic)

  def source_keys_values(self, encoded):
    """Returns this layer's keys and values of the source [B, S, E]."""
    return self.encoder_decoder_attention.keys_values(encoded)

  def extend(self, x, kept, source, start, reach, bias, source_bias, read):
    """Feeds x [B, N, E] at slots start [B]; returns [B, N or R, E] and cache.

    With `read` [B, R], queries, keys and values are made for all N, and the
    rest for the R read positions only (`bias` is then theirs, [B, H, R, L]).
    """
    attention = self.self_attention
    y = self.pre_self_attention_layer_norm(x)
    query, new = attention.queries_keys_values(y)
    kept = cache.write(kept, new, start)
    if read is not None:
      if not read.shape[1]:
        return x[:, :0], kept
      x = jnp.take_along_axis(x, read[..., None], axis=1)
      query = jnp.take_along_axis(query, read[..., None, None], axis=1)
    x = x + attention.attend(query, *kept, bias, reach=reach)
    return self._after_self_attention(x, source, source_bias), kept


class EncoderStack(nn.Module):
  """A stack of encoder layers; see `Transformer.encode`."""

  config: T5Config
  remat: str | None = None

  def setup(self):
    cfg = self.config
    self.relpos_bias = multi_head.RelativePositions(cfg, bidirectional=True)
    self.layers = [EncoderLayer(cfg) for _ in range(cfg.num_encoder_layers)]
    self.encoder_norm = layers.LayerNorm(cfg.dtype)
    self.dropout_embedding = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    self.dropout_output = nn.Dropout(cfg.dropout_rate)

  def __call__(self, x, mask_bias, deterministic):
    bias = self.relpos_bias(x.shape[1], x.shape[1]) + mask_bias
    x = self.dropout_embedding(x, deterministic=deterministic)
    for layer in self.layers:
      x = layers.run(layer, self.remat, x, bias, deterministic=deterministic)
    x = self.encoder_norm(x)
    return self.dropout_output(x, deterministic=deterministic)

  def by_offset(self, num_tokens):
    """See `Transformer.encoder_bias`."""
    return self.relpos_bias.by_distance(np.arange(1 - num_tokens, num_tokens))


class DecoderStack(nn.Module):
  """A stack of decoder layers; see `Transformer.decode` and `extend`."""

  config: T5Config
  remat: str | None = None

  def setup(self):
    cfg = self.config
    self.relpos_bias = multi_head.RelativePositions(cfg, bidirectional=False)
    self.layers = [DecoderLayer(cfg) for _ in range(cfg.num_decoder_layers)]
    self.decoder_norm = layers.LayerNorm(cfg.dtype)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ("embed", "vocab"))

  def __call__(
    self, x, encoded, mask_bias, source_bias, deterministic, decode, length
  ):
    bias = self.relpos_bias(length, length) + mask_bias
    x = self.dropout(x, deterministic=deterministic)
    options = {"deterministic": deterministic, "decode": decode}
    for layer in self.layers:
      fed = (x, encoded, bias, source_bias)
      x = layers.run(layer, self.remat, *fed, **options)
    return self.dropout(self.decoder_norm(x), deterministic=deterministic)

  def logits(self, x):
    """Returns [B, T, V] float32, from the untied output projection."""
    return self.logits_dense(x)

  def source_cache(self, encoded):
    """Returns the (keys, values) of the source, a pair for each layer."""
    return tuple(layer.source_keys_values(encoded) for layer in self.layers)

  def by_offset(self, capacity):
    """See `Transformer.decoder_bias`."""
    return self.relpos_bias.by_distance(np.arange(1 - capacity, capacity))

  def extend(self, x, caches, sources, start, reach, bias, source_bias, read):
    """Feeds x [B, N, E]; returns normed hidden [B, N or R, E] and caches."""
    new_caches = []
    for i, layer in enumerate(self.layers):
      wanted = read if i == len(self.layers) - 1 else None
      if wanted is not None:
        bias = jnp.take_along_axis(bias, read[:, None, :, None], axis=2)
      kept = (caches[i], sources[i])
      x, kept = layer.extend(x, *kept, start, reach, bias, source_bias, wanted)
      new_caches.append(kept)
    return self.decoder_norm(x), tuple(new_caches)
