"""A T5Gemma and its block cache, as a decoding `LanguageModel`."""

from typing import Any

import jax.numpy as jnp

from speccascade.decoding.records.language_model import Array
from speccascade.models.attention import mask_bias
from speccascade.models.sharding.partitioning import under_layout
from speccascade.models.t5_lm import EncodedState, SourceLM


class T5GemmaLM(SourceLM):
  """A T5Gemma as a `LanguageModel`; make one with `create`."""

  @property
  def start_id(self) -> int:
    """The token that every row begins with."""
    return self.module.config.start_id

  @under_layout
  def prefill(self, inputs: Array, *, capacity: int) -> EncodedState:
    """Encodes the source and returns a state with an empty cache.

    See `LanguageModel`.

    Args:
      inputs: [B, S] int32 source tokens, 0 is padding.
      capacity: slots of the cache, with the limit of `T5LM.prefill`.
    """
    return EncodedState(
      length=jnp.zeros(inputs.shape[:1], jnp.int32),
      caches=self._empty_caches(inputs.shape[0], capacity),
      sources=self._apply("start", inputs),
      source_bias=mask_bias("float32", (inputs > 0)[:, None, :]),
    )

  def _context(self, state: Any) -> tuple:
    return state.sources, state.source_bias
