"""The enumerated distributions of trees: each is the target's.

Mistakes that a verifier could make are mutants of the steps themselves, see
`tests/audit/mutants/trees.py`.
"""

import dataclasses
import functools

import numpy as np
import pytest

from speccascade.judge import goodness
from tests import toy
from tests.decoding import tree_reference as reference
from tests.decoding.verification.tree_driving import WAYS

EXACT = 1e-10
# (vocabulary, order of the chains, parents)
SHAPES = [
  (3, 1, ()),
  (3, 1, (-1, 0, 1)),
  (4, 1, (-1, -1)),
  (4, 1, (-1, -1, -1)),
  (3, 1, (-1, -1, 0, 1)),
  (3, 1, (-1, -1, 0, 0, 1)),
  (3, 1, (-1, -1, -1, 0, 1)),
  (2, 2, (-1, -1, 0, 0, 1, 2, 3)),
  (2, 2, (-1, -1, -1, 0, 1, 1)),
]


def lossless(q, p):
  return p


def chow(q, p, alpha=0.45):
  """Takes p where the drafter's largest probability is below 1 - alpha."""
  return p if q.max() < 1 - alpha else q


def opt(q, p, alpha=0.1):
  """Takes p where p's largest probability, less its price, is above q's."""
  return p if q.max() < p.max() - alpha * np.maximum(p - q, 0).sum() else q


def token_v3(q, p, alpha=0.4):
  """Keeps the tokens whose p is near p's largest; draws the others from p."""
  kept = np.where(p >= (1 - alpha) * p.max(), q, 0)
  return kept + (1 - kept.sum()) * p


TARGETS = (lossless, chow, opt, token_v3)


def rows_of(rule, q, p):
  """Returns the target's rows in the shape of q, one rule a row."""
  size = q.shape[-1]
  rows = zip(q.reshape(-1, size), p.reshape(-1, size))
  return np.stack([rule(*row) for row in rows]).reshape(q.shape)


@functools.cache
def chain(vocab_size, order, seed=0):
  """Returns q and p, [V] * order + [V] each; the drafter has some zeros."""
  rng = np.random.default_rng([vocab_size, order, seed])
  shape = (vocab_size,) * order
  q, p = rng.dirichlet(np.full(vocab_size, 0.8), (2, *shape))
  q[-1, ..., 0] = 0
  return q / q.sum(-1, keepdims=True), p


def one_hot_rows(rows):
  """Returns rows at temperature 0."""
  return np.eye(rows.shape[-1])[rows.argmax(-1)]


def tree_of(q, pi, parents, drawing):
  prefix = (0, 1)[: q.ndim - 1]
  laws = reference.markov(q), reference.markov(pi)
  return reference.Tree(*laws, parents, drawing, prefix)


def error(tree, verification):
  """Returns the largest error of a block's distribution of sequences."""
  law = reference.block_law(tree, verification)
  assert sum(law.values()) == pytest.approx(1, abs=EXACT)
  depth = max((len(tree.path(n)) for n in range(len(tree.parents))), default=0)
  return reference.sequence_error(tree, law, depth + 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("drawing", "verification"), WAYS)
def test_a_block_has_the_law_of_the_targets_chain(
  drawing, verification, target
):
  for vocab_size, order, parents in SHAPES:
    q, p = chain(vocab_size, order)
    pi = rows_of(target, q, p)
    tree = tree_of(q, pi, parents, drawing)
    assert error(tree, verification) < EXACT, parents


