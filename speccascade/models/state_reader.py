"""A state reader: the network over tokens and states.

The network is one layer of the verifier's kind. It reads the vector of a token,
from the verifier's table, and the verifier's hidden state at the token before
it, which one product makes a vector of the verifier's width. After the
verifier's kind of norm, its output stands for the verifier's hidden state at
the token, and gives logits by the verifier's output projection.

The parameter tree has the names of the verifier's decoder:

    fuse/kernel                [2E, E], of [vector of the token, state]
    decoder/layers_0/...       a layer of the verifier's decoder
    decoder/decoder_norm/scale [E]
    decoder/relpos_bias/...    where the verifier is a T5
    decoder/logits_dense/kernel [E, V], with a head of its own alone

A reader may read the states after several layers, of which `fuse_states` makes
one. With a `layout` its layer is that of EAGLE's public drafters, which may
have a table of tokens, and a head that keeps some tokens:

    fuse_states/product/kernel  [K E, E], of K states; `FusedStates`
    token_embedder/embedding    [V, E], with a table of its own alone
    draft_vocabulary/kernel     [E, N], and "ids" [N]; see `cut_head`

Axes: B rows, S source length, T text length, E model width, V vocabulary.
"""

import dataclasses
from typing import Any

from flax import linen as nn
from flax import traverse_util
from flax.linen.partitioning import param_with_axes
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import attention, fused_states, layers
from speccascade.models.cache import LayerCache
from speccascade.models.llama import rotary
from speccascade.models.llama.eagle import EagleConfig, EagleStack
from speccascade.models.llama.network import CausalStack
from speccascade.models.reader_config import EAGLE3, StateReaderConfig
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.stacks import DecoderStack
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma.network import (
  CrossAttentionStack,
  MergedAttentionStack,
)


def fuse_layer(config: StateReaderConfig) -> layers.Dense:
  """Returns the product of the vector of a token and a state."""
  axes, has_bias = ("mlp", "embed"), config.eagle.fuse_bias
  return layers.Dense(config.emb_dim, axes, config.dtype, use_bias=has_bias)


def fuse_states(config: StateReaderConfig) -> fused_states.FusedStates:
  """Returns what makes one state of the verifier's."""
  return fused_states.FusedStates(
    config.emb_dim,
    config.num_states,
    config.dtype,
    config.eagle.norms_of_states,
    getattr(config.layer, "norm_epsilon", 1e-6),
  )


class KeptHead(nn.Module):
  """The parameters of a head that keeps some tokens; see `cut_head`.

  Attributes:
    config: the reader.
  """

  config: StateReaderConfig

  @nn.compact
  def __call__(self) -> None:
    """Makes the parameters."""
    num = self.config.draft_vocab_size
    shape = self.config.emb_dim, num
    zeros = nn.initializers.zeros
    param_with_axes(
      "kernel", zeros, shape, jnp.float32, axes=("embed", "vocab")
    )
    param_with_axes("ids", zeros, (num,), jnp.float32, axes=("vocab",))


