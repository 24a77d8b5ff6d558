"""Verifier steps on trees: a drafted tree in, a path of it and one token out.

Every step is exact for any target: each emitted token has the distribution pi
given the tokens before it, however the drafts were drawn. As in a chain, `pi`
has to be the target's own distribution at every node, even where no draft
follows.

A walk goes down the tree from node to node. The drafts that follow a node are
tried in the order in which they were drawn, which was fixed before any of them
was looked at. An order that looks at the tokens would bias the output. What a
step decides at a node does not depend on the way to it, so all nodes decide at
once, and the walk follows.

On a CPU one native call (`native/trees.cc`) does what a step does in many small
operations. The code here says what that call does, and runs wherever the call
cannot.

Axes: B rows, N drafts, V vocabulary, G depth of the tree.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.numerics import normalise, of_token, ratio
from speccascade.decoding.records.block_records import (
  Branches,
  Verdict,
  VerifyFunction,
)
from speccascade.decoding.records.draft_tree import (
  DRAWINGS,
  EXACT_FOR,
  IID,
  TOP_K,
  WITHOUT_REPLACEMENT,
)
from speccascade.decoding.verification.tree_walk import (
  Nodes,
  TreeDrafts,
  choose,
  drop_token,
  follow,
  law_at,
  most_children,
  path_verdict,
  repeat_trials,
  walk,
  walk_of,
)
from speccascade.native.gpu import tree_review
from speccascade.native.gpu.tree_review import Trials

Array = jax.Array
# (tokens, branches, q, pi, u_accept, u_draw) -> Verdict
TreeVerifyFunction = Callable[..., Verdict]


def check_branches(verification: str, branches: Branches) -> None:
  """Asserts what calls were checked for: exact for how a tree was drawn."""
  drawings = EXACT_FOR.get(verification, DRAWINGS)
  assert branches.laws is None or verification == "token", verification
  assert branches.drawing in drawings, (verification, branches.drawing)


def _natively(way: str) -> Callable[[VerifyFunction], VerifyFunction]:
  """Returns a decorator that lets one native call do a step, where it can."""

  def decorate(step: VerifyFunction) -> VerifyFunction:
    @functools.wraps(step)
    def verify(
      tokens: Array,
      branches: Branches,
      q: Array,
      pi: Array,
      u_accept: Array,
      u_draw: Array,
    ) -> Verdict:
      laws = q if branches.laws is None else branches.laws
      if not native.takes(q, pi, laws, u_accept, u_draw):
        return step(tokens, branches, q, pi, u_accept, u_draw)
      num_accepted, token, examined, path = native.tree_walk(
        way,
        tokens,
        branches.parents,
        branches.is_certain,
        q,
        pi,
        branches.laws,
        u_accept,
        u_draw,
        depth=branches.tree.depth,
        drops_certain=branches.drawing not in (IID, TOP_K),
        drops_drawn=branches.drawing == WITHOUT_REPLACEMENT,
      )
      read = num_accepted + 1
      if way == "traversal":
        # A traversal weighs the drafts of all paths.
        read = jnp.full_like(read, tokens.shape[1] + 1)
      return Verdict(num_accepted, token, examined, read, path)

    return verify

  return decorate


@_natively("token")
def tree_token_verify(
  tokens: Array,
  branches: Branches,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies node by node, each drawn child in a trial of its own.

  At a node, r begins as the target, and q as the distribution of the first
  drawn child. A drawn child x is accepted with probability min(1, r(x) / q(x)).
  When x is rejected, r becomes norm(max(0, r - q)); where children are drawn
  without replacement, q loses x. When all drawn children are rejected, a token
  is drawn from r. If the token is a certain child, the path continues through
  that child; if not, the token ends the block.

  Args:
    tokens: [B, N] int32 drafts.
    branches: the tree that they form.
    q: [B, N+1, V] distribution of the drafter at each node.
    pi: [B, N+1, V] target at each node.
    u_accept: [B, N] uniforms in [0, 1), one for each draft.
    u_draw: [B, N+1] uniforms in [0, 1), one for the draw at each node.

  Returns:
    `Verdict`.

  Source: Miao et al. (arXiv 2305.09781) for independent draws, Jeon et al.
  (arXiv 2402.14160) for draws without replacement, Hu et al. (arXiv 2502.18779)
  for certain children next to a drawn one.
  """
  drafts = TreeDrafts(tokens, branches, q, pi)
  is_drawn, num = drafts.is_drawn, drafts.num
  rank = drafts.rank(is_drawn)
  by_kernel = _tried_by_kernel(drafts, rank, u_accept, u_draw)
  if by_kernel is not None:
    return by_kernel

  def trial(number: Array | int, here: Nodes) -> Nodes:
    """Tries the next drawn child of every inner node."""
    child = drafts.child(is_drawn & (rank == number))
    has_trial, x = child < num, drafts.token(child)
    law, residual = here["law"], here["residual"]
    if branches.laws is not None:
      tried = jnp.minimum(child, num - 1)[..., None]
      law = jnp.take_along_axis(branches.laws, tried, axis=1)
    u = drafts.of_draft(u_accept, child)
    passes = has_trial & (u * of_token(law, x) < of_token(residual, x))
    is_first = passes & (here["accepted"] == num)
    missed = normalise(jnp.maximum(residual - law, 0), residual)
    return {
      "accepted": jnp.where(is_first, child, here["accepted"]),
      "residual": choose(has_trial, missed, residual),
      "law": drafts.without(here["law"], x),
    }

  begin = {
    "accepted": jnp.full((len(tokens), drafts.num_inner), num, jnp.int32),
    "residual": pi[:, : drafts.num_inner],
    "law": drafts.drawn_laws(),
  }
  most = drafts.most_drawn()
  num_trials = jnp.max(jnp.where(is_drawn, rank + 1, 0))
  here = repeat_trials(trial, begin, most, num_trials)
  return walk(drafts, here["accepted"], here["residual"], u_draw)


