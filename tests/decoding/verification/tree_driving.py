"""The exact distribution of the verifier steps on trees, by bisection of their
uniforms.

A step is a function of uniforms, and what it decides changes at one threshold
of each uniform. So a step that is called with chosen uniforms, many rows at a
time, shows its thresholds to the last bit of float64, and its whole
distribution is a sum over its decisions. Nothing is known here of how a step
decides; only the order in which it asks for its uniforms.
"""

from collections.abc import Iterator
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting import children
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.block_records import Branches
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.verification import tree_steps

# (drawing, verification), of which each is exact.
WAYS = [
  (drawing, verification)
  for drawing in draft_tree.DRAWINGS
  for verification in tree_steps.TREE_VERIFY
  if drawing in draft_tree.EXACT_FOR.get(verification, draft_tree.DRAWINGS)
]
BISECTIONS = 40  # an edge is known to 1e-12
LAST = 1 - 2.0**-53  # the largest uniform of float64
TINY = 1e-14  # a weight that rounding alone may give


def ways(
  q: np.ndarray, plain: np.ndarray, num: int, drawing: str, *, greedy: bool
) -> Iterator[tuple[list[int], list[bool], float]]:
  """Yields (tokens, whether each is certain, probability) of the children."""
  order = [int(i) for i in np.argsort(-plain, kind="stable")]
  if not greedy:
    order.sort(key=lambda i: q[i] <= 0)
    likely = [i for i in np.argsort(-q, kind="stable") if q[i] > 0]
    order[: len(likely)] = [int(i) for i in likely]
  num_drawn = num
  if greedy or drawing == draft_tree.TOP_K:
    num_drawn = 0
  elif drawing == draft_tree.GREEDY_AND_RANDOM:
    num_drawn = 1

  def draw(tokens, certain, chance):
    if len(tokens) == num:
      yield tokens, certain, chance
      return
    rest = q.copy()
    if drawing != draft_tree.IID:
      rest[tokens] = 0
    if not rest.any():
      token = next(i for i in order if i not in tokens)
      yield from draw([*tokens, token], [*certain, True], chance)
      return
    rest /= rest.sum()
    for token in np.flatnonzero(rest).tolist():
      yield from draw([*tokens, token], [*certain, False], chance * rest[token])

  top = order[: num - num_drawn]
  yield from draw(top, [True] * len(top), 1.0)


def path(tree: DraftTree, tokens, node: int) -> tuple[int, ...]:
  """Returns the tokens on the way to a node of a drafted tree, 0 the root."""
  way: list[int] = []
  while node:
    way.insert(0, int(tokens[node - 1]))
    node = tree.parents[node - 1] + 1
  return tuple(way)


def drafts(
  tree: DraftTree, q, plain, drawing: str, *, greedy: bool
) -> Iterator[tuple[tuple, tuple, float]]:
  """Yields (tokens, whether each is certain, probability) of whole trees.

  Args:
    tree: the shape.
    q: a function from a path's tokens to the distribution [V] after it.
    plain: the same at temperature 1.
    drawing: as in `draft_tree.DRAWINGS`.
    greedy: whether at temperature 0.
  """
  num = tree.num_drafts

  def extend(node, tokens, certain, chance):
    if node > num:
      yield tuple(tokens), tuple(certain), chance
      return
    mine = [i for i in range(num) if tree.parents[i] + 1 == node]
    if not mine:
      yield from extend(node + 1, tokens, certain, chance)
      return
    here = path(tree, tokens, node)
    options = ways(q(here), plain(here), len(mine), drawing, greedy=greedy)
    for new, sure, probability in options:
      # The children of a node are side by side, in the order of the drafts.
      yield from extend(
        node + 1, tokens + new, certain + sure, chance * probability
      )

  yield from extend(0, [], [], 1.0)


@functools.cache
def _program(step, tree: DraftTree, drawing: str):
  """Returns a step as a compiled function of arrays, one for all targets."""

  @jax.jit
  def decide(tokens, parents, certain, q, pi, u_accept, u_draw, laws):
    branches = Branches(tree, drawing, parents, certain, laws)
    verdict = step(tokens, branches, q, pi, u_accept, u_draw)
    return verdict.num_accepted, verdict.path, verdict.token

  return decide


