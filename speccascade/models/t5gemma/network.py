"""The encoder-decoder T5Gemma, for training and for decoding in blocks.

The layers are those of a Gemma. The encoder's see both ways. The decoder's
attend to the source as well, with as many key heads, the same cap, and no
rotation and no window: in T5Gemma after the attention to the text, in T5Gemma 2
together with it. The parameters have the names of a T5's decoder; the encoder
of T5Gemma has a table of tokens of its own.

Axes: B rows, S source length, T target length, E the decoder's width, K key
heads, D head width, V vocabulary.

Source: Zhang et al. (T5Gemma, arXiv 2504.06225; T5Gemma 2, arXiv 2512.14856).
Where transformers' code and Google's differ, in the window of the encoder, this
is transformers'.
"""

from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import attention, cache, layers
from speccascade.models.cached_stack import Angles
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import (
  AnglesByWindow,
  Biases,
  CausalStack,
  causal_biases,
)
from speccascade.models.llama.self_attention import (
  GroupedAttention,
  SelfAttentionLayer,
  norm,
)
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.text_network import EncoderDecoder


class SourceLayer(SelfAttentionLayer):
  """A layer whose tokens attend to an encoded source as well."""

  def __call__(
    self, x: jax.Array, angles: Angles, bias: jax.Array, *source: jax.Array
  ) -> jax.Array:
    """Returns [B, T, E] for x [B, T, E] and a mask [B, 1, T, T].

    Args:
      x: [B, T, E].
      angles: of the tokens.
      bias: the mask.
      *source: the encoded source, and its mask [B, 1, 1 or T, S].
    """
    encoded, source_bias = source
    key, value = self.source_keys_values(encoded)
    return super().__call__(x, angles, bias, key, value, source_bias)


class CrossAttentionLayer(SourceLayer):
  """Self-attention, attention to the source, and MLP, each after a norm."""

  def setup(self):
    super().setup()
    cfg = self.config
    self.pre_cross_attention_layer_norm = norm(cfg)
    self.encoder_decoder_attention = GroupedAttention(cfg)
    if cfg.post_norms:
      self.post_cross_attention_layer_norm = norm(cfg)

  def _after_attention(self, x, key, value, source_bias):
    """Returns x after attention to the source, and the MLP."""
    to_source = self.encoder_decoder_attention
    query = to_source.queries(self.pre_cross_attention_layer_norm(x))
    y = to_source.attend(query, key, value, source_bias)
    if self.config.post_norms:
      y = self.post_cross_attention_layer_norm(y)
    return super()._after_attention(x + y)


class MergedAttentionLayer(SourceLayer):
  """One attention to the text and to the source, and MLP, each after a norm.

  Keys of the text are turned, and keys of the source are not.
  """

  def source_keys_values(self, encoded: jax.Array) -> cache.LayerCache:
    return self.self_attention.keys_values(encoded)

  def _attend(self, x, query, keys_values, bias, source, reach=None):
    return super()._attend(
      x, query, keys_values, bias, (), reach, merged=source
    )


class BidirectionalStack(nn.Module):
  """The encoder's table of tokens, its layers and its last norm.

  Attributes:
    config: the encoder's hyperparameters, of `T5GemmaConfig.encoder`.
    remat: what training computes again, see `layers.REMAT`; None stores all.
    has_table: whether the table is the encoder's own.
  """

  config: LlamaConfig
  remat: str | None = None
  has_table: bool = True

  def setup(self):
    cfg = self.config
    if self.has_table:
      self.token_embedder = layers.Embed(
        cfg, stddev=0.02, vector_factor=cfg.embedding_factor
      )
    self.layers = [
      SelfAttentionLayer(cfg) for _ in range(cfg.num_decoder_layers)
    ]
    self.encoder_norm = norm(cfg)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Returns vectors [B, S, E] of tokens [B, S], from the encoder's table."""
    return self.token_embedder(tokens)

  def __call__(
    self, x: jax.Array, angles: AnglesByWindow, biases: Biases
  ) -> jax.Array:
    """Returns the encoded source, [B, S, the encoder's width].

    Args:
      x: vectors of the tokens, of that width.
      angles: of the tokens, by the window of a layer.
      biases: [B, 1, S, S] each, masks by the window of a layer.
    """
    for i, layer in enumerate(self.layers):
      window = self.config.window_of(i)
      x = layers.run(layer, self.remat, x, angles[window], biases[window])
    return self.encoder_norm(x)