def _tried_by_kernel(
  drafts: TreeDrafts, rank: Array, u_accept: Array, u_draw: Array
) -> Verdict | None:
  """Returns what one kernel for a GPU finds; None where it is not asked.

  Args:
    drafts: the drafts.
    rank: [B, N] int32, of each draft among its drawn siblings.
    u_accept: as of `tree_token_verify`.
    u_draw: as of `tree_token_verify`.
  """
  branches, num, end = drafts.branches, drafts.num, drafts.num + 1
  most_drawn = drafts.most_drawn()
  if branches.laws is not None or not most_drawn:
    return None
  shape: Any = jax.ShapeDtypeStruct((len(rank), end, most_drawn), jnp.int32)
  options = {"drops_drawn": branches.drawing == WITHOUT_REPLACEMENT}
  kernel = tree_review.choose(
    None, drafts.pi, drafts.q, Trials(shape, shape, shape), **options
  )
  if kernel == "xla":
    return None

  def ranked(among: Array, rank: Array, most: int) -> Array:
    """Returns the drafts [B, N+1, most] by rank; N for none."""
    nodes = [drafts.child(among & (rank == k), 0, end) for k in range(most)]
    none = jnp.full((len(rank), end, 0), num, jnp.int32)
    return jnp.stack(nodes, axis=2) if nodes else none

  def tokens_of(draft: Array) -> Array:
    return jnp.where(draft < num, drafts.token(draft), -1)

  certain, most_certain = branches.is_certain, 0
  if branches.drawing not in (IID, TOP_K):
    most_certain = max(branches.tree.num_children)
  tried = ranked(drafts.is_drawn, rank, most_drawn)
  found = tree_review(
    drafts.pi,
    drafts.q,
    Trials(
      tokens=tokens_of(tried),
      u=drafts.of_draft(u_accept, tried),
      certain=tokens_of(ranked(certain, drafts.rank(certain), most_certain)),
    ),
    u_draw,
    **options,
    implementation=kernel,
  )
  none = jnp.full((*tried.shape[:2], 1), num, jnp.int32)
  accepted = of_token(jnp.concatenate([tried, none], axis=2), found.accepted)
  return walk_of(drafts, accepted[:, : drafts.num_inner], found.token)


