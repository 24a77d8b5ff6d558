"""Rows that keep paths of a tree in their caches, one of each kind."""

import jax.numpy as jnp
import numpy as np

SLOTS = 9


def case(num_layers, size, dtype):
  """Returns the arguments of `cache.keep_path`.

  Args:
    num_layers: the layers of the caches.
    size: of a head.
    dtype: of the caches.
  """
  rng = np.random.default_rng(2)
  layers = [
    tuple(
      jnp.asarray(rng.normal(size=(6, 2, *shape)), dtype)
      for shape in ((size, SLOTS), (SLOTS, size))
    )
    for _ in range(num_layers)
  ]
  start = jnp.asarray([0, 2, 3, 6, 0, 5], jnp.int32)
  path = jnp.asarray(
    [[0, 1, 2], [0, 2, 5], [1, 4, 5], [2, 0, 0], [3, 4, 8], [0, 0, 0]],
    jnp.int32,
  )
  count = jnp.asarray([3, 3, 2, 1, 3, 0], jnp.int32)
  return layers, start, path, count
