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


class EncodedLM(CachedLM):
  """An encoder-decoder as a `LanguageModel`. A subclass has `begin`."""

  prompted = False

  def begin(self, inputs: Array, sources: tuple, capacity: int) -> Any:
    """Returns a state with an empty cache.

    Args:
      inputs: as of `prefill`.
      sources: keys and values of the encoded source; see `EncodedState`.
      capacity: as of `prefill`.
    """
    raise NotImplementedError

  def share_prompt(self, state: Any, of_verifier: Any) -> Any:
    """Returns the state over the verifier's source. See `SharesLayers`."""
    num = self.num_shared
    sources = (*of_verifier.sources[:num], *state.sources[num:])
    return state.replace(sources=sources)

  @under_layout
  def prefill(self, inputs: Array, *, capacity: int) -> Any:
    """Encodes the source and returns a state with an empty cache.

    See `LanguageModel`.

    Args:
      inputs: [B, S] int32 source tokens, 0 is padding.
      capacity: slots of the cache. An `extend` of N tokens writes N slots of
        every row, whatever the row's count: length + N <= capacity must hold
        then, or good slots are overwritten.
    """
    return self.begin(inputs, self._sources(inputs), capacity)

  @under_layout
  def prefill_with_states(
    self, inputs: Array, *, capacity: int, reader: Any
  ) -> tuple[Any, tuple]:
    """Returns the state, and the reader's keys and values of the source.

    See `language_model.StatesModel`.

    Args:
      inputs: as of `prefill`.
      capacity: as of `prefill`.
      reader: its `lm` is an `EncodedLM` that reads this model's encoder.
    """
    own, others = self._sources_of_both(inputs, reader.lm)
    return self.begin(inputs, own, capacity), others

  def _sources(self, inputs: Array) -> tuple:
    """Returns (keys, values) of the source for each decoder layer."""
    return self._apply("start", inputs)

  def _sources_of_both(self, inputs: Array, reader: Any) -> tuple[tuple, tuple]:
    """Returns what `_sources` does, and that of another model's decoder."""
    encoded = self._apply("encode", inputs, enable_dropout=False)
    return tuple(lm._apply("source_cache", encoded) for lm in (self, reader))


class T5LM(EncodedLM):
  """A T5 as a `LanguageModel`; make one with `create`."""

  def _mask(self, inputs: Array) -> Array:
    """Returns [B, 1, 1, S], masks the source's padding."""
    mask = jnp.where(inputs > 0, 0.0, MASKED).astype(self.module.config.dtype)
    return mask[:, None, None, :]

  def _sources(self, inputs: Array) -> tuple:
    if self._is_native:
      return self._encode(inputs)
    return super()._sources(inputs)

  def _sources_of_both(self, inputs: Array, reader: Any) -> tuple[tuple, tuple]:
    if not (self._is_native and reader._is_native):
      return super()._sources_of_both(inputs, reader)
    config = self.module.config
    both = self._encode(inputs, (reader.module.config, reader.params))
    num = config.num_decoder_layers
    return both[:num], both[num:]

  def _encode(self, inputs: Array, reader: tuple | None = None) -> tuple:
    """Returns what `native_passes.encode` does."""
    bias = self._apply("encoder_bias", inputs.shape[1])
    mask = self._mask(inputs)
    config, params = self.module.config, self.params
    return native_passes.encode(config, params, inputs, mask, bias, reader)

  def begin(self, inputs: Array, sources: tuple, capacity: int) -> T5State:
    """Returns a state with an empty cache; see `EncodedLM`."""
    by_offset = self._apply("decoder_bias", capacity)
    return T5State(
      length=jnp.zeros(inputs.shape[:1], jnp.int32),
      caches=self._empty_caches(inputs.shape[0], capacity),
      sources=sources,
      source_bias=self._mask(inputs),
      by_offset=jnp.broadcast_to(by_offset, (len(inputs), *by_offset.shape)),
    )

  def _context(self, state: Any) -> tuple:
    # (The state has the bias for each row, and a mesh splits rows; the network
    # wants it whole.)
    bias = self._apply("decoder_bias", state.caches[0][0].shape[3])
    return state.sources, state.source_bias, bias