def k_seq_factor(
  law: Array, target: Array, count: Array
) -> tuple[Array, Array, Array, Array]:
  """Returns the factor r of `tree_k_seq_verify`, and the numbers that it gives.

  Args:
    law: [..., V], q, the distribution of the draws at a node.
    target: [..., V], pi, the target there.
    count: [...], K, the number of draws, as a floating-point number.

  Returns:
    r [...]; min(q, pi / r) [..., V]; its sum b [...]; and 1 - (1 - b)^K [...],
    the chance that a draw is accepted.
  """

  def terms(factor: Array) -> tuple[Array, Array, Array]:
    common = jnp.minimum(law, target / factor[..., None])
    b = jnp.minimum(jnp.sum(common, axis=-1), 1)
    return common, b, 1 - (1 - b) ** count

  def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = bounds
    middle = (low + high) / 2
    _, b, any_of = terms(middle)
    holds = any_of >= middle * b
    return jnp.where(holds, middle, low), jnp.where(holds, high, middle)

  one = jnp.ones_like(count)
  bounds = (one, jnp.maximum(count, 1) + 1e-6)
  # There are as many halvings as the dtype has bits. The factor is the upper
  # end of the interval: a factor that is rounded up leaves a residual of 0 or
  # more.
  num_halvings = jnp.finfo(law.dtype).nmant + 4
  _, factor = jax.lax.fori_loop(0, num_halvings, halve, bounds)
  factor = jnp.where(count > 1, factor, one)
  return factor, *terms(factor)


