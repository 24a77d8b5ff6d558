"""Makes one state of the states after several layers of a verifier.

Axes: B rows, N tokens, K layers, E model width.

Source: Li et al., "EAGLE-3" (arXiv 2503.01840), section 3.1: states after a
low, a middle and a high layer. The norms are those of vLLM's speculators.
"""

from typing import Literal

from flax import linen as nn
import jax
import jax.numpy as jnp

from speccascade.models import layers

Norms = Literal["none", "whole", "each"]


def default_layers(num_layers: int) -> tuple[int, int, int]:
  """Returns the layers whose inputs are the three states, counted from 0.

  With 6 layers or more these are those of EAGLE-3's code: 2, half of the layers
  and the last but two. A verifier with fewer has them at a quarter, at half,
  and before its last layer. Small verifiers may have a layer twice.

  Args:
    num_layers: decoder layers of the verifier.
  """
  if num_layers >= 6:
    return 2, num_layers // 2, num_layers - 3
  return num_layers // 4, num_layers // 2, num_layers - 1


class FusedStates(nn.Module):
  """A product of K states side by side, which may be normed before.

  Attributes:
    width: E.
    num_states: K.
    dtype: name of the dtype of inputs and outputs.
    norms: whether the states are normed "each", as a "whole", or not: "none".
    epsilon: added to the mean square in a norm.
  """

  width: int
  num_states: int
  dtype: str
  norms: Norms = "none"
  epsilon: float = 1e-6

  def setup(self):
    num_norms = {"none": 0, "whole": 1, "each": self.num_states}[self.norms]
    self.norm = [
      layers.LayerNorm(self.dtype, self.epsilon) for _ in range(num_norms)
    ]
    self.product = layers.Dense(self.width, ("mlp", "embed"), self.dtype)

  def __call__(self, states: jax.Array) -> jax.Array:
    """Returns [B, N, E] of states [B, N, K E]."""
    if self.norm:
      parts = jnp.split(states, len(self.norm), axis=-1)
      parts = [norm(part) for norm, part in zip(self.norm, parts)]
      states = jnp.concatenate(parts, axis=-1)
    return self.product(states)
