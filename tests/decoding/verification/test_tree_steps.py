"""Verifier steps on trees are exact, to the last bits of float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Sampling
from speccascade.decoding.drafting import children
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.verification import steps, tree_steps
from speccascade.judge import goodness
from tests import toy
from tests.decoding import tree_reference as reference
from tests.decoding.verification import tree_driving as driving
from tests.decoding.verification.tree_driving import WAYS

EXACT = 1e-10
BRANCHED = (-1, -1, 0, 0, 1)
# A root of three children, one of which has two of its own.
UNEVEN = (-1, -1, -1, 1, 1)
DEEP = (-1, -1, 0, 1, 2, 2)


@functools.cache
def laws(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns logits [V, V] of a drafter and a verifier, with some zeros."""
  rng = np.random.default_rng([size, seed])
  q = rng.normal(0, 1.2, (size, size))
  p = 0.4 * q + rng.normal(0, 1.2, (size, size))
  q[1, 0] = p[0, size - 1] = -np.inf
  return q, p


def last_of(table):
  """Returns a function from a path to the row of its last token."""
  rows = np.asarray(table)
  return lambda path: rows[path[-1] if path else 0]


def check(parents, drawing, verification, method, sampling, *, size=3, seed=0):
  """Asserts that one block of the step samples from the method's target."""
  with jax.enable_x64(True):
    spec = METHODS[method]
    logits = [jnp.asarray(x) for x in laws(size, seed)]
    (q1, q), (p1, p) = (sampling.laws(x) for x in logits)
    pi = spec.target.probs(q1, p1, alpha=spec.default_alpha, sampled=(q, p))
    of = {name: last_of(x) for name, x in (("q", q), ("q1", q1), ("pi", pi))}
    tree = DraftTree(parents)
    outcomes = list(
      driving.drafts(tree, of["q"], of["q1"], drawing, greedy=sampling.greedy)
    )
    assert np.isclose(sum(chance for _, _, chance in outcomes), 1)
    step = driving.Step(
      tree_steps.TREE_VERIFY[verification],
      tree,
      drawing,
      outcomes,
      of["q"],
      of["pi"],
    )
    visits = verification == "traversal"
    law = (driving.visited_law if visits else driving.walked_law)(
      step, outcomes
    )
  target = reference.Tree(
    reference.markov(np.asarray(q)),
    reference.markov(np.asarray(pi)),
    parents,
    drawing,
  )
  assert reference.sequence_error(target, law, tree.depth + 1) < EXACT
  return law, target


@pytest.mark.parametrize(("drawing", "verification"), WAYS)
def test_steps_have_the_law_of_the_target(drawing, verification):
  sampling = Sampling.create(0.7)
  # Of three tokens, all that is left after a miss would be one token.
  law, target = check(
    (-1, -1, 0, 0),
    drawing,
    verification,
    "spec_cascade_token_v3",
    sampling,
    size=5,
  )
  # The same decisions as the reference takes, path by path.
  expected = reference.block_law(target, verification)
  worst = max(
    abs(law.get(tokens, 0) - expected.get(tokens, 0))
    for tokens in law | expected
  )
  assert worst < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("drawing", "verification"), WAYS)
@pytest.mark.parametrize(
  "method", [name for name, method in METHODS.items() if method.takes_trees]
)
def test_every_target(method, drawing, verification):
  sampling = Sampling.create(0.0 if METHODS[method].greedy_only else 1.0)
  check(BRANCHED, drawing, verification, method, sampling)


SHAPES = (UNEVEN, DEEP, (-1, 0, 1), (-1, -1, -1))
SAMPLINGS = {
  "T 0": {"temperature": 0.0},
  "T 1": {"temperature": 1.0},
  # With two of three tokens, others stand in for drafts.
  "top-k": {"temperature": 0.7, "top_k": 2},
  "top-p": {"temperature": 0.7, "top_p": 0.8},
}