class CrossAttentionStack(CausalStack):
  """The decoder's layers, its last norm, and an output that is not tied."""

  layer: ClassVar[type[SourceLayer]] = CrossAttentionLayer


class MergedAttentionStack(CrossAttentionStack):
  """The same with merged attention."""

  layer = MergedAttentionLayer


class T5GemmaTransformer(EncoderDecoder):
  """A T5Gemma of any size."""

  config: T5GemmaConfig

  def setup(self):
    cfg = self.config
    self.token_embedder = layers.Embed(
      cfg,
      stddev=0.02,
      vector_factor=cfg.embedding_factor,
      end_of_image_id=cfg.end_of_image_id,
    )
    self.encoder = BidirectionalStack(
      cfg.encoder, self.remat, has_table=not cfg.shared_embedding
    )
    is_merged = cfg.merged_attention
    stack = MergedAttentionStack if is_merged else CrossAttentionStack
    self.decoder = stack(cfg, self.remat)

  def encode(
    self,
    encoder_input_tokens: jax.Array,
    encoder_segment_ids: jax.Array | None = None,
    enable_dropout: bool = False,
  ) -> jax.Array:
    """Returns the encoded source; arguments as of a call."""
    del enable_dropout
    cfg, tokens = self.config.encoder, encoder_input_tokens
    slots = np.arange(tokens.shape[1], dtype=np.int32)
    offset = slots[None, :] - slots[:, None]
    masks = [(tokens > 0)[:, None, :]]
    if encoder_segment_ids is not None:
      masks.append(attention.same(encoder_segment_ids, encoder_segment_ids))
    biases = {}
    for window in cfg.windows:
      before, after = self.config.encoder_sides(window or 2 * len(slots))
      is_near = jnp.asarray((-before <= offset) & (offset <= after))[None]
      biases[window] = attention.mask_bias("float32", is_near, *masks)
    angles = rotary.angles_by_window(cfg, jnp.asarray(slots)[None])
    if self.config.shared_embedding:
      x = self.token_embedder(tokens)
    else:
      x = self.encoder.embed(tokens)
    return self.encoder(x, angles, biases)

  def hidden(
    self,
    encoder_input_tokens: jax.Array,
    decoder_input_tokens: jax.Array,
    decoder_target_tokens: jax.Array,
    encoder_segment_ids: jax.Array | None = None,
    decoder_segment_ids: jax.Array | None = None,
    *,
    enable_dropout: bool = False,
  ) -> jax.Array:
    """Returns teacher-forced hidden states [B, T, E], for `logits`.

    They are those after the last norm. The 0 that batches have before a text is
    read as the config's `start_id`. The targets are not used: padding comes
    after a text, which does not see it. Arguments as of a call.
    """
    del decoder_target_tokens, enable_dropout
    cfg, tokens = self.config, decoder_input_tokens
    encoded = self.encode(encoder_input_tokens, encoder_segment_ids)
    source_masks = [(encoder_input_tokens > 0)[:, None, :]]
    if decoder_segment_ids is not None:
      assert encoder_segment_ids is not None  # packed rows have both
      source_masks.append(
        attention.same(decoder_segment_ids, encoder_segment_ids)
      )
    length = tokens.shape[1]
    slots = jnp.arange(length, dtype=jnp.int32)
    return self.decoder(
      self.token_embedder(jnp.where(tokens == 0, cfg.start_id, tokens)),
      rotary.angles_by_window(cfg, slots[None]),
      causal_biases(cfg, length, decoder_segment_ids),
      encoded,
      attention.mask_bias("float32", *source_masks),
    )
