"""What the networks of T5, T5Gemma and Llama share: their start and their end.

Axes: B rows, T text length, E model width, V vocabulary.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade.models import layers


class TextNetwork(nn.Module):
  """A network with a table of tokens, `token_embedder`, and a `decoder`.

  Attributes:
    num_inputs: how many arrays of tokens a call takes.
    initial_options: further arguments of the call that makes the parameters.
  """

  num_inputs: ClassVar[int]
  initial_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns random parameters."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns random "params", and the names of their axes as "params_axes"."""
    inputs = [jnp.ones((1, 1), jnp.int32)] * self.num_inputs
    return self.init(rng, *inputs, **self.initial_options)

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns logits [B, T, V] float32 of hidden states [B, T, E]."""
    config: Any = self.config
    head = self.token_embedder if config.logits_via_embedding else self.decoder
    axes = ("batch", "length", "vocab")
    logits = with_sharding_constraint(head.logits(x), axes)
    return layers.soft_cap(logits, getattr(config, "logit_cap", None))
