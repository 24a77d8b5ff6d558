"""The best static tree of drafts, from measured acceptance and costs.

A tree is a tuple `parents`: `parents[n]` is the parent of the drafted node n,
and -1 stands for the root, which is the last token that was emitted. Nodes are
numbered level by level, so `parents` never falls, and the children of a node
stand in the order in which they are tried. Ranks count a node's children, and
depths the levels below the root; both begin at 1 in words, at 0 in arrays.

The acceptance of rank b is the chance that the b-th child of a node is the one
that is accepted, given that the node was accepted. It is measured for each
rank, or for each depth and rank, and is assumed to depend on nothing else. Or
it is measured for each depth, number of children and rank: how children are
drawn may depend on how many there are.
"""

import collections
import dataclasses
from typing import NamedTuple

import numpy as np

from speccascade.study.papers import checks

ROOT = -1


@dataclasses.dataclass(frozen=True, eq=False)
class BestTree:
  """The tree with the least cost of a token.

  Attributes:
    parents: [n] of the best tree; () where the verifier alone is cheapest, so
      that no drafting pays.
    depth: the number of levels of drafted nodes; 0 without drafts.
    tokens: the expected tokens of a block, in [1, depth + 1], the residual or
      bonus token counted.
    cost_per_token: the expected cost of a block / `tokens`, in the unit of the
      costs.
    table: [max_depth + 1, max_nodes + 1] float64, the expected tokens of the
      best tree of n drafted nodes and at most l levels, at [l, n]; -inf where
      there is no such tree.
  """

  parents: tuple[int, ...]
  depth: int
  tokens: float
  cost_per_token: float
  table: np.ndarray


def best_tree(
  acceptance,
  pass_cost,
  drafter_step_cost,
  *,
  min_nodes: int = 0,
  max_nodes: int | None = None,
  max_depth: int | None = None,
  max_children: int | None = None,
) -> BestTree:
  """Returns the tree with the least (drafting + verifier pass) / tokens.

  The drafter takes one step for each level of the tree, which drafts all nodes
  of the level. Of trees with equal costs the one with fewer levels is returned,
  and of those the one with fewer nodes.

  Args:
    acceptance: [K], the acceptance of each rank; [D, K], of each depth and
      rank; or [D, K, K], of each depth, number of children and rank. At [d, k -
      1, b] the ranks b >= k are not used.
    pass_cost: [M], the cost of a verifier pass over n drafted nodes, at index
      n. `pass_cost[0]` is one step of the verifier alone.
    drafter_step_cost: the cost of drafting one level, in the same unit; or [L],
      the cost of drafting l levels at index l, where the cost does not grow
      evenly, as with draft heads.
    min_nodes: the fewest drafted nodes.
    max_nodes: the most drafted nodes; None takes M - 1.
    max_depth: the most levels; None takes D, or max_nodes where the acceptance
      is the same at each depth.
    max_children: the most children of one node; None takes K.

  Raises:
    ValueError: an argument is outside its range, a limit is beyond what the
      acceptance or the costs were measured for, or the limits leave no tree.

  Source: Chen et al., Sequoia (arXiv:2402.12374), whose dynamic programme is
  for one acceptance at all depths.

  >>> tree = best_tree([0.6, 0.2], [1, 1.1, 1.2, 1.3], 0.05)
  >>> tree.parents, round(tree.tokens, 2)
  ((-1, -1, 0), 2.16)
  """
  rates = _acceptance(acceptance)
  is_same_at_each_depth = np.ndim(acceptance) == 1
  pass_cost = checks.nonnegative("pass_cost", pass_cost)
  if pass_cost.ndim != 1 or not pass_cost.size or not pass_cost.all():
    raise ValueError(
      f"pass_cost is {pass_cost}; it must be a list of costs above 0, the first"
      " of which is one step of the verifier alone"
    )
  step_cost = checks.nonnegative("drafter_step_cost", drafter_step_cost)
  max_nodes = _limit("max_nodes", max_nodes, len(pass_cost) - 1)
  min_nodes = checks.count("min_nodes", min_nodes, 0)
  max_children = _limit("max_children", max_children, rates.shape[1])
  # A tree has no more levels than nodes.
  most_levels = max_nodes if is_same_at_each_depth else len(rates)
  if is_same_at_each_depth and max_depth is not None:
    max_depth = checks.count("max_depth", max_depth, 0)
  else:
    max_depth = _limit("max_depth", max_depth, most_levels)
  rates = rates[:, :max_children, :max_children]

  programmes = _programmes(rates, is_same_at_each_depth, max_depth, max_nodes)
  # The tables count the root as a node.
  table = np.stack([subtrees[0].best()[1:] for subtrees in programmes])
  drafting = step_cost
  if not drafting.ndim:
    drafting = step_cost * np.arange(max_depth + 1)
  elif len(drafting) <= max_depth:
    raise ValueError(
      f"drafter_step_cost has the costs of {len(drafting) - 1} levels, and"
      f" max_depth is {max_depth}: give a cost for each number of levels"
    )
  drafting = drafting[: max_depth + 1]
  cost = drafting[:, None] + pass_cost[: max_nodes + 1]
  cost_per_token = np.where(table > 0, cost / np.maximum(table, 1), np.inf)
  cost_per_token[:, :min_nodes] = np.inf
  if not np.isfinite(cost_per_token).any():
    raise ValueError(
      f"there is no tree of {min_nodes} to {max_nodes} nodes with at most"
      f" {max_depth} levels and {max_children} children of a node"
    )
  # Of equal entries `argmin` returns the first one.
  place = np.unravel_index(np.argmin(cost_per_token), table.shape)
  depth, num_nodes = (int(x) for x in place)
  return BestTree(
    parents=_parents(programmes[depth], num_nodes),
    depth=depth,
    tokens=float(table[depth, num_nodes]),
    cost_per_token=float(cost_per_token[depth, num_nodes]),
    table=table,
  )


