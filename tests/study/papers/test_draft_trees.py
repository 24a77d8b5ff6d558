"""The best tree against all trees of up to six nodes."""

import itertools

import numpy as np
import pytest

from speccascade.study.papers import draft_trees, speedup

MAX_NODES = 6


def all_trees(num_nodes):
  """Returns all trees of a number of nodes, numbered level by level."""
  trees = [()]
  for node in range(num_nodes):
    trees = [
      (*tree, parent)
      for tree in trees
      for parent in range(tree[-1] if tree else -1, node)
    ]
  return trees


TREES = {num: all_trees(num) for num in range(MAX_NODES + 1)}


def paths(parents):
  """Yields the ranks, from 0, of the nodes on the path to each node."""
  ranks = {-1: ()}
  for node, parent in enumerate(parents):
    rank = parents[:node].count(parent)
    ranks[node] = (*ranks[parent], rank)
    yield ranks[node]


def simple_tokens(parents, rates):
  """Returns 1 + the sum of the products over paths, for rates [D, K]."""
  products = [
    np.prod([rates[depth][rank] for depth, rank in enumerate(path)])
    for path in paths(parents)
  ]
  return 1 + sum(products)


def sizes(parents):
  """Returns the depth of a tree and its largest number of children."""
  depth = max((len(path) for path in paths(parents)), default=0)
  return depth, max((parents.count(n) for n in set(parents)), default=0)


def draws(num, depths, ranks, seed):
  """Yields random rates [depths, ranks] whose rows sum to at most 1."""
  rng = np.random.default_rng(seed)
  for n in range(num):
    rates = rng.dirichlet(np.full(ranks + 1, 0.6), depths)[:, :-1]
    if n % 2:
      rates = -np.sort(-rates, axis=1)
    if n % 5 == 4:
      rates[:, -1] = 0
    yield rates


def test_there_are_as_many_trees_as_catalan_numbers():
  # The ordered trees of n nodes below a root are counted by Catalan numbers.
  counts = [len(trees) for trees in TREES.values()]
  assert counts == [1, 1, 2, 5, 14, 42, 132]


def test_expected_tokens_of_all_trees():
  for rates in draws(3, MAX_NODES, MAX_NODES, seed=0):
    for parents in itertools.chain(*TREES.values()):
      want = simple_tokens(parents, rates)
      value = draft_trees.expected_tokens(parents, rates)
      assert value == pytest.approx(want, abs=1e-13)
      want = simple_tokens(parents, [rates[0]] * MAX_NODES)
      value = draft_trees.expected_tokens(parents, rates[0])
      assert value == pytest.approx(want, abs=1e-13)


def test_expected_tokens_of_a_chain_is_leviathans():
  for gamma in range(5):
    value = draft_trees.expected_tokens(range(-1, gamma - 1), [0.7])
    assert value == pytest.approx(speedup.expected_tokens(0.7, gamma))


def cheapest(rates, pass_cost, step_cost, max_nodes, max_depth, max_children):
  """Returns the table and the least cost of a token, over all trees."""
  table = np.full((max_depth + 1, max_nodes + 1), -np.inf)
  least = np.inf
  for parents in itertools.chain(*(TREES[n] for n in range(max_nodes + 1))):
    depth, num_children = sizes(parents)
    if depth > max_depth or num_children > max_children:
      continue
    tokens, num = simple_tokens(parents, rates), len(parents)
    table[depth:, num] = np.maximum(table[depth:, num], tokens)
    least = min(least, (depth * step_cost + pass_cost[num]) / tokens)
  return table, least


@pytest.mark.parametrize("by_depth", [False, True])
@pytest.mark.parametrize(
  ("max_nodes", "max_depth", "max_children"),
  [(6, 6, 6), (6, 3, 2), (5, 2, 3), (6, 1, 6), (6, 6, 1), (0, 2, 2), (4, 0, 3)],
)
def test_the_best_tree_of_all(max_nodes, max_depth, max_children, by_depth):
  rng = np.random.default_rng(1)
  drafted = []
  for rates in draws(20, max(max_depth, 1), max(max_children, 1), seed=2):
    if not by_depth:
      rates[:] = rates[0]
    # Measured costs need not rise with the number of nodes.
    pass_cost = 1 + rng.uniform(0, 0.25, max_nodes + 1).cumsum()
    pass_cost[1:] += rng.uniform(-0.1, 0.1, max_nodes)
    step_cost = rng.uniform(0, 0.15)
    limits = {"max_nodes": max_nodes, "max_depth": max_depth}
    limits["max_children"] = max_children
    tree = draft_trees.best_tree(
      rates if by_depth else rates[0], pass_cost, step_cost, **limits
    )
    table, least = cheapest(rates, pass_cost, step_cost, **limits)
    np.testing.assert_allclose(tree.table, table, rtol=0, atol=1e-12)
    assert tree.cost_per_token == pytest.approx(least, abs=1e-12)
    # What is said of the tree is true of the parents that are returned.
    tokens = simple_tokens(tree.parents, rates)
    assert tree.tokens == pytest.approx(tokens, abs=1e-12)
    assert sizes(tree.parents)[0] == tree.depth
    cost = tree.depth * step_cost + pass_cost[len(tree.parents)]
    assert tree.cost_per_token == pytest.approx(cost / tokens, abs=1e-12)
    assert tree.parents in TREES[len(tree.parents)]
    drafted.append(len(tree.parents))
  # Some of the costs pay for a tree, where trees are allowed at all.
  assert (max(drafted) > 0) == (max_nodes > 0 and max_depth > 0)


