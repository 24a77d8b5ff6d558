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
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.models import cache, layers
from speccascade.models.block import Block
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig

Angles = tuple[jax.Array, jax.Array]  # of `rotary.angles`
# By the window of a layer: the masks, and the angles.
Biases = Mapping[int | None, jax.Array]
AnglesByWindow = Mapping[int | None, Angles]


def _norm(config: LlamaConfig) -> layers.LayerNorm:
  return layers.LayerNorm(config.dtype, config.norm_epsilon, config.norm_offset)


class GroupedAttention(nn.Module):
  """Attention in which H / K query heads share each key head."""

  config: LlamaConfig

  def setup(self):
    cfg = self.config

    def dense(num_heads):
      axes, features = ("embed", "joined_kv"), num_heads * cfg.head_dim
      return layers.Dense(features, axes, cfg.dtype, use_bias=cfg.qkv_bias)

    self.query = dense(cfg.num_heads)
    self.key = dense(cfg.num_kv_heads)
    self.value = dense(cfg.num_kv_heads)
    axes = ("joined_kv", "embed")
    self.out = layers.Dense(cfg.emb_dim, axes, cfg.dtype, use_bias=cfg.out_bias)
    if cfg.query_key_norm:
      self.query_norm, self.key_norm = _norm(cfg), _norm(cfg)

  def queries_keys_values(
    self, x: jax.Array, angles: Angles
  ) -> tuple[jax.Array, cache.LayerCache]:
    """Returns the queries, keys and values of a block.

    Args:
      x: [B, N, E].
      angles: of `rotary.angles`, [B, N, D / 2] each.

    Returns:
      (queries [B, N, H, D], scaled; (keys [B, K, D, N], values [B, K, N, D])).
    """
    query, key, value = (
      with_sharding_constraint(
        each.reshape(*x.shape[:2], -1, self.config.head_dim),
        ("batch", "length", "heads", "kv"),
      )
      for each in layers.project(x, self.query, self.key, self.value)
    )
    if self.config.query_key_norm:
      query, key = self.query_norm(query), self.key_norm(key)
    query, key = rotary.turn(query, *angles), rotary.turn(key, *angles)
    query = query * self.config.query_factor
    return query, (key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3))

  def attend(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    reach: jax.Array | None = None,
  ) -> jax.Array:
    """Returns [B, N, E] for queries [B, N, H, D].

    The H / K queries of a token that share a key head become queries of that
    head side by side, so that keys are read once for all of them. With H = 4
    and K = 2, heads 0 and 1 of a token become two queries of key head 0.

    Args:
      query: [B, N, H, D], scaled.
      key: [B, K, D, L].
      value: [B, K, L, D].
      bias: [B, 1, N, L] float32, the mask.
      reach: [B] int32, how many slots of a row need be looked at, or None.
    """
    rows, num_fed, num_heads, head_dim = query.shape
    num_keys = key.shape[1]
    group = num_heads // num_keys
    query = query.reshape(rows, num_fed, num_keys, group, head_dim)
    query = query.swapaxes(2, 3).reshape(rows, -1, num_keys, head_dim)
    bias = jnp.repeat(bias, group, axis=2)
    cap = self.config.attention_cap
    if self.out.has_panels() and cap is None:
      context = native.attend(query, key, value, bias, reach)
    else:
      context = layers.attend_within(
        reach, query, key, value, bias, float32_scores=True, cap=cap
      )
    context = context.reshape(rows, num_fed, group, num_keys, head_dim)
    return self.out(context.swapaxes(2, 3).reshape(rows, num_fed, -1))


