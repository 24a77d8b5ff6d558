"""A T5Gemma and its block cache, as a decoding `LanguageModel`."""

from typing import Any

import jax.numpy as jnp

from speccascade.decoding.records.language_model import Array
from speccascade.models.attention import mask_bias
from speccascade.models.t5_lm import EncodedLM, EncodedState


class T5GemmaLM(EncodedLM):
  """A T5Gemma as a `LanguageModel`; make one with `create`."""

  @property
  def start_id(self) -> int:
    """The token that every row begins with."""
    return self.module.config.start_id

  def begin(self, inputs: Array, sources: tuple, capacity: int) -> EncodedState:
    """Returns a state with an empty cache; see `EncodedLM`."""
    return EncodedState(
      length=jnp.zeros(inputs.shape[:1], jnp.int32),
      caches=self._empty_caches(inputs.shape[0], capacity),
      sources=sources,
      source_bias=mask_bias("float32", (inputs > 0)[:, None, :]),
    )

  def _context(self, state: Any) -> tuple:
    return state.sources, state.source_bias
