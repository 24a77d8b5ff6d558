"""A state reader: its hyperparameters, and the network over tokens and states.

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

Axes: B rows, S source length, T text length, E model width, V vocabulary.
"""

from collections.abc import Mapping
import dataclasses
from typing import Annotated, Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import attention, layers
from speccascade.models.cache import LayerCache
from speccascade.models.draft_heads import fingerprint
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalStack
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.stacks import DecoderStack
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma.network import (
  CrossAttentionStack,
  MergedAttentionStack,
)
from speccascade.settings import fields

LayerConfig = T5Config | T5GemmaConfig | LlamaConfig
_NO_VERIFIER = LlamaConfig(
  vocab_size=1,
  emb_dim=1,
  num_heads=1,
  num_kv_heads=1,
  num_decoder_layers=1,
  head_dim=2,
  mlp_dim=1,
)


@fields.checked
@dataclasses.dataclass(frozen=True)
class StateReaderConfig:
  """Hyperparameters of a state reader over a verifier.

  A user sets the first two. The others say which verifier the reader was
  trained for; `of_verifier` fills them in.

  Attributes:
    own_head: whether the reader has an output projection of its own; else it
      has the verifier's.
    num_steps: how many drafts in a row training looks at: the first reads the
      verifier's state, and the later ones the reader's own. Blocks may be
      longer.
    t5: the architecture of the layer where the verifier is a T5: that of the
      verifier with one layer.
    t5gemma: the same where it is a T5Gemma.
    llama: the same where it is a Llama.
    verifier_sha256: what `fingerprint` says of the verifier's parameters.
  """

  own_head: bool = False
  num_steps: Annotated[int, fields.Bounds(1, 16)] = 3
  t5: T5Config | None = None
  t5gemma: T5GemmaConfig | None = None
  llama: LlamaConfig | None = None
  verifier_sha256: str = ""

  def __post_init__(self):
    if sum(x is not None for x in (self.t5, self.t5gemma, self.llama)) > 1:
      raise ValueError(
        "a state reader has the layer of one verifier; give one of t5, t5gemma"
        " and llama"
      )

  @property
  def layer(self) -> LayerConfig:
    """The architecture of the layer; before `of_verifier` the least one."""
    return self.t5 or self.t5gemma or self.llama or _NO_VERIFIER

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.layer.vocab_size

  @property
  def emb_dim(self) -> int:
    """E, the width of a state."""
    return self.layer.emb_dim

  @property
  def prompted(self) -> bool:
    """Whether the verifier is decoder-only."""
    return self.llama is not None

  @property
  def dtype(self) -> str:
    """Name of the activations' dtype."""
    return self.layer.dtype

  @property
  def longest_text(self) -> float:
    """The most tokens of a text, as of the verifier."""
    return getattr(self.layer, "longest_text", np.inf)

  def of_verifier(self, config: Any, params: Mapping) -> "StateReaderConfig":
    """Returns the reader of a verifier.

    Args:
      config: the verifier's architecture.
      params: the verifier's parameters, in T5X's names.
    """
    return dataclasses.replace(
      self.shaped_like(config), verifier_sha256=fingerprint(params)
    )

  def shaped_like(self, config: Any) -> "StateReaderConfig":
    """Returns the reader with the shape of a verifier.

    The layer sees the whole text, unless all layers of the verifier have a
    window.

    Args:
      config: the verifier's architecture.
    """
    changes: dict[str, Any] = {"num_decoder_layers": 1}
    if hasattr(config, "num_encoder_layers"):
      changes["num_encoder_layers"] = 1
    if self.own_head:
      changes["logits_via_embedding"] = False
    if isinstance(config, LlamaConfig):
      has_window = None not in config.windows
      changes["windowed_layers"] = None if has_window else ()
    if isinstance(config, T5GemmaConfig):
      changes["encoder_windowed_layers"] = None
    layer = dataclasses.replace(config, **changes)
    kinds = {T5Config: "t5", T5GemmaConfig: "t5gemma", LlamaConfig: "llama"}
    if type(config) not in kinds:
      raise ValueError(
        f"a state reader reads the states of a T5, a T5Gemma or a Llama; the"
        f" verifier is a {type(config).__name__}"
      )
    no_layers: dict[str, Any] = dict.fromkeys(kinds.values())
    return dataclasses.replace(self, **no_layers | {kinds[type(config)]: layer})

  def with_dtype(self, dtype: str) -> "StateReaderConfig":
    """Returns the reader with activations of a dtype."""
    for name in ("t5", "t5gemma", "llama"):
      layer = getattr(self, name)
      if layer is not None:
        layer = dataclasses.replace(layer, dtype=jnp.dtype(dtype).name)
        return dataclasses.replace(self, **{name: layer})
    return self