def expected_tokens(parents, acceptance) -> float:
  """Returns the expected tokens of a block, the residual or bonus one counted.

  A node is emitted if it and all nodes above it are accepted, so a tree yields
  1 + the sum over its nodes of the product of the acceptances on their paths.

  Args:
    parents: [N], see the module.
    acceptance: [K], [D, K] or [D, K, K], see `best_tree`.

  Raises:
    ValueError: the nodes are not numbered level by level, or the tree is deeper
      or wider than the acceptance.

  >>> expected_tokens((-1, -1, 0), [0.5, 0.25])
  2.0
  """
  rates = _acceptance(acceptance)
  is_same_at_each_depth = np.ndim(acceptance) == 1
  counts = collections.Counter(parents)
  num_seen: dict[int, int] = {}
  depths = {ROOT: 0}
  reach = {ROOT: 1.0}
  last = ROOT
  for node, parent in enumerate(parents):
    if not last <= parent < node:
      raise ValueError(
        f"parents is {parents}; the nodes must be numbered level by level"
      )
    rank = num_seen.get(parent, 0)
    num_seen[parent] = rank + 1
    depths[node] = depths[parent] + 1
    row = 0 if is_same_at_each_depth else depths[node] - 1
    if row >= len(rates) or counts[parent] > rates.shape[1]:
      raise ValueError(
        f"node {node} of {parents} has depth {depths[node]} and"
        f" {counts[parent] - 1} siblings; the acceptance has the shape"
        f" {np.shape(acceptance)}"
      )
    reach[node] = reach[parent] * rates[row, counts[parent] - 1, rank]
    last = parent
  return float(sum(reach.values()))


class _Subtrees(NamedTuple):
  """The best subtrees below a node, for each number of children and nodes."""

  # [K + 1, M] the expected tokens of the best subtree of m nodes, the node
  # itself counted, with exactly b children, at [b, m]; given that the node is
  # accepted. It is -inf where there is no such subtree.
  tokens: np.ndarray
  # At index b, [M, b] int, how many of the m nodes each child has.
  sizes: list[np.ndarray]

  def best(self) -> np.ndarray:
    """Returns [M], the tokens of the best subtree of each number of nodes."""
    return self.tokens.max(axis=0)


