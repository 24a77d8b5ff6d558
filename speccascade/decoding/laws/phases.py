"""Alpha by phase, as a target reads it: each place has the alpha of its phase.

A text has two phases, and what it holds so far says in which of them its next
token is. The target of a place is the target at the alpha of its phase, or the
verifier, where the phase is exact. So pi is a function of the prefix, as that
of one alpha is.
"""

from collections.abc import Callable
from typing import Any, Literal

from flax import struct
import jax
import jax.numpy as jnp

Array = jax.Array

BEFORE, AFTER = range(2)  # the marker
PHASES = ("before", "after")
# What is counted in each phase: counters [B, 2].
BY_PHASE = ("tokens_by_phase", "examined_by_phase", "accepted_by_phase")
# In place of an alpha: the target of the phase is the verifier. Some rules have
# no alpha at which it is.
EXACT: Literal["exact"] = "exact"


class PlacedAlpha(struct.PyTreeNode):
  """The alphas of both phases, and the phase of each place.

  Attributes:
    before: scalar or `FittedAlpha`, the alpha of places before the marker.
    after: the same, of places after it.
    exact: [2] bool, the phases whose target is the verifier, whatever alpha is.
    phase: [...] int32, `BEFORE` or `AFTER`.
  """

  before: Any
  after: Any
  exact: Array
  phase: Array

  @property
  def is_exact(self) -> Array:
    """[...] bool, the places whose target is the verifier."""
    return self.exact[self.phase]

  def choose(self, of_alpha: Callable[[Any], Any]) -> Any:
    """Returns what a function of alpha gives at the alpha of each place.

    Args:
      of_alpha: alpha -> a tree of arrays [...] or [..., V].
    """
    # Both are computed whole, with a scalar alpha each, as every rule takes it.
    return jax.tree.map(
      lambda before, after: jnp.where(
        like(self.phase == AFTER, after), after, before
      ),
      of_alpha(self.before),
      of_alpha(self.after),
    )

  def deferring(self, sides: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns the sides of a rule that defers where the phase is exact."""
    left, right = sides
    return (
      jnp.where(like(self.is_exact, left), -jnp.inf, left),
      jnp.where(like(self.is_exact, right), jnp.inf, right),
    )


def like(flag: Array, values: Array) -> Array:
  """Returns flags [...] with the axes of `values`, [...] or [..., V]."""
  return flag.reshape(*flag.shape, *[1] * (values.ndim - flag.ndim))