def fuse_layer(config: StateReaderConfig) -> layers.Dense:
  """Returns the product of the vector of a token and a state."""
  return layers.Dense(config.emb_dim, ("mlp", "embed"), config.dtype)


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
    layer = self.config.layer
    self.fuse = fuse_layer(self.config)
    stack: Any = CausalStack
    if isinstance(layer, T5Config):
      stack = DecoderStack
    elif isinstance(layer, T5GemmaConfig):
      is_merged = layer.merged_attention
      stack = MergedAttentionStack if is_merged else CrossAttentionStack
    if not self.config.own_head:
      # The stack is to have no projection of its own.
      layer = dataclasses.replace(layer, logits_via_embedding=True)
    self.decoder = stack(layer)

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns random parameters."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns random "params", and names of axes as "params_axes"."""
    layer = self.config.layer
    vectors = jnp.zeros((1, 1, self.config.emb_dim), layer.dtype)
    source = None
    if hasattr(layer, "num_encoder_layers"):
      encoder = getattr(layer, "encoder", layer)
      encoded = jnp.zeros((1, 1, encoder.emb_dim), layer.dtype)
      source = encoded, jnp.ones((1, 1, 1), bool)
    return self.init(
      rng, vectors, vectors, source=source, has_head=self.config.own_head
    )

  def __call__(
    self,
    vectors: jax.Array,
    states: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
    source: tuple[jax.Array, jax.Array] | None = None,
    num_steps: int = 1,
    has_head: bool = False,
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
      states: [B, T, E], the verifier's, at each token.
      segment_ids: [B, T] int32 of packed rows, or None.
      positions: [B, T] int32 within the text; None is 0, 1, ..., T-1.
      source: the encoded source [B, S, E], and [B, 1 or T, S] bool, which of it
        each token sees; None where the verifier is decoder-only.
      num_steps: static, how many readings.
      has_head: whether the head is to have parameters, too.

    Returns:
      [B, T, E] for each reading, after the norm.
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
    for step in range(num_steps):
      before = jnp.pad(states[:, :-1], ((0, 0), (1, 0), (0, 0)))
      if segment_ids is not None:
        starts = segment_ids != jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
        before = jnp.where(starts[..., None], 0, before)
      x = self.fuse(jnp.concatenate([vectors, before], axis=-1))
      x, new = layer.read_along(x, held, bias_of(step), angles, *of_source)
      held.append(new)
      states = stack.decoder_norm(x)
      outputs.append(states)
    if has_head:
      self.logits(states)
    return outputs

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns logits [B, T, V] float32, by the reader's own head."""
    layer = self.config.layer
    logits = self.decoder.logits(hidden)
    return attention.soft_cap(logits, getattr(layer, "logit_cap", None))

  def _places(self, shape, segment_ids, positions):
    """Returns (angles of the tokens, a function from a step to its bias)."""
    layer, (_, length) = self.config.layer, shape
    slots = np.arange(length, dtype=np.int32)
    back = jnp.asarray(slots[:, None] - slots[None])[None]  # [1, T, T]
    is_text, angles, by_place = back >= 0, None, None
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
  vector of the token. A head of its own begins as the verifier's.

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
  decoder["layers_0"] = stored[f"layers_{last}"]
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
  eye = jnp.eye(config.emb_dim)
  kernel = 0.1 * params["fuse"]["kernel"]
  kernel = kernel + jnp.concatenate([jnp.zeros_like(eye), eye])
  as_float = lambda x: jnp.asarray(x, jnp.float32)
  return jax.tree.map(
    as_float, {"fuse": {"kernel": kernel}, "decoder": decoder}
  )