@_natively("k_seq")
def tree_k_seq_verify(
  tokens: Array,
  branches: Branches,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies the independent draws of a node together, one factor for all.

  With K draws at a node, r is the largest number in [1, K] with
  1 - (1 - b)^K >= r b, where b = sum min(q, pi / r). Each draw x is accepted
  with probability min(1, pi(x) / (r q(x))). When all are rejected, a token is
  drawn from max(0, pi - min(q, pi / r) (1 - (1 - b)^K) / b).

  The arguments and the result are as in `tree_token_verify`.

  Source: Sun et al., "SpecTr" (arXiv 2310.15141), K-SEQ.
  """
  drafts = TreeDrafts(tokens, branches, q, pi)
  is_drawn = drafts.is_drawn
  target, law = pi[:, : drafts.num_inner], q[:, : drafts.num_inner]
  nodes = jnp.arange(drafts.num_inner, dtype=jnp.int32)[None, :, None]
  follows = (branches.parents[:, None] == nodes) & is_drawn[:, None]
  count = jnp.sum(follows, axis=2).astype(pi.dtype)
  factor, common, b, any_of = k_seq_factor(law, target, count)
  left = jnp.maximum(target - common * ratio(any_of, b)[..., None], 0)
  # The residual of a token is exactly 0 where the trials alone give the token
  # all of its probability in the target.
  left = jnp.where(target <= factor[..., None] * law, 0, left)
  left = jnp.where(count[..., None] > 0, left, target)
  # All drafts are tried; of the accepted children of a node the first counts.
  at = jnp.clip(branches.parents, 0, drafts.num_inner - 1)
  place = at * q.shape[2] + tokens

  def at_drafts(laws: Array) -> Array:
    """Returns [B, N] of `laws` [B, M, V]: of each draft at its node."""
    flat = laws.reshape(len(laws), -1)
    return jnp.take_along_axis(flat, place, axis=1)

  scaled = jnp.take_along_axis(factor, at, axis=1) * at_drafts(law)
  passes = is_drawn & (u_accept * scaled < at_drafts(target))
  return walk(drafts, drafts.child(passes), normalise(left, target), u_draw)


@_natively("traversal")
def tree_traversal_verify(
  tokens: Array,
  branches: Branches,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies whole paths, leaf after leaf: a later draft rescues earlier ones.

  Each node n has a target P_n, a distribution Q_n of its next child, and a
  weight a_n, which is 1 at the root and min(1, a_n P_n(y) / Q_n(y)) at a child
  y. The first leaf in depth-first order is accepted with its weight as the
  probability. The root is always accepted, once no other node is left. A leaf y
  that is rejected is dropped from its parent n:

    g = max(0, a_n P_n - Q_n),  s = sum g,
    a_n <- s / (s + 1 - a_n),  P_n <- g / s,  Q_n <- Q_n without y.

  Drawn children are visited before certain children, for which Q_n is one-hot.
  A draw that repeats a sibling's token is not visited, because the first of the
  two has the children of both. The token after the accepted leaf n is drawn
  from P_n. On a chain this is block verification.

  The arguments and the result are as in `tree_token_verify`.

  Source: Weng et al., "Traversal Verification for Speculative Tree Decoding"
  (arXiv 2505.12398).
  """
  drafts = TreeDrafts(tokens, branches, q, pi)
  tree, parents, num = branches.tree, branches.parents, drafts.num
  # Children are visited in the order of this key: first those that were drawn,
  # then those that are certain.
  key = drafts.index + jnp.where(branches.is_certain, num, 0)
  repeats = parents[:, :, None] == parents[:, None, :]
  repeats &= tokens[:, :, None] == tokens[:, None, :]
  repeats &= jnp.tri(num, k=-1, dtype=bool)[None]
  is_visited = ~jnp.any(repeats, axis=2)
  # What a node is after all of its children were dropped does not depend on
  # chance, only on the weight with which the node was reached.
  weights, ends, targets = jnp.ones_like(q[:, :1, 0]), [], []
  for level, members in enumerate(tree.levels):
    here = _without_children(drafts, is_visited, key, level, weights)
    weights = here["reach"][:, members[0] : members[-1] + 1]
    ends.append(here["weight"])
    targets.append(here["target"])
  # A node is asked after all that follow it, and the first that passes is
  # accepted. So the path continues where a node passes further down.
  u = jnp.pad(u_accept, ((0, 0), (1, 0)), constant_values=-1)
  passes = u < jnp.concatenate([*ends, weights], axis=1)
  no_leaves = (0, len(tree.levels[-1]))
  for _ in tree.levels:
    follows = drafts.child(is_visited & passes[:, 1:]) < num
    passes |= jnp.pad(follows, ((0, 0), no_leaves))
  leads = is_visited & passes[:, 1:]
  earliest = drafts.child(leads & (drafts.rank(leads, key) == 0))
  node, path = follow(drafts, earliest)
  laws = jnp.concatenate([*targets, pi[:, drafts.num_inner :]], axis=1)
  token = draws.draw(law_at(laws, node), of_token(u_draw, node))
  return path_verdict(drafts, node, path, token, reads_all=True)


def _without_children(
  drafts: TreeDrafts, is_visited: Array, key: Array, level: int, weights: Array
) -> Nodes:
  """Returns what the nodes of a level are after all children were dropped.

  Args:
    drafts: the drafts.
    is_visited: [B, N] bool, without drafts that repeat a sibling.
    key: [B, N] int32, the order of siblings.
    level: static, the depth of the nodes.
    weights: [B, W], of the W nodes of the level before.

  Returns:
    "weight" [B, W] and "target" [B, W, V] of the nodes, and "reach" [B, N], the
    weights of their children before they are visited; 0 of other drafts.
  """
  certain, num = drafts.branches.is_certain, drafts.num
  # The nodes are the places after the drafts of the level before.
  end = drafts.branches.tree.levels[level][0] + 1
  first = end - weights.shape[1]
  rank = drafts.rank(is_visited, key)

  def visit(number: Array | int, here: Nodes) -> Nodes:
    """Weighs the next child of every node, and drops it."""
    child = drafts.child(is_visited & (rank == number), first, end)
    has_child, y = child < num, drafts.token(child)
    is_certain = drafts.of_draft(certain, child)
    weight, target, law = here["weight"], here["target"], here["law"]
    q_y = jnp.where(is_certain, 1, of_token(law, y))
    reach = jnp.minimum(1, weight * ratio(of_token(target, y), q_y))
    is_child = drafts.index[:, None] == child[:, :, None]
    ids = jax.lax.broadcasted_iota(jnp.int32, law.shape, 2)
    one_hot = (ids == y[..., None]).astype(law.dtype)
    tried = jnp.where(is_certain[..., None], one_hot, law)
    gain = jnp.maximum(weight[..., None] * target - tried, 0)
    mass = jnp.sum(gain, axis=2)
    renewed = ratio(mass, mass + (1 - weight))
    rest = normalise(drop_token(law, y), law)
    after = {
      "weight": renewed,
      "target": normalise(gain, target),
      "law": jnp.where(is_certain[..., None], law, rest),
    }
    at_child = jnp.sum(jnp.where(is_child, reach[:, :, None], 0), axis=1)
    return {
      name: choose(has_child, new, here[name]) for name, new in after.items()
    } | {"reach": here["reach"] + at_child}

  begin = {
    "reach": jnp.zeros(certain.shape, weights.dtype),
    "weight": weights,
    "target": drafts.pi[:, first:end],
    "law": drafts.drawn_laws(first, end),
  }
  most = most_children(drafts.branches.tree, drafts.branches.drawing, level)
  num_visits = jnp.max(jnp.where(is_visited, rank + 1, 0))
  return repeat_trials(visit, begin, most, num_visits)


TREE_VERIFY = {
  "token": tree_token_verify,
  "k_seq": tree_k_seq_verify,
  "traversal": tree_traversal_verify,
}
