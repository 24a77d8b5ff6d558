"""A block of fed tokens, as a decoder and its layers see it.

Axes: B rows, N fed tokens, R read positions, L cache slots, E model width, H
heads, D head width, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import cache, products


@dataclasses.dataclass(frozen=True)
class Block:
  """The tokens of one call of `LanguageModel.extend`, at each row's slots.

  Attributes:
    tokens: [B, N] int32; and after them spare tokens, which are not cached.
    start: [B] int32, the slot of each row's first token; start + N <= L.
    read: as in `LanguageModel.extend`; and after them spare positions, whose
      results are dropped.
    depth: as in `LanguageModel.extend`.
    ancestors: as in `LanguageModel.extend`.
    vectors: [B, N, E], what the first layer reads in place of the tokens'
      vectors; and after them those of spare tokens. None looks the tokens up.
    has_logits: static, whether more than the hidden states is wanted.
    num_spare: static, how many spare tokens; see `products.num_spare`.
    num_spare_reads: static, how many spare positions.
  """

  tokens: jax.Array
  start: jax.Array
  read: jax.Array | None = None
  depth: jax.Array | None = None
  ancestors: jax.Array | None = None
  vectors: jax.Array | None = None
  has_logits: bool = True
  num_spare: int = 0
  num_spare_reads: int = 0

  def with_spare(self, dtype: str) -> Self:
    """Returns the block with the spare tokens and positions that it needs.

    Args:
      dtype: name of the activations' dtype.
    """
    tokens, read, vectors = self.tokens, self.read, self.vectors
    num_spare = num_spare_reads = 0
    if self.depth is None:
      num_spare = products.num_spare(tokens.shape, dtype)
      tokens = jnp.pad(tokens, ((0, 0), (0, num_spare)))
      if vectors is not None:
        vectors = jnp.pad(vectors, ((0, 0), (0, num_spare), (0, 0)))
    if read is not None and read.shape[1] and not num_spare:
      num_spare_reads = products.num_spare_reads(read.shape, dtype)
      read = jnp.repeat(read, 1 + num_spare_reads, axis=1)
    return dataclasses.replace(
      self,
      tokens=tokens,
      read=read,
      vectors=vectors,
      num_spare=num_spare,
      num_spare_reads=num_spare_reads,
    )

  @property
  def num_fed(self) -> int:
    """N."""
    return self.tokens.shape[1] - self.num_spare

  @property
  def reach(self) -> jax.Array:
    """[B] int32, how many slots of a row need be looked at."""
    return self.start + self.num_fed

  @property
  def reads_fewer(self) -> bool:
    """Whether fewer positions than tokens are read.

    As many positions as tokens are read at the end, and save nothing before.
    """
    return self.read is not None and self.read.shape[1] < self.num_fed

  def bias(self, by_offset: jax.Array | np.ndarray) -> jax.Array:
    """Returns the bias [B, H, N, L] of the tokens, mask included.

    Args:
      by_offset: [H, 2 L - 1], see `cache.block_bias`.
    """
    bias = cache.block_bias(
      by_offset, self.start, self.num_fed, self.depth, self.ancestors
    )
    if not self.num_spare:
      return bias
    spare = ((0, 0), (0, 0), (0, self.num_spare), (0, 0))
    return jnp.pad(bias, spare, mode="edge")

  def biases(
    self, windows: Iterable[int | None], capacity: int
  ) -> dict[int | None, jax.Array]:
    """Returns the masks [B, 1, N, L] float32, by the window of a layer.

    Args:
      windows: see `cache.window_by_offset`.
      capacity: L.
    """
    return {
      window: self.bias(cache.window_by_offset(window, capacity))
      for window in windows
    }

  def write(
    self, layer_cache: cache.LayerCache, new: cache.LayerCache
  ) -> cache.LayerCache:
    """Returns one layer's cache with the tokens' keys and values.

    Args:
      layer_cache: keys [B, H, D, L] and values [B, H, L, D].
      new: keys [B, H, D, N] and values [B, H, N, D], spare tokens included.
    """
    if self.num_spare:
      keys, values = new
      new = keys[..., : -self.num_spare], values[:, :, : -self.num_spare]
    return cache.write(layer_cache, new, self.start)

  def states(self, layer_inputs: Sequence[jax.Array]) -> jax.Array:
    """Returns the states that a reader reads, [B, R, K E].

    Args:
      layer_inputs: K times [B, N, E] or more; what is past N is dropped.
    """
    num = self.num_fed
    x = jnp.concatenate([x[:, :num] for x in layer_inputs], axis=-1)
    if self.read is None:
      return x
    return jnp.take_along_axis(x, self.read[..., None], axis=1)

  def read_positions(
    self, x: jax.Array, query: jax.Array, bias: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Selects the positions that the last layer has to compute.

    All tokens must pass the layers before the last one: their keys and values
    are made from them.

    Args:
      x: [B, N, E].
      query: [B, N, H, D].
      bias: [B, H, N, L].

    Returns:
      The same at the read positions, if these are fewer.
    """
    if not self.reads_fewer:
      return x, query, bias
    read = cast(jax.Array, self.read)
    return (
      jnp.take_along_axis(x, read[..., None], axis=1),
      jnp.take_along_axis(query, read[..., None, None], axis=1),
      jnp.take_along_axis(bias, read[:, None, :, None], axis=2),
    )

  def outputs(
    self, x: jax.Array, head: Callable[[jax.Array], jax.Array], vocab_size: int
  ) -> tuple[jax.Array, jax.Array]:
    """Returns logits [B, R, V] float32 and hidden [B, R, E].

    Args:
      x: after the last norm, at the positions that went through the last layer.
      head: a function from hidden states to logits.
      vocab_size: V.
    """
    if self.num_spare and not self.reads_fewer:
      # The spare tokens go through the head, too. One token has one position.
      num_read = self.num_fed if self.read is None else self.read.shape[1]
      first = lambda y: jnp.repeat(y[:, :1], num_read, axis=1)
      return first(head(x)), first(x)
    if self.read is not None and not self.reads_fewer:
      x = jnp.take_along_axis(x, self.read[..., None], axis=1)
    if not x.shape[1] or not self.has_logits:
      return jnp.zeros((*x.shape[:2], vocab_size), jnp.float32), x
    num_read = x.shape[1] - self.num_spare_reads
    return head(x)[:, :num_read], x[:, :num_read]
