"""Attention, layers and stacks that are fed blocks, and keep keys and values.

The decoders of T5, Llama and T5Gemma inherit them. Heads are joined head-major:
column h * D + d.

Axes: B rows, N fed tokens, R read positions, L cache slots, E model width, H
query heads, K key heads, D head width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.models import layers
from speccascade.models.block import Block
from speccascade.models.cache import LayerCache

Angles = tuple[jax.Array, jax.Array]  # of `rotary.angles`
LAYER_INPUTS = "layer_inputs"
_HANDED_OUT = "intermediates"  # flax leaves it out of parameters


def with_layer_inputs(
  module: nn.Module, variables: Any, *args: Any, **options: Any
) -> tuple[Any, tuple[jax.Array, ...]]:
  """Returns what `module.apply` does, and what each decoder layer read.

  Args:
    module: a network with a `decoder`.
    variables: as of `apply`.
    *args: as of `apply`.
    **options: as of `apply`.

  Returns:
    The result, and [B, N, E] for each layer; see `CachedStack.hand_out`.
  """
  result, found = module.apply(
    variables, *args, mutable=[_HANDED_OUT], **options
  )
  return result, found[_HANDED_OUT]["decoder"][LAYER_INPUTS]


class MultiHeadAttention(nn.Module):
  """Multi-head attention whose queries, keys and values are computed apart.

  A subclass has the layers `query`, `key`, `value` and `out`.
  """

  config: Any

  def queries(self, x: jax.Array, angles: Angles | None = None) -> jax.Array:
    """Returns queries [B, N, H, D] of x [B, N, E].

    Args:
      x: [B, N, E].
      angles: of rotary positions, [B, N, D / 2] each; None turns nothing.
    """
    [query] = layers.project(x, self.query)
    return self._query(self._split(query), angles)

  def keys_values(self, x: jax.Array) -> LayerCache:
    """Returns keys [B, K, D, L], not turned, and values [B, K, L, D].

    Args:
      x: [B, L, width]. The width need not be the model's: that of an encoder is
        its own.
    """
    key, value = layers.project(x, self.key, self.value)
    return self._keys_values(key, value)

  def queries_keys_values(
    self, x: jax.Array, angles: Angles | None = None
  ) -> tuple[jax.Array, LayerCache]:
    """Returns `queries` and turned `keys_values` of x, from one product."""
    query, key, value = layers.project(x, self.query, self.key, self.value)
    query = self._query(self._split(query), angles)
    return query, self._keys_values(key, value, angles)

  def _split(self, x: jax.Array) -> jax.Array:
    """Returns heads [B, N, heads, D] of x [B, N, heads * D]."""
    x = x.reshape(*x.shape[:2], -1, self.config.head_dim)
    return with_sharding_constraint(x, ("batch", "length", "heads", "kv"))

  def _keys_values(
    self, key: jax.Array, value: jax.Array, angles: Angles | None = None
  ) -> LayerCache:
    """Returns keys and values [B, L, K * D] with the axes of a cache."""
    key, value = self._key(self._split(key), angles), self._split(value)
    return key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)

  def _query(self, query: jax.Array, angles: Angles | None) -> jax.Array:
    """Returns queries [B, N, H, D] as scores take them."""
    del angles
    return query

  def _key(self, key: jax.Array, angles: Angles | None) -> jax.Array:
    """Returns keys [B, N, K, D] as scores take them."""
    del angles
    return key


class CachedLayer(nn.Module):
  """A decoder's layer: attention to the text, and all that follows.

  A subclass has the norm `pre_self_attention_layer_norm`, the attention
  `self_attention`, and `_attend`. Where it attends to a source apart, that is
  its `encoder_decoder_attention`.
  """

  config: Any

  def _queries_keys_values(self, x, angles):
    y = self.pre_self_attention_layer_norm(x)
    return self.self_attention.queries_keys_values(y, angles)

  def _attend(self, x, query, keys_values, bias, source, reach=None):
    """Returns x after attention to keys and values, and all that follows."""
    raise NotImplementedError

  def source_keys_values(self, encoded: jax.Array) -> LayerCache:
    """Returns this layer's keys and values of an encoded source."""
    return self.encoder_decoder_attention.keys_values(encoded)

  def read_along(
    self,
    x: jax.Array,
    held: Sequence[LayerCache],
    bias: jax.Array,
    angles: Angles | None,
    *source: jax.Array,
  ) -> tuple[jax.Array, LayerCache]:
    """Reads a text once more: tokens see earlier readings of it, too.

    Args:
      x: [B, T, E].
      held: keys [B, K, D, T] and values [B, K, T, D] of J earlier readings.
      bias: [B, H or 1, T, (J + 1) T], of the earlier readings and of this one.
      angles: of the tokens; None turns nothing.
      *source: keys, values and mask of a source, where there is one.

    Returns:
      ([B, T, E], the keys and values of this reading).
    """
    query, new = self._queries_keys_values(x, angles)
    keys, values = zip(*held, new)
    pair = jnp.concatenate(keys, axis=3), jnp.concatenate(values, axis=2)
    return self._attend(x, query, pair, bias, source), new

  def extend(
    self,
    x: jax.Array,
    block: Block,
    layer_cache: LayerCache,
    bias: jax.Array,
    angles: Angles | None,
    *source: jax.Array,
    is_last: bool,
  ) -> tuple[jax.Array, LayerCache]:
    """Feeds a block; its tokens are cached, and the read positions continue.

    Args:
      x: [B, N, E].
      block: the fed tokens.
      layer_cache: keys [B, K, D, L] and values [B, K, L, D].
      bias: [B, H or 1, N, L], the mask, and a T5's position bias.
      angles: of the fed tokens; None turns nothing.
      *source: keys, values and mask of a source, where there is one.
      is_last: whether only the read positions are needed after this layer.

    Returns:
      ([B, N or R, E], the cache with the block).
    """
    query, new = self._queries_keys_values(x, angles)
    layer_cache = block.write(layer_cache, new)
    if is_last:
      x, query, bias = block.read_positions(x, query, bias)
      if not x.shape[1]:
        return x, layer_cache
    x = self._attend(x, query, layer_cache, bias, source, block.reach)
    return x, layer_cache