class StateReaderNetwork(nn.Module):
  """One layer over the vectors of tokens and the states before them.

  Attributes:
    config: the reader.
    remat: not used; one layer stores everything.

  Source: Li et al., "EAGLE" (arXiv 2401.15077), section 3.1, whose layer has no
  norm before its attention and none after it; here it has the verifier's. Li et
  al., "EAGLE-3" (arXiv 2503.01840), section 3.2: how a text is read several
  times to train what drafts read.
  """

  config: StateReaderConfig
  remat: str | None = None

  def setup(self):
    layer = self.config.network_layer
    if self.config.fused:
      self.fuse_states = fuse_states(self.config)
    if self.config.layout != EAGLE3:
      self.fuse = fuse_layer(self.config)
    stack: Any = CausalStack
    if isinstance(layer, EagleConfig):
      stack = EagleStack
    elif isinstance(layer, T5Config):
      stack = DecoderStack
    elif isinstance(layer, T5GemmaConfig):
      is_merged = layer.merged_attention
      stack = MergedAttentionStack if is_merged else CrossAttentionStack
    is_cut = self.config.draft_vocab_size is not None
    if not self.config.own_head or is_cut:
      # The stack is to have no projection of its own.
      layer = dataclasses.replace(layer, logits_via_embedding=True)
    self.decoder = stack(layer)
    if self.config.own_table:
      self.token_embedder = layers.Embed(layer, stddev=0.02)
    if is_cut:
      self.draft_vocabulary = KeptHead(self.config)

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns random parameters."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns random "params", and names of axes as "params_axes"."""
    layer = self.config.layer
    width, num = self.config.emb_dim, self.config.num_states
    vectors = jnp.zeros((1, 1, width), layer.dtype)
    states = jnp.zeros((1, 1, num * width), layer.dtype)
    source = None
    if hasattr(layer, "num_encoder_layers"):
      encoder = getattr(layer, "encoder", layer)
      encoded = jnp.zeros((1, 1, encoder.emb_dim), layer.dtype)
      source = encoded, jnp.ones((1, 1, 1), bool)
    return self.init(rng, vectors, states, source=source, has_own=True)

  def __call__(
    self,
    vectors: jax.Array,
    states: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
    source: tuple[jax.Array, jax.Array] | None = None,
    num_steps: int = 1,
    has_own: bool = False,
  ) -> list[jax.Array]:
    """Reads a text several times, and returns what stands for states.

    The first reading has the verifier's states. Each later one has the outputs
    of the reading before it: its token t is drafted with the reader's own
    states at as many tokens as there were readings before. It sees the text as
    that draft does: with one reading before, token t sees tokens up to t - 1
    as the first reading read them, and itself; with two, tokens up to t - 2,
    token t - 1 of the second reading, and itself.

    Args:
      vectors: [B, T, E], of the tokens.
      states: [B, T, E], the verifier's, at each token; [B, T, K E] where they
        are fused.
      segment_ids: [B, T] int32 of packed rows, or None.
      positions: [B, T] int32 within the text; None is 0, 1, ..., T-1.
      source: the encoded source [B, S, E], and [B, 1 or T, S] bool, which of it
        each token sees; None where the verifier is decoder-only.
      num_steps: static, how many readings.
      has_own: whether all of the reader is to have parameters.

    Returns:
      [B, T, E] for each reading, after the norm, if the layout has one there.
    """
    stack: Any = self.decoder
    layer, outputs = stack.layers[0], []
    held: list[LayerCache] = []
    angles, bias_of = self._places(vectors.shape[:2], segment_ids, positions)
    of_source: tuple[jax.Array, ...] = ()
    if source is not None:
      encoded, is_seen = source
      is_t5 = self.config.t5 is not None
      mask_dtype = self.config.dtype if is_t5 else "float32"
      of_source = (
        *layer.source_keys_values(encoded),
        attention.mask_bias(mask_dtype, is_seen),
      )
    if self.config.fused:
      states = self.fuse_states(states)
    for step in range(num_steps):
      before = jnp.pad(states[:, :-1], ((0, 0), (1, 0), (0, 0)))
      if segment_ids is not None:
        starts = segment_ids != jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
        before = jnp.where(starts[..., None], 0, before)
      x = jnp.concatenate([vectors, before], axis=-1)
      if self.config.layout != EAGLE3:
        x = self.fuse(x)
      x, new = layer.read_along(x, held, bias_of(step), angles, *of_source)
      held.append(new)
      states = stack.finished(x)
      outputs.append(states)
    if has_own:
      self._make_own(states)
    return outputs

  def _make_own(self, states: jax.Array) -> None:
    """Makes the parameters of a table and of a head."""
    if self.config.own_table:
      self.token_embedder(jnp.zeros((1, 1), jnp.int32))
    if self.config.draft_vocab_size is not None:
      self.draft_vocabulary()
    if self.config.layout == EAGLE3:
      self.decoder.decoder_norm(states)
    if self.config.own_head and self.config.draft_vocab_size is None:
      self.logits(states)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Returns the vectors of tokens, by the reader's own table."""
    return self.token_embedder(tokens)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns logits [B, T, V] float32, by the reader's own head."""
    layer = self.config.layer
    if self.config.layout is not None:
      hidden = self.decoder.before_head(hidden)
    logits = self.decoder.logits(hidden)
    return attention.soft_cap(logits, getattr(layer, "logit_cap", None))

  def _places(self, shape, segment_ids, positions):
    """Returns (angles of the tokens, a function from a step to its bias)."""
    layer, (_, length) = self.config.layer, shape
    slots = np.arange(length, dtype=np.int32)
    back = jnp.asarray(slots[:, None] - slots[None])[None]  # [1, T, T]
    is_text, angles, by_place = back >= 0, None, None
    if self.config.skips_first:
      # Only the first token sees itself, and no draft follows it.
      first = jnp.asarray(slots[:1] == slots)[None, None]  # [1, 1, T]
      if segment_ids is not None:
        before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
        first = (segment_ids != before)[:, None]
      is_text &= ~first | (back == 0)
    if segment_ids is not None:
      is_text &= attention.same(segment_ids, segment_ids)
    if isinstance(layer, T5Config):
      by_place = self.decoder.relpos_bias(length, length)
      mask_dtype = layer.dtype
    else:
      window, mask_dtype = layer.window_of(0), "float32"
      is_text &= back < (window or length)
      if positions is None:
        positions = jnp.broadcast_to(jnp.asarray(slots)[None], shape)
      angles = rotary.angles_by_window(layer, positions)[window]

    def bias_of(step):
      # Tokens of earlier readings that a token sees, then of its own.
      seen = [is_text & (back >= step)]
      seen += [is_text & (back == step - i) for i in range(1, step + 1)]
      biases = [attention.mask_bias(mask_dtype, x) for x in seen]
      if by_place is not None:
        biases = [bias + by_place for bias in biases]
      return jnp.concatenate(biases, axis=-1)

    return angles, bias_of