class CausalLayer(nn.Module):
  """Self-attention and MLP, each after a norm and with a residual.

  With post norms the output of each is normed before it is added.
  """

  config: LlamaConfig

  def setup(self):
    cfg = self.config
    self.pre_self_attention_layer_norm = _norm(cfg)
    self.self_attention = GroupedAttention(cfg)
    self.pre_mlp_layer_norm = _norm(cfg)
    self.mlp = layers.Mlp(cfg)
    if cfg.post_norms:
      self.post_self_attention_layer_norm = _norm(cfg)
      self.post_mlp_layer_norm = _norm(cfg)

  def _queries_keys_values(self, x, angles):
    y = self.pre_self_attention_layer_norm(x)
    return self.self_attention.queries_keys_values(y, angles)

  def _attend(self, x, query, keys_values, bias, reach=None):
    """Returns x after attention to keys and values, and after the MLP."""
    key, value = keys_values
    y = self.self_attention.attend(query, key, value, bias, reach)
    if self.config.post_norms:
      y = self.post_self_attention_layer_norm(y)
    x = x + y
    y = self.mlp(self.pre_mlp_layer_norm(x))
    if self.config.post_norms:
      y = self.post_mlp_layer_norm(y)
    return x + y

  def __call__(
    self, x: jax.Array, angles: Angles, bias: jax.Array
  ) -> jax.Array:
    """Returns [B, T, E] for x [B, T, E] and a mask [B, 1, T, T]."""
    query, keys_values = self._queries_keys_values(x, angles)
    return self._attend(x, query, keys_values, bias)

  def extend(
    self,
    x: jax.Array,
    block: Block,
    angles: Angles,
    layer_cache: cache.LayerCache,
    bias: jax.Array,
    *,
    is_last: bool,
  ) -> tuple[jax.Array, cache.LayerCache]:
    """Feeds a block; its tokens are cached, and the read positions go on.

    Args:
      x: [B, N, E].
      block: the fed tokens.
      angles: of the fed tokens.
      layer_cache: keys [B, K, D, L] and values [B, K, L, D].
      bias: [B, 1, N, L] float32, the mask.
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
    return self._attend(x, query, layer_cache, bias, block.reach), layer_cache


class CausalStack(nn.Module):
  """The layers, the last norm, and an output projection that is not tied.

  Attributes:
    config: the architecture.
    remat: what training computes again, see `layers.REMAT`; None stores all.
  """

  config: LlamaConfig
  remat: str | None = None

  def setup(self):
    cfg = self.config
    self.layers = [CausalLayer(cfg) for _ in range(cfg.num_decoder_layers)]
    self.decoder_norm = _norm(cfg)
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ("embed", "vocab"))

  def __call__(
    self, x: jax.Array, angles: AnglesByWindow, biases: Biases
  ) -> jax.Array:
    """Returns normed hidden [B, T, E] for x [B, T, E].

    Args:
      x: vectors of tokens.
      angles: of the tokens, by the window of a layer.
      biases: [B, 1, T, T] each, masks by the window of a layer.
    """
    for i, layer in enumerate(self.layers):
      window = self.config.window_of(i)
      x = layers.run(layer, self.remat, x, angles[window], biases[window])
    return self.decoder_norm(x)

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns [B, T, V] float32, from the untied output projection."""
    return self.logits_dense(x)

  def extend(
    self,
    x: jax.Array,
    block: Block,
    angles: AnglesByWindow,
    caches: tuple[cache.LayerCache, ...],
    biases: Biases,
  ) -> tuple[jax.Array, tuple[cache.LayerCache, ...]]:
    """Returns normed hidden [B, N or R, E], and the caches with the block.

    Arguments as of `CausalLayer.extend`, for all layers.
    """
    new_caches = []
    for i, layer in enumerate(self.layers):
      window = self.config.window_of(i)
      x, new_cache = layer.extend(
        x,
        block,
        angles[window],
        caches[i],
        biases[window],
        is_last=i == len(self.layers) - 1,
      )
      new_caches.append(new_cache)
    return self.decoder_norm(x), tuple(new_caches)


class CausalTransformer(nn.Module):
  """A decoder-only model of Llama's kind.

  Attributes:
    config: the architecture.
    remat: what training computes again, see `layers.REMAT`; None stores all.
  """

  config: LlamaConfig
  remat: str | None = None

  def setup(self):
    self.token_embedder = layers.Embed(
      self.config, stddev=0.02, vector_factor=self.config.embedding_factor
    )
    self.decoder = CausalStack(self.config, self.remat)

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns random parameters."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns random "params", and the names of their axes as "params_axes"."""
    return self.init(rng, jnp.ones((1, 1), jnp.int32))

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
    slots = np.arange(length, dtype=np.int32)
    if positions is None:
      positions = jnp.broadcast_to(jnp.asarray(slots)[None], (rows, length))
    back = slots[:, None] - slots[None, :]
    biases = {}
    for window in self.config.windows:
      is_seen = (back >= 0) & (back < (window or length))
      seen = jnp.asarray(is_seen)[None]
      if segment_ids is not None:
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        seen = jnp.broadcast_to(seen, same.shape) & same
      biases[window] = jnp.where(seen, 0.0, layers.MASKED)[:, None]
    angles = rotary.angles_by_window(self.config, positions)
    return self.decoder(self.token_embedder(tokens), angles, biases)

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns [B, T, V] float32 for x [B, T, E] after the last norm."""
    is_tied = self.config.logits_via_embedding
    head = self.token_embedder if is_tied else self.decoder
    axes = ("batch", "length", "vocab")
    logits = with_sharding_constraint(head.logits(x), axes)
    return layers.soft_cap(logits, self.config.logit_cap)

  def extend(
    self,
    tokens: jax.Array,
    caches: tuple[cache.LayerCache, ...],
    start: jax.Array,
    read: jax.Array | None = None,
    depth: jax.Array | None = None,
    ancestors: jax.Array | None = None,
  ) -> tuple[tuple[cache.LayerCache, ...], jax.Array, jax.Array]:
    """Feeds a block of tokens at each row's own slots.

    The slot of a token is its position, unless the token is part of a tree.
    Keys in `caches` are turned by their positions. Arguments and results as of
    a T5's `extend`, with K heads in the caches.
    """
    cfg, capacity = self.config, caches[0][0].shape[3]
    block = Block.of(tokens, start, read, depth, ancestors, cfg.dtype)
    positions = rotary.positions(start, block.tokens.shape, depth)
    biases = {
      window: block.bias(cache.window_by_offset(window, capacity))
      for window in cfg.windows
    }
    x, caches = self.decoder.extend(
      self.token_embedder(block.tokens),
      block,
      rotary.angles_by_window(cfg, positions),
      caches,
      biases,
    )
    return caches, *block.outputs(x, self.logits, cfg.vocab_size)
