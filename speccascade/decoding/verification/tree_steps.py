"""Verifier steps on trees: a drafted tree in, a path of it and one token out.

Every step is exact for any target: each emitted token has the distribution pi
given the tokens before it, however the drafts were drawn. As in a chain, `pi`
has to be the target's own distribution at every node, even where no draft
follows.

All steps go down the tree from node to node. The drafts that follow a node are
tried in the order in which they were drawn, which was fixed before any of them
was looked at. An order that looks at the tokens would bias the output.

On a CPU one native call (`native/trees.cc`) does what a step does in many small
operations. The code here says what that call does, and runs wherever the call
cannot.

Axes: B rows, N drafts, V vocabulary, G depth of the tree.
"""

from collections.abc import Callable
import functools

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
  Node,
  TreeDrafts,
  choose_rows,
  drop_token,
  law_at,
  path_verdict,
  walk,
)

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

  def arrive(node: Array) -> Node:
    return {"residual": law_at(pi, node), "law": drafts.drawn_law(node)}

  def law_of(here: Node, child: Array) -> Array:
    if branches.laws is None:
      return here["law"]
    return law_at(branches.laws, jnp.minimum(child, drafts.num - 1))

  def accepts(here: Node, child: Array, u: Array) -> Array:
    x, law = drafts.token(child), law_of(here, child)
    return u * of_token(law, x) < of_token(here["residual"], x)

  def missed(here: Node, child: Array) -> Node:
    residual, law = here["residual"], law_of(here, child)
    return {
      "residual": normalise(jnp.maximum(residual - law, 0), residual),
      "law": drafts.without(here["law"], drafts.token(child)),
    }

  return walk(
    drafts, u_accept, u_draw, arrive=arrive, accepts=accepts, missed=missed
  )


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

  def arrive(node: Array) -> Node:
    law, target = law_at(q, node), law_at(pi, node)
    of_node = (branches.parents == node[:, None]) & drafts.is_drawn
    count = jnp.sum(of_node, axis=1).astype(law.dtype)

    factor, common, b, any_of = k_seq_factor(law, target, count)
    left = jnp.maximum(target - common * ratio(any_of, b)[:, None], 0)
    # The residual of a token is exactly 0 where the trials alone give the token
    # all of its probability in the target.
    left = jnp.where(target <= factor[:, None] * law, 0, left)
    return {
      "factor": factor,
      "law": law,
      "target": target,
      "residual": normalise(
        jnp.where(count[:, None] > 0, left, target), target
      ),
    }

  def accepts(here: Node, child: Array, u: Array) -> Array:
    x = drafts.token(child)
    scaled = here["factor"] * of_token(here["law"], x)
    return u * scaled < of_token(here["target"], x)

  def missed(here: Node, child: Array) -> Node:
    return {}

  return walk(
    drafts, u_accept, u_draw, arrive=arrive, accepts=accepts, missed=missed
  )


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
  depth, num = branches.tree.depth, drafts.num
  # Children are visited in the order of this key: first those that were drawn,
  # then those that are certain.
  key = drafts.index + jnp.where(branches.is_certain, num, 0)
  repeats = branches.parents[:, :, None] == branches.parents[:, None, :]
  repeats &= tokens[:, :, None] == tokens[:, None, :]
  repeats &= jnp.tri(num, k=-1, dtype=bool)[None]
  is_visited = ~jnp.any(repeats, axis=2)
  levels = jnp.arange(depth + 1, dtype=jnp.int32)[None]

  def put(values: Array, level: Array, new: Array) -> Array:
    """Returns `values` [B, G+1, ...] with `new` at `level` [B]."""
    here = levels == level[:, None]
    here = here.reshape(*here.shape, *[1] * (values.ndim - 2))
    return jnp.where(here, new[:, None], values)

  def is_open(carry: dict[str, Array]) -> Array:
    return jnp.any(~carry["done"])

  def step(carry: dict[str, Array]) -> dict[str, Array]:
    node, level = carry["node"], carry["level"]
    weight = of_token(carry["weight"], level)
    fits = (branches.parents == node[:, None]) & is_visited
    fits &= key >= carry["next"][:, None]
    next_key = jnp.min(jnp.where(fits, key, 2 * num), axis=1)
    has_child = next_key < 2 * num
    # Down to the next child.
    child = jnp.where(has_child, next_key % num, 0)
    y, certain = drafts.token(child), of_token(branches.is_certain, child)
    target, law = law_at(carry["target"], level), law_at(carry["law"], level)
    q_y = jnp.where(certain, 1, of_token(law, y))
    reach = jnp.minimum(1, weight * ratio(of_token(target, y), q_y))
    deeper = jnp.minimum(level + 1, depth)
    down = {
      "node": child + 1,
      "level": deeper,
      "next": jnp.zeros_like(node),
      "weight": put(carry["weight"], deeper, reach),
      "target": put(carry["target"], deeper, law_at(pi, child + 1)),
      "law": put(carry["law"], deeper, drafts.drawn_law(child + 1)),
    }
    # Or a leaf, which is accepted or dropped from its parent.
    draft = jnp.maximum(node - 1, 0)
    is_accepted = (node == 0) | (of_token(u_accept, draft) < weight)
    token = draws.draw(target, of_token(u_draw, node))
    higher = jnp.maximum(level - 1, 0)
    x, certain = drafts.token(draft), of_token(branches.is_certain, draft)
    weight = of_token(carry["weight"], higher)
    target, law = law_at(carry["target"], higher), law_at(carry["law"], higher)
    ids = jax.lax.broadcasted_iota(jnp.int32, law.shape, 1)
    one_hot = (ids == x[:, None]).astype(law.dtype)
    tried = jnp.where(certain[:, None], one_hot, law)
    gain = jnp.maximum(weight[:, None] * target - tried, 0)
    mass = jnp.sum(gain, axis=1)
    renewed = ratio(mass, mass + (1 - weight))
    rest = normalise(drop_token(law, x), law)
    up = {
      "node": of_token(branches.parents, draft),
      "level": higher,
      "next": of_token(key, draft) + 1,
      "weight": put(carry["weight"], higher, renewed),
      "target": put(carry["target"], higher, normalise(gain, target)),
      "law": put(carry["law"], higher, jnp.where(certain[:, None], law, rest)),
    }
    ended = carry["done"] | (~has_child & is_accepted)
    place = {name: carry[name] for name in down}
    moved = choose_rows(ended, place, choose_rows(has_child, down, up))
    return moved | {
      "token": jnp.where(carry["done"], carry["token"], token),
      "done": ended,
    }

  root = jnp.zeros_like(tokens[:, 0])
  shape = (tokens.shape[0], depth + 1, q.shape[2])
  start = {
    "node": root,
    "level": root,
    "next": root,
    "weight": jnp.ones(shape[:2], q.dtype),
    "target": jnp.broadcast_to(pi[:, :1], shape),
    "law": jnp.broadcast_to(drafts.drawn_law(root)[:, None], shape),
    "token": root,
    "done": root > 0,
  }
  end = jax.lax.while_loop(is_open, step, start)
  return path_verdict(drafts, end["node"], end["token"], reads_all=True)


TREE_VERIFY = {
  "token": tree_token_verify,
  "k_seq": tree_k_seq_verify,
  "traversal": tree_traversal_verify,
}
