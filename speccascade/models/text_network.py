"""What the networks of T5, T5Gemma and Llama share: their start and their end.

Axes: B rows, S source length, T text length, N fed tokens, R read positions, L
cache slots, E model width, K key heads, D head width, V vocabulary.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.models import attention, cache, cut_head
from speccascade.models.block import Block


class TextNetwork(nn.Module):
  """A network with a table of tokens, `token_embedder`, and a `decoder`.

  Attributes:
    config: the architecture.
    remat: what training computes again, see `layers.REMAT`; None stores all.
    num_inputs: how many arrays of tokens a call takes.
    initial_options: further arguments of the call that makes the parameters.
  """

  config: Any
  remat: str | None = None

  num_inputs: ClassVar[int]
  initial_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns random parameters."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns random "params", and the names of their axes as "params_axes"."""
    inputs = [jnp.ones((1, 1), jnp.int32)] * self.num_inputs
    return self.init(rng, *inputs, **self.initial_options)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Returns the vectors [..., E] of int32 tokens [...]."""
    return self.token_embedder(tokens)

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns logits [B, T, V] float32 of hidden states [B, T, E].

    With a cut head there are the logits of its N tokens alone; see `cut_head`.
    """
    config = self.config
    is_tied = config.logits_via_embedding
    vocab: str | None = "vocab"
    if self.has_variable("params", cut_head.NAME):
      cut: Any = self.get_variable("params", cut_head.NAME)
      logits = cut_head.logits(x, cut)
      logits = logits * self.token_embedder.factor if is_tied else logits
      vocab = None  # a mesh may not divide the kept tokens
    else:
      logits = (self.token_embedder if is_tied else self.decoder).logits(x)
    logits = with_sharding_constraint(logits, ("batch", "length", vocab))
    return attention.soft_cap(logits, getattr(config, "logit_cap", None))

  def extend(
    self, block: Block, caches: tuple[cache.LayerCache, ...], *context: Any
  ) -> tuple[tuple[cache.LayerCache, ...], jax.Array, jax.Array]:
    """Feeds a block of tokens at each row's own slots.

    Args:
      block: the fed tokens.
      caches: a pair (keys [B, K, D, L], values [B, K, L, D]) for each layer;
        slots below `block.start` are filled, the others mean nothing.
      *context: what else the `decoder` of the network takes.

    Returns:
      (caches, logits [B, R, V] float32, hidden [B, R, E] after the last norm).
    """
    config = self.config
    block = block.with_spare(config.dtype)
    x = block.vectors
    if x is None:
      x = self.token_embedder(block.tokens)
    x, caches = self.decoder.extend(x, block, caches, *context)
    return caches, *block.outputs(x, self.logits, config.vocab_size)


class EncoderDecoder(TextNetwork):
  """A network with an `encoder` as well, whose `decoder` attends to a source.

  A subclass has `encode` and `hidden`.
  """

  num_inputs = 3
  initial_options = MappingProxyType({"enable_dropout": False})

  def __call__(
    self,
    encoder_input_tokens: jax.Array,
    decoder_input_tokens: jax.Array,
    decoder_target_tokens: jax.Array,
    encoder_segment_ids: jax.Array | None = None,
    decoder_segment_ids: jax.Array | None = None,
    encoder_positions: jax.Array | None = None,
    decoder_positions: jax.Array | None = None,
    *,
    enable_dropout: bool = True,
    **options: Any,
  ) -> jax.Array:
    """Returns teacher-forced logits [B, T, V] float32.

    Args:
      encoder_input_tokens: [B, S] int32, 0 is padding.
      decoder_input_tokens: [B, T] int32, the targets shifted right.
      decoder_target_tokens: [B, T] int32, 0 is padding.
      encoder_segment_ids: [B, S] int32 of packed rows, or None.
      decoder_segment_ids: [B, T] int32 of packed rows, or None.
      encoder_positions: not used: only differences of positions matter, and
        segments do not see each other.
      decoder_positions: not used.
      enable_dropout: whether a T5 drops activations, which needs a `dropout`
        rng; a T5Gemma drops nothing.
      **options: further options of `hidden`.
    """
    del encoder_positions, decoder_positions
    hidden = self.hidden(
      encoder_input_tokens,
      decoder_input_tokens,
      decoder_target_tokens,
      encoder_segment_ids,
      decoder_segment_ids,
      enable_dropout=enable_dropout,
      **options,
    )
    return self.logits(hidden)

  def start(self, inputs: jax.Array) -> tuple[cache.LayerCache, ...]:
    """Encodes inputs [B, S] once for all blocks to come.

    Returns:
      A pair (keys [B, K, D, S], values [B, K, S, D]) of the source for each
      decoder layer.
    """
    return self.source_cache(self.encode(inputs, enable_dropout=False))

  def source_cache(self, encoded: jax.Array) -> tuple[cache.LayerCache, ...]:
    """Returns what `start` does, of an encoded source."""
    return self.decoder.source_cache(encoded)
