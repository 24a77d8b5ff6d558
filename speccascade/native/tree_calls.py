"""Trees of drafts: how they are drawn, verified, and kept in a cache.

Axes: B rows, N drafts, V vocabulary, G depth, P parents, K children of each.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native.operations import call

# In the order of enum Way in trees.cc; names of `tree_steps.TREE_VERIFY`.
WAYS = ("token", "k_seq", "traversal")


def tree_walk(
  way: str,
  tokens: jax.Array,
  parents: jax.Array,
  is_certain: jax.Array,
  q: jax.Array,
  pi: jax.Array,
  laws: jax.Array | None,
  u_accept: jax.Array,
  u_draw: jax.Array,
  *,
  depth: int,
  drops_certain: bool,
  drops_drawn: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Returns what a verifier step decides on a tree.

  Args:
    way: static, the step, one of `WAYS`.
    tokens: [B, N] int32 drafts.
    parents: [B, N] int32, the node that each draft follows, which is before it.
    is_certain: [B, N] bool.
    q: [B, N+1, V] float32, distributions of the drafter at the nodes.
    pi: [B, N+1, V] float32, target at the nodes.
    laws: [B, N, V] float32, the distribution that each draft was drawn from;
      None takes the distributions at the nodes.
    u_accept: [B, N] float32 uniforms in [0, 1).
    u_draw: [B, N+1] float32 uniforms in [0, 1).
    depth: static, G.
    drops_certain: static, whether drawn children were drawn without the certain
      ones.
    drops_drawn: static, whether each drawn child was drawn without those before
      it.

  Returns:
    (accepted drafts [B], the token after them [B], examined drafts [B], the
    accepted path [B, G], 0 after its end), all int32.
  """
  rows, int32 = tokens.shape[0], jnp.int32
  if laws is None:
    laws = jnp.zeros((rows, 0, q.shape[2]), jnp.float32)
  row = jax.ShapeDtypeStruct((rows,), int32)
  return call(
    "TreeWalk",
    (row, row, row, jax.ShapeDtypeStruct((rows, depth), int32)),
    tokens,
    parents,
    is_certain,
    q,
    pi,
    laws,
    u_accept,
    u_draw,
    way=np.int64(WAYS.index(way)),
    drops_certain=drops_certain,
    drops_drawn=drops_drawn,
  )


def tree_children(
  q: jax.Array,
  plain: jax.Array,
  u: jax.Array,
  *,
  num_certain: int,
  drops: bool,
  greedy: bool,
) -> tuple[jax.Array, jax.Array]:
  """Returns the children of each parent, in the order in which they are tried.

  Args:
    q: [B, P, V] float32, the distribution at each parent.
    plain: [B, P, V] float32, the confidence there.
    u: [B, P, K] float32 uniforms in [0, 1).
    num_certain: static, the likeliest tokens that come first.
    drops: static, whether a token is chosen once. Where the distribution has no
      token left, the likeliest other one is taken, which is certain.
    greedy: static, whether the likeliest tokens are those of `plain`; else they
      are those of q, and then those of `plain`.

  Returns:
    Tokens [B, P, K] int32, and [B, P, K] bool whether each is certain.
  """
  results = (
    jax.ShapeDtypeStruct(u.shape, jnp.int32),
    jax.ShapeDtypeStruct(u.shape, jnp.bool_),
  )
  return call(
    "TreeChildren",
    results,
    q,
    plain,
    u,
    num_certain=np.int64(num_certain),
    drops=drops,
    greedy=greedy,
  )


def keep_path(
  caches: Sequence[tuple[jax.Array, jax.Array]],
  start: jax.Array,
  path: jax.Array,
  count: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array], ...]:
  """Returns caches with a fed tree's path moved to the tree's first slots.

  The caches are written in place where nothing else reads them.

  Args:
    caches: (keys [B, H, D, L], values [B, H, L, D]) float32 of each layer.
    start: [B] int32, the slot of each row's first node.
    path: [B, G] int32 nodes, in order of depth.
    count: [B] int32, how many of the nodes are kept.
  """
  arrays = [array for pair in caches for array in pair]
  results = call(
    "KeepPath",
    [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays],
    start,
    path,
    count,
    *arrays,
    aliases={3 + i: i for i in range(len(arrays))},
  )
  return tuple(zip(results[::2], results[1::2]))
