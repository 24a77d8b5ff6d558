"""The review of a tree of drafts at all of its nodes.

Axes: B rows, N nodes, V vocabulary, K trials at a node, C certain children.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation
from speccascade.native.gpu.row_draws import invert

# A program holds two rows in registers, and has code of its own for each trial.
LARGEST, MOST_TRIALS = 1 << 17, 16


class Trials(NamedTuple):
  """The children of nodes, as they are tried.

  Attributes:
    tokens: [B, N, K] int32, the drawn children, in order; -1 for none.
    u: [B, N, K] float32 uniforms in [0, 1), one for each of them.
    certain: [B, N, C] int32, the certain children, of which a drawn child is
      none; -1 for none.
  """

  tokens: jax.Array
  u: jax.Array
  certain: jax.Array


class NodeReviews(NamedTuple):
  """What is decided at nodes.

  Attributes:
    accepted: [B, N] int32, which of the K trials is the first that passes; K
      where none does.
    token: [B, N] int32, drawn from what is left of the target after all trials.
  """

  accepted: jax.Array
  token: jax.Array


def _normalised(weights: jax.Array, otherwise: jax.Array) -> jax.Array:
  """Returns weights over their sum, or `otherwise` where the sum is 0."""
  total = jnp.sum(weights, axis=-1, keepdims=True)
  found = weights / jnp.where(total > 0, total, 1)
  return jnp.where(total > 0, found, otherwise)


class TreeReview(Operation):
  """Tries the children of all nodes, and draws; see `reference`."""

  name = "tree_review"
  modules: ClassVar = {"triton": "speccascade.native.gpu.tree_review_triton"}

  def reference(
    self,
    pi: jax.Array,
    q: jax.Array,
    trials: Trials,
    u: jax.Array,
    *,
    drops_drawn: bool,
  ) -> NodeReviews:
    """Returns what is decided at each node.

    Args:
      pi: [B, N, V] float32, the target at the nodes.
      q: [B, N, V] float32, the drafter's distribution there.
      trials: `Trials`.
      u: [B, N] float32 uniforms in [0, 1), for the draws.
      drops_drawn: whether children were drawn without replacement.
    """
    index = jax.lax.broadcasted_iota(jnp.int32, q.shape, 2)
    num = trials.tokens.shape[2]
    left, law = pi, q
    for k in range(trials.certain.shape[2]):
      law = jnp.where(index == trials.certain[..., k, None], 0, law)
    if trials.certain.shape[2]:
      law = _normalised(law, q)
    accepted = jnp.full(u.shape, num, jnp.int32)
    for k in range(num):
      x = trials.tokens[..., k, None]
      is_x = index == x
      law_x, left_x = (
        jnp.sum(jnp.where(is_x, each, 0), axis=2) for each in (law, left)
      )
      passes = (trials.u[..., k] * law_x < left_x) & (x[..., 0] >= 0)
      accepted = jnp.where(passes & (accepted == num), k, accepted)
      missed = _normalised(jnp.maximum(left - law, 0), left)
      left = jnp.where(x >= 0, missed, left)
      if drops_drawn:
        law = _normalised(jnp.where(is_x, 0, law), law)
    token = invert(left.reshape(-1, left.shape[2]), u.reshape(-1))
    return NodeReviews(accepted, token.reshape(u.shape))

  def key(
    self,
    pi: jax.Array,
    q: jax.Array,
    trials: Trials,
    *others: object,
    **_: object,
  ) -> str:
    """Returns such as "16 nodes, 1 trials, 32128 tokens"."""
    del q, others
    num = trials.tokens.shape[2]
    return f"{pi.shape[1]} nodes, {num} trials, {pi.shape[2]} tokens"

  def unfit(
    self,
    pi: jax.Array,
    q: jax.Array,
    trials: Trials,
    *others: object,
    **_: object,
  ) -> str | None:
    """Returns why no kernel takes this tree; None if one does."""
    del others
    num, size = trials.tokens.shape[2], pi.shape[2]
    if num > MOST_TRIALS or size > LARGEST:
      return (
        f"{num} trials are of {size} tokens, more than {MOST_TRIALS} of"
        f" {LARGEST}"
      )
    if {pi.dtype, q.dtype} != {jnp.dtype(jnp.float32)}:
      return f"the distributions are {pi.dtype} and {q.dtype}"
    return None


tree_review = TreeReview()
