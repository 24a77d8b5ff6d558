"""Trained draft heads, as a decoder takes them in a drafter's place.

`model_of` returns the model of a `HeadsConfig`: a `HeadsModel` of heads over
hidden states, or a `LookaheadModel` of look-ahead embeddings.
"""

from collections.abc import Sequence
from typing import Any, Self, cast

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.drafting.kept_tokens import spread
from speccascade.decoding.records.language_model import Array
from speccascade.models import cut_head, products
from speccascade.models.cached_lm import CachedLM
from speccascade.models.draft_heads import (
  LOOKAHEAD,
  MEDUSA,
  HeadsConfig,
  HeadsNetwork,
)
from speccascade.models.parameters import ROUNDED, check_params
from speccascade.models.sharding import partitioning
from speccascade.models.sharding.partitioning import Layout


class TrainedHeads(cut_head.Cuttable, struct.PyTreeNode):
  """What draft heads of all kinds have in common; make them with `create`.

  Attributes:
    params: the parameter tree; see `create` for its dtypes.
    module: the network; static.
    is_narrow: whether the logits are those of a cut head's N tokens alone, see
      `over_kept`; static.
  """

  params: Any
  module: HeadsNetwork = struct.field(pytree_node=False)
  is_narrow: bool = struct.field(pytree_node=False, default=False)

  @classmethod
  def create(
    cls,
    config: HeadsConfig,
    params: dict,
    dtype: str | None = None,
    *,
    kernel_dtype: str | None = None,
    donate: bool = False,
    layout: Layout | None = None,
  ) -> Self:
    """Returns the heads of a parameter tree.

    Their hidden states are float32, whatever the type of the verifier's
    activations. On an accelerator their kernels have the type of the verifier's
    kernels, so that no more bytes are read of them. A CPU keeps them float32:
    it is fast with bfloat16 kernels where they are packed, which heads are not.

    Called on this class it returns an object of the class that the kind of
    heads has.

    Args:
      config: the heads.
      params: nested dict of arrays.
      dtype: not used.
      kernel_dtype: dtype of the kernels on an accelerator; as in
        `CachedLM.create`.
      donate: whether `params` may be emptied.
      layout: None; heads lie on one device.

    Raises:
      ValueError: the parameters do not fit, or the heads are to lie on a mesh,
        or are heads of another kind than the class.
    """
    kind = model_of(config)
    if not issubclass(kind, cls):
      raise ValueError(
        f"a {cls.__name__} is made of {config.kind!r} heads; wanted a"
        f" {kind.__name__}"
      )
    if layout is not None:
      raise ValueError(
        "draft heads lie on one device, and a mesh is set: leave MESH out"
      )
    check_params(config, params)
    is_half = kernel_dtype in ("bfloat16", ROUNDED)
    is_half &= native.platform() != "cpu"

    def put(name, leaf):
      is_kernel = name.endswith("/kernel")
      return jnp.asarray(
        leaf, "bfloat16" if is_half and is_kernel else "float32"
      )

    tree = partitioning.map_by_path(params, put)
    if donate:
      params.clear()
    return kind(tree, HeadsNetwork(config))

  def cut_to(self, ids: Sequence[int] | np.ndarray, verifier: Any) -> Self:
    """Returns heads that draft some tokens alone; see `cut_head`.

    Medusa heads have projections of their own, of which they keep the columns.
    Other kinds keep the columns of the verifier's head, which itself stays
    whole.

    Args:
      ids: as in `cut_head.kept`.
      verifier: the T5 or Llama that they were trained for.

    Raises:
      ValueError: the verifier has no head that can be cut, or see
        `cut_head.kept`.
    """
    kept = cut_head.kept(
      ids, self.vocab_size, self.config.vocab_size, self.params
    )
    if self.config.kind == MEDUSA:
      tree = {
        name: {"kernel": jnp.asarray(part["kernel"])[:, kept]}
        if name.startswith("logits_dense")
        else part
        for name, part in self.params.items()
      }
      head = {"ids": jnp.asarray(kept, jnp.int32)}
    elif isinstance(verifier, CachedLM):
      tree = dict(self.params)
      head = cut_head.head_of(verifier.params, kept, verifier.layout)
    else:
      raise ValueError(
        "its drafts are made by the head of the verifier, which is a"
        f" {type(verifier).__name__}; wanted a T5, a T5Gemma or a Llama"
      )
    return self.replace(params=tree | {cut_head.NAME: head})

  @property
  def config(self) -> HeadsConfig:
    """The hyperparameters."""
    return self.module.config

  @property
  def prompted(self) -> bool:
    """Whether the verifier of the heads is decoder-only."""
    return self.config.prompted

  @property
  def vocab_size(self) -> int:
    """V, the number of logits of each head."""
    return self.config.vocab_size

  @property
  def num_heads(self) -> int:
    """K, the number of heads."""
    return self.config.num_heads