def test_no_drafting_may_be_the_best():
  # One draft yields 1.5 tokens at the cost 1.4 + .2, more than 1 a token.
  tree = draft_trees.best_tree([0.5, 0.2], [1, 1.4, 1.8, 2.2], 0.2)
  assert (tree.parents, tree.depth, tree.tokens) == ((), 0, 1)
  assert tree.cost_per_token == 1
  # At the cost 1.2 + .2 it pays.
  tree = draft_trees.best_tree([0.5, 0.2], [1, 1.2, 1.8, 2.2], 0.2)
  assert tree.parents == (-1,)
  assert tree.cost_per_token == pytest.approx(1.4 / 1.5)


def test_equal_costs_take_the_smaller_tree():
  # One draft yields 1.5 tokens at the cost 1.5: as much as none.
  tree = draft_trees.best_tree([0.5], [1, 1.5], 0)
  assert tree.parents == ()
  # Drafts that are never accepted are free here, and still are not drafted.
  tree = draft_trees.best_tree([0.5, 0.0], [1, 1, 1, 1], 0, max_depth=1)
  assert tree.parents == (-1,)


def test_sure_drafts_make_a_chain_and_alternatives_make_a_star():
  flat = np.ones(9)
  chain = draft_trees.best_tree([1.0, 0.0], flat, 0)
  assert chain.parents == (-1, 0, 1, 2, 3, 4, 5, 6)
  assert chain.tokens == 9
  # With a dear drafter one level with all the alternatives is best.
  star = draft_trees.best_tree([0.25] * 4, flat, 10, max_depth=3)
  assert star.parents == ()
  star = draft_trees.best_tree([0.25] * 4, flat, 0.4, max_nodes=4)
  assert star.parents == (-1, -1, -1, -1)
  assert star.tokens == 2


def test_a_large_tree_is_the_tree_that_it_states():
  rates = [0.6, 0.15, 0.07, 0.03]
  pass_cost = 1 + 0.004 * np.arange(65)
  tree = draft_trees.best_tree(rates, pass_cost, 0.02, max_depth=12)
  assert len(tree.parents) > 10
  tokens = draft_trees.expected_tokens(tree.parents, rates)
  assert tokens == pytest.approx(tree.tokens, abs=1e-12)
  # A tree grows by the node with the largest product of acceptances, as the
  # ranks here fall: the greedy choice is another way to the same tokens.
  values = {(): 1.0}
  for _ in tree.parents:
    children = {
      (*path, rank): value * rate
      for path, value in values.items()
      for rank, rate in enumerate(rates)
      if (*path, rank) not in values and len(path) < 12
    }
    path = max(children, key=children.get)
    values[path] = children[path]
  assert tree.table[12, len(tree.parents)] == pytest.approx(
    sum(values.values()), abs=1e-12
  )


def test_acceptance_may_depend_on_the_number_of_children():
  """Against all trees of five nodes, valued node by node."""
  rng = np.random.default_rng(4)
  for _ in range(10):
    rates = rng.dirichlet(np.full(4, 0.6), (5, 3))[..., :3]

    def value(parents, rates=rates):
      reach, seen, total, depths = {-1: 1.0}, {}, 1.0, {-1: 0}
      for node, parent in enumerate(parents):
        rank = seen.get(parent, 0)
        seen[parent], depths[node] = rank + 1, depths[parent] + 1
        num = parents.count(parent)
        reach[node] = reach[parent] * rates[depths[parent], num - 1, rank]
        total += reach[node]
      return total

    trees = [tree for tree in TREES[5] if sizes(tree)[1] <= 3]
    want = max(map(value, trees))
    tree = draft_trees.best_tree(
      rates, np.ones(6), 0, min_nodes=5, max_children=3
    )
    assert len(tree.parents) == 5
    assert value(tree.parents) == pytest.approx(want, abs=1e-12)
    assert tree.tokens == pytest.approx(want, abs=1e-12)
    assert draft_trees.expected_tokens(tree.parents, rates) == pytest.approx(
      want, abs=1e-12
    )


def test_limits_that_leave_no_tree_are_refused():
  with pytest.raises(ValueError, match="no tree of 3 to 3 nodes"):
    draft_trees.best_tree(
      [0.5], [1] * 4, 0, min_nodes=3, max_depth=1, max_children=1
    )


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (([0.7, 0.7], [1, 1], 0), "sum to at most"),
    (([1.2], [1, 1], 0), "acceptance is"),
    (([[[0.5, 0.1]]], [1, 1], 0), "the shape"),
    (([0.5], [], 0), "pass_cost is"),
    (([0.5], [0, 1], 0), "pass_cost is"),
    (([0.5], [1, 1], -1), "drafter_step_cost is"),
  ],
)
def test_bad_arguments_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    draft_trees.best_tree(*arguments)


@pytest.mark.parametrize(
  ("limit", "value"),
  [("max_nodes", 3), ("max_children", 3), ("max_depth", 3), ("max_depth", -1)],
)
def test_limits_beyond_what_was_measured_are_refused(limit, value):
  with pytest.raises(ValueError, match=f"{limit} is {value}"):
    draft_trees.best_tree(np.full((2, 2), 0.3), [1, 1, 1], 0, **{limit: value})


@pytest.mark.parametrize(
  ("parents", "message"),
  [
    ((-1, 0, -1), "level by level"),
    ((0,), "level by level"),
    ((-1, -1, -1), "2 siblings"),
    ((-1, 0, 1), "depth 3"),
  ],
)
def test_trees_that_cannot_be_valued_are_refused(parents, message):
  with pytest.raises(ValueError, match=message):
    draft_trees.expected_tokens(parents, np.full((2, 2), 0.3))