@pytest.mark.parametrize("verification", ["token", "traversal"])
@pytest.mark.parametrize("drawing", ["greedy_and_random", "top_k"])
def test_any_tokens_may_be_the_certain_children(drawing, verification):
  for vocab_size, order, parents in SHAPES:
    warm, p = chain(vocab_size, order)
    for q in (warm, one_hot_rows(warm)):
      for ranking in (warm, p, 1 - warm):
        tree = dataclasses.replace(
          tree_of(q, p, parents, drawing), ranking=reference.markov(ranking)
        )
        assert error(tree, verification) < EXACT, parents
  # A one-hot q has ties; the drafter's warm distribution ranks the tokens 2, 1,
  # 0.
  warm = reference.markov(np.array([0.2, 0.3, 0.5]))
  cold = reference.markov(np.array([0.0, 0.0, 1.0]))
  tree = reference.Tree(cold, warm, (-1, -1), "top_k", ranking=warm)
  (draft,) = reference.draft_outcomes(tree)
  assert draft.tokens == (2, 1)


def test_the_cascades_targets_are_neither_q_nor_p():
  for target in TARGETS[1:]:
    distances = []
    for vocab_size, order, _ in SHAPES:
      q, p = chain(vocab_size, order)
      pi = rows_of(target, q, p)
      distances.append(min(goodness.tv(pi, q), goodness.tv(pi, p)))
    assert max(distances) > 0.1, target


