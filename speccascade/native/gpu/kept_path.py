"""The accepted path of a fed tree, moved to the front of all layers' caches.

Axes: B rows, K heads, D head width, L slots, G nodes of a path.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation

Caches = tuple[tuple[jax.Array, jax.Array], ...]


class KeptPath(Operation):
  """Moves slots of all layers' caches; see `reference`."""

  name = "kept_path"
  modules: ClassVar = {"triton": "speccascade.native.gpu.kept_path_triton"}

  def reference(
    self,
    caches: Sequence[tuple[jax.Array, jax.Array]],
    slots: jax.Array,
    first: jax.Array,
  ) -> Caches:
    """Returns caches with some slots moved next to each other.

    Args:
      caches: (keys [B, K, D, L], values [B, K, L, D]) of each layer.
      slots: [B, G] int32, the slots that are moved.
      first: [B] int32, where the first of them goes; first + G <= L.
    """

    def moved(array: jax.Array, axis: int) -> jax.Array:
      def row(
        array: jax.Array, slots: jax.Array, first: jax.Array
      ) -> jax.Array:
        kept = jnp.take(array, slots, axis=axis)
        return jax.lax.dynamic_update_slice_in_dim(array, kept, first, axis)

      return jax.vmap(row)(array, slots, first)

    return tuple((moved(keys, 2), moved(values, 1)) for keys, values in caches)

  def key(
    self,
    caches: Sequence[tuple[jax.Array, jax.Array]],
    *arrays: object,
    **options: object,
  ) -> str:
    """Returns such as "24 layers, 16 heads of 64, bfloat16"."""
    del arrays, options
    keys = caches[0][0]
    return (
      f"{len(caches)} layers, {keys.shape[1]} heads of {keys.shape[2]},"
      f" {keys.dtype.name}"
    )

  def unfit(
    self,
    caches: Sequence[tuple[jax.Array, jax.Array]],
    *arrays: object,
    **options: object,
  ) -> str | None:
    """Returns why no kernel moves these caches; None if one does."""
    del arrays, options
    shapes = {(keys.shape, keys.dtype) for keys, _ in caches}
    return "the caches of layers differ" if len(shapes) > 1 else None


kept_path = KeptPath()