class Step:
  """A verifier step on many drafted trees of one shape, in float64.

  Attributes:
    tokens: [E, N] drafts of each outcome.
    branches: the `Branches` of all outcomes.
    q: [E, N+1, V] distributions at the nodes.
    pi: [E, N+1, V] target at the nodes.
  """

  def __init__(
    self, step, tree: DraftTree, drawing: str, outcomes, q, pi, laws=None
  ):
    """Prepares the outcomes.

    Args:
      step: the verifier step.
      tree: the shape.
      drawing: how the children were chosen.
      outcomes: as `drafts` yields them.
      q: a function from a path to the distribution after it.
      pi: the same of the target.
      laws: [E, N, V], the distributions of the drafts where they are not those
        of q.
    """
    self.laws = laws
    self.tree, self.size = tree, tree.num_drafts
    self.tokens = np.array([tokens for tokens, _, _ in outcomes], np.int32)
    certain = np.array([sure for _, sure, _ in outcomes])
    parents = np.broadcast_to(
      np.array(tree.parents, np.int32) + 1, self.tokens.shape
    )
    if drawing == draft_tree.IID and not certain.any():
      parents = children.merge_siblings(jnp.asarray(self.tokens), tree)
    self.parents = np.asarray(parents)
    self.certain = certain
    self.q, self.pi = (
      np.array(
        [
          [law(path(tree, tokens, node)) for node in range(self.size + 1)]
          for tokens in self.tokens
        ]
      )
      for law in (q, pi)
    )

    self._decide = _program(step, tree, drawing)

  def __call__(self, u_accept, u_draw):
    """Returns (nodes [E, G+2], -1 after the path, tokens [E])."""
    num, accepted, token = (
      np.asarray(x)
      for x in self._decide(
        self.tokens,
        self.parents,
        self.certain,
        self.q,
        self.pi,
        u_accept,
        u_draw,
        self.laws,
      )
    )
    step = np.arange(self.tree.depth + 2)
    nodes = np.pad(accepted + 1, ((0, 0), (1, 1)))
    return np.where(step <= num[:, None], nodes, -1), token

  def bisect(self, u_accept, u_draw, kind, index, holds):
    """Returns [E], the largest uniform up to which a decision holds.

    Args:
      u_accept: [E, N], the other uniforms.
      u_draw: [E, N+1], the other uniforms.
      kind: "accept" or "draw".
      index: [E] int, which of these uniforms is bisected.
      holds: a function from (nodes, tokens) to [E] bool, true for uniforms
        below the threshold.
    """
    at = np.arange(len(u_draw))

    def holds_at(uniform):
      uniforms = {"accept": u_accept.copy(), "draw": u_draw.copy()}
      uniforms[kind][at, index] = uniform
      return holds(*self(uniforms["accept"], uniforms["draw"]))

    low, high = np.zeros(len(u_draw)), np.ones(len(u_draw))
    for _ in range(BISECTIONS):
      middle = (low + high) / 2
      yes = holds_at(middle)
      low, high = np.where(yes, middle, low), np.where(yes, high, middle)
    # A decision that always holds, or never does, has no threshold.
    edge = np.where(holds_at(np.full(len(u_draw), LAST)), 1, (low + high) / 2)
    return np.where(holds_at(np.zeros(len(u_draw))), edge, 0)

  def edges(self, u_accept, u_draw, node, written):
    """Returns [E, V+1], the cells of the uniforms of a draw.

    Args:
      u_accept: [E, N], the other uniforms.
      u_draw: [E, N+1], the other uniforms.
      node: [E] int, where the draw is made.
      written: a function from (nodes, tokens) to the token that is written
        after the node, [E].
    """
    inner = [
      self.bisect(
        u_accept,
        u_draw,
        "draw",
        node,
        lambda nodes, tokens, token=token: written(nodes, tokens) <= token,
      )
      for token in range(self.q.shape[-1] - 1)
    ]
    zero = np.zeros(len(u_draw))
    return np.stack([zero, *inner, zero + 1], axis=1)