@pytest.mark.slow
@pytest.mark.parametrize(("drawing", "verification"), WAYS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_filters_and_shapes(sampling, drawing, verification):
  methods = ("spec_decode", "spec_cascade_opt", "ensemble", "lenient_leviathan")
  way = WAYS.index((drawing, verification))
  for seed, shape in enumerate(SHAPES):
    # One of them is greedy alone.
    method = methods[(seed + way) % (4 if sampling == "T 0" else 3)]
    how = Sampling.create(**SAMPLINGS[sampling])
    check(shape, drawing, verification, method, how, seed=seed)


@pytest.mark.parametrize("verification", ["token", "traversal"])
@pytest.mark.parametrize("drawing", draft_tree.DRAWINGS)
def test_a_chain_is_a_tree_with_one_child_a_node(drawing, verification):
  # The same uniforms lead to the same verdict as in the step for chains.
  rng = np.random.default_rng(0)
  rows, gamma, size = 4096, 3, 5
  q, pi = (
    jnp.asarray(rng.dirichlet(np.ones(size), (rows, gamma + 1)), jnp.float32)
    for _ in range(2)
  )
  u = jnp.asarray(rng.random((3, rows, gamma + 1)), jnp.float32)
  tree = DraftTree((-1, 0, 1))
  drafts, certain = zip(
    *(
      children.draw_children(
        q[:, i : i + 1],
        q[:, i : i + 1],
        u[0, :, i : i + 1, None],
        drawing,
        greedy=False,
      )
      for i in range(gamma)
    )
  )
  tokens, certain = (
    jnp.concatenate([x[:, 0] for x in both], axis=1)
    for both in (drafts, certain)
  )
  if drawing == "top_k":
    assert certain.all()
    return
  assert not certain.any()
  branches = driving.Branches(
    tree, drawing, jnp.broadcast_to(jnp.arange(3)[None], (rows, 3)), certain
  )
  got = tree_steps.TREE_VERIFY[verification](
    tokens, branches, q, pi, u[1, :, :gamma], u[2]
  )
  count = jnp.full((rows,), gamma)
  # One uniform draws the token of a chain: that of the node where it ends.
  draw = jnp.take_along_axis(u[2], got.num_accepted[:, None], axis=1)[:, 0]
  want = steps.VERIFY[verification](tokens, count, q, pi, u[1, :, :gamma], draw)
  same = np.asarray(got.num_accepted == want.num_accepted)
  # Rounding may part two of 4096 rows, at a threshold.
  assert np.sum(~same) <= 2
  assert np.array_equal(got.token[same], want.token[same])
  assert np.array_equal(got.examined[same], want.examined[same])


def several_law(tables, q, p, step) -> dict[tuple[int, ...], float]:
  """Returns the distribution of a block of K drafters, a path of two drafts
  each.

  Args:
    tables: [K, V, V], the distributions of the drafters after each token.
    q: [V, V], the distributions that are stated at the nodes.
    p: [V, V], the verifier's distributions, or the target.
    step: as in `driving.Step`.
  """
  drafters = [*map(last_of, tables)]
  num = len(drafters)
  outcomes, laws = [], []
  # Drafts k and K + k are those of drafter k.
  for tokens in itertools.product(range(len(p)), repeat=2 * num):
    own = [law(()) for law in drafters]
    own += [law((x,)) for law, x in zip(drafters, tokens)]
    chance = np.prod([law[x] for law, x in zip(own, tokens)])
    if chance > 0:
      outcomes.append((tokens, (False,) * len(tokens), chance))
      laws.append(own)
  with jax.enable_x64(True):
    driven = driving.Step(
      step,
      DraftTree.of_paths(num, 2),
      draft_tree.IID,
      outcomes,
      last_of(q),
      last_of(p),
      laws=np.array(laws),
    )
    return driving.walked_law(driven, outcomes)


@pytest.mark.parametrize(
  ("num", "greedy"),
  toy.nightly([(2, False), (2, True), (3, False), (3, True)], [(2, False)]),
)
def test_drafts_of_several_drafters_have_laws_of_their_own(num, greedy):
  laws = np.random.default_rng(3).dirichlet(np.ones(3), (num + 1, 3))
  *tables, pi = np.eye(3)[laws.argmax(axis=2)] if greedy else laws
  law = several_law(tables, tables[0], pi, tree_steps.tree_token_verify)
  target = reference.Tree(
    last_of(tables[0]), lambda prefix: last_of(pi)(prefix[1:]), (-1,), "iid"
  )
  assert reference.sequence_error(target, law, 3) < EXACT


# Those for which a pair of models here shows which drafter was designated.
DESIGNATING = ("spec_cascade_opt", "ensemble", "spec_cascade_chow")


@pytest.mark.parametrize("designated", [0, 1])
@pytest.mark.parametrize(
  "method",
  toy.nightly(
    [
      name
      for name, method in METHODS.items()
      if method.takes_trees and method.target.uses_q and not method.greedy_only
    ],
    DESIGNATING[:1],
  ),
)
def test_the_target_of_several_drafters_uses_one_of_them(method, designated):
  # The target is made of q at the nodes, and the drafts have other
  # distributions.
  spec, size = METHODS[method], 3
  *tables, p = np.random.default_rng(5).dirichlet(np.ones(size), (3, size))
  q = tables[designated]
  compose = functools.partial(spec.target.probs, alpha=spec.default_alpha)

  def step(tokens, branches, q, p, u_accept, u_draw):
    pi = compose(q, p, sampled=(q, p))
    return tree_steps.tree_token_verify(
      tokens, branches, q, pi, u_accept, u_draw
    )

  law = several_law(tables, q, p, step)
  other = tables[1 - designated]
  with jax.enable_x64(True):
    pi, others = (
      np.asarray(compose(jnp.asarray(x), jnp.asarray(p), sampled=(x, p)))
      for x in (q, other)
    )
  target = reference.Tree(
    last_of(q), lambda prefix: last_of(pi)(prefix[1:]), (-1,), "iid"
  )
  assert reference.sequence_error(target, law, 3) < EXACT
  # The test would not see a target of the other one's if it were the same.
  assert method not in DESIGNATING or np.abs(others - pi).max() > 0.01


def test_an_empty_residual_is_the_target(either_way):
  # Rounding may refuse a draft where nothing of the target is left besides. The
  # token is then one of the target's, and not token 0, which has no mass.
  q = jnp.array([[[0, 0.5, 0.5]] * 2], jnp.float32)
  pi = q * jnp.array([[[0, 1 - 1e-6, 1]]], jnp.float32)
  branches = driving.Branches(
    DraftTree((-1,)), "iid", jnp.array([[0]], jnp.int32), jnp.array([[False]])
  )
  last = jnp.float32(1 - 2**-24)
  verdict = tree_steps.tree_token_verify(
    jnp.array([[1]], jnp.int32),
    branches,
    q,
    pi,
    last[None, None],
    jnp.full((1, 2), 0.9, jnp.float32),
  )
  assert (int(verdict.num_accepted[0]), int(verdict.token[0])) == (0, 2)


def test_traversal_accepts_more_than_trials_of_each_draft():
  way, sampling = ((-1, 0, 0), "without_replacement"), Sampling.create(1.0)
  token, traversal = (
    reference.expected_accepted(
      check(*way, name, "spec_decode", sampling, size=4)[0]
    )
    for name in ("token", "traversal")
  )
  assert traversal > token + 0.02


@pytest.mark.parametrize("drawing", draft_tree.DRAWINGS)
@pytest.mark.parametrize("greedy", [False, True])
def test_children_are_drawn_by_their_law(either_way, drawing, greedy):
  size, num, rows = 4, 3, 200_000
  for q in ([0.4, 0.3, 0.2, 0.1], [0.0, 0.6, 0.4, 0.0]):
    law = np.array(q)
    plain = np.array([0.1, 0.3, 0.2, 0.4])
    u = np.random.default_rng(1).random((rows, 1, num)).astype(np.float32)
    tokens, certain = children.draw_children(
      *(
        jnp.broadcast_to(jnp.asarray(x, jnp.float32), (rows, 1, size))
        for x in (law, plain)
      ),
      jnp.asarray(u),
      drawing,
      greedy=greedy,
    )
    expected = {
      (*new, *sure): chance
      for new, sure, chance in driving.ways(
        law, plain, num, drawing, greedy=greedy
      )
    }
    both = np.concatenate([tokens[:, 0], certain[:, 0]], axis=1)
    seen, counts = np.unique(both, axis=0, return_counts=True)
    keys = list(expected)
    found = dict(zip(map(tuple, seen.tolist()), counts))
    assert set(found) <= set(keys)
    observed = np.array([found.get(key, 0) for key in keys])
    chances = np.array([expected[key] for key in keys])
    if len(keys) > 1:
      assert goodness.p_value(observed, chances) > toy.LEVEL


def test_children_of_equal_siblings_are_the_first_ones():
  tree = DraftTree.of_branching([3, 1, 1])
  tokens = jnp.array([[7, 7, 5, 1, 1, 2, 3, 4, 5]], jnp.int32)
  followed = children.merge_siblings(tokens, tree)
  # Drafts 3 and 4 both follow draft 0 (node 1) and are equal, so what follows
  # draft 4 is given to draft 3 (node 4).
  assert followed.tolist() == [[0, 0, 0, 1, 1, 3, 4, 4, 6]]
  # Drafts 6 and 7 are siblings now.
  certain = jnp.zeros(tokens.shape, bool)
  branches = driving.Branches(tree, draft_tree.IID, followed, certain)
  ranks = branches.ranks_of(jnp.arange(9, dtype=jnp.int32)[None])
  assert ranks.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 0]]
