"""How the verifier of draft heads is trained together with them.

The trained parameters are then a tree of two parts, `HEADS` and `VERIFIER`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from speccascade.settings import fields

HEADS = "heads"
VERIFIER = "verifier"


@fields.checked
@dataclasses.dataclass(frozen=True)
class VerifierTuning:
  """The settings of Medusa-2: the verifier learns as well as its heads.

  The loss of a step is the verifier's own loss, plus `heads_weight` times the
  weighted sum of the heads' losses. The defaults are this package's choice;
  what the paper used is not known here.

  Attributes:
    heads_weight: weight of the heads' losses compared with the verifier's own.
    rate: the learning rate of the verifier, as a share of the optimizer's rate,
      which the heads have.
    heads_only_steps: the global step until which the verifier stays as it is,
      so that the first gradients of untrained heads do not spoil it.

  Source: Cai et al., "Medusa" (arXiv 2401.10774), Medusa-2: heads and verifier
  are trained together, after the heads were trained alone.
  """

  heads_weight: Annotated[float, fields.Bounds(0, low_open=True)] = 0.2
  rate: fields.Share = 0.25
  heads_only_steps: fields.NonNegative = 0

  def scale(self, updates: Mapping, step: jax.Array) -> dict[str, Any]:
    """Returns updates of both parts, of which the verifier's are smaller.

    Args:
      updates: the optimizer's updates, {HEADS: tree, VERIFIER: tree}.
      step: [] int32, the steps taken before.

    >>> tuning = VerifierTuning(rate=0.5, heads_only_steps=3)
    >>> tree = {HEADS: jnp.ones(()), VERIFIER: jnp.ones(())}
    >>> [float(tuning.scale(tree, step)[VERIFIER]) for step in (2, 3)]
    [0.0, 0.5]
    """
    rate = jnp.where(step < self.heads_only_steps, 0.0, self.rate)
    scaled = jax.tree.map(lambda leaf: rate * leaf, updates[VERIFIER])
    return {HEADS: updates[HEADS], VERIFIER: scaled}


def is_joint(params: Any) -> bool:
  """Whether parameters are those of heads and of their verifier."""
  return isinstance(params, Mapping) and set(params) == {HEADS, VERIFIER}


def model_params(params: Any) -> Any:
  """Returns the parameters of the model itself, without those of a verifier."""
  return params[HEADS] if is_joint(params) else params
