"""Trained draft heads, as a decoder takes them in a drafter's place."""

from typing import Any, cast

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.types import Array
from speccascade.models.draft_heads import MEDUSA, HeadsConfig, HeadsNetwork
from speccascade.models.parameters import check_params
from speccascade.models.sharding.partitioning import Layout


class HeadsModel(struct.PyTreeNode):
  """Draft heads of a verifier; make them with `create`. See `types.Heads`.

  Attributes:
    params: the parameter tree, float32.
    module: the network; static.
  """

  params: Any
  module: HeadsNetwork = struct.field(pytree_node=False)

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
  ) -> "HeadsModel":
    """Returns the heads of a parameter tree.

    Heads keep float32: their hidden states are float32, whatever the type of
    the verifier's activations and kernels.

    Args:
      config: the heads.
      params: nested dict of arrays.
      dtype: not used.
      kernel_dtype: not used.
      donate: whether `params` may be emptied.
      layout: None; heads lie on one device.

    Raises:
      ValueError: the parameters do not fit, or the heads are to lie on a mesh.
    """
    if layout is not None:
      raise ValueError(
        "draft heads lie on one device, and a mesh is set: leave MESH out"
      )
    check_params(config, params)
    tree = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    if donate:
      params.clear()
    return cls(tree, HeadsNetwork(config))

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

  @property
  def width(self) -> int:
    """E, the width of the verifier's hidden states."""
    return self.config.emb_dim

  def head_logits(self, verifier: Any, hidden: Array, num: int) -> Array:
    """Returns the logits of the first heads, [B, num, V]. See `types.Heads`."""
    variables = {"params": self.params}
    states = self.module.apply(variables, hidden, num, method="states")
    if self.config.kind == MEDUSA:
      return cast(Array, self.module.apply(variables, states, method="logits"))
    return verifier.project(states)