def walked_law(step: Step, outcomes) -> dict[tuple[int, ...], float]:
  """Returns the distribution of the tokens of one block, for steps that go
  down.

  At each node they try the drawn children in order, and then draw.

  Returns:
    The probability of the accepted tokens with the token after them.
  """
  num, every = step.size, np.arange(len(outcomes))
  law: dict[tuple[int, ...], float] = {}
  # How likely a step arrives at each node, and by which uniforms.
  arrival = np.zeros((len(outcomes), num + 1))
  arrival[:, 0] = [chance for _, _, chance in outcomes]
  ways = [
    (np.full((len(every), num), LAST), np.full((len(every), num + 1), 0.5))
  ]
  ways += [tuple(x.copy() for x in ways[0]) for _ in range(num)]

  def arrive(rows, onto, chance, u_accept, u_draw):
    for r in rows:
      if chance[r] > TINY:
        # Any way to a node serves: what follows does not depend on it.
        arrival[r, onto[r]] += chance[r]
        ways[onto[r]][0][r], ways[onto[r]][1][r] = u_accept[r], u_draw[r]

  for node in range(num + 1):
    chance = arrival[:, node].copy()
    u_accept, u_draw = ways[node]
    if not chance.any():
      continue
    depth = int(step.tree.node_depths[node])
    for child in range(num):
      tried = (step.parents[:, child] == node) & ~step.certain[:, child]
      if not tried.any():
        continue
      # A repeated token leads to the first of its siblings.
      twins = step.parents == node
      twins &= step.tokens == step.tokens[:, child : child + 1]
      first = np.argmax(twins, axis=1) + 1
      t = step.bisect(
        u_accept,
        u_draw,
        "accept",
        np.full(len(every), child),
        lambda nodes, _, first=first, after=depth + 1: nodes[:, after] == first,
      )
      t = np.where(tried, t, 0)
      mine = u_accept.copy()
      mine[:, child] = 0
      arrive(np.flatnonzero(tried), first, chance * t, mine, u_draw)
      chance = chance * (1 - t)

    def written(nodes, tokens, depth=depth):
      onto = nodes[:, depth + 1]
      drafts = step.tokens[every, np.maximum(onto - 1, 0)]
      return np.where(onto > 0, drafts, tokens)

    edges = step.edges(u_accept, u_draw, np.full(len(every), node), written)
    for token, (low, high) in enumerate(itertools.pairwise(edges.T)):
      weight = chance * (high - low)
      cell = u_draw.copy()
      cell[:, node] = (low + high) / 2
      nodes, tokens = step(u_accept, cell)
      onto = nodes[:, depth + 1]
      arrive(np.flatnonzero(onto > 0), onto, weight, u_accept, cell)
      for r in np.flatnonzero((onto < 0) & (weight > TINY)):
        assert tokens[r] == token
        key = (*path(step.tree, step.tokens[r], node), token)
        law[key] = law.get(key, 0.0) + weight[r]
  return law


def visited_law(step: Step, outcomes) -> dict[tuple[int, ...], float]:
  """Returns the distribution of the tokens of one block, for a traversal of the
  leaves.

  The nodes are asked in the order in which they are leaves: the drawn children
  of a node, each after what follows it, then the certain ones, then the node.
  """
  num, every = step.size, np.arange(len(outcomes))

  def order(e: int, node: int) -> list[int]:
    seen: set[int] = set()
    nodes: list[int] = []
    for certain in (False, True):
      for i in np.flatnonzero(step.parents[e] == node):
        token = int(step.tokens[e, i])
        if step.certain[e, i] == certain and token not in seen:
          seen.add(token)
          nodes += order(e, int(i) + 1)
    return [*nodes, node]

  orders = [order(e, 0) for e in every]
  law: dict[tuple[int, ...], float] = {}
  chance = np.array([probability for _, _, probability in outcomes])
  u_accept = np.full((len(every), num), LAST)
  u_draw = np.full((len(every), num + 1), 0.5)
  for place in range(num + 1):
    # Rows whose root was asked already have a chance of 0.
    node = np.array([nodes[min(place, len(nodes) - 1)] for nodes in orders])
    draft = np.maximum(node - 1, 0)
    t = step.bisect(
      u_accept,
      u_draw,
      "accept",
      draft,
      lambda nodes, _, node=node: (
        nodes[every, np.sum(nodes >= 0, axis=1) - 1] == node
      ),
    )
    t = np.where(node == 0, 1, t)
    mine = u_accept.copy()
    mine[every, draft] = np.where(node > 0, 0, mine[every, draft])
    edges = step.edges(mine, u_draw, node, lambda _, tokens: tokens)
    for token, (low, high) in enumerate(itertools.pairwise(edges.T)):
      weight = chance * t * (high - low)
      for e in np.flatnonzero(weight > TINY):
        key = (*path(step.tree, step.tokens[e], int(node[e])), token)
        law[key] = law.get(key, 0.0) + weight[e]
    chance = chance * (1 - t)
  return law
