"""A decoder-only model of Llama's kind, as a decoding `LanguageModel`."""

import dataclasses
from typing import Any

from flax import struct
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.decoding import prompts
from speccascade.decoding.types import Array, Output
from speccascade.models import cache
from speccascade.models.llama import native_pass
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.params import prepared
from speccascade.models.partitioning import Layout, placed

# A prompt is fed by so many tokens at a time.
PREFILL_WIDTH = 64


@struct.dataclass
class LlamaState:
  """What a Llama remembers of each row. Every leaf has axis 0 = B.

  Attributes:
    length: [B] int32, decoder tokens fed so far; slots past it mean nothing.
    offset: [B] int32, prompt tokens before them: the next slot, and position,
      is offset + length.
    caches: (keys [B, K, D, L], values [B, K, L, D]) of each layer, in the
      activations' dtype; L holds the prompt, but its last token, and the
      capacity.
  """

  length: Array
  offset: Array
  caches: tuple


@struct.dataclass
class LlamaLM:
  """A Llama behind the `LanguageModel` door; make one with `create`.

  Attributes:
    params: the parameter tree; see `create` for what may stand in it.
    module: static.
    layout: static, as of a T5.
  """

  params: Any
  module: CausalTransformer = struct.field(pytree_node=False)
  layout: Layout | None = struct.field(pytree_node=False, default=None)

  @classmethod
  def create(
    cls,
    config: LlamaConfig,
    params: dict,
    dtype: str | None = None,
    *,
    kernel_dtype: str | None = None,
    donate: bool = False,
    layout: Layout | None = None,
  ) -> "LlamaLM":
    """Returns the model of a parameter tree.

    Args:
      config: the architecture.
      params: nested dict of arrays, in the names of a T5's decoder.
      dtype: as in `T5LM.create`, as what follows.
      kernel_dtype: of a model that is for decoding only.
      donate: whether `params` may be emptied.
      layout: where the arrays lie.

    Raises:
      ValueError: as there.
    """
    if dtype is not None:
      config = dataclasses.replace(config, dtype=jnp.dtype(dtype).name)
    params = prepared(
      config, params, kernel_dtype, donate=donate, layout=layout
    )
    return cls(params, CausalTransformer(config), layout)

  @classmethod
  def init(cls, config: LlamaConfig, rng: Array) -> "LlamaLM":
    """Returns a model with random initial parameters."""
    params = jax.jit(CausalTransformer(config).initial)(rng)
    return cls.create(config, params)

  @property
  def vocab_size(self) -> int:
    return self.module.config.vocab_size

  @property
  def prompted(self) -> bool:
    """Rows start from their own prompt."""
    return True

  @property
  def slot_bytes(self) -> int:
    """Bytes that the cache takes for one token of one row."""
    cfg = self.module.config
    width = cfg.num_kv_heads * cfg.head_dim * jnp.dtype(cfg.dtype).itemsize
    return 2 * cfg.num_decoder_layers * width

  def _extend(
    self, tokens, count, caches, start, read=None, depth=None, ancestors=None
  ):
    """Returns (caches, logits, hidden); see `CausalTransformer.extend`."""
    cfg, is_tree = self.module.config, depth is not None
    is_tree |= ancestors is not None
    if not is_tree and native_pass.is_native(cfg, self.params):
      return native_pass.extend(
        cfg, self.params, tokens, count, caches, start, read
      )
    return self.module.apply(
      {"params": self.params},
      tokens,
      caches,
      start,
      read=read,
      depth=depth,
      ancestors=ancestors,
      method="extend",
    )

  @placed
  def prefill(self, inputs: Array, *, capacity: int) -> LlamaState:
    """Feeds each prompt but its last token. See `LanguageModel`.

    Args:
      inputs: [B, S] int32 prompts, of one token or more; `prompts.PAD` is
        padding, at either end.
      capacity: slots after the prompts, with the limit of `T5LM.prefill`.
    """
    cfg, (tokens, offset) = self.module.config, prompts.held(inputs)
    rows, num_fed = tokens.shape
    slots = num_fed + capacity
    caches = cache.empty(
      cfg.num_decoder_layers,
      rows,
      cfg.num_kv_heads,
      cfg.head_dim,
      slots,
      cfg.dtype,
    )
    nothing = jnp.zeros((rows, 0), jnp.int32)
    width = min(num_fed, PREFILL_WIDTH)

    def feed(i, caches):
      # The last part begins early enough to be whole, and writes some again.
      first = jnp.minimum(i * width, num_fed - width)
      part = jax.lax.dynamic_slice_in_dim(tokens, first, width, axis=1)
      start = jnp.full((rows,), first, jnp.int32)
      count = jnp.clip(offset - first, 0, width)
      return self._extend(part, count, caches, start, nothing)[0]

    if num_fed:
      num_parts = (jnp.max(offset) + width - 1) // width
      caches = jax.lax.fori_loop(0, num_parts, feed, caches)
    length = jnp.zeros((rows,), jnp.int32)
    return LlamaState(length=length, offset=offset, caches=caches)

  @placed
  def extend(
    self,
    state: LlamaState,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[LlamaState, Output]:
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
    caches, logits, hidden = self._extend(
      tokens,
      count,
      state.caches,
      state.offset + state.length,
      read,
      depth,
      ancestors,
    )
    logits = with_sharding_constraint(logits, ("batch", "length", None))
    state = state.replace(caches=caches, length=state.length + count)
    return state, Output(logits=logits, hidden=hidden)

  def rewind(self, state: LlamaState, length: Array) -> LlamaState:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(
    self, state: LlamaState, start: Array, path: Array, count: Array
  ) -> LlamaState:
    """Moves one path of a fed tree to the front. See `LanguageModel`."""
    first = state.offset + start
    caches = tuple(cache.keep_path(x, first, path) for x in state.caches)
    return state.replace(caches=caches, length=start + count)