@pytest.mark.parametrize("temperatures", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize(("drawing", "verification"), WAYS)
def test_one_hot_laws(drawing, verification, temperatures):
  for vocab_size, order, parents in SHAPES:
    for seed in range(3):
      q, pi = (
        one_hot_rows(rows) if temperature == 0 else rows
        for rows, temperature in zip(
          chain(vocab_size, order, seed), temperatures
        )
      )
      tree = tree_of(q, pi, parents, drawing)
      assert error(tree, verification) < EXACT, (parents, seed)


@pytest.mark.parametrize(("drawing", "verification"), WAYS)
def test_a_one_hot_target_is_matched(drawing, verification):
  # A certain target accepts a draft exactly if the target's token is drafted.
  q, p = chain(4, 1)
  pi = one_hot_rows(p)
  tree = tree_of(q, pi, (-1, -1, -1), drawing)
  wanted = int(pi[0].argmax())
  is_drafted = sum(
    draft.probability
    for draft in reference.draft_outcomes(tree)
    if wanted in draft.tokens
  )
  law = reference.block_law(tree, verification)
  assert reference.expected_accepted(law) == pytest.approx(is_drafted)


@pytest.mark.parametrize("drawing", reference.DRAWINGS)
def test_drafts_have_the_laws_that_they_state(drawing):
  for vocab_size, order, parents in SHAPES:
    q, p = chain(vocab_size, order)
    tree = tree_of(q, p, parents, drawing)
    total = 0.0
    for draft in reference.draft_outcomes(tree):
      total += draft.probability
      chance = 1.0
      for node, token in enumerate(draft.tokens):
        law = draft.laws[node]
        if token == reference.ABSENT:
          assert not law.any()
        else:
          assert law.sum() == pytest.approx(1)
          chance *= law[token]
      assert chance == pytest.approx(draft.probability)
      for parent in {-1, *parents}:
        tokens = [draft.tokens[n] for n in tree.children(parent)]
        drafted = [t for t in tokens if t != reference.ABSENT]
        assert drawing == "iid" or len(set(drafted)) == len(drafted)
    assert total == pytest.approx(1)


def test_where_no_token_is_left_no_child_is_drafted():
  q = np.array([[0.0, 1.0, 0.0]] * 3)
  pi = np.array([[0.3, 0.3, 0.4]] * 3)
  tree = tree_of(q, pi, (-1, -1, 0, 1), "without_replacement")
  (draft,) = reference.draft_outcomes(tree)
  assert draft.tokens == (1, -1, 1, -1)
  # The certain child is the token 1, so nothing is left for the random child.
  tree = tree_of(q, pi, (-1, -1, 0, 1), "greedy_and_random")
  (draft,) = reference.draft_outcomes(tree)
  assert draft.tokens == (1, -1, 1, -1)


def test_repeated_drafts_share_their_children():
  # Both drafts at the root are the token 0, with one child each.
  q = np.array([[0.6, 0.4, 0.0]] * 3)
  pi = np.array([[0.2, 0.5, 0.3]] * 3)
  tree = tree_of(q, pi, (-1, -1, 0, 1), "iid")
  drafts = {draft.tokens: draft for draft in reference.draft_outcomes(tree)}
  outcomes = reference.verify_outcomes(tree, drafts[0, 0, 0, 1], "token")
  chances: dict[tuple[int, ...], float] = {}
  for path, _, chance in outcomes:
    chances[path] = chances.get(path, 0) + chance
  # The token 0 is accepted with 1/3, else r = [0, 1/4, 3/4] and the second 0 is
  # refused. Below node 0 are node 2, accepted with 1/3, and node 3, which
  # holds the token 1: accepted after that with (1/4) / .4 = 5/8.
  want = {(): 2 / 3, (0, 2): 1 / 9, (0, 3): 2 / 9 * 5 / 8, (0,): 2 / 9 * 3 / 8}
  assert chances == pytest.approx(want)


# q, p, mean accepted of two drafts at one position for each way, 5 digits.
WORKED = [
  (*toy.WORKED[1], [0.85, 0.87165, 0.92, 1, 0.6]),
  (*toy.WORKED[2], [0.82, 0.85324, 0.86151, 1, 0.8]),
]


@pytest.mark.parametrize(("q", "p", "want"), WORKED)
def test_worked_pairs(q, p, want):
  ways = [("iid", "token"), ("iid", "k_seq")]
  ways += [(drawing, "token") for drawing in reference.DRAWINGS[1:]]
  # The first pair by hand, i.i.d.: the first draft is accepted with .7, and the
  # second one, from r = [0, 1/3, 1/2, 1/6], with .5 of the remaining .3.
  for (drawing, verification), accepted in zip(ways, want):
    laws = reference.markov(q), reference.markov(p)
    tree = reference.Tree(*laws, (-1, -1), drawing)
    law = reference.block_law(tree, verification)
    assert reference.expected_accepted(law) == pytest.approx(
      accepted, abs=0.51e-5
    )


@pytest.mark.parametrize("drawing", reference.DRAWINGS[:3])
def test_on_a_chain_traversal_is_block_verification(drawing):
  # Sun et al.'s example: of two drafts, token verification accepts 10/9 and
  # block verification 11/9.
  laws = (
    reference.markov(np.array([2, 1]) / 3),
    reference.markov(np.array([1, 2]) / 3),
  )
  for verification, accepted in (("token", 10 / 9), ("traversal", 11 / 9)):
    tree = reference.Tree(*laws, (-1, 0), drawing)
    law = reference.block_law(tree, verification)
    assert reference.expected_accepted(law) == pytest.approx(accepted)


def test_traversal_accepts_no_less_without_replacement():
  gains = []
  for vocab_size, order, parents in SHAPES:
    for seed in range(3):
      q, p = chain(vocab_size, order, seed)
      tree = tree_of(q, p, parents, "without_replacement")
      token, traversal = (
        reference.expected_accepted(reference.block_law(tree, verification))
        for verification in ("token", "traversal")
      )
      gains.append(traversal - token)
  assert min(gains) > -EXACT
  assert max(gains) > 0.01


def test_what_cannot_be_verified_is_refused():
  q, p = chain(3, 1)
  with pytest.raises(ValueError, match="level by level"):
    tree_of(q, p, (-1, 0, -1), "iid")
  with pytest.raises(ValueError, match="drawing is beam"):
    tree_of(q, p, (-1,), "beam")
  tree = tree_of(q, p, (-1,), "top_k")
  (draft,) = reference.draft_outcomes(tree)
  with pytest.raises(ValueError, match="k_seq needs"):
    reference.verify_outcomes(tree, draft, "k_seq")
  with pytest.raises(ValueError, match="verification is all"):
    reference.verify_outcomes(tree, draft, "all")
