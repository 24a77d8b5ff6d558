"""Targets: the worked distributions, and a slow twin in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.laws import (
  deferral,
  lossy_targets,
  numerics,
  target_checks,
  targets,
  token_rules,
)
from speccascade.decoding.laws.target_checks import as_target, check
from speccascade.decoding.laws.targets import defer, defer_tokens
from tests import toy

PAIRS = toy.WORKED
Q1, P1 = PAIRS[1]
pytestmark = pytest.mark.usefixtures("float64")


def pi_of(target, number, alpha):
  q, p = (jnp.asarray(x) for x in PAIRS[number])
  pi = np.asarray(target.probs(q, p, alpha=alpha))
  assert abs(pi.sum() - 1) < 1e-12
  return pi


def reject(number, pi):
  return np.maximum(PAIRS[number][0] - pi, 0).sum()


V1, V2, V3 = (defer_tokens(deferral.RULES[f"token_v{x}"]) for x in (1, 2, 3))
# target, pair, alpha, pi, rejection probability
WORKED = [
  (targets.lossless, 1, 0.0, P1, 0.3),
  (lossy_targets.ensemble, 1, 0.25, 0.25 * Q1 + 0.75 * P1, 0.225),
  (V1, 1, 0.15, [0.54, 0.38, 0.06, 0.02], 0.12),
  (V2, 1, 0.15, [0.11, 0.52, 0.315, 0.055], 0.39),
  (V3, 1, 0.3, [0.11, 0.52, 0.315, 0.055], 0.39),
  (V3, 1, 0.0, [0.14, 0.58, 0.21, 0.07], 0.36),
  (V1, 2, 0.35, [0.06, 0.82, 0.09, 0.03], 0.42),
  (V3, 2, 0.8, [0.04, 0.68, 0.26, 0.02], 0.34),
  (lossy_targets.lossy, 1, 0.4, [1 / 3, 16 / 45, 7 / 30, 7 / 90], 1 / 6),
  (lossy_targets.lossy_star, 1, 0.4, [1 / 3, 1 / 3, 0.25, 1 / 12], 1 / 6),
  (lossy_targets.lossy_star, 1, 0.2, [0.25, 0.375, 0.28125, 0.09375], 0.25),
  (lossy_targets.lossy_star, 1, 0.6, Q1, 0.0),
  (lossy_targets.lossy_star, 2, 0.3, [1 / 7, 4.1 / 7, 0.2, 0.5 / 7], 1.3 / 7),
]


@pytest.mark.parametrize(
  ("target", "number", "alpha", "expected", "rejected"),
  WORKED,
  ids=lambda x: getattr(x, "name", None),
)
def test_worked_targets(target, number, alpha, expected, rejected):
  pi = pi_of(target, number, alpha)
  np.testing.assert_allclose(pi, expected, atol=5e-8)
  np.testing.assert_allclose(reject(number, pi), rejected, atol=5e-8)


@pytest.mark.parametrize(
  ("rule", "number", "alpha", "model"),
  [
    (deferral.opt, 1, -1 / 3 - 1e-3, "p"),
    (deferral.opt, 1, -1 / 3 + 1e-3, "q"),
    (deferral.opt, 2, 1 - 1e-3, "p"),
    (deferral.opt, 2, 1 + 1e-3, "q"),
    # A tie does not defer: max q is 1 - alpha, exact in binary.
    (deferral.chow, 1, 0.5, "q"),
  ],
)
def test_position_rules_take_q_or_p(rule, number, alpha, model):
  expected = dict(zip("qp", PAIRS[number]))[model]
  np.testing.assert_array_equal(pi_of(defer(rule), number, alpha), expected)


def lossy_beta(q, p, alpha):
  """The root of the mass balance by its sorted breakpoints: no search."""
  rejected = np.maximum(0, q - p / (1 - alpha)).sum()
  if rejected == 0:
    return np.inf
  ratio = np.where(q > 0, p / np.where(q > 0, q, 1), np.inf)
  order = np.argsort(ratio, kind="stable")
  mass_p, mass_q = (np.cumsum(x[order][::-1])[::-1] for x in (p, q))
  gain = mass_p / np.maximum(ratio[order], 1e-300) - mass_q
  first = int(np.argmax(gain <= rejected))
  return mass_p[first] / (rejected + mass_q[first])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [3, 20, 50])
def test_lossy_star_against_the_sorting_twin(dtype, size):
  rng, num = np.random.default_rng(size), 2000
  q = rng.dirichlet(np.full(size, 0.4), num)
  p = 0.5 * q + 0.5 * rng.dirichlet(np.full(size, 0.4), num)
  q[:200, 0] = 0  # zeros, ties, equal rows
  p[100:300, 1] = 0
  p[300:400], q[400:450] = q[300:400], 1 / size
  q, p = (x / x.sum(-1, keepdims=True) for x in (q, p))
  alpha = rng.uniform(0, 0.95, num)
  beta = np.array([lossy_beta(*row) for row in zip(q, p, alpha)])[:, None]
  expected = np.maximum(np.minimum(q, p / (1 - alpha[:, None])), p / beta)
  # The twin's balance.
  np.testing.assert_allclose(expected.sum(-1), 1, atol=1e-9)
  actual = jax.jit(
    jax.vmap(lambda q, p, a: lossy_targets.lossy_star.probs(q, p, alpha=a))
  )(*(jnp.asarray(x, dtype) for x in (q, p, alpha)))
  assert actual.dtype == dtype
  tolerance = 2e-6 if dtype == "float32" else 1e-12
  np.testing.assert_allclose(actual, expected, atol=tolerance)


# budget, accept, (alpha, beta) of the optimum in the notebook's letters
MENTORED = [
  (0.01, 0.760331, 0.231749, 1.081566),
  (0.05, 0.843536, 0.417819, 1.218650),
  (0.1, 0.909845, 0.512010, 1.378572),
]


@pytest.mark.parametrize(("budget", "accept", "alpha", "beta"), MENTORED)
def test_mentored(budget, accept, alpha, beta):
  pi = pi_of(lossy_targets.mentored, 1, budget)
  np.testing.assert_allclose(1 - reject(1, pi), accept, atol=5e-7)
  expected = np.maximum(np.minimum(Q1, P1 / (1 - alpha)), P1 / beta)
  np.testing.assert_allclose(pi, expected, atol=1e-6)
  spent = numerics.kl(jnp.asarray(P1), jnp.asarray(pi))
  np.testing.assert_allclose(spent, budget, atol=1e-8)
  if budget == 0.1:
    np.testing.assert_allclose(
      pi, [0.409845, 0.3, 0.217616, 0.072539], atol=5e-7
    )


def test_mentored_spends_no_more_than_its_budget():
  q, p = target_checks.trial_pairs(9, np.float64)
  for budget in (0.0, 0.02, 0.3, 5.0):
    pi = lossy_targets.mentored.probs(q, p, alpha=budget)
    spent = np.asarray(numerics.kl(p, pi))
    assert np.all(spent <= budget + 1e-8)
    keeps = np.asarray(numerics.kl(p, q)) <= budget
    np.testing.assert_array_equal(np.asarray(pi)[keeps], np.asarray(q)[keeps])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mentored_against_bisection(dtype):
  """Within the budget, and not a lossier `keep` than the budget pays for."""
  rng, num = np.random.default_rng(3), 200
  q = rng.dirichlet(np.full(60, 0.4), num)
  p = 0.5 * q + 0.5 * rng.dirichlet(np.full(60, 0.4), num)
  budget = np.exp(rng.uniform(np.log(1e-4), 0, num))
  # With the budget of KL(p || q) or more pi is q.
  q, p, budget = (
    x[(p * np.log(p / q)).sum(-1) > budget] for x in (q, p, budget)
  )
  assert len(q) > 50
  low, high = np.zeros(len(q)), np.ones(len(q))
  for _ in range(40):
    keep = (low + high) / 2
    beta = np.array([lossy_beta(*row) for row in zip(q, p, 1 - keep)])
    pi = np.maximum(np.minimum(q, p / keep[:, None]), p / beta[:, None])
    too_far = (p * np.log(p / pi)).sum(-1) > budget
    low, high = np.where(too_far, keep, low), np.where(too_far, high, keep)
  actual = jax.jit(
    jax.vmap(lambda q, p, a: lossy_targets.mentored.probs(q, p, alpha=a))
  )(*(jnp.asarray(x, dtype) for x in (q, p, budget)))
  assert actual.dtype == dtype
  # In float32 the search ends at 6e-6 of the budget, and pi is as far off.
  tolerance = 2e-5 if dtype == "float32" else 1e-8
  np.testing.assert_allclose(actual, pi, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("budget", [0.03, 0.3, 1.0])
def test_mentored_spends_its_budget_where_p_is_sharp(dtype, budget):
  """There `keep` is as small as 1e-9, and s nearly the least q / p."""
  rng = np.random.default_rng(1)
  logits = 6 * rng.normal(size=(96, 500))
  other = 2 * (logits + 3 * rng.normal(size=logits.shape))
  softmax = functools.partial(jax.nn.softmax, axis=-1)
  q, p = (softmax(jnp.asarray(x, dtype)) for x in (logits, other))
  pi = jax.jit(lossy_targets.mentored.probs)(q, p, alpha=budget)
  spent, most = np.asarray(numerics.kl(p, pi)), np.asarray(numerics.kl(p, q))
  assert spent.dtype == dtype
  assert (most > budget).sum() > 40
  np.testing.assert_allclose(spent, np.minimum(most, budget), rtol=2e-5)
  # Between q and p everywhere, as a distribution that gains what it spends is.
  margin = 1e-6
  assert np.all(np.minimum(q, p) <= pi + margin)
  assert np.all(pi <= np.maximum(q, p) + margin)


def test_mentored_where_the_budget_pays_for_all_that_p_draws():
  """p never draws token 2, and for the rest q is near enough."""
  q, p = jnp.asarray([0.5, 0.4, 0.1]), jnp.asarray([0.6, 0.4, 0.0])
  pi = lossy_targets.mentored.probs(q, p, alpha=0.03)
  np.testing.assert_allclose(pi, [0.6, 0.4, 0], atol=1e-6)
  assert numerics.kl(p, q) > 0.03


REFUSED = {
  # max{min{q, p/(1-alpha)}, p}, Table 1 with beta 1, sums to 1.1333 on pair 1.
  "beta 1": (
    lambda q, p: jnp.maximum(jnp.minimum(q, p / 0.6), p),
    "mine .* it sums to 1.* make every row sum to 1",
  ),
  "too much": (lambda q, p: p * 1.13, r"it sums to 1\.13 on a trial pair"),
  "shape": (lambda q, p: p[..., :-1], r"returns shape \(24, 6\) for pairs"),
  "negative": (lambda q, p: 2 * p - q, r"gives a token probability -"),
  "little": (lambda q, p: q * p, "it sums to"),
  "nan": (lambda q, p: q * jnp.nan, "it sums to nan"),
  # Only where supports differ: the sum is missing there.
  "supports": (lambda q, p: jnp.where(q > 0, p, 0), "it sums to 0"),
  # Only on rows that are equal.
  "equal": (
    lambda q, p: numerics.normalise(jnp.maximum(p - q, 0), 0 * p),
    "it sums to 0 on",
  ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_a_distribution_is_refused_with_the_sum(what):
  function, message = REFUSED[what]
  with pytest.raises(ValueError, match=message):
    as_target(function, name="mine")


def test_a_users_target_gets_the_sampled_pair():
  seen = as_target(lambda q, p: 0.25 * q + 0.75 * p)
  q, p = (jnp.asarray(x) for x in (Q1, P1))
  np.testing.assert_allclose(
    seen.probs(q, q, alpha=0.0, sampled=(q, p)), 0.25 * Q1 + 0.75 * P1
  )
  assert seen.uses_q
  assert not seen.needs_confidence


def test_check_at_one_alpha():
  @targets.target()
  def lopsided(q, p, *, alpha, sampled):
    return sampled[1] * (1 + alpha)

  check(lopsided, alpha=0.0)
  with pytest.raises(ValueError, match=r"alpha 0.5 .* sums to 1.5"):
    check(lopsided, alpha=0.5)


def test_thresholds_are_unscaled_and_mixtures_scaled():
  # A keep-set from the temperature-1 pair, a mixture of the sampled one.
  q, p = (jnp.asarray(x) for x in (Q1, P1))
  sampled = (jnp.asarray([0.9, 0.1, 0, 0]), jnp.asarray([0, 0.3, 0.7, 0.0]))
  target = defer_tokens(token_rules.token_v3)
  pi = target.probs(q, p, alpha=0.3, sampled=sampled)  # keeps 1 and 2
  np.testing.assert_allclose(pi, [0, 0.1 + 0.9 * 0.3, 0.9 * 0.7, 0])
  pi = defer(deferral.chow).probs(q, p, alpha=0.6, sampled=sampled)
  np.testing.assert_array_equal(pi, sampled[0])


def test_what_a_target_says_of_itself():
  # uses_q: whether pi depends on q; needs_confidence: on q at temperature 1.
  assert targets.lossless.name == "lossless"
  assert not targets.lossless.uses_q
  assert not targets.lossless.needs_confidence
  for name in ("lossy", "lossy_star", "mentored", "ensemble"):
    known = getattr(lossy_targets, name)
    assert known.uses_q
    assert not known.needs_confidence
    assert known.name == name
  assert defer(deferral.chow).needs_confidence
  assert not defer_tokens(token_rules.token_v2).needs_confidence
  assert defer_tokens(token_rules.token_v2).uses_q
  assert defer(deferral.diff).rule is deferral.diff


def test_a_target_without_a_rule_cannot_be_asked_before_the_verifier():
  with pytest.raises(TypeError, match="lossy has no rule"):
    lossy_targets.lossy.early(jnp.asarray(Q1), 0.3)
