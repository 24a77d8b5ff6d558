"""Chances of several drafts against enumerations and linear programs."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from speccascade.decoding.drafting import children
from speccascade.study.papers import draft_acceptance
from tests import toy
from tests.decoding import tree_reference as reference

DRAWINGS = draft_acceptance.DRAWINGS


def pairs(vocab_size, num=12):
  """Yields q and pi with zeros, ties, one-hot rows, and q = pi."""
  rng = np.random.default_rng(vocab_size)
  even = np.full(vocab_size, 1 / vocab_size)
  first, last = np.eye(vocab_size)[[0, -1]]
  yield from [(first, first), (first, last), (even, last), (last, even)]
  yield even, even
  for n in range(num):
    q, pi = rng.dirichlet(np.full(vocab_size, 0.7), 2)
    if n % 3 == 1:
      q[0] = 0
      q /= q.sum()
    if n % 3 == 2:
      pi[-1] = 0
      pi /= pi.sum()
    yield q, pi
    yield q, q


def drafts_law(q, num_drafts, drawing):
  """Returns a list of (tokens, probability) of the drafts of one position."""
  drafts = reference.draws(q, num_drafts, drawing)
  return [(tuple(tokens), chance) for tokens, chance, _ in drafts]


# q, pi, drawing: (token verification, optimum) of two drafts, five digits.
GOLDENS = [
  (
    toy.WORKED[1],
    {
      "iid": (0.85, 0.95),
      "without_replacement": (0.92, 1),
      "greedy_and_random": (1, 1),
      "top_k": (0.6, 0.6),
    },
    0.87165,
  ),
  (
    toy.WORKED[2],
    {
      "iid": (0.82, 0.94),
      "without_replacement": (0.86151, 1),
      "greedy_and_random": (1, 1),
      "top_k": (0.8, 0.8),
    },
    0.85324,
  ),
]


@pytest.mark.parametrize(("pair", "chances", "k_seq"), GOLDENS)
def test_goldens(pair, chances, k_seq):
  for drawing, want in chances.items():
    values = (
      draft_acceptance.token_acceptance(*pair, 2, drawing),
      draft_acceptance.optimal_acceptance(*pair, 2, drawing),
    )
    np.testing.assert_allclose(values, want, rtol=0, atol=0.51e-5)
  value = draft_acceptance.k_seq_acceptance(*pair, 2)
  np.testing.assert_allclose(value, k_seq, rtol=0, atol=0.51e-5)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("vocab_size", [2, 3, 4])
def test_verifications_are_the_enumerated_ones(vocab_size, num_drafts):
  for q, pi in pairs(vocab_size):
    laws = reference.markov(q), reference.markov(pi)
    for drawing in DRAWINGS:
      tree = reference.Tree(*laws, (-1,) * num_drafts, drawing)
      law = reference.block_law(tree, "token")
      value = draft_acceptance.token_acceptance(q, pi, num_drafts, drawing)
      want = reference.expected_accepted(law)
      assert value == pytest.approx(want, abs=1e-12), (q, pi, drawing)
    tree = reference.Tree(*laws, (-1,) * num_drafts, "iid")
    want = reference.expected_accepted(reference.block_law(tree, "k_seq"))
    value = draft_acceptance.k_seq_acceptance(q, pi, num_drafts)
    assert value == pytest.approx(want, abs=1e-12), (q, pi)


def linear_program(law, pi):
  """Returns the largest chance that a draft is emitted, given the output's
  distribution.

  The variables are the chances that the drafts are `tokens` and that one
  `token` of them is emitted. They are at most the chance of the drafts, and for
  each token at most its target probability.
  """
  names = [(i, t) for i, (tokens, _) in enumerate(law) for t in set(tokens)]
  limits = np.zeros((len(law) + len(pi), len(names)))
  for column, (i, token) in enumerate(names):
    limits[i, column] = limits[len(law) + token, column] = 1
  most = np.append([chance for _, chance in law], pi)
  result = optimize.linprog(-np.ones(len(names)), A_ub=limits, b_ub=most)
  assert result.status == 0
  return -result.fun


@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize(
  ("vocab_size", "num_drafts"), [(2, 2), (3, 1), (3, 2), (4, 2), (4, 3), (5, 3)]
)
def test_the_optimum_is_the_linear_programs(vocab_size, num_drafts, drawing):
  for q, pi in pairs(vocab_size):
    want = linear_program(drafts_law(q, num_drafts, drawing), pi)
    value = draft_acceptance.optimal_acceptance(q, pi, num_drafts, drawing)
    assert value == pytest.approx(want, abs=1e-8), (q, pi)


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4])
@pytest.mark.parametrize("drawing", ["iid", "without_replacement"])
def test_the_best_set_has_the_largest_ratios(drawing, num_drafts):
  # The minimum over all sets, not only over those of the largest q / pi.
  for q, pi in pairs(5):
    law = drafts_law(q, num_drafts, drawing)
    least = 0.0
    for chosen in itertools.product([False, True], repeat=5):
      inside = np.array(chosen)
      all_inside = sum(chance for t, chance in law if inside[list(t)].all())
      least = min(least, pi[inside].sum() - all_inside)
    value = draft_acceptance.optimal_acceptance(q, pi, num_drafts, drawing)
    assert value == pytest.approx(1 + least, abs=1e-12), (q, pi)


def test_no_verification_exceeds_the_optimum():
  for drawing in DRAWINGS:
    for num_drafts in (1, 2, 4):
      for q, pi in pairs(6):
        token = draft_acceptance.token_acceptance(q, pi, num_drafts, drawing)
        best = draft_acceptance.optimal_acceptance(q, pi, num_drafts, drawing)
        assert token <= best + 1e-12
        assert token >= -1e-12
        assert best <= 1 + 1e-12
        if drawing == "iid":
          k_seq = draft_acceptance.k_seq_acceptance(q, pi, num_drafts)
          # K-SEQ reaches at least 1 - 1/e of the optimum (SpecTr).
          assert (1 - np.exp(-1)) * best - 1e-12 <= k_seq <= best + 1e-12


def test_one_draft_is_lossless_speculation():
  # Every way but "top_k" draws one draft of q; the chance is sum min(q, pi).
  for q, pi in pairs(5):
    want = np.minimum(q, pi).sum()
    for drawing in DRAWINGS[:3]:
      for function in (
        draft_acceptance.token_acceptance,
        draft_acceptance.optimal_acceptance,
      ):
        value = function(q, pi, 1, drawing)
        assert value == pytest.approx(want, abs=1e-12)
    value = draft_acceptance.k_seq_acceptance(q, pi, 1)
    assert value == pytest.approx(want, abs=1e-12)


def test_two_distinct_drafts_of_a_large_vocabulary():
  # Rates over many orders of magnitude. For K = 2 the chance that both drafts
  # are in a set H is the sum over x in H of q_x (q(H) - q_x) / (1 - q_x).
  rng = np.random.default_rng(0)
  q, pi = rng.dirichlet(np.full(2000, 0.02), 2)
  pi = (q + pi) / 2
  order = np.argsort(pi / q)
  q, pi = q[order], pi[order]
  odds = q / (1 - q)
  both = np.cumsum(odds) * np.cumsum(q) - np.cumsum(odds * q)
  want = 1 + min(0, np.min(np.cumsum(pi) - both))
  value = draft_acceptance.optimal_acceptance(q, pi, 2, "without_replacement")
  assert value == pytest.approx(want, abs=1e-12)
  assert 0.05 < want < 0.95


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_rows_are_independent_and_broadcast(drawing):
  rng = np.random.default_rng(1)
  q, pi = rng.dirichlet(np.ones(5), (2, 3)), rng.dirichlet(np.ones(5), (3,))
  functions = [draft_acceptance.token_acceptance]
  functions.append(draft_acceptance.optimal_acceptance)
  functions.append(
    lambda q, pi, num, drawing: draft_acceptance.k_seq_acceptance(q, pi, num)
  )
  for function in functions:
    values = function(q, pi, 3, drawing)
    assert values.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
      alone = function(q[i, j], pi[j], 3, drawing)
      assert alone.shape == ()
      assert values[i, j] == pytest.approx(float(alone), abs=1e-14)


def test_bad_arguments_are_refused():
  q = [0.5, 0.5]
  with pytest.raises(ValueError, match="drawing is 'beam'"):
    draft_acceptance.token_acceptance(q, q, 2, "beam")
  with pytest.raises(ValueError, match="drawing is 'beam'"):
    draft_acceptance.optimal_acceptance(q, q, 2, "beam")
  with pytest.raises(ValueError, match="num_drafts is 0"):
    draft_acceptance.k_seq_acceptance(q, q, 0)
  with pytest.raises(ValueError, match="pi is"):
    draft_acceptance.token_acceptance(q, [1.5, -0.5], 2, "iid")


# Filters leave fewer tokens than there are children: q, plain, pi. Others stand
# in, the likeliest first, which are neither the lowest ids nor the last.
FILTERED = [
  ([0.6, 0.4, 0, 0, 0], [0.4, 0.3, 0.05, 0.2, 0.05], [0.2, 0.1, 0.1, 0.4, 0.2]),
  ([0, 1, 0, 0, 0], [0.1, 0.4, 0.1, 0.15, 0.25], [0.1, 0.3, 0.2, 0.1, 0.3]),
  ([0.3, 0, 0.5, 0.2, 0], [0.2, 0.1, 0.4, 0.1, 0.2], [0, 0.5, 0.2, 0, 0.3]),
]


def children_of(q, plain, num, drawing):
  """Yields ([(token, q or None)], chance): a certain child has no q."""

  def likeliest(taken):
    left = [v for v in range(len(q)) if v not in taken]
    return min(left, key=lambda v: (q[v] <= 0, -plain[v], v))

  num_certain = {"top_k": num, "greedy_and_random": num - 1}.get(drawing, 0)
  first = []
  for _ in range(num_certain):
    first.append((likeliest([v for v, _ in first]), None))
  states = [(first, 1.0)]
  for _ in range(num - num_certain):
    states = [
      ([*drawn, (token, law)], chance * more)
      for drawn, chance in states
      for token, law, more in _next(q, drawn, likeliest)
    ]
  yield from states


def _next(q, drawn, likeliest):
  taken = [v for v, _ in drawn]
  law = np.array([0 if v in taken else x for v, x in enumerate(q)])
  if not law.any():
    return [(likeliest(taken), None, 1.0)]
  law = law / law.sum()
  return [(int(v), law, law[v]) for v in np.flatnonzero(law)]


def accepted_by_trials(drafts, pi):
  """Returns the chance that trials, or the draw after them, take a child."""
  chance, missed, residual = 0.0, 1.0, np.asarray(pi, float)
  for token, law in drafts:
    if law is None:
      continue
    accept = min(1.0, residual[token] / law[token])
    chance, missed = chance + missed * accept, missed * (1 - accept)
    residual = np.maximum(residual - law, 0)
    residual = residual / (residual.sum() or 1)
  certain = [token for token, law in drafts if law is None]
  return chance + missed * residual[certain].sum()


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4])
@pytest.mark.parametrize(
  "drawing", ["without_replacement", "greedy_and_random", "top_k"]
)
def test_children_that_stand_in_are_known(drawing, num_drafts):
  for q, plain, pi in FILTERED:
    drafts = [*children_of(q, plain, num_drafts, drawing)]
    assert sum(chance for _, chance in drafts) == pytest.approx(1)
    args = q, pi, num_drafts, drawing
    token = draft_acceptance.token_acceptance(*args, plain=plain)
    want = sum(c * accepted_by_trials(x, pi) for x, c in drafts)
    assert token == pytest.approx(want, abs=1e-12), args
    law = [(tuple(v for v, _ in x), chance) for x, chance in drafts]
    best = draft_acceptance.optimal_acceptance(*args, plain=plain)
    assert best == pytest.approx(linear_program(law, np.array(pi)), abs=1e-8)


def test_decoders_choose_these_children():
  for (q, plain, _), num, drawing in itertools.product(
    FILTERED, (2, 3, 4), ("without_replacement", "greedy_and_random", "top_k")
  ):
    known = {
      tuple((v, law is None) for v, law in drafts)
      for drafts, _ in children_of(q, plain, num, drawing)
    }
    u = jnp.array([*itertools.product([0.1, 0.5, 0.9], repeat=num)])[:, None]
    laws = [jnp.tile(jnp.array(x), (len(u), 1, 1)) for x in (q, plain)]
    tokens, certain = children.draw_children(*laws, u, drawing, greedy=False)
    rows = zip(tokens[:, 0].tolist(), certain[:, 0].tolist())
    assert {tuple(zip(*row)) for row in rows} == known
