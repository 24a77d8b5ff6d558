"""The T5 encoder-decoder, for training and for decoding in blocks.

The parameter tree and the `params_axes` collection are those of T5X's
`examples/t5`. Layers are unrolled.

Axes: B rows, S source length, T target length, N fed tokens, R read positions,
L cache slots, E model width, H heads, D head width, V vocabulary.
"""

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax.numpy as jnp

from speccascade.models import cache, layers
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.stacks import DecoderStack, EncoderStack


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
    tokens = (encoder_input_tokens, decoder_input_tokens, decoder_target_tokens)
    packed = (encoder_segment_ids, decoder_segment_ids, decoder_positions)
    return self.decode(encoded, *tokens, *packed, enable_dropout, decode)

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

    Arguments as of a call, and:

    Args:
      encoded: from `encode`; `encoder_input_tokens` are for the masks only.
      decoder_target_tokens: ignored where `decode`: a cached step masks no
        padding.
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
    x = self.token_embedder(decoder_input_tokens)
    of = lambda masks: _mask_bias(self.config.dtype, *masks)
    biases, is_fixed = (of(masks), of(source_masks)), not enable_dropout
    x = self.decoder(x, encoded, *biases, is_fixed, decode, length)
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
    num_fed, x = tokens.shape[1], self.token_embedder(tokens)
    bias = cache.block_bias(by_offset, start, num_fed, depth, ancestors)
    is_fewer = read is not None and read.shape[1] < num_fed
    reach = start + num_fed
    kept = (caches, sources, start, reach, bias, source_bias)
    x, caches = self.decoder.extend(x, *kept, read if is_fewer else None)
    if read is not None and not is_fewer:
      x = jnp.take_along_axis(x, read[..., None], axis=1)
    return caches, self._logits(x), x