def initial_params(
  config: StateReaderConfig, verifier: Any, verifier_params: Any
) -> Any:
  """Returns the parameters of a reader before training.

  The layer and its norm begin as the verifier's last layer and last norm. The
  product begins as one that takes the state as it is, and adds a little of the
  vector of the token. A head or a table of its own begins as the verifier's. Of
  several states the last is taken as it is, and a little of the others.

  Args:
    config: the reader.
    verifier: the verifier's network.
    verifier_params: the verifier's parameters.
  """
  rng = jax.random.key(0, impl="threefry2x32")
  params = StateReaderNetwork(config).initial(rng)
  stored = verifier_params["decoder"]
  last = verifier.config.num_decoder_layers - 1
  decoder = dict(params["decoder"])
  layer = stored[f"layers_{last}"]
  decoder["layers_0"] = _like(decoder["layers_0"], layer)
  for name in ("decoder_norm", "relpos_bias"):
    if name in decoder:
      decoder[name] = stored[name]
  if config.own_head:
    # The logits of the unit vectors are the rows of the projection.
    kernel = verifier.apply(
      {"params": verifier_params},
      jnp.eye(config.emb_dim)[None],
      method="logits",
    )[0]
    decoder["logits_dense"] = {"kernel": kernel}
  tree = {**params, "decoder": decoder}
  if config.own_table:
    tree["token_embedder"] = verifier_params["token_embedder"]
  if "fuse" in tree:
    tree["fuse"] = {**tree["fuse"], "kernel": _last_of(tree["fuse"]["kernel"])}
  if config.fused:
    kernel = _last_of(tree["fuse_states"]["product"]["kernel"])
    tree["fuse_states"] = {**tree["fuse_states"], "product": {"kernel": kernel}}
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _last_of(kernel: jax.Array) -> jax.Array:
  """Returns a kernel [K E, E] that takes the last of K vectors as it is."""
  eye = jnp.eye(kernel.shape[1])
  return (0.1 * kernel).at[-len(eye) :].add(eye)


def _like(layer: Any, verifiers: Any) -> Any:
  """Returns a reader's layer [...] with what it has of the verifier's.

  A layer of EAGLE-3 has kernels [2 E, ...] of vector and state, of which those
  of the state are the verifier's, and a norm for each of the two.
  """
  layer, flat = (
    traverse_util.flatten_dict(x, sep="/") for x in (layer, verifiers)
  )
  for name, x in layer.items():
    found = flat.get(name)
    if name.startswith("state_layer_norm"):
      found = flat["pre_self_attention_layer_norm/scale"]
    if found is not None and found.shape == x.shape:
      layer[name] = found
    elif found is not None:
      layer[name] = jnp.concatenate([0.1 * x[: len(found)], found])
  return traverse_util.unflatten_dict(layer, sep="/")
