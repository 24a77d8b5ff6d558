"""A trained state reader, as a decoder takes it in a drafter's place.

With the verifier's table of tokens and its output projection the reader is a
language model of one layer, whose inputs are made of tokens and states: so the
passes, caches and trees of such a model are its own.

Axes: B rows, S prompt length, N fed tokens, E model width, V vocabulary.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Self, cast

from flax import struct
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import DraftedChain, Output
from speccascade.decoding.records.language_model import Array, State
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import cut_head, products
from speccascade.models.cached_lm import CachedLM
from speccascade.models.llama.eagle import EagleConfig, EagleTransformer
from speccascade.models.llama_lm import LlamaLM
from speccascade.models.parameters import network, prepare, unpacked
from speccascade.models.reader_config import LayerConfig, StateReaderConfig
from speccascade.models.sharding.partitioning import Layout
from speccascade.models.state_reader import (
  StateReaderNetwork,
  fuse_layer,
  fuse_states,
  initial_params,
)


def network_of(layer: LayerConfig) -> Any:
  """Returns the network of a reader's layer, with a table and a head."""
  is_eagle = isinstance(layer, EagleConfig)
  return EagleTransformer(layer) if is_eagle else network(layer)


class StateReader(struct.PyTreeNode):
  """A drafter that reads its verifier's states; see `readers.ReadsStates`.

  Attributes:
    params: the parameter tree; see `state_reader` for its names.
    module: the network; static.
  """

  params: Any
  module: StateReaderNetwork = struct.field(pytree_node=False)

  @classmethod
  def create(
    cls,
    config: StateReaderConfig,
    params: dict,
    dtype: str | None = None,
    *,
    kernel_dtype: str | None = None,
    donate: bool = False,
    layout: Layout | None = None,
  ) -> Self:
    """Returns the reader of a parameter tree.

    Args:
      config: the reader.
      params: nested dict of arrays.
      dtype: as in `CachedLM.create`; the verifier's.
      kernel_dtype: as in `CachedLM.create`. It need not be the verifier's.
      donate: whether `params` may be emptied.
      layout: None; a reader lies on one device.

    Raises:
      ValueError: the parameters do not fit, or the reader is to lie on a mesh.
    """
    if layout is not None:
      raise ValueError(
        "a state reader lies on one device, and a mesh is set: leave MESH out"
      )
    if dtype is not None:
      config = config.with_dtype(dtype)
    tree = prepare(config, params, kernel_dtype, donate=donate)
    return cls(tree, StateReaderNetwork(config))

  @classmethod
  def untrained(cls, verifier: CachedLM, **options: Any) -> Self:
    """Returns a reader as it is before training.

    Args:
      verifier: the language model to draft for, such as that of a pair.
      **options: the first fields of `StateReaderConfig`.

    Raises:
      ValueError: the verifier is not such a model.
    """
    if not isinstance(verifier, CachedLM):
      raise ValueError(
        "a state reader is made for a T5, a T5Gemma or a Llama, such as"
        f" pair.models.verifier_lm; a {type(verifier).__name__} was given"
      )
    params = unpacked(verifier.params)
    config = StateReaderConfig(**options)
    config = config.of_verifier(verifier.module.config, params)
    params = initial_params(config, verifier.module, params)
    return cls.create(config, params)

  @property
  def config(self) -> StateReaderConfig:
    """The hyperparameters."""
    return self.module.config

  @property
  def prompted(self) -> bool:
    """Whether the verifier of the reader is decoder-only."""
    return self.config.prompted

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.config.vocab_size

  def cut_to(self, ids: Sequence[int] | np.ndarray, verifier: CachedLM) -> Self:
    """Returns the reader with a head that keeps some tokens.

    The head is stored as the reader's other kernels.

    Args:
      ids: as of `CachedLM.cut_to`, which raises for other ids.
      verifier: the language model whose head is cut, unless the reader has a
        head of its own.
    """
    cut = self.reading_model(verifier).lm.cut_to(ids).params[cut_head.NAME]
    layer = self.params["decoder"]["layers_0"]["self_attention"]
    cut = cut_head.stored_like(cut, layer["query"]["kernel"])
    return self.replace(params={**self.params, cut_head.NAME: cut})

  def reading_model(self, verifier: Any) -> "ReaderLM":
    """Returns the language model of the reader. See `ReadsStates`.

    It shares the verifier's table of tokens and, unless it has a head of its
    own, the verifier's output projection.

    Args:
      verifier: the T5, T5Gemma or Llama that the reader was trained for.

    Raises:
      ValueError: the verifier is another kind of model, of another width, or on
        a mesh.
    """
    if not isinstance(verifier, CachedLM):
      raise ValueError(
        "a state reader reads the states of a T5, a T5Gemma or a Llama; the"
        f" verifier is a {type(verifier).__name__}: give the verifier that it"
        " was trained for"
      )
    if verifier.layout is not None:
      raise ValueError(
        "a state reader lies on one device, and its verifier is on a mesh:"
        " leave MESH out"
      )
    config, of_verifier = self.config, verifier.module.config
    for name in ("vocab_size", "emb_dim"):
      own, others = getattr(config, name), getattr(of_verifier, name)
      if own != others:
        raise ValueError(
          f"a state reader of {name} {own} is given a verifier of {name}"
          f" {others}: give the verifier that it was trained for"
        )
    if type(config.layer) is not type(of_verifier):
      raise ValueError(
        f"a state reader for a {type(config.layer).__name__} is given a"
        f" {type(of_verifier).__name__}: give the verifier that it was trained"
        " for"
      )
    changes: dict[str, Any] = {"dtype": of_verifier.dtype}
    decoder, head = dict(self.params["decoder"]), verifier.params["decoder"]
    if not config.own_head:
      for name in ("logits_via_embedding", "logit_cap"):
        if hasattr(of_verifier, name):
          changes[name] = getattr(of_verifier, name)
      if "logits_dense" in head:
        decoder["logits_dense"] = head["logits_dense"]
    layer = dataclasses.replace(config.network_layer, **changes)
    owner = self if config.own_table else verifier
    tree = {
      "token_embedder": owner.params["token_embedder"],
      "decoder": decoder,
    }
    if cut_head.NAME in self.params:
      tree[cut_head.NAME] = self.params[cut_head.NAME]
    lm = type(verifier)(tree, network_of(layer), None, verifier.rows)
    own_names = ("fuse", "fuse_states")
    own = {name: self.params[name] for name in own_names if name in self.params}
    return ReaderLM(lm, own, config)

  def verifier_read(self, verifier: CachedLM) -> CachedLM:
    """Returns the verifier as it hands out states. See `ReadsStates`."""
    num_layers = verifier.module.config.num_decoder_layers
    return verifier.handing_out(self.config.layers_read(num_layers))


