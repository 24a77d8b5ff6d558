"""Walks down a drafted tree, for `tree_steps`.

A step decides at all nodes at once which of their children, if any, is
accepted, and which token is drawn if none is. What it decides at a node does
not depend on how the node is reached. So nothing waits for a decision above it,
and the walk itself is a few look-ups: `walk` goes from the root along what was
decided.

`TreeDrafts` answers what a verifier step asks of a tree: which drafts follow a
node, which tokens they are, and which distribution they were drawn from.

Axes: B rows, N drafts, V vocabulary, G depth of the tree, M inner nodes, which
are the first ones: those of the levels above the last.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.numerics import normalise, of_token
from speccascade.decoding.records.block_records import Branches, Verdict
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  IID,
  TOP_K,
  WITHOUT_REPLACEMENT,
)

Array = jax.Array
# What is known at nodes, [B, M, ...] by name.
Nodes = dict[str, Array]
# More trials than these in a row are counted while the program runs, for which
# a GPU waits for its host.
_MOST_UNROLLED = 8


class TreeDrafts:
  """The drafts of a tree, as the steps ask for them.

  Attributes:
    tokens: [B, N] int32.
    branches: the tree.
    q: [B, N+1, V] distributions of the drafter at the nodes.
    pi: [B, N+1, V] target at the nodes.
  """

  def __init__(self, tokens: Array, branches: Branches, q: Array, pi: Array):
    self.tokens, self.branches, self.q, self.pi = tokens, branches, q, pi
    self.index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]

  @property
  def num(self) -> int:
    """N, the number of drafts. As the index of a draft, N means no draft."""
    return self.tokens.shape[1]

  @property
  def num_inner(self) -> int:
    """M, the inner nodes."""
    return self.num + 1 - len(self.branches.tree.levels[-1])

  @property
  def is_drawn(self) -> Array:
    """[B, N] bool, the drafts that were drawn from a distribution."""
    return ~self.branches.is_certain

  def most_drawn(self, level: int | None = None) -> int:
    """Returns the most drawn children that a node may have, static.

    Args:
      level: the depth of the node; None is any depth.
    """
    tree, drawing = self.branches.tree, self.branches.drawing
    if drawing == GREEDY_AND_RANDOM:
      return 1
    if drawing == TOP_K:
      return 0
    return most_children(tree, drawing, level)

  def rank(self, among: Array, key: Array | None = None) -> Array:
    """Returns how many siblings of each draft come before it, [B, N] int32.

    Args:
      among: [B, N] bool, the drafts that count.
      key: [B, N] int32, all different, the order of siblings; None is that of
        the drafts.
    """
    key = self.index if key is None else key
    parents = self.branches.parents
    before = parents[:, None, :] == parents[:, :, None]
    before &= among[:, None, :] & (key[:, None, :] < key[:, :, None])
    return jnp.sum(before, axis=2, dtype=jnp.int32)

  def child(
    self, among: Array, first: int = 0, end: int | None = None
  ) -> Array:
    """Returns the first child of each node, [B, end - first] int32.

    Args:
      among: [B, N] bool, or [B, end - first, N], the drafts that may be
        returned.
      first: static, the first node that is asked for.
      end: static, the node after the last; None is M.

    Returns:
      The index of a draft; N where no such draft follows the node.
    """
    end = self.num_inner if end is None else end
    nodes = jnp.arange(first, end, dtype=jnp.int32)[None, :, None]
    if among.ndim == 2:
      among = among[:, None]
    fits = (self.branches.parents[:, None] == nodes) & among
    return jnp.min(jnp.where(fits, self.index[:, None], self.num), axis=2)

  def token(self, draft: Array) -> Array:
    """Returns the tokens of drafts [B, ...]; undefined for N, no draft."""
    return self.of_draft(self.tokens, draft)

  def of_draft(self, values: Array, draft: Array) -> Array:
    """Returns values [B, N] of drafts [B, ...]; undefined for N, no draft."""
    last = jnp.minimum(draft, self.num - 1)
    flat = last.reshape(last.shape[0], -1)
    return jnp.take_along_axis(values, flat, axis=1).reshape(last.shape)

  def child_of_token(self, token: Array, among: Array) -> Array:
    """Returns the first child of each inner node with a given token, [B, M].

    Args:
      token: [B, M] int32.
      among: [B, N] bool, or [B, M, N], the drafts that may be returned.

    Returns:
      The index of a draft; N where no such draft follows the node.
    """
    among = among[:, None] if among.ndim == 2 else among
    return self.child((self.tokens[:, None] == token[:, :, None]) & among)

  def drawn_laws(self, first: int = 0, end: int | None = None) -> Array:
    """Returns the distributions of the first drawn children, [B, M, V].

    Certain children are chosen before any child is drawn, and a drawn child is
    none of them. So a distribution is q without their tokens.

    Args:
      first: as in `child`, like `end`.
      end: as in `child`.
    """
    end = self.num_inner if end is None else end
    q, tree = self.q[:, first:end], self.branches.tree
    if self.branches.drawing in (IID, TOP_K):
      # Where a child is drawn, no sibling of it is certain.
      return q
    certain = self.branches.is_certain
    rank, rest = self.rank(certain), q
    for number in range(max(tree.num_children)):
      taken = self.child(certain & (rank == number), first, end)
      token = jnp.where(taken < self.num, self.token(taken), -1)
      rest = drop_token(rest, token)
    return normalise(rest, q)

  def without(self, law: Array, token: Array) -> Array:
    """Returns the distribution of the sibling drawn after `token`, [..., V].

    Args:
      law: [..., V], the distribution that `token` was drawn from.
      token: [...] int32.
    """
    if self.branches.drawing != WITHOUT_REPLACEMENT:
      return law
    return normalise(drop_token(law, token), law)


def most_children(tree: Any, drawing: str, level: int | None = None) -> int:
  """Returns the most children that a node of a tree may have, static.

  What follows equal draws of a token follows the first of them.

  Args:
    tree: the shape.
    drawing: how the children were chosen.
    level: the depth of the node; None is any depth.
  """
  if drawing == IID:
    return tree.num_ranks if level is None else len(tree.levels[level])
  if level is None:
    return max(tree.num_children)
  depths = tree.node_depths
  return max(n for n, depth in zip(tree.num_children, depths) if depth == level)


def repeat_trials(
  trial: Callable[[Array | int, Any], Any], begin: Any, most: int, num: Array
) -> Any:
  """Returns what some trials in a row make of a state.

  Args:
    trial: a function of the number of the trial and of the state.
    begin: the state, a pytree.
    most: static, the most trials.
    num: int32, how many of them change anything.
  """
  if most > _MOST_UNROLLED:
    return jax.lax.fori_loop(0, jnp.minimum(num, most), trial, begin)
  for number in range(most):
    begin = trial(number, begin)
  return begin


def law_at(laws: Array, node: Array) -> Array:
  """Returns the row at `node` [B], which is [B, V], of `laws` [B, N+1, V]."""
  return jnp.take_along_axis(laws, node[:, None, None], axis=1)[:, 0]


def drop_token(law: Array, token: Array) -> Array:
  """Returns `law` [..., V] with 0 at `token` [...]."""
  ids = jax.lax.broadcasted_iota(jnp.int32, law.shape, law.ndim - 1)
  return jnp.where(ids == token[..., None], 0, law)


def choose(condition: Array, yes: Array, no: Array) -> Array:
  """Returns `yes` [B, M, ...] where `condition` [B, M] holds, and else `no`."""
  condition = condition.reshape(*condition.shape, *[1] * (yes.ndim - 2))
  return jnp.where(condition, yes, no)


def walk(
  drafts: TreeDrafts, accepted: Array, residual: Array, u_draw: Array
) -> Verdict:
  """Goes down from the root, along what was decided at the nodes.

  Args:
    drafts: the drafts.
    accepted: [B, M] int32, the drawn child of each inner node that is accepted;
      N where all of them are rejected, or none is there.
    residual: [B, M, V], what a token is drawn from at a node whose drawn
      children are all rejected.
    u_draw: [B, N+1] uniforms, one for the draw at each node.
  """
  # No draft follows the nodes of the last level.
  laws = jnp.concatenate([residual, drafts.pi[:, drafts.num_inner :]], axis=1)
  return walk_of(drafts, accepted, draws.draw(laws, u_draw))


def walk_of(drafts: TreeDrafts, accepted: Array, token: Array) -> Verdict:
  """Goes down from the root, along what was decided and drawn at the nodes.

  Args:
    drafts: the drafts.
    accepted: as of `walk`.
    token: [B, N+1] int32, the token that is drawn at each node.
  """
  # Where siblings have the same token, the first of them has the children of
  # all. A draw may land on a certain child only: what is left of a rejected
  # child's probability is at most a rounding error.
  is_accepted = accepted < drafts.num
  written = token[:, : drafts.num_inner]
  written = jnp.where(is_accepted, drafts.token(accepted), written)
  may_land = is_accepted[:, :, None] | drafts.branches.is_certain[:, None]
  landed = drafts.child_of_token(written, may_land)
  node, path = follow(drafts, landed)
  return path_verdict(
    drafts, node, path, of_token(token, node), reads_all=False
  )


def follow(drafts: TreeDrafts, onto: Array) -> tuple[Array, Array]:
  """Returns the end of the way from the root, [B] int32, and the way [B, G].

  Args:
    drafts: the drafts.
    onto: [B, M] int32, the draft by which the way leaves a node; N where it
      ends there.

  Returns:
    The last node, and the drafts on the way; N after its end.
  """
  none = ((0, 0), (0, drafts.num + 1 - drafts.num_inner))
  onto = jnp.pad(onto, none, constant_values=drafts.num)
  node, path = jnp.zeros_like(onto[:, 0]), []
  for _ in range(drafts.branches.tree.depth):
    draft = of_token(onto, node)
    path.append(draft)
    node = jnp.where(draft < drafts.num, draft + 1, node)
  return node, jnp.stack(path, axis=1)


def path_verdict(
  drafts: TreeDrafts,
  node: Array,
  path: Array,
  token: Array,
  *,
  reads_all: bool,
) -> Verdict:
  """Returns the verdict of a path.

  Args:
    drafts: the drafts.
    node: [B] int32, the last node of the path.
    path: [B, G] int32, its drafts; N after its end.
    token: [B] int32, the token after the path.
    reads_all: static, whether the decision rests on the distributions at all
      nodes; otherwise it rests on the distributions along the path.
  """
  is_on_path = path < drafts.num
  num = jnp.sum(is_on_path, axis=1, dtype=jnp.int32)
  has_children = jnp.any(drafts.branches.parents == node[:, None], axis=1)
  return Verdict(
    num_accepted=num,
    token=token,
    examined=num + has_children.astype(jnp.int32),
    read=jnp.full_like(num, drafts.num + 1) if reads_all else num + 1,
    path=jnp.where(is_on_path, path, 0),
  )
