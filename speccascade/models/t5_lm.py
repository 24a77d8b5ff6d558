"""A T5 and its block cache, as a decoding `LanguageModel`."""

import dataclasses
from typing import Any

from flax import struct
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.decoding.types import Array, Output
from speccascade.models import cache
from speccascade.models.layers import MASKED
from speccascade.models.params import prepared
from speccascade.models.partitioning import Layout, placed
from speccascade.models.t5 import native_passes
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer


@struct.dataclass
class T5State:
  """What a T5 remembers of each row. Every leaf has axis 0 = B.

  Attributes:
    length: [B] int32, decoder tokens fed so far; slots past it mean nothing.
    caches: (keys [B, H, D, L], values [B, H, L, D]) of each decoder layer, in
      the activations' dtype; L is the capacity.
    sources: (keys [B, H, D, S], values [B, H, S, D]) of the source, for each
      layer.
    source_bias: [B, 1, 1, S], masks the source's padding.
  """

  length: Array
  caches: tuple
  sources: tuple
  source_bias: Array


@struct.dataclass
class T5LM:
  """A T5 behind the `LanguageModel` door; make one with `create`.

  Attributes:
    params: T5X's parameter tree; see `create` for what may stand in it.
    module: static.
    layout: static, where its arrays lie; None on one device.
  """

  params: Any
  module: Transformer = struct.field(pytree_node=False)
  layout: Layout | None = struct.field(pytree_node=False, default=None)

  prompted = False

  @classmethod
  def create(
    cls,
    config: T5Config,
    params: dict,
    dtype: str | None = None,
    *,
    kernel_dtype: str | None = None,
    donate: bool = False,
    layout: Layout | None = None,
  ) -> "T5LM":
    """Returns the model of a parameter tree.

    Arrays that T5 uses in the activations' dtype are cast to it once, here.

    Args:
      config: the architecture.
      params: nested dict of arrays, as in a T5X checkpoint.
      dtype: activations, "float32" or "bfloat16"; None keeps the config's.
      kernel_dtype: of the kernels of a model that is for decoding only,
        "float32" or "bfloat16", the head and a tied table among them. Those
        that meet float32 activations are packed for the native product where
        there is one. None keeps the tree as a checkpoint has it.
      donate: whether `params` may be emptied, so that what is packed is not
        held twice.
      layout: where the arrays lie; None on one device. With one nothing is
        packed, and each part of an array is read by itself.

    Raises:
      ValueError: the parameters do not fit the architecture, or kernels of
        this dtype are not known.
    """
    if dtype is not None:
      config = dataclasses.replace(config, dtype=jnp.dtype(dtype).name)
    params = prepared(
      config, params, kernel_dtype, donate=donate, layout=layout
    )
    return cls(params=params, module=Transformer(config), layout=layout)

  @classmethod
  def init(cls, config: T5Config, rng: Array) -> "T5LM":
    """Returns a model with T5's random initial parameters."""
    return cls.create(config, jax.jit(Transformer(config).initial)(rng))

  @property
  def vocab_size(self) -> int:
    return self.module.config.vocab_size

  @property
  def slot_bytes(self) -> int:
    """Bytes that the decoder's cache takes for one token of one row."""
    cfg = self.module.config
    width = cfg.num_heads * cfg.head_dim * jnp.dtype(cfg.dtype).itemsize
    return 2 * cfg.num_decoder_layers * width

  @property
  def _is_native(self) -> bool:
    return native_passes.is_native(self.module.config, self.params)

  def _apply(self, method, *args, **kwargs):
    return self.module.apply(
      {"params": self.params}, *args, method=method, **kwargs
    )

  @placed
  def prefill(self, inputs: Array, *, capacity: int) -> T5State:
    """Encodes the source and makes an empty cache. See `LanguageModel`.

    Args:
      inputs: [B, S] int32 source tokens, 0 is padding.
      capacity: slots of the cache. An `extend` of N tokens writes N slots of
        every row, whatever the row's count: length + N <= capacity must hold
        then, or good slots are overwritten.
    """
    cfg = self.module.config
    source_bias = jnp.where(inputs > 0, 0.0, MASKED).astype(cfg.dtype)
    source_bias = source_bias[:, None, None, :]
    if self._is_native:
      bias = self._apply("encoder_bias", inputs.shape[1])
      sources = native_passes.encode(
        cfg, self.params, inputs, source_bias, bias
      )
    else:
      sources = self._apply("start", inputs)
    return T5State(
      length=jnp.zeros(inputs.shape[:1], jnp.int32),
      caches=cache.empty(
        len(sources),
        inputs.shape[0],
        cfg.num_heads,
        cfg.head_dim,
        capacity,
        cfg.dtype,
      ),
      sources=sources,
      source_bias=source_bias,
    )

  @placed
  def extend(
    self,
    state: T5State,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[T5State, Output]:
    """Feeds a block to each row at its own length. See `LanguageModel`.

    Raises:
      ValueError: if the block is wider than the cache.
    """
    capacity = state.caches[0][0].shape[3]
    if tokens.shape[1] > capacity:
      raise ValueError(
        f"a block of {tokens.shape[1]} tokens does not fit a cache of "
        f"{capacity} slots: give prefill a larger capacity"
      )
    is_tree = depth is not None or ancestors is not None
    if not is_tree and self._is_native:
      bias = self._apply("decoder_bias", capacity)
      caches, logits, hidden = native_passes.extend(
        self.module.config, self.params, tokens, count, bias, state, read
      )
    else:
      caches, logits, hidden = self._apply(
        "extend",
        tokens,
        state.caches,
        state.sources,
        state.source_bias,
        state.length,
        read=read,
        depth=depth,
        ancestors=ancestors,
      )
    # Every device draws from whole laws.
    logits = with_sharding_constraint(logits, ("batch", "length", None))
    state = state.replace(caches=caches, length=state.length + count)
    return state, Output(logits=logits, hidden=hidden)

  def rewind(self, state: T5State, length: Array) -> T5State:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(
    self, state: T5State, start: Array, path: Array, count: Array
  ) -> T5State:
    """Moves one path of a fed tree to the front. See `LanguageModel`."""
    caches = tuple(cache.keep_path(x, start, path) for x in state.caches)
    return state.replace(caches=caches, length=start + count)
