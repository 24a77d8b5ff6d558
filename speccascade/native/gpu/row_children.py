"""The children of nodes of a tree of drafts, drawn in one operation.

Axes: R rows, each a node, V vocabulary, K children.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation
from speccascade.native.gpu.row_draws import invert

# A program holds a row in registers, and has code of its own for each child.
LARGEST, MOST_CHILDREN = 1 << 17, 16


class RowChildren(Operation):
  """Takes and draws the children of nodes; see `reference`."""

  name = "row_children"
  modules: ClassVar = {"triton": "speccascade.native.gpu.row_children_triton"}

  def reference(
    self,
    q: jax.Array,
    confidence: jax.Array,
    u: jax.Array,
    *,
    num_certain: int,
    drops: bool,
    greedy: bool,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns children, and whether each is certain.

    Args:
      q: [R, V] float32, the distribution at each node.
      confidence: [R, V] float32, the drafter's confidence there.
      u: [R, K] float32 uniforms in [0, 1), one for each child.
      num_certain: how many children are the likeliest tokens, which come first.
        The others are drawn.
      drops: whether a drawn child is none of those before it. Where no other
        token is left, it is the likeliest one, and certain.
      greedy: whether the likeliest tokens are those of the confidence alone;
        else tokens of q come before others.

    Returns:
      [R, K] int32 and [R, K] bool.
    """
    order = confidence if greedy else jnp.where(q > 0, q, confidence - 2)
    index = jax.lax.broadcasted_iota(jnp.int32, q.shape, 1)
    tokens, certain = [], []
    for k in range(u.shape[1]):
      likeliest = jnp.argmax(order, axis=1).astype(jnp.int32)
      if k < num_certain:
        token, is_certain = likeliest, jnp.ones(len(q), bool)
      else:
        token, is_certain = invert(q, u[:, k]), jnp.zeros(len(q), bool)
        if drops:
          is_certain = jnp.max(q, axis=1) <= 0
          token = jnp.where(is_certain, likeliest, token)
      if drops or k < num_certain:
        is_taken = index == token[:, None]
        order = jnp.where(is_taken, -jnp.inf, order)
        q = jnp.where(is_taken, 0, q)
      tokens.append(token)
      certain.append(is_certain)
    return jnp.stack(tokens, axis=1), jnp.stack(certain, axis=1)

  def key(
    self, q: jax.Array, confidence: jax.Array, u: jax.Array, **options: object
  ) -> str:
    """Returns such as "3 of 32128 tokens"."""
    del confidence, options
    return f"{u.shape[1]} of {q.shape[1]} tokens"

  def unfit(
    self, q: jax.Array, confidence: jax.Array, u: jax.Array, **options: object
  ) -> str | None:
    """Returns why no kernel takes these children; None if one does."""
    del options
    if q.shape[1] > LARGEST or u.shape[1] > MOST_CHILDREN:
      return (
        f"{u.shape[1]} children are of {q.shape[1]} tokens, more than"
        f" {MOST_CHILDREN} of {LARGEST}"
      )
    if {q.dtype, confidence.dtype} != {jnp.dtype(jnp.float32)}:
      return f"the distributions are {q.dtype} and {confidence.dtype}"
    return None


row_children = RowChildren()
