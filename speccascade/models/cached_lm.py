"""What T5s and Llamas share as `LanguageModel`s: a network with a block cache.

Axes: B rows, N fed tokens, R read positions, L slots, H heads, D head width, V
vocabulary, E model width.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple, Self

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.drafting.kept_tokens import spread
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import DraftedChain, Output
from speccascade.decoding.records.language_model import Array
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import (
  cut_head,
  early_exit,
  gpu_passes,
  native_passes,
  tpu_passes,
  tree_windows,
)
from speccascade.models.block import Block
from speccascade.models.cache import constrain, keep_path
from speccascade.models.cached_stack import with_layer_inputs
from speccascade.models.parameters import Config, network, prepare
from speccascade.models.sharding.partitioning import Layout, under_layout


class _Static(NamedTuple):
  """What of a model is part of a compiled program."""

  module: nn.Module
  layout: Layout | None
  rows: int | None
  num_shared: int
  is_narrow: bool
  state_layers: tuple[int, ...]
  structure: Any  # of the parameter tree
  places: tuple[int, ...]  # for each leaf, which of the model's arrays it is


@dataclasses.dataclass(frozen=True, eq=False)
class CachedLM(cut_head.Cuttable):
  """A decoding `LanguageModel` of a network; make one with `create`.

  A model is a pytree. Its states have `length` and `caches`; `offset`, the slot
  at which decoder tokens begin; and `end`, [B] int32, the next slot.

  Attributes:
    params: the parameter tree; see `create` for its leaves.
    module: the network; static.
    layout: where the arrays lie, None on one device; static.
    rows: V of the logits where it is more than the table's, as in a drafter
      whose verifier has rows past the tokenizer that the drafter lacks. Such a
      token is never drawn, its logit being -inf, and is read as the last one of
      the table; static.
    num_shared: how many of the first layers are those of the verifier that an
      early exit drafts for; 0 of any other model; static.
    is_narrow: whether the logits are those of a cut head's N tokens alone, see
      `over_kept`; static.
    state_layers: the hidden states that it hands out are what these layers
      read, counted from 0 and concatenated; those after the last norm where
      there are none; static. See `handing_out`.
  """

  params: Any
  module: Any
  layout: Layout | None = None
  rows: int | None = None
  num_shared: int = 0
  is_narrow: bool = False
  state_layers: tuple[int, ...] = ()

  prompted: ClassVar[bool]

  def __init_subclass__(cls):
    jax.tree_util.register_pytree_node(cls, cls._flatten, cls._unflatten)

  def _flatten(self) -> tuple:
    return self._flat

  @functools.cached_property
  def _flat(self) -> tuple[tuple, _Static]:
    """The model's arrays, each once, and its static part."""
    # Several leaves may be one array: panels of kernels share arrays. The
    # result is computed once. Every call of a compiled program flattens its
    # models, and going through a tree of many names took a tenth of a short
    # sentence.
    leaves, structure = jax.tree.flatten(self.params)
    arrays = {id(leaf): leaf for leaf in leaves}
    numbers = {key: number for number, key in enumerate(arrays)}
    places = tuple(numbers[id(leaf)] for leaf in leaves)
    static = _Static(
      self.module,
      self.layout,
      self.rows,
      self.num_shared,
      self.is_narrow,
      self.state_layers,
      structure,
      places,
    )
    return tuple(arrays.values()), static

  @classmethod
  def _unflatten(cls, static: _Static, arrays) -> Self:
    leaves = [arrays[place] for place in static.places]
    params = jax.tree.unflatten(static.structure, leaves)
    return cls(
      params,
      static.module,
      static.layout,
      static.rows,
      static.num_shared,
      static.is_narrow,
      static.state_layers,
    )

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
  ) -> Self:
    """Returns the model of a parameter tree.

    Arrays that the model uses in the activations' dtype are cast to it once,
    here.

    Args:
      config: the architecture.
      params: nested dict of arrays, as in a T5X checkpoint; a Llama's have the
        names of a T5's decoder.
      dtype: dtype of the activations, "float32" or "bfloat16"; None keeps the
        config's.
      kernel_dtype: dtype of the kernels of a model that is for decoding only,
        the head and a tied table among them: "float32", "bfloat16",
        "bfloat16_products" or "int8". Kernels that meet float32 activations
        are packed for the native product where there is one. With
        "bfloat16_products" it also rounds the activations that it multiplies to
        bfloat16, as a TPU does by default, and sums in float32. With "int8",
        which is for drafters on one device, a kernel has eight bits for each
        weight and a scale for each output. None keeps the tree as a checkpoint
        has it.
      donate: whether `params` may be emptied, so that no array is held both
        packed and as it was.
      layout: where the arrays lie; None on one device. With a layout nothing is
        packed, and each part of an array is read by itself.

    Raises:
      ValueError: the parameters do not fit the architecture, or there is no
        such `kernel_dtype`, or it is "int8" and there is a layout.
    """
    if dtype is not None:
      changes: dict[str, Any] = {"dtype": jnp.dtype(dtype).name}
      config = dataclasses.replace(config, **changes)
    tree = prepare(config, params, kernel_dtype, donate=donate, layout=layout)
    return cls(params=tree, module=network(config), layout=layout)

  @classmethod
  def init(cls, config: Config, rng: Array) -> Self:
    """Returns a model with random initial parameters."""
    return cls.create(config, jax.jit(network(config).initial)(rng))

  def replace(self, **changes) -> Self:
    """Returns the model with some attributes changed."""
    return dataclasses.replace(self, **changes)

  def cut_to(self, ids: Sequence[int] | np.ndarray) -> Self:
    """Returns the model with a head that keeps some tokens; see `cut_head`.

    It reads all tokens. The logits of the others are -inf.

    Args:
      ids: as in `cut_head.kept`.

    Raises:
      ValueError: see `cut_head.kept`.
    """
    num_rows = self.module.config.vocab_size
    kept = cut_head.kept(ids, self.vocab_size, num_rows, self.params)
    return self.replace(params=cut_head.cut(self.params, kept, self.layout))

  def first_layers(self, num: int) -> Self:
    """Returns the network of the first decoder layers; see `early_exit`.

    Args:
      num: k, from 1 to the number of layers.

    Raises:
      ValueError: there are fewer layers.
    """
    config = early_exit.shortened(self.module.config, num)
    return self.replace(
      params=early_exit.first_layers(self.params, num),
      module=self.module.clone(config=config),
      num_shared=num,
    )

  def handing_out(self, layers: Sequence[int]) -> Self:
    """Returns the model whose hidden states [B, N, K E] are of K layers.

    Layer k reads the state after k layers; layer 0 reads the tokens' vectors.

    Args:
      layers: K numbers of layers, from 0.

    Raises:
      ValueError: there is no such layer.
    """
    num = self.module.config.num_decoder_layers
    wrong = [layer for layer in layers if not 0 <= layer < num]
    if wrong:
      raise ValueError(
        f"the states before layers {list(layers)} are wanted, and the verifier"
        f" has {num} layers: give numbers from 0 to {num - 1}"
      )
    return self.replace(state_layers=tuple(layers))

  @property
  def width_of_states(self) -> int:
    """Numbers of a hidden state that the model hands out."""
    return self.module.config.emb_dim * max(len(self.state_layers), 1)

  def is_exit_of(self, verifier: Any) -> bool:
    """Whether the first layers are a verifier's. See `SharesLayers`."""
    return early_exit.has_layers_of(self, verifier)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.rows or self.module.config.vocab_size

  @property
  def slot_bytes(self) -> int:
    """Bytes that the decoder's cache takes for one token of one row."""
    cfg = self.module.config
    width = self._num_key_heads * cfg.head_dim * jnp.dtype(cfg.dtype).itemsize
    return 2 * cfg.num_decoder_layers * width

  @property
  def _num_key_heads(self) -> int:
    cfg = self.module.config
    return getattr(cfg, "num_kv_heads", cfg.num_heads)

  @property
  def _is_native(self) -> bool:
    return native_passes.is_native(self.module.config, self.params)

  def _apply(self, method: str, *args, **kwargs) -> Any:
    """Returns what a method of the network computes with the parameters."""
    variables = {"params": self.params}
    return self.module.apply(variables, *args, method=method, **kwargs)

  def _empty_caches(self, rows: int, slots: int) -> tuple:
    """Returns (keys [B, H, D, L], values [B, H, L, D]) of each layer."""
    cfg = self.module.config
    shape = (rows, self._num_key_heads)
    return tuple(
      constrain(
        (
          jnp.zeros((*shape, cfg.head_dim, slots), cfg.dtype),
          jnp.zeros((*shape, slots, cfg.head_dim), cfg.dtype),
        )
      )
      for _ in range(cfg.num_decoder_layers)
    )

  def _feed(self, state: Any, block: Block, count: Array) -> tuple:
    """Returns (caches, logits, hidden) after a block; see `extend`."""
    config, params = self.module.config, self.params
    layers = self.state_layers
    if self._is_native:
      return native_passes.extend(config, params, state, block, count, layers)
    context = self._context(state)
    for passes in (gpu_passes, tpu_passes):
      if passes.takes(config, params, state, block.tokens):
        project = functools.partial(self._apply, "logits")
        return passes.extend(
          config, params, state, block, context, project, layers
        )
    if not layers:
      return self._apply("extend", block, state.caches, *context)
    (caches, logits, _), read = with_layer_inputs(
      self.module,
      {"params": params},
      block,
      state.caches,
      *context,
      method="extend",
    )
    return caches, logits, block.states([read[layer] for layer in layers])

  def _context(self, state: Any) -> tuple:
    """Returns what the network's `extend` takes after the caches."""
    return ()

  @under_layout
  def extend(
    self,
    state: Any,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
    vectors: Array | None = None,
  ) -> tuple[Any, Output]:
    """Feeds a block to each row at its own length. See `LanguageModel`.

    `vectors` [B, N, E] are read in place of the tokens' vectors; see `Block`.

    Raises:
      ValueError: the block is wider than the cache, or what is said of a tree
        does not fit; see `tree_windows.check`.
    """
    tree_windows.check(tokens, depth, ancestors)
    capacity = state.caches[0][0].shape[3]
    if tokens.shape[1] > capacity:
      raise ValueError(
        f"a block of {tokens.shape[1]} tokens does not fit a cache of "
        f"{capacity} slots: give prefill a larger capacity"
      )
    block = Block(tokens, state.end, read, depth, ancestors, vectors)
    caches, logits, hidden = self._feed(state, block, count)
    # On a mesh every device draws from whole rows of logits.
    logits = with_sharding_constraint(logits, ("batch", "length", None))
    # A row that is fed less than the block has garbage in the slots after its
    # length. No token sees them, and the next block overwrites them.
    state = state.replace(caches=caches, length=state.length + count)
    return state, Output(logits=self._widened(logits), hidden=hidden)

  def _widened(self, x: Array, fill: float = -np.inf) -> Array:
    """Returns x [..., columns of the head] as [..., V]; `fill` is added."""
    if self.kept_ids is not None:
      return x if self.is_narrow else spread(x, self.columns(), fill)
    num_more = self.vocab_size - x.shape[-1]
    if not num_more:
      return x
    widths = [(0, 0)] * (x.ndim - 1) + [(0, num_more)]
    return jnp.pad(x, widths, constant_values=fill)

  @under_layout
  def draft_chain(
    self,
    state: Any,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
    states: native.ChainStates | None = None,
  ) -> tuple[Any, DraftedChain] | None:
    """Drafts a chain in one native call. See `language_model.ChainModel`.

    None is returned where a model is not packed, and where tokens are filtered
    by more than top-p. With `states` a hidden state is read with each token;
    see `ReaderLM.draft_chain`.
    """
    top_k = sampling.top_k
    is_filtered = top_k is not None and top_k < self.vocab_size
    is_filtered |= sampling.min_p is not None
    is_known = sampling.greedy or not is_filtered
    if not (self._is_native and is_known and native.takes(u)):
      return None
    num_passes = u.shape[1] + needs_bonus_law
    # Where the last draft of the block before was not fed, the cache lacks it
    # too, in rows that accepted all of the block.
    first_width = 1 if needs_bonus_law else 2
    if states is not None:
      first_width = states.before.shape[1]
    caches, chain = native_passes.draft_chain(
      self.module.config,
      self.params,
      state,
      native.ChainPrefix(
        prefix.tokens, prefix.length, state.length, state.end, prefix.active
      ),
      native.ChainDraws(
        u, sampling.temperature, sampling.top_p, sampling.greedy
      ),
      first_width=first_width,
      num_passes=num_passes,
      states=states,
    )
    chain = chain.replace(
      q=self._widened(chain.q, 0), logits=self._widened(chain.logits)
    )
    held = prefix.length + prefix.active.astype(jnp.int32) * (num_passes - 1)
    return state.replace(caches=caches, length=held), chain

  def project(self, hidden: Array) -> Array:
    """Returns the logits of hidden states, by the output projection.

    Args:
      hidden: [B, R, E], as in `Output.hidden`.

    Returns:
      [B, R, V] float32.
    """
    return self._widened(self._apply("logits", hidden))

  def rewind(self, state: Any, length: Array) -> Any:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    # Slots past the length mean nothing, so nothing has to be erased.
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(self, state: Any, start: Array, path: Array, count: Array) -> Any:
    """Moves one path of a fed tree to the front. See `LanguageModel`."""
    # Lengths count decoder tokens; slots also count the prompt before them.
    first = state.offset + start
    if self._is_native:
      caches = native.keep_path(state.caches, first, path, count)
    else:
      caches = keep_path(state.caches, first, path, count)
    return state.replace(caches=caches, length=start + count)