class ReaderLM(struct.PyTreeNode):
  """The language model of a state reader. See `readers.ReadingModel`.

  Attributes:
    lm: the layer, as a language model of its own.
    params: those of the products before the layer.
    config: the reader; static.
  """

  lm: CachedLM
  params: Any
  config: StateReaderConfig = struct.field(pytree_node=False)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.lm.vocab_size

  @property
  def prompted(self) -> bool:
    """Whether the verifier is decoder-only."""
    return self.lm.prompted

  @property
  def kept_ids(self) -> Array | None:
    """[N] int32, the tokens of a cut head. See `language_model.CutModel`."""
    return self.lm.kept_ids

  def columns(self) -> Array:
    """Returns [V] int32, the column of each token. See `CutModel`."""
    return self.lm.columns()

  def with_columns(self) -> Self:
    """Returns the model with `columns` at hand. See `CutModel`."""
    return self.replace(lm=self.lm.with_columns())

  def over_kept(self) -> Self:
    """Returns the model over the kept tokens alone. See `CutModel`."""
    return self.replace(lm=self.lm.over_kept())

  def _vectors(self, tokens: Array, states: Array) -> Array:
    """Returns what the layer reads [B, N, E] of tokens and states before."""
    vectors = self.lm._apply("embed", tokens)
    x = jnp.concatenate([vectors, states.astype(vectors.dtype)], axis=-1)
    return self._through("fuse", fuse_layer, x)

  def states_of(self, hidden: Array) -> Array:
    """Returns the states [B, N, E] of the verifier's. See `ReadingModel`."""
    config = self.config
    if hidden.shape[-1] != config.num_states * config.emb_dim:
      raise ValueError(
        f"a state reader of {config.num_states} states of {config.emb_dim}"
        f" numbers is given {hidden.shape[-1]} numbers: decode with what"
        " verifier_read(verifier) of the reader returns"
      )
    hidden = hidden.astype(self.lm.module.config.dtype)
    return self._through("fuse_states", fuse_states, hidden)

  def _through(self, name: str, make: Callable[..., Any], x: Array) -> Array:
    """Returns x [B, N, ...] through a product, where the reader has it."""
    if name not in self.params:
      return x
    dtype = self.lm.module.config.dtype
    # (See `products.num_spare`.)
    num, num_spare = x.shape[1], products.num_spare(x.shape[:2], dtype)
    x = jnp.pad(x, ((0, 0), (0, num_spare), (0, 0)))
    product = make(self.config.with_dtype(dtype))
    x = cast(Array, product.apply({"params": self.params[name]}, x))
    return x[:, :num]

  def prefill(
    self, inputs: Array, seen: Any, *, capacity: int
  ) -> tuple[State, Array]:
    """Returns the state after the prompt. See `readers.ReadingModel`."""
    if not isinstance(self.lm, LlamaLM):
      lm: Any = self.lm
      width = lm.module.config.emb_dim
      last = jnp.zeros((len(inputs), width), lm.module.config.dtype)
      return lm.begin(inputs, seen, capacity), last
    tokens, offset = prompts.prefill_tokens(inputs)
    # Entry i is the state before token i.
    before = jnp.pad(self.states_of(seen), ((0, 0), (1, 0), (0, 0)))
    last = jnp.take_along_axis(before, offset[:, None, None], axis=1)
    before = before[:, :-1]
    if self.config.skips_first:
      tokens, before = tokens[:, 1:], before[:, 1:]
      offset = jnp.maximum(offset - 1, 0)
    vectors = self._vectors(tokens, before)
    state, _ = self.lm.read_tokens(tokens, offset, capacity, vectors=vectors)
    return state, last[:, 0]

  def extend(
    self,
    state: State,
    tokens: Array,
    count: Array,
    *,
    states: Array,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[State, Output]:
    """Feeds tokens with states. See `readers.ReadingModel`."""
    return self.lm.extend(
      state,
      tokens,
      count,
      read=read,
      depth=depth,
      ancestors=ancestors,
      vectors=self._vectors(tokens, states),
    )

  def draft_chain(
    self,
    state: State,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    *,
    states: Array,
    needs_bonus_law: bool,
  ) -> tuple[State, DraftedChain] | None:
    """Drafts a chain in one native call. See `readers.ChainReadingModel`.

    None is returned where the kernels are not packed, and else as in
    `CachedLM.draft_chain`.
    """
    fuse = self.params.get("fuse", {})
    kernel = fuse.get("kernel")
    if len(fuse) > 1 or not isinstance(kernel, native.Panels):
      return None
    return self.lm.draft_chain(
      state,
      prefix,
      u,
      sampling,
      needs_bonus_law=needs_bonus_law,
      states=native.ChainStates(states, kernel),
    )

  def rewind(self, state: State, length: Array) -> State:
    """Lowers the lengths. See `LanguageModel`."""
    return self.lm.rewind(state, length)
