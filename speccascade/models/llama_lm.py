"""A decoder-only model of Llama's kind, as a decoding `LanguageModel`."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.records import prompts
from speccascade.decoding.records.language_model import Array
from speccascade.models import early_exit
from speccascade.models.block import Block
from speccascade.models.cached_lm import CachedLM
from speccascade.models.sharding.partitioning import under_layout

# A prompt is fed in parts of so many tokens.
PREFILL_WIDTH = 64


@struct.dataclass
class LlamaState:
  """What a Llama remembers of each row. Every leaf has axis 0 = B.

  Attributes:
    length: [B] int32, decoder tokens fed so far.
    offset: [B] int32, prompt tokens before the decoder tokens.
    caches: (keys [B, K, D, L], values [B, K, L, D]) of each layer, in the
      activations' dtype, for K key heads. The L slots have room for the prompt
      without its last token, and for the capacity.
  """

  length: Array
  offset: Array
  caches: tuple

  @property
  def end(self) -> Array:
    """[B] int32, the next slot, and the position of the next token."""
    return self.offset + self.length


class LlamaLM(CachedLM):
  """A Llama as a `LanguageModel`; make one with `create`."""

  prompted = True

  @under_layout
  def prefill(self, inputs: Array, *, capacity: int) -> LlamaState:
    """Feeds each prompt except its last token. See `LanguageModel`.

    Args:
      inputs: [B, S] int32 prompts, of one token or more; `prompts.PAD` is
        padding, at either end.
      capacity: slots after the prompts, with the limit of `T5LM.prefill`.
    """
    return self.read_prompts(inputs, capacity)[0]

  @under_layout
  def prefill_with_states(
    self, inputs: Array, *, capacity: int, reader: Any
  ) -> tuple[LlamaState, Array]:
    """Returns the state, and the hidden states at the tokens that were fed.

    They are [B, S - 1, E], or [B, S - 1, K E] of a model that hands out those
    of K layers; those after a prompt are undefined. See
    `language_model.StatesModel`.
    """
    del reader
    return self.read_prompts(inputs, capacity, has_hidden=True)

  def read_prompts(
    self,
    inputs: Array,
    capacity: int,
    *,
    vectors: Array | None = None,
    has_hidden: bool = False,
  ) -> tuple[LlamaState, Array]:
    """Returns the state that `prefill` does, and hidden states.

    Args:
      inputs: as of `prefill`.
      capacity: as of `prefill`.
      vectors: [B, S - 1, E], which are read in place of the tokens' vectors;
        None looks the tokens up.
      has_hidden: static, whether hidden states [B, S - 1, E] are computed, or
        [B, S - 1, K E] of K layers; else there are none, [B, S - 1, 0].
    """
    tokens, offset = prompts.prefill_tokens(inputs)
    return self.read_tokens(
      tokens, offset, capacity, vectors=vectors, has_hidden=has_hidden
    )

  def read_tokens(
    self,
    tokens: Array,
    offset: Array,
    capacity: int,
    *,
    vectors: Array | None = None,
    has_hidden: bool = False,
  ) -> tuple[LlamaState, Array]:
    """Returns what `read_prompts` does, of the tokens that are fed.

    Args:
      tokens: [B, N] int32, of which row b is fed the first `offset[b]`.
      offset: [B] int32.
      capacity: as of `prefill`.
      vectors: [B, N, E]; see `read_prompts`.
      has_hidden: see `read_prompts`.
    """
    rows, num_fed = tokens.shape
    caches = self._empty_caches(rows, num_fed + capacity)
    zero = jnp.zeros((rows,), jnp.int32)
    no_positions = jnp.zeros((rows, 0), jnp.int32)
    width = min(num_fed, PREFILL_WIDTH)
    read = None if has_hidden else no_positions
    config = self.module.config
    size = self.width_of_states if has_hidden else 0
    hidden = jnp.zeros((rows, num_fed, size), config.dtype)

    def feed(i, carry):
      caches, hidden = carry
      # The last part begins early enough to be whole, and feeds some tokens
      # again. Of 20 tokens in parts of 8 the parts begin at 0, 8 and 12.
      first = jnp.minimum(i * width, num_fed - width)
      part = jax.lax.dynamic_slice_in_dim(tokens, first, width, axis=1)
      start = LlamaState(zero, jnp.full_like(zero, first), caches)
      count = jnp.clip(offset - first, 0, width)
      inputs = None
      if vectors is not None:
        inputs = jax.lax.dynamic_slice_in_dim(vectors, first, width, axis=1)
      block = Block(
        part, start.end, read=read, vectors=inputs, has_logits=False
      )
      caches, _, new = self._feed(start, block, count)
      if has_hidden:
        hidden = jax.lax.dynamic_update_slice_in_dim(
          hidden, new.astype(hidden.dtype), first, axis=1
        )
      return caches, hidden

    if num_fed:
      num_parts = (jnp.max(offset) + width - 1) // width
      caches, hidden = jax.lax.fori_loop(0, num_parts, feed, (caches, hidden))
    return LlamaState(length=zero, offset=offset, caches=caches), hidden

  def share_prompt(self, state: Any, of_verifier: Any) -> Any:
    """Returns the state with the verifier's prompt. See `SharesLayers`."""
    caches = early_exit.shared_prompt(
      state.caches, of_verifier.caches, self.num_shared
    )
    return state.replace(caches=caches)
