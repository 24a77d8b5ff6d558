"""Draws of a token from each row of weights.

Axes: R rows, V vocabulary.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation


def invert(weights: jax.Array, u: jax.Array) -> jax.Array:
  """Returns the first index [R] whose cumulative sum exceeds u times the sum.

  An index without weight is left out. Where no sum exceeds the goal the last
  index with weight is returned, and 0 where there is none.

  Args:
    weights: [R, V], none negative.
    u: [R] uniforms in [0, 1).
  """
  size = weights.shape[1]
  index = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 1)
  totals = jnp.cumsum(weights, axis=1)
  mass = weights > 0
  above = mass & (totals > (u * totals[:, -1])[:, None])
  first = jnp.min(jnp.where(above, index, size), axis=1)
  last = jnp.max(jnp.where(mass, index, 0), axis=1)
  return jnp.where(first < size, first, last)


class RowDraws(Operation):
  """Draws a token from each row of weights; see `reference`."""

  name = "row_draws"
  modules: ClassVar = {"triton": "speccascade.native.gpu.row_draws_triton"}

  def reference(
    self,
    weights: jax.Array,
    u: jax.Array,
    *,
    otherwise: jax.Array | None = None,
  ) -> jax.Array:
    """Draws by inverting the cumulative sum; see `decoding.laws.draws`.

    Args:
      weights: [R, V] float32, none negative.
      u: [R] float32 uniforms in [0, 1).
      otherwise: [R, V] float32, the weights of rows whose own are all 0; None
        where there is no such row.

    Returns:
      [R] int32.
    """
    if otherwise is not None:
      has_mass = jnp.max(weights, axis=1, keepdims=True) > 0
      weights = jnp.where(has_mass, weights, otherwise)
    return invert(weights, u)

  def key(self, weights: jax.Array, *arrays: object, **options: object) -> str:
    """Returns such as "32128 tokens"."""
    del arrays, options
    return f"{weights.shape[-1]} tokens"

  def unfit(
    self, weights: jax.Array, *arrays: object, **options: object
  ) -> str | None:
    """Returns why no kernel draws from these weights; None if one does."""
    del arrays, options
    if weights.dtype != jnp.float32:
      return f"the weights are {weights.dtype}"
    return None


row_draws = RowDraws()
