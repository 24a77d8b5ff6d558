"""The T5 encoder-decoder, for training and for decoding in blocks.

The parameter tree and the `params_axes` collection are those of T5X's
`examples/t5`. Layers are unrolled.

Axes: B rows, S source length, T target length, N fed tokens, R read positions,
L cache slots, E model width, H heads, D head width, V vocabulary.
"""

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax.numpy as jnp
import numpy as np

from speccascade.models import cache, layers
from speccascade.models.t5 import multi_head, positions
from speccascade.models.t5.config import T5Config


def _mask_bias(dtype, *masks):
  """Returns [B, 1, N, L]: 0 where all masks [B, N, L] hold, else -1e10."""
  seen = masks[0]
  for mask in masks[1:]:
    seen = seen & mask
  return jnp.where(seen, 0.0, layers.MASKED).astype(dtype)[:, None]


def _pairs(queries, keys):
  """Returns [B, N, L], where both queries [B, N] and keys [B, L] hold."""
  return queries[:, :, None] & keys[:, None, :]


def _same(queries, keys):
  """Returns [B, N, L], where segment ids [B, N] and [B, L] are equal."""
  return queries[:, :, None] == keys[:, None, :]


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
    self.relpos_bias = positions.RelativePositions(cfg, bidirectional=True)
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
    self.relpos_bias = positions.RelativePositions(cfg, bidirectional=False)
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
      is_last = i == len(self.layers) - 1
      if is_last and read is not None:
        bias = jnp.take_along_axis(bias, read[:, None, :, None], axis=2)
      x, new_cache = layer.extend(
        x,
        caches[i],
        sources[i],
        start,
        reach,
        bias,
        source_bias,
        read if is_last else None,
      )
      new_caches.append(new_cache)
    return self.decoder_norm(x), tuple(new_caches)


