"""The decoder of Llama, Mistral, Qwen and Gemma, for training and for blocks.

The parameters have the names of a T5's decoder. Kernels are [in, out], and
heads are joined head-major: column h * D + d.

Axes: B rows, T text length, N fed tokens, R read positions, L cache slots, E
model width, H query heads, K key heads, D head width, V vocabulary.

Source: Touvron et al. (Llama 2, arXiv 2307.09288), Jiang et al. (Mistral 7B,
arXiv 2310.06825), Yang et al. (Qwen2, arXiv 2407.10671; Qwen3, arXiv
2505.09388), Gemma Team (Gemma, arXiv 2403.08295; Gemma 2, arXiv 2408.00118;
Gemma 3, arXiv 2503.19786).
"""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import attention, cache, layers
from speccascade.models.block import Block
from speccascade.models.cached_stack import Angles, CachedStack
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.self_attention import SelfAttentionLayer, norm
from speccascade.models.text_network import TextNetwork

# By the window of a layer: the masks, and the angles.
Biases = Mapping[int | None, jax.Array]
AnglesByWindow = Mapping[int | None, Angles]


class CausalStack(CachedStack):
  """The layers, the last norm, and an output projection that is not tied."""

  config: LlamaConfig

  layer: ClassVar[type[SelfAttentionLayer]] = SelfAttentionLayer

  def setup(self):
    cfg = self.config
    self.layers = [self.layer(cfg) for _ in range(cfg.num_decoder_layers)]
    self.decoder_norm = norm(cfg)
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ("embed", "vocab"))

  def __call__(
    self,
    x: jax.Array,
    angles: AnglesByWindow,
    biases: Biases,
    *source: jax.Array,
  ) -> jax.Array:
    """Returns normed hidden [B, T, E] for x [B, T, E].

    Args:
      x: vectors of tokens.
      angles: of the tokens, by the window of a layer.
      biases: [B, 1, T, T] each, masks by the window of a layer.
      *source: what each layer attends to besides.
    """
    for i, layer in enumerate(self.layers):
      self.hand_out(x)
      window = self.config.window_of(i)
      arrays = (x, angles[window], biases[window], *source)
      x = layers.run(layer, self.remat, *arrays)
    return self.finished(x)

  def extend(
    self,
    x: jax.Array,
    block: Block,
    caches: tuple[cache.LayerCache, ...],
    sources: tuple[cache.LayerCache, ...] = (),
    *source_bias: jax.Array,
  ) -> tuple[jax.Array, tuple[cache.LayerCache, ...]]:
    """Returns normed hidden [B, N or R, E], and the caches with the block.

    The slot of a token is its position, unless the token is part of a tree.
    Keys in the caches are turned by their positions.

    Args:
      x: [B, N, E], vectors of the fed tokens.
      block: the fed tokens.
      caches: as in `TextNetwork.extend`.
      sources: keys and values of a source for each layer, where there is one.
      *source_bias: the mask of the source, where there is one.
    """
    cfg, capacity = self.config, caches[0][0].shape[3]
    positions = rotary.positions(block.start, block.tokens.shape, block.depth)
    angles = rotary.angles_by_window(cfg, positions)
    biases = block.biases(cfg.windows, capacity)
    windows = [cfg.window_of(i) for i in range(len(self.layers))]
    return self._feed(
      x,
      block,
      caches,
      [biases[window] for window in windows],
      [angles[window] for window in windows],
      [(*source, *source_bias) for source in sources] or [()] * len(windows),
    )


def causal_biases(
  config: LlamaConfig, length: int, segment_ids: jax.Array | None = None
) -> dict[int | None, jax.Array]:
  """Returns the masks [B or 1, 1, T, T] float32, by the window of a layer.

  Args:
    config: the architecture.
    length: T.
    segment_ids: [B, T] int32 of packed rows, or None; segments do not see each
      other.
  """
  slots = np.arange(length, dtype=np.int32)
  back = slots[:, None] - slots[None, :]
  biases = {}
  for window in config.windows:
    is_seen = (back >= 0) & (back < (window or length))
    masks = [jnp.asarray(is_seen)[None]]
    if segment_ids is not None:
      masks.append(attention.same(segment_ids, segment_ids))
    biases[window] = attention.mask_bias("float32", *masks)
  return biases


class CausalTransformer(TextNetwork):
  """A decoder-only model of Llama's kind."""

  config: LlamaConfig

  num_inputs = 1

  def setup(self):
    self.token_embedder = layers.Embed(
      self.config, stddev=0.02, vector_factor=self.config.embedding_factor
    )
    self.decoder = CausalStack(self.config, self.remat)

  def __call__(
    self,
    tokens: jax.Array,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
  ) -> jax.Array:
    """Returns teacher-forced logits [B, T, V] float32; see `hidden`."""
    return self.logits(self.hidden(tokens, segment_ids, positions))

  def hidden(
    self,
    tokens: jax.Array,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
  ) -> jax.Array:
    """Returns hidden [B, T, E] after the last norm, for `logits`.

    Args:
      tokens: [B, T] int32; padding after a text does not change its results.
      segment_ids: [B, T] int32 of packed rows, or None; segments do not see
        each other.
      positions: [B, T] int32 within the text; None is 0, 1, ..., T-1.
    """
    rows, length = tokens.shape
    if positions is None:
      slots = jnp.arange(length, dtype=jnp.int32)
      positions = jnp.broadcast_to(slots[None], (rows, length))
    biases = causal_biases(self.config, length, segment_ids)
    angles = rotary.angles_by_window(self.config, positions)
    return self.decoder(self.token_embedder(tokens), angles, biases)
