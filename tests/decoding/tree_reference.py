"""The exact distribution of one verified tree of drafts, by enumeration in
float64.

Nothing here comes from the decoder: drawing and verification are written again
from the papers, path by path, with no random number. A block is one tree of
drafts and its verification. It emits the accepted tokens and one more token,
which is drawn from a residual or from the target after the last accepted token.

A tree is a tuple `parents`: `parents[n]` is the parent of the drafted node n,
and -1 stands for the root, which is the last token that was emitted. Nodes are
numbered level by level, so `parents` never falls. The children of a node are
in the order in which they are drawn. N is the number of drafted nodes, V the
size of the vocabulary.

Sources: SpecInfer (arXiv 2305.09781) and "Recursive Speculative Decoding"
(arXiv 2402.14160) for the trials of one position, SpecTr (arXiv 2310.15141) for
K-SEQ, "Traversal Verification" (arXiv 2505.12398).
"""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

DRAWINGS = ("iid", "without_replacement", "greedy_and_random", "top_k")
VERIFICATIONS = ("token", "traversal", "k_seq")
ROOT = -1
ABSENT = -1  # the token of a node that was not drafted

# From the tokens so far to the [V] probabilities of the next token.
Law = Callable[[tuple[int, ...]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Tree:
  """A static tree of drafts, the drafter's distribution and the target's
  distribution.

  Attributes:
    q: the drafter's distribution, from which tokens are drafted.
    pi: the target's distribution, which the output is to have.
    parents: [N], see the module.
    drawing: one of `DRAWINGS`. "iid" draws the children of a node independently
      of each other. "without_replacement" draws one after another, each from q
      without the tokens before it, renormalised; where q has no token left, no
      further child is drafted. "greedy_and_random" takes all children but the
      last from the largest probabilities of q, and draws the last one from q
      without them, renormalised. "top_k" takes all children from the largest
      probabilities of q. Of equal probabilities the lower token id is larger.
    prefix: the tokens before the tree.
    ranking: the distribution whose largest tokens are the certain children, in
      place of q; None takes q. At temperature 0, where q is one-hot, the
      drafter's distribution at temperature 1 distinguishes the tokens.
  """

  q: Law
  pi: Law
  parents: tuple[int, ...]
  drawing: str
  prefix: tuple[int, ...] = (0,)
  ranking: Law | None = None

  def __post_init__(self):
    for node, parent in enumerate(self.parents):
      before = self.parents[node - 1] if node else ROOT
      if not before <= parent < node:
        raise ValueError(
          f"parents is {self.parents}; nodes must be numbered level by level"
        )
    if self.drawing not in DRAWINGS:
      raise ValueError(f"drawing is {self.drawing}; it is one of {DRAWINGS}")

  def children(self, node: int) -> list[int]:
    """Returns the children of a node, in the order in which they are drawn."""
    return [n for n, parent in enumerate(self.parents) if parent == node]

  def path(self, node: int) -> list[int]:
    """Returns the nodes from the root's child down to `node`, both included."""
    nodes: list[int] = []
    while node != ROOT:
      nodes.insert(0, node)
      node = self.parents[node]
    return nodes


class Draft(NamedTuple):
  """One outcome of drafting a tree.

  Attributes:
    tokens: [N], the token of each node, `ABSENT` where none was drafted.
    probability: of this outcome.
    laws: [N, V], the distribution that each node's token was drawn from, which
      is one-hot for a certain child and 0 for an absent one.
  """

  tokens: tuple[int, ...]
  probability: float
  laws: np.ndarray


class Outcome(NamedTuple):
  """One outcome of verifying a drafted tree.

  Attributes:
    path: the accepted nodes from the root downwards. Where siblings have equal
      tokens, the first of them stands for all.
    token: the token after the last accepted node, which no node holds.
    probability: of this outcome, given the draft.
  """

  path: tuple[int, ...]
  token: int
  probability: float


def markov(rows: np.ndarray) -> Law:
  """Returns the distribution of a Markov chain.

  Args:
    rows: [V] * n + [V], the probabilities of a token after the last n tokens,
      the oldest first.
  """
  order = rows.ndim - 1
  return lambda prefix: rows[tuple(prefix[len(prefix) - order :])]


def normalise(weights: np.ndarray) -> np.ndarray:
  """Returns weights divided by their sum, or zeros where the sum is 0."""
  total = weights.sum()
  return weights / total if total > 0 else np.zeros_like(weights)


def without(q: np.ndarray, tokens) -> np.ndarray:
  """Returns q without some tokens, renormalised; zeros if nothing is left."""
  kept = q.copy()
  kept[list(tokens)] = 0
  return normalise(kept)


def residual(pi: np.ndarray, q: np.ndarray) -> np.ndarray:
  """Returns the positive part of pi - q, normalised."""
  return normalise(np.maximum(pi - q, 0))


def one_hot(token: int, like: np.ndarray) -> np.ndarray:
  """Returns the one-hot distribution of a token, shaped as `like`."""
  law = np.zeros_like(like)
  law[token] = 1
  return law


def largest(q: np.ndarray, num: int) -> list[int]:
  """Returns the `num` tokens of the largest probabilities, largest first."""
  return np.argsort(-q, kind="stable")[: max(num, 0)].tolist()


# Drafting.


def draws(
  q: np.ndarray, num: int, drawing: str, ranking: np.ndarray | None = None
) -> Iterator[tuple[list[int], float, list[np.ndarray]]]:
  """Yields every way to draft the children of one node.

  Args:
    q: [V] the drafter's distribution after the node.
    num: the number of children that the tree has room for.
    drawing: see `Tree`.
    ranking: [V], see `Tree`.

  Yields:
    (tokens, probability, distributions). The lists have the children that were
    drafted, which are fewer than `num` where no token is left to draft.
  """
  if num == 0:
    yield [], 1.0, []
  elif drawing == "iid":
    for tokens in itertools.product(np.flatnonzero(q).tolist(), repeat=num):
      yield list(tokens), float(np.prod(q[list(tokens)])), [q] * num
  elif drawing == "without_replacement":
    yield from _draws_without_replacement(q, num)
  else:
    num_certain = num if drawing == "top_k" else num - 1
    top = largest(q if ranking is None else ranking, num_certain)
    laws = [one_hot(token, q) for token in top]
    rest = without(q, top)
    if drawing == "top_k" or not rest.any():
      yield top, 1.0, laws
      return
    for token in np.flatnonzero(rest).tolist():
      yield [*top, token], float(rest[token]), [*laws, rest]


def _draws_without_replacement(q, num):
  """Yields as `draws`, one token after another."""
  if num == 0 or not q.any():
    yield [], 1.0, []
    return
  for first in np.flatnonzero(q).tolist():
    rest = without(q, [first])
    for tokens, chance, laws in _draws_without_replacement(rest, num - 1):
      yield [first, *tokens], float(q[first]) * chance, [q, *laws]


def draft_outcomes(tree: Tree) -> Iterator[Draft]:
  """Yields every outcome of drafting the tree, with positive probability."""
  size = len(tree.q(tree.prefix))
  num_nodes = len(tree.parents)

  def extend(node, draft):
    """Yields the drafts that continue with the children of `node` and later."""
    if node == num_nodes:
      yield draft
      return
    children = tree.children(node)
    if node != ROOT and draft.tokens[node] == ABSENT:
      yield from extend(node + 1, draft)
      return
    prefix = tree.prefix + _tokens(tree.path(node), draft)
    ranking = None if tree.ranking is None else tree.ranking(prefix)
    ways = draws(tree.q(prefix), len(children), tree.drawing, ranking)
    for drawn, chance, drawn_laws in ways:
      tokens, laws = list(draft.tokens), draft.laws.copy()
      for child, token, law in zip(children, drawn, drawn_laws):
        tokens[child], laws[child] = token, law
      chance *= draft.probability
      yield from extend(node + 1, Draft(tuple(tokens), chance, laws))

  empty = Draft((ABSENT,) * num_nodes, 1.0, np.zeros((num_nodes, size)))
  yield from extend(ROOT, empty)


def _tokens(path, draft: Draft) -> tuple[int, ...]:
  """Returns the tokens of the nodes of a path."""
  return tuple(draft.tokens[node] for node in path)


# Verification.


def verify_outcomes(
  tree: Tree, draft: Draft, verification: str
) -> Iterator[Outcome]:
  """Yields every outcome of verifying a draft, with positive probability.

  One path and token may be yielded more than once.

  Args:
    tree: the tree that was drafted.
    draft: an outcome of `draft_outcomes`.
    verification: one of `VERIFICATIONS`; "k_seq" needs the drawing "iid".
  """
  if verification == "k_seq" and tree.drawing != "iid":
    raise ValueError(f"k_seq needs i.i.d. drafts; drawing is {tree.drawing}")
  position = Position(tree, draft, (ROOT,), ())
  if verification == "traversal":
    outcomes = _traversal(position)
  elif verification in VERIFICATIONS:
    trials = {"token": _token_trials, "k_seq": _k_seq_trials}[verification]
    outcomes = _walk(position, trials, 1.0)
  else:
    raise ValueError(f"verification is {verification}, not in {VERIFICATIONS}")
  return (outcome for outcome in outcomes if outcome.probability > 0)


@dataclasses.dataclass(frozen=True)
class Position:
  """A place in a drafted tree, at which the next token is verified.

  Attributes:
    tree: the tree.
    draft: its drafted tokens.
    nodes: the nodes at this place. They are several where siblings have equal
      tokens; the children of all of them are then drafts of this place.
    path: the nodes from the root to this place; of siblings with equal tokens
      the first one.
  """

  tree: Tree
  draft: Draft
  nodes: tuple[int, ...]
  path: tuple[int, ...]

  @property
  def prefix(self) -> tuple[int, ...]:
    """The tokens before the one that is verified here."""
    return self.tree.prefix + _tokens(self.path, self.draft)

  @property
  def q(self) -> np.ndarray:
    """[V], the drafter's distribution here."""
    return self.tree.q(self.prefix)

  @property
  def pi(self) -> np.ndarray:
    """[V], the target's distribution here."""
    return self.tree.pi(self.prefix)

  @property
  def random_child(self) -> int | None:
    """The one child that "greedy_and_random" draws, or None."""
    last = self.tree.children(self.nodes[0])[-1:]
    drafted = [n for n in last if self.draft.tokens[n] != ABSENT]
    return drafted[0] if drafted else None

  @property
  def random_law(self) -> np.ndarray:
    """[V], for the random child: q without the certain children."""
    nodes = [n for n in self.drafts() if n != self.random_child]
    return without(self.q, _tokens(nodes, self.draft))

  def drafts(self) -> list[int]:
    """Returns the drafted children here, in order."""
    children = [n for node in self.nodes for n in self.tree.children(node)]
    token = self.draft.tokens.__getitem__
    return [n for n in sorted(children) if token(n) != ABSENT]

  def first_drafts(self) -> list[int]:
    """Returns the drafts here, without those that repeat an earlier token."""
    seen: dict[int, int] = {}
    for node in self.drafts():
      seen.setdefault(self.draft.tokens[node], node)
    return list(seen.values())

  def after(self, token: int) -> "Position | None":
    """Returns the place after a token, or None where no draft holds it."""
    nodes = [n for n in self.drafts() if self.draft.tokens[n] == token]
    if not nodes:
      return None
    nodes.sort()
    path = (*self.path, nodes[0])
    return Position(self.tree, self.draft, tuple(nodes), path)


def _walk(position: Position, trials, reach: float):
  """Yields the outcomes of a verification that goes position by position.

  At each position the drafts are tried one after another. After the first one
  that is accepted, the verification continues at its children. Where all are
  refused, a token is drawn from a last distribution; it may equal a child,
  which is then accepted after all.

  Args:
    position: where the verification is.
    trials: a function from a position to the pair of its trials, a list of
      (token, chance that it is accepted after the trials before it failed), and
      the [V] distribution of the token that is drawn after all trials failed.
    reach: the probability of the position.
  """
  if reach <= 0:
    return
  pairs, last_law = trials(position)
  for token, chance in pairs:
    yield from _walk(position.after(token), trials, reach * chance)
    reach *= 1 - chance
  for token, chance in enumerate(last_law.tolist()):
    child = position.after(token)
    if child is None:
      yield Outcome(position.path, token, reach * chance)
    else:
      yield from _walk(child, trials, reach * chance)


def _token_trials(position: Position):
  """Returns the trials and the last distribution of token verification.

  Every draft is accepted with min(1, r / q), where r is the residual of the
  trials before it and q the distribution that the draft was drawn from.
  """
  r, pairs = position.pi, []
  for token, law in _trial_laws(position):
    pairs.append((token, min(1.0, float(r[token] / law[token]))))
    r = residual(r, law)
  return pairs, r


def _trial_laws(position: Position) -> list[tuple[int, np.ndarray]]:
  """Returns (token, distribution) for each trial of a position.

  Repeated i.i.d. draws have a trial each. A certain child has no trial beside a
  random child, because the last draw may land on it; without a random child it
  is tried with a one-hot distribution.
  """
  tree, q = position.tree, position.q
  nodes = position.drafts()
  if tree.drawing == "greedy_and_random":
    nodes = [n for n in nodes if n == position.random_child]
    return [(position.draft.tokens[n], position.random_law) for n in nodes]
  trials: list[tuple[int, np.ndarray]] = []
  for node in nodes:
    token = position.draft.tokens[node]
    if tree.drawing == "top_k":
      law = one_hot(token, q)
    elif tree.drawing == "without_replacement":
      law = without(q, [before for before, _ in trials])
    else:
      law = q
    trials.append((token, law))
  return trials


def k_seq_division(q: np.ndarray, pi: np.ndarray, num_drafts: int) -> float:
  """Returns the factor rho of K-SEQ, by which the chances are divided.

  It is the root in [1, K] of 1 - (1 - b)^K = rho b, b = sum min(q, pi / rho),
  rounded up: every rho at or above the root leaves a residual that is nowhere
  negative.
  """
  low, high = 1.0, float(num_drafts)
  for _ in range(60):
    middle = (low + high) / 2
    b = np.minimum(q, pi / middle).sum()
    if 1 - (1 - b) ** num_drafts > middle * b:
      low = middle
    else:
      high = middle
  return high


def _k_seq_trials(position: Position):
  """Returns the trials and the last distribution of K-SEQ."""
  q, pi = position.q, position.pi
  tokens = [position.draft.tokens[n] for n in position.drafts()]
  if not tokens:
    return [], pi
  rho = k_seq_division(q, pi, len(tokens))
  accepted = np.minimum(q, pi / rho)
  b = accepted.sum()
  pairs = [(t, min(1.0, float(pi[t] / (rho * q[t])))) for t in tokens]
  if b == 0:
    return pairs, pi
  any_accepted = 1 - (1 - b) ** len(tokens)
  return pairs, normalise(np.maximum(pi - accepted * any_accepted / b, 0))


@dataclasses.dataclass
class _Visited:
  """What traversal verification knows of one node.

  Attributes:
    position: the node's place in the tree.
    children: those that were not dropped yet, in the order of the visit.
    pi: [V] the target after the node, renewed when a child is dropped.
    q: [V] the distribution that the first child of `children` was drawn from.
    weight: the chance that the node, or one below it, is accepted.
  """

  position: Position
  children: list["_Visited"]
  pi: np.ndarray
  q: np.ndarray
  weight: float

  @property
  def token(self) -> int:
    return self.position.draft.tokens[self.position.path[-1]]


def _visit(position: Position) -> _Visited:
  """Returns a node with all nodes below it; only the root's weight is set."""
  nodes = position.first_drafts()
  if position.tree.drawing == "greedy_and_random":
    # The random child is tried before the certain ones.
    nodes.sort(key=lambda n: n != position.random_child)
  tokens = [position.draft.tokens[n] for n in nodes]
  children = [_visit(position.after(token)) for token in tokens]
  node = _Visited(position, children, position.pi, position.q, 1.0)
  node.q = _law_of_next_child(node, [])
  return node


def _law_of_next_child(node: _Visited, dropped: list[int]) -> np.ndarray:
  """Returns the distribution of the first child left, given the tokens of those
  dropped.

  Equal i.i.d. draws are one child, so that the next child is drawn from q
  without the tokens before it, as in drawing without replacement.
  """
  tree, q = node.position.tree, node.position.q
  if not node.children:
    return np.zeros_like(q)
  if tree.drawing in ("iid", "without_replacement"):
    return without(q, dropped)
  next_child = node.children[0]
  is_random = next_child.position.nodes[0] == node.position.random_child
  if tree.drawing == "greedy_and_random" and is_random:
    return node.position.random_law
  return one_hot(next_child.token, q)


def _renew_weights(node: _Visited):
  """Works out the weights of the nodes below a node."""
  for child in node.children:
    drawn = node.q[child.token]
    # A certain child that is not the next one gets its weight when it is.
    kept = node.weight * node.pi[child.token] / drawn if drawn > 0 else 0.0
    child.weight = min(1.0, float(kept))
    _renew_weights(child)


def _traversal(position: Position):
  """Yields the outcomes of traversal verification, leaf by leaf."""
  root, reach = _visit(position), 1.0
  _renew_weights(root)
  dropped: dict[int, list[int]] = {}
  while True:
    parent, leaf = None, root
    while leaf.children:
      parent, leaf = leaf, leaf.children[0]
    accept = 1.0 if parent is None else leaf.weight
    for token, chance in enumerate(leaf.pi.tolist()):
      yield Outcome(leaf.position.path, token, reach * accept * chance)
    reach *= 1 - accept
    if parent is None or reach <= 0:
      return
    left = np.maximum(parent.weight * parent.pi - parent.q, 0)
    total = left.sum()
    # Where nothing is left the parent can no longer be accepted, and its target
    # is not used again.
    # `1 - weight` comes first: with a weight of 1 a tiny total is not lost.
    refused = total + (1 - parent.weight)
    parent.weight = total / refused if total > 0 else 0.0
    parent.pi = normalise(left)
    parent.children.pop(0)
    tokens = dropped.setdefault(parent.position.nodes[0], [])
    tokens.append(leaf.token)
    parent.q = _law_of_next_child(parent, tokens)
    _renew_weights(parent)


# Distributions of the output.


def block_law(tree: Tree, verification: str) -> dict[tuple[int, ...], float]:
  """Returns the distribution of the tokens that one block emits.

  The keys are tuples of the accepted tokens and the token after them, so a key
  of n tokens has n - 1 accepted ones.
  """
  law: dict[tuple[int, ...], float] = {}
  for draft in draft_outcomes(tree):
    for path, token, chance in verify_outcomes(tree, draft, verification):
      emitted = (*_tokens(path, draft), token)
      law[emitted] = law.get(emitted, 0.0) + draft.probability * chance
  return law


def expected_accepted(law: dict[tuple[int, ...], float]) -> float:
  """Returns the mean number of accepted tokens of a `block_law`."""
  return sum(chance * (len(emitted) - 1) for emitted, chance in law.items())


def chain_law(
  pi: Law, prefix: tuple[int, ...], length: int
) -> dict[tuple[int, ...], float]:
  """Returns the distribution of the next `length` tokens after a prefix."""
  law: dict[tuple[int, ...], float] = {(): 1.0}
  for _ in range(length):
    law = {
      (*tokens, token): chance * next_chance
      for tokens, chance in law.items()
      for token, next_chance in enumerate(pi(prefix + tokens).tolist())
    }
  return law


def sequence_error(
  tree: Tree, law: dict[tuple[int, ...], float], length: int
) -> float:
  """Returns the largest error of a block's distribution of `length` tokens.

  Emitted tokens are completed from the target's chain. The result is compared
  with the chain itself, token by token; in an exact verification it is 0.

  Args:
    tree: gives the target and the prefix.
    law: as `block_law` returns it.
    length: at least the longest key of the distribution.
  """
  expected = chain_law(tree.pi, tree.prefix, length)
  completed = dict.fromkeys(expected, 0.0)
  for emitted, chance in law.items():
    after = tree.prefix + emitted
    rest = chain_law(tree.pi, after, length - len(emitted))
    for tokens, next_chance in rest.items():
      completed[emitted + tokens] += chance * next_chance
  return max(abs(completed[tokens] - expected[tokens]) for tokens in expected)