class Transformer(nn.Module):
  """A T5 of any size and version.

  Attributes:
    config: its architecture.
    remat: what training computes again, see `layers.REMAT`; None keeps all.
  """

  config: T5Config
  remat: str | None = None

  def setup(self):
    scale = self.config.emb_dim**-0.5
    self.token_embedder = layers.Embed(self.config, factor=scale)
    self.encoder = EncoderStack(self.config, self.remat)
    self.decoder = DecoderStack(self.config, self.remat)

  @nn.nowrap
  def initial(self, rng):
    """Returns random parameters, T5X's."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng):
    """Returns these as "params", and their axes' names as "params_axes"."""
    tokens = jnp.ones((1, 1), jnp.int32)
    return self.init(rng, tokens, tokens, tokens, enable_dropout=False)

  def __call__(
    self,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    encoder_positions=None,
    decoder_positions=None,
    *,
    decode: bool = False,
    enable_dropout: bool = True,
  ):
    """Returns teacher-forced logits [B, T, V] float32.

    Args:
      encoder_input_tokens: [B, S] int32, 0 is padding.
      decoder_input_tokens: [B, T] int32, the targets shifted right.
      decoder_target_tokens: [B, T] int32; padding is masked where this is 0.
      encoder_segment_ids: [B, S] int32 of packed rows, or None.
      decoder_segment_ids: [B, T] int32 of packed rows, or None.
      encoder_positions: not used: positions enter as differences only, and
        segments do not see each other.
      decoder_positions: not used.
      decode: make or use T5X's one-token cache; see `Attention.step`.
      enable_dropout: needs a `dropout` rng.
    """
    del encoder_positions
    encoded = self.encode(
      encoder_input_tokens, encoder_segment_ids, enable_dropout=enable_dropout
    )
    return self.decode(
      encoded,
      encoder_input_tokens,
      decoder_input_tokens,
      decoder_target_tokens,
      encoder_segment_ids=encoder_segment_ids,
      decoder_segment_ids=decoder_segment_ids,
      decoder_positions=decoder_positions,
      enable_dropout=enable_dropout,
      decode=decode,
    )

  def encode(
    self, encoder_input_tokens, encoder_segment_ids=None, enable_dropout=True
  ):
    """Returns the encoded source [B, S, E]."""
    is_token = encoder_input_tokens > 0
    masks = [_pairs(is_token, is_token)]
    if encoder_segment_ids is not None:
      masks.append(_same(encoder_segment_ids, encoder_segment_ids))
    return self.encoder(
      self.token_embedder(encoder_input_tokens),
      _mask_bias(self.config.dtype, *masks),
      not enable_dropout,
    )

  def decode(
    self,
    encoded,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    decoder_positions=None,
    enable_dropout=True,
    decode=False,
    max_decode_length=None,
  ):
    """Returns logits [B, T, V] float32 for an encoded source [B, S, E].

    Args:
      encoded: from `encode`.
      encoder_input_tokens: [B, S] int32, for the masks only.
      decoder_input_tokens: see `__call__`, as what follows.
      decoder_target_tokens: ignored where `decode`: a cached step masks no
        padding.
      encoder_segment_ids: as in `__call__`.
      decoder_segment_ids: as in `__call__`.
      decoder_positions: not used.
      enable_dropout: needs a `dropout` rng.
      decode: make or use T5X's one-token cache.
      max_decode_length: slots of that cache, where it is not T.

    Raises:
      ValueError: if rows are packed and `decode`.
    """
    del decoder_positions
    if decode and encoder_segment_ids is not None:
      raise ValueError("packed rows cannot be decoded: got encoder_segment_ids")
    length = decoder_input_tokens.shape[1]
    if decode:
      length = max_decode_length or length
    masks = [jnp.tri(length, dtype=bool)[None]]
    is_token = decoder_target_tokens > 0
    if decode:
      is_token = jnp.ones_like(is_token)
    else:
      masks.append(_pairs(is_token, is_token))
    source_masks = [_pairs(is_token, encoder_input_tokens > 0)]
    if decoder_segment_ids is not None:
      masks.append(_same(decoder_segment_ids, decoder_segment_ids))
      source_masks.append(_same(decoder_segment_ids, encoder_segment_ids))
    x = self.decoder(
      self.token_embedder(decoder_input_tokens),
      encoded,
      _mask_bias(self.config.dtype, *masks),
      _mask_bias(self.config.dtype, *source_masks),
      not enable_dropout,
      decode,
      length,
    )
    return self._logits(x)

  def _logits(self, x):
    is_tied = self.config.logits_via_embedding
    head = self.token_embedder if is_tied else self.decoder
    axes = ("batch", "length", "vocab")
    return with_sharding_constraint(head.logits(x), axes)

  def decoder_bias(self, capacity):
    """Returns the table [H, 2 L - 1] that `cache.block_bias` cuts from."""
    return self.decoder.by_offset(capacity)

  def encoder_bias(self, num_tokens):
    """Returns [H, 2 S - 1], the encoder's bias of distances from 1 - S on."""
    return self.encoder.by_offset(num_tokens)

  def start(self, inputs):
    """Encodes inputs [B, S] once for all blocks to come.

    Returns:
      A pair (keys [B, H, D, S], values [B, H, S, D]) of the source for each
      decoder layer.
    """
    return self.decoder.source_cache(self.encode(inputs, enable_dropout=False))

  def extend(
    self,
    tokens,
    caches,
    sources,
    source_bias,
    by_offset,
    start,
    read=None,
    depth=None,
    ancestors=None,
  ):
    """Feeds a block of tokens at each row's own slots.

    Args:
      tokens: [B, N] int32.
      caches: a pair (keys [B, H, D, L], values [B, H, L, D]) for each layer;
        slots below `start` are filled, the others mean nothing.
      sources: from `start`.
      source_bias: [B, 1, 1, S], masks the source's padding.
      by_offset: from `decoder_bias`.
      start: [B] int32, the slot of each row's first token; start + N <= L.
      read: [B, R] int32 in 0..N-1, the positions wanted, or None for all N.
      depth: [B, N] int32, trees: place of each token past `start`.
      ancestors: [B, N, N] bool, trees: [b, i, j] says that i sees j.

    Returns:
      (caches, logits [B, R, V] float32, hidden [B, R, E] after the last norm).
    """
    num_fed = tokens.shape[1]
    bias = cache.block_bias(by_offset, start, num_fed, depth, ancestors)
    reach = start + num_fed
    is_fewer = read is not None and read.shape[1] < num_fed
    x, caches = self.decoder.extend(
      self.token_embedder(tokens),
      caches,
      sources,
      start,
      reach,
      bias,
      source_bias,
      read if is_fewer else None,
    )
    if read is not None and not is_fewer:
      x = jnp.take_along_axis(x, read[..., None], axis=1)
    return caches, self._logits(x), x
