"""A T5 and its block cache, as a decoding `LanguageModel`."""

from typing import Any

from flax import struct
import jax.numpy as jnp

from speccascade.decoding.records.language_model import Array
from speccascade.models import native_passes
from speccascade.models.attention import MASKED
from speccascade.models.cached_lm import CachedLM
from speccascade.models.sharding.partitioning import under_layout


@struct.dataclass
class EncodedState:
  """What an encoder-decoder remembers of each row. Every leaf has axis 0 = B.

  Attributes:
    length: [B] int32, decoder tokens fed so far; slots past it mean nothing.
    caches: (keys [B, H, D, L], values [B, H, L, D]) of each decoder layer, in
      the activations' dtype, for H key heads; L is the capacity.
    sources: (keys [B, H, D, S], values [B, H, S, D]) of the source, for each
      decoder layer.
    source_bias: [B, 1, 1, S], masks the source's padding.
    offset: the slot of the first decoder token.
  """

  length: Array
  caches: tuple
  sources: tuple
  source_bias: Array

  offset = 0

  @property
  def end(self) -> Array:
    """[B] int32, the next slot."""
    return self.length


@struct.dataclass
class T5State(EncodedState):
  """What a T5 remembers of each row.

  Attributes:
    by_offset: [B, H, 2 L - 1], the decoder's bias of a key by its distance, the
      same for all rows; see `cache.block_bias`.
  """

  by_offset: Array


class SourceLM(CachedLM):
  """What T5 and T5Gemma share: they read a source before any token."""

  prompted = False

  def share_prompt(self, state: Any, of_verifier: Any) -> Any:
    """Returns the state over the verifier's source. See `SharesLayers`."""
    num = self.num_shared
    sources = (*of_verifier.sources[:num], *state.sources[num:])
    return state.replace(sources=sources)


class T5LM(SourceLM):
  """A T5 as a `LanguageModel`; make one with `create`."""

  @under_layout
  def prefill(self, inputs: Array, *, capacity: int) -> T5State:
    """Encodes the source and returns a state with an empty cache.

    See `LanguageModel`.

    Args:
      inputs: [B, S] int32 source tokens, 0 is padding.
      capacity: slots of the cache. An `extend` of N tokens writes N slots of
        every row, whatever the row's count: length + N <= capacity must hold
        then, or good slots are overwritten.
    """
    cfg = self.module.config
    mask = jnp.where(inputs > 0, 0.0, MASKED).astype(cfg.dtype)
    mask = mask[:, None, None, :]
    if self._is_native:
      bias = self._apply("encoder_bias", inputs.shape[1])
      sources = native_passes.encode(cfg, self.params, inputs, mask, bias)
    else:
      sources = self._apply("start", inputs)
    by_offset = self._apply("decoder_bias", capacity)
    return T5State(
      length=jnp.zeros(inputs.shape[:1], jnp.int32),
      caches=self._empty_caches(inputs.shape[0], capacity),
      sources=sources,
      source_bias=mask,
      by_offset=jnp.broadcast_to(by_offset, (len(inputs), *by_offset.shape)),
    )

  def _context(self, state: Any) -> tuple:
    # (The state has the bias for each row, and a mesh splits rows; the network
    # wants it whole.)
    bias = self._apply("decoder_bias", state.caches[0][0].shape[3])
    return state.sources, state.source_bias, bias
