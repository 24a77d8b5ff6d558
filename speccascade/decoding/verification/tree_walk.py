"""Walks down a drafted tree, node by node, for `tree_steps`.

`TreeDrafts` answers what a verifier step asks of a tree: which draft follows a
node, which token the draft is, and which distribution the draft was drawn from.
`walk` tries the drafts and goes down to the last accepted node. `path_verdict`
makes the verdict of the path to that node.

Axes: B rows, N drafts, V vocabulary, G depth of the tree.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.numerics import normalise, of_token
from speccascade.decoding.records.block_records import Branches, Verdict
from speccascade.decoding.records.draft_tree import (
  IID,
  TOP_K,
  WITHOUT_REPLACEMENT,
)

Array = jax.Array
# What a step knows at a node: [B, ...] by name.
Node = dict[str, Array]


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
  def is_drawn(self) -> Array:
    """[B, N] bool, the drafts that were drawn from a distribution."""
    return ~self.branches.is_certain

  def next_child(
    self, node: Array, after: Array, among: Array | bool = True
  ) -> Array:
    """Returns the first child of a node from some draft on, [B] int32.

    Args:
      node: [B] int32.
      after: [B] int32, the first draft that may be returned.
      among: [B, N] bool, the drafts that may be returned.

    Returns:
      The index of a draft; N where no such draft follows the node.
    """
    fits = (self.branches.parents == node[:, None]) & among
    fits &= self.index >= after[:, None]
    return jnp.min(jnp.where(fits, self.index, self.num), axis=1)

  def token(self, draft: Array) -> Array:
    """Returns the token of `draft` [B]. For N, no draft, it is undefined."""
    last = jnp.minimum(draft, self.num - 1)
    return of_token(self.tokens, last)

  def child_of_token(self, node: Array, token: Array, among: Array) -> Array:
    """Returns the first child of a node with a given token, [B] int32.

    Args:
      node: [B] int32.
      token: [B] int32.
      among: [B, N] bool, the drafts that may be returned.

    Returns:
      The index of a draft; N where no such draft follows the node.
    """
    same = (self.tokens == token[:, None]) & among
    return self.next_child(node, jnp.zeros_like(node), same)

  def has_children(self, node: Array) -> Array:
    """Returns whether a draft follows `node` [B], [B] bool."""
    return self.next_child(node, jnp.zeros_like(node)) < self.num

  def drawn_law(self, node: Array) -> Array:
    """Returns the distribution of the first drawn child of `node` [B], [B, V].

    Certain children are chosen before any child is drawn, and a drawn child is
    none of them. So the distribution is q without their tokens.
    """
    q = law_at(self.q, node)
    if self.branches.drawing in (IID, TOP_K):
      # Where a child is drawn, no sibling of it is certain.
      return q
    taken = (self.branches.parents == node[:, None]) & self.branches.is_certain
    # Index V is past the end of the distribution, and is dropped.
    index = jnp.where(taken, self.tokens, q.shape[1])
    row = jnp.arange(q.shape[0])[:, None]
    return normalise(q.at[row, index].set(0, mode="drop"), q)

  def without(self, law: Array, token: Array) -> Array:
    """Returns the distribution of the sibling drawn after `token`, [B, V].

    Args:
      law: [B, V], the distribution that `token` was drawn from.
      token: [B] int32.
    """
    if self.branches.drawing != WITHOUT_REPLACEMENT:
      return law
    return normalise(drop_token(law, token), law)


def law_at(laws: Array, node: Array) -> Array:
  """Returns the row at `node` [B], which is [B, V], of `laws` [B, N+1, V]."""
  return jnp.take_along_axis(laws, node[:, None, None], axis=1)[:, 0]


def drop_token(law: Array, token: Array) -> Array:
  """Returns `law` [B, V] with 0 at `token` [B]."""
  ids = jax.lax.broadcasted_iota(jnp.int32, law.shape, 1)
  return jnp.where(ids == token[:, None], 0, law)


def choose_rows(condition: Array, yes: Any, no: Any) -> Any:
  """Returns the rows of `yes` where `condition` [B] holds, and else of `no`.

  Both are pytrees of one structure, whose leaves all have axis 0 = B.
  """

  def one(yes: Array, no: Array) -> Array:
    return jnp.where(condition.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)

  return jax.tree.map(one, yes, no)


def walk(
  drafts: TreeDrafts,
  u_accept: Array,
  u_draw: Array,
  *,
  arrive: Callable[[Array], Node],
  accepts: Callable[[Node, Array, Array], Array],
  missed: Callable[[Node, Array], Node],
) -> Verdict:
  """Goes down from the root, one trial or one draw of each row at a time.

  Args:
    drafts: the drafts.
    u_accept: [B, N] uniforms, one for each trial.
    u_draw: [B, N+1] uniforms, one for the draw at each node.
    arrive: a function from a node [B] to a dict of what the step knows at the
      node. When all drawn children are rejected, a token is drawn from its
      entry "residual", [B, V].
    accepts: a function from that dict, a drawn child [B] and a uniform [B] to
      whether the child is accepted, [B] bool.
    missed: a function from that dict and a rejected child [B] to the entries of
      the dict that change.
  """

  def here_at(node: Array) -> Node:
    return {"node": node, "next": jnp.zeros_like(node)} | arrive(node)

  def is_open(carry: dict[str, Any]) -> Array:
    return jnp.any(~carry["done"])

  def step(carry: dict[str, Any]) -> dict[str, Any]:
    here, done = carry["here"], carry["done"]
    node = here["node"]
    # A trial of the next drawn child.
    child = drafts.next_child(node, here["next"], drafts.is_drawn)
    has_trial = child < drafts.num
    x = drafts.token(child)
    u = of_token(u_accept, jnp.minimum(child, drafts.num - 1))
    is_accepted = accepts(here, child, u)
    # Or a draw, once no drawn child is left. The token may be a certain child.
    token = draws.draw(here["residual"], of_token(u_draw, node))
    # Where siblings have the same token, the first of them has the children of
    # all. A draw may land on a certain child only: what is left of a rejected
    # child's probability is at most a rounding error.
    landed = drafts.child_of_token(
      node,
      jnp.where(has_trial, x, token),
      has_trial[:, None] | drafts.branches.is_certain,
    )
    continues = jnp.where(has_trial, is_accepted, landed < drafts.num)
    onto = jnp.where(continues, 1 + landed, 0)
    ended = done | (~has_trial & ~continues)
    rejected = here | {"next": child + 1} | missed(here, child)
    after = choose_rows(continues, here_at(onto), rejected)
    return {
      "here": choose_rows(ended, here, after),
      "token": jnp.where(done, carry["token"], token),
      "done": ended,
    }

  root = jnp.zeros_like(drafts.tokens[:, 0])
  start: dict[str, Any] = {
    "here": here_at(root),
    "token": root,
    "done": root > 0,
  }
  end = jax.lax.while_loop(is_open, step, start)
  node, token = end["here"]["node"], end["token"]
  return path_verdict(drafts, node, token, reads_all=False)


def path_verdict(
  drafts: TreeDrafts, node: Array, token: Array, *, reads_all: bool
) -> Verdict:
  """Returns the verdict of a path.

  Args:
    drafts: the drafts.
    node: [B] int32, the last node of the path.
    token: [B] int32, the token after the path.
    reads_all: static, whether the decision rests on the distributions at all
      nodes; otherwise it rests on the distributions along the path.
  """
  depth = drafts.branches.tree.depth
  path, num = [], jnp.zeros_like(node)
  has_children = drafts.has_children(node)
  # Back from the last node to the root.
  for _ in range(depth):
    is_draft = node > 0
    path.append(jnp.maximum(node - 1, 0))
    num += is_draft.astype(jnp.int32)
    before = of_token(drafts.branches.parents, jnp.maximum(node - 1, 0))
    node = jnp.where(is_draft, before, node)
  # The path was found backwards, with the root at its end for shorter paths.
  backwards = jnp.stack(path, axis=1)
  place = num[:, None] - 1 - jnp.arange(depth, dtype=jnp.int32)[None]
  forwards = jnp.take_along_axis(backwards, jnp.maximum(place, 0), axis=1)
  return Verdict(
    num_accepted=num,
    token=token,
    examined=num + has_children.astype(jnp.int32),
    read=jnp.full_like(num, drafts.num + 1) if reads_all else num + 1,
    path=jnp.where(place >= 0, forwards, 0),
  )