class CachedStack(nn.Module):
  """A decoder's layers, its last norm, and an output that is not tied.

  A subclass has `layers` and `decoder_norm`, and `logits_dense` where the
  output is not tied.

  Attributes:
    config: the architecture.
    remat: what training computes again, see `layers.REMAT`; None stores all.
  """

  config: Any
  remat: str | None = None

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns [B, T, V] float32, from the untied output projection."""
    return self.logits_dense(x)

  def hand_out(self, x: jax.Array) -> None:
    """Hands out what a layer reads, [B, N, E], as `LAYER_INPUTS`.

    That is the state after the layers before it; entry 0 is the tokens'
    vectors. Without `with_layer_inputs` this computes nothing.
    """
    self.sow(_HANDED_OUT, LAYER_INPUTS, x)

  def finished(self, x: jax.Array) -> jax.Array:
    """Returns the hidden states [B, N, E] of what the last layer returns."""
    return self.decoder_norm(x)

  def source_cache(self, encoded: jax.Array) -> tuple[LayerCache, ...]:
    """Returns each layer's (keys, values) of an encoded source."""
    return tuple(layer.source_keys_values(encoded) for layer in self.layers)

  def _feed(
    self,
    x: jax.Array,
    block: Block,
    caches: tuple[LayerCache, ...],
    biases: Sequence[jax.Array],
    angles: Sequence[Angles | None],
    sources: Sequence[tuple[jax.Array, ...]],
  ) -> tuple[jax.Array, tuple[LayerCache, ...]]:
    """Returns (normed hidden, caches); what `extend` of each layer takes."""
    new_caches = []
    for i, layer in enumerate(self.layers):
      self.hand_out(x)
      x, new_cache = layer.extend(
        x,
        block,
        caches[i],
        biases[i],
        angles[i],
        *sources[i],
        is_last=i == len(self.layers) - 1,
      )
      new_caches.append(new_cache)
    return self.finished(x), tuple(new_caches)