class HeadsModel(TrainedHeads):
  """Draft heads over a verifier's hidden states. See `drafter.Heads`."""

  @property
  def width(self) -> int:
    """E, the width of the verifier's hidden states."""
    return self.config.emb_dim

  def head_logits(self, verifier: Any, hidden: Array, num: int) -> Array:
    """Returns the logits of the first heads, [B, num, V].

    See `drafter.Heads`.
    """
    cut = self.params.get(cut_head.NAME)
    variables = {"params": self.params}
    # (The rows of a batch are the rows of the heads' products.)
    rows = len(hidden)
    num_spare = products.num_spare((1, rows), self.config.dtype)
    hidden = jnp.pad(hidden, ((0, num_spare), (0, 0)))
    states = self.module.apply(variables, hidden, num, method="states")
    if self.config.kind != MEDUSA:
      if cut is not None:
        params = {**verifier.params, cut_head.NAME: cut}
        verifier = verifier.replace(params=params, is_narrow=self.is_narrow)
      logits = verifier.project(states)
    elif cut is not None:
      logits = self._cut_logits(states)
    else:
      logits = self.module.apply(variables, states, method="logits")
    return cast(Array, logits[:rows])

  def _cut_logits(self, states: Any) -> jax.Array:
    """Returns the logits [B, num, V] of Medusa heads that keep some tokens."""
    by_head = [
      cut_head.logits(states[:, k], self.params[f"logits_dense_{k}"])
      for k in range(states.shape[1])
    ]
    kept = jnp.stack(by_head, axis=1)
    if self.is_narrow:
      return kept
    return spread(kept, self.columns(), -np.inf)


class LookaheadModel(TrainedHeads):
  """Look-ahead embeddings of a verifier. See `drafter.Lookahead`.

  The verifier's own network reads them: there are K vectors more than the V
  rows of its table of tokens, and no further parameters, unless its head is
  cut for them.

  Source: Monea et al., "PaSS: Parallel Speculative Sampling" (arXiv
  2311.13581). What is taken from the paper: learned embeddings after the text,
  one pass of the same model, and a first token that is the model's own.
  """

  def language_model(self, verifier: Any) -> CachedLM:
    """Returns the verifier with K more ids. See `drafter.Lookahead`.

    It shares the verifier's arrays. Where the verifier's passes are native, so
    are its own.

    Args:
      verifier: the T5 or Llama that the embeddings were trained for.

    Raises:
      ValueError: the verifier is not a network with a table of tokens.
    """
    if not isinstance(verifier, CachedLM):
      raise ValueError(
        f"look-ahead embeddings are read by a T5 or a Llama; the verifier is a"
        f" {type(verifier).__name__}: give the verifier that they were trained"
        " for"
      )
    embedder = verifier.params["token_embedder"]
    embedder = {**embedder, "lookahead": self.params["embedding"]}
    params = {**verifier.params, "token_embedder": embedder}
    if cut_head.NAME in self.params:
      params[cut_head.NAME] = self.params[cut_head.NAME]
    return verifier.replace(params=params)


def model_of(config: HeadsConfig) -> type[HeadsModel] | type[LookaheadModel]:
  """Returns the class of the model of draft heads."""
  return LookaheadModel if config.kind == LOOKAHEAD else HeadsModel
