"""Chosen uniforms in place of random ones.

In place of a key a row carries its number and the path of the `fold_in`s so
far, as the digits of one number. So uniforms can be looked up inside compiled
loops, whose round is not known when they are traced.
"""

import jax.numpy as jnp

from speccascade.decoding.laws import draws

BASE = 8
MOST = BASE - 2  # what is folded in is 0 to 5; anything above counts as this


def code(path) -> int:
  """Returns the number that stands for a path; the empty path's is 1."""
  number = 1
  for data in path:
    number = number * BASE + data + 1
  return number


def keys(num_rows: int):
  """Returns [B, 2]: each row's number, and the code of the empty path."""
  row = jnp.arange(num_rows, dtype=jnp.int32)
  return jnp.stack([row, jnp.ones_like(row)], axis=1)


def choose(monkeypatch, read):
  """Replaces the randomness of the core; trace afresh under it.

  Args:
    monkeypatch: pytest's.
    read: (rows [B], codes of the paths [B], num) -> [B, num] uniforms.
  """

  def fold_in(keys, data):
    data = jnp.minimum(jnp.asarray(data, jnp.int32), MOST)
    return jnp.stack([keys[:, 0], keys[:, 1] * BASE + data + 1], axis=1)

  def uniforms(keys, num):
    return read(keys[:, 0], keys[:, 1], num)

  monkeypatch.setattr(draws, "fold_in", fold_in)
  monkeypatch.setattr(draws, "uniforms", uniforms)
