"""The T5 encoder-decoder, for training and for decoding in blocks.

The parameter tree and the collection `params_axes` have the names and shapes of
T5X's `examples/t5`. Layers are unrolled.

Axes: B rows, S source length, T target length, L cache slots, E model width, H
heads, D head width, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models import attention, layers
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.stacks import DecoderStack, EncoderStack
from speccascade.models.text_network import EncoderDecoder


def _pairs(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns [B, N, L]: whether both queries [B, N] and keys [B, L] are true."""
  return queries[:, :, None] & keys[:, None, :]


class Transformer(EncoderDecoder):
  """A T5 of any size and version."""

  config: T5Config

  def setup(self):
    scale = self.config.emb_dim**-0.5
    self.token_embedder = layers.Embed(self.config, factor=scale)
    self.encoder = EncoderStack(self.config, self.remat)
    self.decoder = DecoderStack(self.config, self.remat)

  def encode(
    self,
    encoder_input_tokens: jax.Array,
    encoder_segment_ids: jax.Array | None = None,
    enable_dropout: bool = True,
  ) -> jax.Array:
    """Returns the encoded source [B, S, E]; arguments as of a call."""
    is_token = encoder_input_tokens > 0
    masks = [_pairs(is_token, is_token)]
    if encoder_segment_ids is not None:
      masks.append(attention.same(encoder_segment_ids, encoder_segment_ids))
    return self.encoder(
      self.token_embedder(encoder_input_tokens),
      attention.mask_bias(self.config.dtype, *masks),
      not enable_dropout,
    )

  def decode(self, *args: Any, **options: Any) -> jax.Array:
    """Returns logits [B, T, V] float32 for an encoded source [B, S, E].

    Arguments as of `decode_hidden`.
    """
    return self.logits(self.decode_hidden(*args, **options))

  def hidden(
    self,
    encoder_input_tokens: jax.Array,
    decoder_input_tokens: jax.Array,
    decoder_target_tokens: jax.Array,
    encoder_segment_ids: jax.Array | None = None,
    decoder_segment_ids: jax.Array | None = None,
    *,
    enable_dropout: bool = False,
    decode: bool = False,
  ) -> jax.Array:
    """Returns teacher-forced hidden states [B, T, E], for `logits`.

    They are those after the last norm. Other arguments as of a call.

    Args:
      decode: create or use T5X's one-token cache; see `Attention.step`.
    """
    encoded = self.encode(
      encoder_input_tokens, encoder_segment_ids, enable_dropout=enable_dropout
    )
    return self.decode_hidden(
      encoded,
      encoder_input_tokens,
      decoder_input_tokens,
      decoder_target_tokens,
      encoder_segment_ids,
      decoder_segment_ids,
      enable_dropout=enable_dropout,
      decode=decode,
    )

  def decode_hidden(
    self,
    encoded: jax.Array,
    encoder_input_tokens: jax.Array,
    decoder_input_tokens: jax.Array,
    decoder_target_tokens: jax.Array,
    encoder_segment_ids: jax.Array | None = None,
    decoder_segment_ids: jax.Array | None = None,
    decoder_positions: jax.Array | None = None,
    enable_dropout: bool = True,
    decode: bool = False,
    max_decode_length: int | None = None,
  ) -> jax.Array:
    """Returns hidden states [B, T, E] for an encoded source [B, S, E].

    Other arguments as of a call.

    Args:
      encoded: from `encode`.
      encoder_input_tokens: for the masks only.
      decoder_target_tokens: ignored where `decode`, since a cached step masks
        no padding.
      max_decode_length: slots of the one-token cache; None is T.

    Raises:
      ValueError: rows are packed, and `decode` is true.
    """
    del decoder_positions
    if decode and encoder_segment_ids is not None:
      raise ValueError("packed rows cannot be decoded: got encoder_segment_ids")
    length = decoder_input_tokens.shape[1]
    if decode:
      length = max_decode_length or length
    # A target sees itself and those before; padding sees nothing, as in T5X.
    masks = [jnp.tri(length, dtype=bool)[None]]
    is_token = decoder_target_tokens > 0
    if decode:
      is_token = jnp.ones_like(is_token)
    else:
      masks.append(_pairs(is_token, is_token))
    source_masks = [_pairs(is_token, encoder_input_tokens > 0)]
    if decoder_segment_ids is not None:
      masks.append(attention.same(decoder_segment_ids, decoder_segment_ids))
      assert encoder_segment_ids is not None  # packed rows have both
      source_masks.append(
        attention.same(decoder_segment_ids, encoder_segment_ids)
      )
    return self.decoder(
      self.token_embedder(decoder_input_tokens),
      encoded,
      attention.mask_bias(self.config.dtype, *masks),
      attention.mask_bias(self.config.dtype, *source_masks),
      deterministic=not enable_dropout,
      decode=decode,
      length=length,
    )

  def decoder_bias(self, capacity: int) -> jax.Array:
    """Returns [H, 2 L - 1], the bias of distances, for `cache.block_bias`."""
    return self.decoder.by_offset(capacity)

  def encoder_bias(self, num_tokens: int) -> jax.Array:
    """Returns [H, 2 S - 1], the encoder's bias of distances from 1 - S on."""
    return self.encoder.by_offset(num_tokens)