def _programmes(
  rates: np.ndarray, is_same_at_each_depth: bool, max_depth: int, max_nodes: int
) -> list[list[_Subtrees]]:
  """Returns at [l][d] the subtrees at depth d of trees of at most l levels."""
  # A node at the deepest level is alone.
  tokens = np.full((1, max_nodes + 2), -np.inf)
  tokens[0, 1] = 1
  leaf = _Subtrees(tokens, [np.zeros((max_nodes + 2, 0), int)])
  if is_same_at_each_depth:
    # Subtrees depend only on the levels that are left.
    subtrees = [leaf]
    for _ in range(max_depth):
      subtrees.insert(0, _add_level(rates[0], subtrees[0]))
    return [subtrees[max_depth - l :] for l in range(max_depth + 1)]
  programmes = []
  for num_levels in range(max_depth + 1):
    subtrees = [leaf]
    for row in rates[:num_levels][::-1]:
      subtrees.insert(0, _add_level(row, subtrees[0]))
    programmes.append(subtrees)
  return programmes


def _add_level(rates: np.ndarray, below: _Subtrees) -> _Subtrees:
  """Returns the subtrees of nodes whose children have the subtrees `below`."""
  # `rates` [K, K] are by the number of children and their ranks.
  child_tokens = below.best()
  none = np.full(len(child_tokens), -np.inf)
  none[1] = 1
  tokens, sizes = [none], [np.zeros((len(none), 0), int)]
  for num_children in range(1, len(rates) + 1):
    with_child, of_children = none, sizes[0]
    for rate in rates[num_children - 1, :num_children].tolist():
      with_child, of_child = _add_child(with_child, rate, child_tokens)
      # What the children before have of the nodes that are left to them.
      left = np.arange(len(none)) - of_child
      of_children = np.column_stack([of_children[left], of_child])
    tokens.append(with_child)
    sizes.append(of_children)
  return _Subtrees(np.stack(tokens), sizes)


def _add_child(
  before: np.ndarray, rate: float, child_tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns [M] tokens with one child more, and [M] how many nodes it has."""
  # `before` [M] are the tokens of the best subtree of m nodes without the
  # child, and `child_tokens` [M] those of the child's own subtree of m nodes.
  tokens = np.full(len(before), -np.inf)
  of_child = np.zeros(len(before), int)
  # The product of a rate of 0 and -inf would be NaN.
  is_possible = np.isfinite(child_tokens)
  gain = np.full(len(before), -np.inf)
  gain[is_possible] = rate * child_tokens[is_possible]
  for m in range(2, len(before)):
    # The child has y = 1, ..., m - 1 nodes, and m - y are left.
    sums = gain[1:m] + before[m - 1 : 0 : -1]
    best = int(np.argmax(sums))
    tokens[m], of_child[m] = sums[best], best + 1
  return tokens, of_child


def _parents(subtrees: list[_Subtrees], num_drafted: int) -> tuple[int, ...]:
  """Returns the best tree of a number of drafted nodes, the root left out."""
  parents: list[int] = []
  # Nodes whose children have no numbers yet, with the size of their subtrees.
  level = [(ROOT, num_drafted + 1)]
  for at_depth in subtrees:
    next_level = []
    for node, num_nodes in level:
      num_children = int(np.argmax(at_depth.tokens[:, num_nodes]))
      for size in at_depth.sizes[num_children][num_nodes].tolist():
        next_level.append((len(parents), size))
        parents.append(node)
    level = next_level
  return tuple(parents)


def _acceptance(acceptance) -> np.ndarray:
  """Returns the acceptance as [D, K, K], with one row if it has no depths."""
  rates = checks.probability("acceptance", acceptance)
  if (
    rates.ndim not in (1, 2, 3)
    or not rates.size
    or (rates.ndim == 3 and rates.shape[1] != rates.shape[2])
  ):
    raise ValueError(
      f"acceptance has the shape {rates.shape}; it must be [ranks], [depths,"
      " ranks] or [depths, ranks, ranks]"
    )
  if rates.ndim < 3:
    rates = np.atleast_2d(rates)[:, None]
  num_ranks = rates.shape[-1]
  rates = rates * np.tri(num_ranks)
  # The children of a node exclude each other. Measured rates may exceed 1 in
  # sum by rounding.
  if np.any(rates.sum(axis=-1) > 1 + 1e-6):
    raise ValueError(
      f"acceptance is {acceptance}; the ranks of one depth must sum to at most"
      " 1, because one child at most is accepted"
    )
  return rates


def _limit(name, value, most):
  """Returns a limit, which is `most` where it is None and never above it."""
  if value is None:
    return most
  value = checks.count(name, value, 0)
  if value > most:
    raise ValueError(f"{name} is {value}; the arguments go up to {most}")
  return value
