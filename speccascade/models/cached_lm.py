"""What T5s and Llamas share behind the door: a network with a block cache."""

import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.decoding.types import Array, Output
from speccascade.models import native_passes
from speccascade.models.cache import constrain, keep_path
from speccascade.models.parameters import Config, network, prepare
from speccascade.models.sharding.partitioning import Layout, under_layout


@dataclasses.dataclass(frozen=True, eq=False)
class CachedLM:
  """A decoding `LanguageModel` of a network; make one with `create`.

  A pytree. Its states have `length`, `caches`, `offset`, the slot that decoder
  tokens begin at, and `end`, [B] int32, the next slot.

  Attributes:
    params: the parameter tree; see `create` for what may stand in it.
    module: static.
    layout: static, where its arrays lie; None on one device.
  """

  params: Any
  module: nn.Module
  layout: Layout | None = None

  def __init_subclass__(cls):
    flatten = lambda model: model._flat
    jax.tree_util.register_pytree_node(cls, flatten, cls._unflatten)

  @functools.cached_property
  def _flat(self) -> tuple:
    """The arrays, each once, and what is static, as a pytree has them.

    Found once: a call of a compiled program flattens its models, and to go
    through a tree of many names took a tenth of a short sentence.
    """
    leaves, structure = jax.tree.flatten(self.params)
    arrays = {id(leaf): leaf for leaf in leaves}
    places = tuple(map(list(arrays).index, map(id, leaves)))
    return (*arrays.values(),), (self.module, self.layout, structure, places)

  @classmethod
  def _unflatten(cls, static: tuple, arrays):
    module, layout, structure, places = static
    leaves = [arrays[place] for place in places]
    return cls(jax.tree.unflatten(structure, leaves), module, layout)

  @classmethod
  def create(
    cls,
    config: Config,
    params: dict,
    dtype: str | None = None,
    *,
    kernel_dtype: str | None = None,
    donate: bool = False,
    layout: Layout | None = None,
  ):
    """Returns the model of a parameter tree.

    Arrays that it uses in the activations' dtype are cast to it once, here.

    Args:
      config: the architecture.
      params: nested dict of arrays, as in a T5X checkpoint; a Llama's have the
        names of a T5's decoder.
      dtype: activations, "float32" or "bfloat16"; None keeps the config's.
      kernel_dtype: of the kernels of a model that is for decoding only,
        "float32" or "bfloat16", the head and a tied table among them. Those
        that meet float32 activations are packed for the native product where
        there is one; with "bfloat16_products" it rounds the activations that
        it multiplies to bfloat16 too, as a TPU does by default, and sums in
        float32. None keeps the tree as a checkpoint has it.
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
    tree = prepare(config, params, kernel_dtype, donate=donate, layout=layout)
    return cls(params=tree, module=network(config), layout=layout)

  @classmethod
  def init(cls, config: Config, rng: Array):
    """Returns a model with random initial parameters."""
    return cls.create(config, jax.jit(network(config).initial)(rng))

  def replace(self, **changes):
    """Returns the model with other attributes."""
    return dataclasses.replace(self, **changes)

  @property
  def vocab_size(self) -> int:
    return self.module.config.vocab_size

  @property
  def slot_bytes(self) -> int:
    """Bytes that the decoder's cache takes for one token of one row."""
    cfg = self.module.config
    width = self._key_heads * cfg.head_dim * jnp.dtype(cfg.dtype).itemsize
    return 2 * cfg.num_decoder_layers * width

  @property
  def _key_heads(self) -> int:
    cfg = self.module.config
    return getattr(cfg, "num_kv_heads", cfg.num_heads)

  @property
  def _is_native(self) -> bool:
    return native_passes.is_native(self.module.config, self.params)

  def _apply(self, method, *args, **kwargs):
    variables = {"params": self.params}
    return self.module.apply(variables, *args, method=method, **kwargs)

  def _empty_caches(self, rows: int, slots: int) -> tuple:
    """Returns (keys [B, H, D, L], values [B, H, L, D]) of each layer."""
    cfg = self.module.config
    empty = lambda *shape: jnp.zeros((rows, self._key_heads, *shape), cfg.dtype)
    return tuple(
      constrain((empty(cfg.head_dim, slots), empty(slots, cfg.head_dim)))
      for _ in range(cfg.num_decoder_layers)
    )

  def _feed(self, state, tokens, count, read=None, depth=None, ancestors=None):
    """Returns (caches, logits, hidden) after a block, as `extend` is told."""
    is_tree = depth is not None or ancestors is not None
    if not is_tree and self._is_native:
      return native_passes.extend(
        self.module.config, self.params, tokens, count, state, read
      )
    how = {"read": read, "depth": depth, "ancestors": ancestors}
    caches, context = state.caches, self._context(state)
    return self._apply("extend", tokens, caches, *context, state.end, **how)

  def _context(self, state) -> tuple:
    """Returns what the network's `extend` takes between caches and slots."""
    return ()

  @under_layout
  def extend(
    self,
    state,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[Any, Output]:
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
    fed = self._feed(state, tokens, count, read, depth, ancestors)
    caches, logits, hidden = fed
    # Every device draws from whole laws.
    logits = with_sharding_constraint(logits, ("batch", "length", None))
    state = state.replace(caches=caches, length=state.length + count)
    return state, Output(logits=logits, hidden=hidden)

  def rewind(self, state, length: Array):
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(self, state, start: Array, path: Array, count: Array):
    """Moves one path of a fed tree to the front. See `LanguageModel`."""
    first = state.offset + start
    caches = tuple(keep_path(cache, first, path) for cache in state.caches)
    return state.replace(caches=caches, length=start + count)
