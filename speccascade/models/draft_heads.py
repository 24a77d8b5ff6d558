"""Draft heads: their hyperparameters, and the network over a hidden state.

Look-ahead embeddings count as a kind of draft heads: they are trained, saved
and read in the same way, but they are inputs of the verifier, and not a network
over its hidden states.

Axes: B rows, K heads, E model width of the verifier, V vocabulary.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
from typing import Annotated, Any, Literal

from flax import linen as nn
from flax import traverse_util
from flax.linen.partitioning import param_with_axes
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import layers
from speccascade.settings import fields

MEDUSA: Literal["medusa"] = "medusa"
BLOCKWISE: Literal["blockwise"] = "blockwise"
LOOKAHEAD: Literal["lookahead"] = "lookahead"


@fields.checked
@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """Hyperparameters of draft heads over a verifier.

  A user sets the first three. The others say which verifier the heads were
  trained for; `of_verifier` fills them in.

  Attributes:
    kind: "medusa" gives each head an output projection of its own. "blockwise"
      shares the verifier's output projection, and is smaller by far.
      "lookahead" has no heads, but K look-ahead embeddings, which the verifier
      reads after the last token of a text.
    num_heads: K, the largest number of drafts in a row. One head more than
      gamma gives a distribution at the place after the drafts, for targets that
      use it. K look-ahead embeddings draft K + 1 tokens in a row, since the
      first draft needs none of them.
    mlp_dim: inner width of the feed-forward layer of a blockwise head.
    vocab_size: V, rows of the verifier's vocabulary.
    emb_dim: E, the verifier's model width.
    prompted: whether the verifier is decoder-only.
    verifier_sha256: what `fingerprint` says of the verifier's parameters.
    dtype: dtype of the activations; parameters are always float32.
  """

  kind: Literal["medusa", "blockwise", "lookahead"] = MEDUSA
  num_heads: Annotated[int, fields.Bounds(1, 64)] = 4
  mlp_dim: Annotated[int, fields.Bounds(1, 2**20)] = 1024
  vocab_size: Annotated[int, fields.Bounds(1, 2**24)] = 1
  emb_dim: fields.Size = 1
  prompted: bool = False
  verifier_sha256: str = ""
  dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"

  def of_verifier(self, config: Any, params: Mapping) -> "HeadsConfig":
    """Returns the heads of a verifier.

    Args:
      config: the verifier's architecture.
      params: the verifier's parameters, in T5X's names.
    """
    return dataclasses.replace(
      self.shaped_like(config), verifier_sha256=fingerprint(params)
    )

  def shaped_like(self, config: Any) -> "HeadsConfig":
    """Returns the heads with the shape of a verifier.

    Args:
      config: the verifier's architecture.
    """
    return dataclasses.replace(
      self,
      vocab_size=config.vocab_size,
      emb_dim=config.emb_dim,
      prompted=not hasattr(config, "num_encoder_layers"),
    )


def fingerprint(params: Mapping) -> str:
  """Returns a digest that identifies a model's parameters.

  It covers the names and shapes of all arrays, and the numbers of those that
  have one axis: the scales of norms, which every step of training changes. So
  large arrays, which may not have been read yet, need not be.

  Args:
    params: nested dict of arrays, in T5X's names.
  """
  digest = hashlib.sha256()
  flat = traverse_util.flatten_dict(params, sep="/")
  for name, leaf in sorted(flat.items()):
    digest.update(f"{name} {tuple(leaf.shape)}\n".encode())
    if len(leaf.shape) == 1:
      numbers = np.asarray(leaf, np.float32)
      digest.update(np.ascontiguousarray(numbers).tobytes())
  return digest.hexdigest()


class HeadsNetwork(nn.Module):
  """K heads over a hidden state h [..., E] of a verifier.

  A Medusa head is softmax(W (h + SiLU(V h))), where V is 0 and W the verifier's
  own output projection before training. A blockwise head adds a feed-forward
  layer of one hidden layer to h, and shares the verifier's output projection.
  Either begins as the verifier's own distribution of the next token, a Medusa
  head without the cap that a verifier's logits may have.

  Look-ahead embeddings are K vectors [K, E], the parameter `embedding`, and no
  function of a hidden state; see `heads_model.LookaheadModel`.

  Attributes:
    config: the heads.
    remat: what training computes again in a verifier that reads look-ahead
      embeddings, see `layers.REMAT`; heads are shallow, and store everything.

  Source: Cai et al., "Medusa" (arXiv 2401.10774), section 2.1.1; Stern et al.,
  "Blockwise Parallel Decoding for Deep Autoregressive Models" (NeurIPS 2018).
  Stern et al. have one feed-forward layer for all heads; here each head has its
  own.
  """

  config: HeadsConfig
  remat: str | None = None

  def setup(self):
    cfg = self.config
    zeros = nn.initializers.zeros
    if cfg.kind == LOOKAHEAD:
      shape, axes = (cfg.num_heads, cfg.emb_dim), ("length", "embed")
      init = nn.initializers.normal(1.0)
      self.embedding = param_with_axes(
        "embedding", init, shape, jnp.float32, axes=axes
      )
      return
    inner, outer, projections = [], [], []
    for _ in range(cfg.num_heads):
      if cfg.kind == MEDUSA:
        axes = ("embed", "mlp")
        inner.append(layers.Dense(cfg.emb_dim, axes, cfg.dtype, zeros))
        projections.append(layers.Dense(cfg.vocab_size, ("embed", "vocab")))
      else:
        inner.append(layers.Dense(cfg.mlp_dim, ("embed", "mlp"), cfg.dtype))
        axes = ("mlp", "embed")
        outer.append(layers.Dense(cfg.emb_dim, axes, cfg.dtype, zeros))
    self.inner, self.outer, self.logits_dense = inner, outer, projections

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns initial parameters; a Medusa head's projections are random."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns initial "params", and names of axes as "params_axes"."""
    return self.init(rng, jnp.zeros((1, self.config.emb_dim)))

  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Returns [..., K, E or V]: what is left to do of each head is not a
    module's.

    Args:
      hidden: [..., E]; not used of look-ahead embeddings, which are returned as
        they are, [K, E].
    """
    if self.config.kind == LOOKAHEAD:
      return self.embedding
    states = self.states(hidden, self.config.num_heads)
    return self.logits(states) if self.config.kind == MEDUSA else states

  def states(self, hidden: jax.Array, num: int) -> jax.Array:
    """Returns the vectors that the output projections of heads take.

    Args:
      hidden: [..., E].
      num: static, how many heads, the first ones.

    Returns:
      [..., num, E].
    """
    hidden = hidden.astype(self.config.dtype)
    states = []
    for k in range(num):
      inner = self.inner[k](hidden)
      if self.config.kind == MEDUSA:
        states.append(hidden + nn.silu(inner))
      else:
        states.append(hidden + self.outer[k](nn.relu(inner)))
    return jnp.stack(states, axis=-2)

  def logits(self, states: jax.Array) -> jax.Array:
    """Returns the logits of Medusa heads, [..., num, V] float32.

    Args:
      states: [..., num, E], of the first heads.
    """
    logits = [
      self.logits_dense[k](states[..., k, :]) for k in range(states.shape[-2])
    ]
    return jnp.stack(logits, axis=-2)


def initial_params(config: HeadsConfig, verifier: Any, verifier_params: Any):
  """Returns the parameters of heads before training.

  Look-ahead embeddings begin as random vectors that have, in each of the E
  numbers, the mean and the spread of the verifier's token embeddings. How they
  begin in the paper is not known here.

  Args:
    config: the heads.
    verifier: the verifier's network.
    verifier_params: the verifier's parameters.
  """
  params = HeadsNetwork(config).initial(jax.random.key(0, impl="threefry2x32"))
  if config.kind == LOOKAHEAD:
    table = jnp.asarray(
      verifier_params["token_embedder"]["embedding"], jnp.float32
    )
    mean, spread = (
      f(table, axis=0, keepdims=True) for f in (jnp.mean, jnp.std)
    )
    shape = params["embedding"].shape
    mean, spread = (jnp.broadcast_to(x, shape) for x in (mean, spread))
    return {"embedding": mean + spread * params["embedding"]}
  if config.kind != MEDUSA:
    return params
  # The logits of the unit vectors are the rows of the projection, whatever the
  # verifier makes its logits of.
  kernel = verifier.apply(
    {"params": verifier_params}, jnp.eye(config.emb_dim)[None], method="logits"
  )[0]
  for k in range(config.num_heads):
    params[f"logits_dense_{k}"] = {"kernel": kernel}
  return params
