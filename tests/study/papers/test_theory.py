"""Every lemma, both sides, on random distributions in float64.

The cases hold zeros, ties, one-hot rows, disjoint supports and q = p.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.laws import deferral, lossy_targets
from speccascade.study.papers import speedup, theory
from tests.decoding.laws.test_targets import lossy_beta

V = 5
EACH_LOSS = pytest.mark.parametrize("loss", ["zero_one", "log"])
EACH_PRICE = pytest.mark.parametrize("alpha", [-0.4, 0.0, 0.05, 0.3])


@pytest.fixture(autouse=True)
def _strict_float64():
  """Computes in float64; ranks and dtypes are never promoted silently."""
  with (
    jax.enable_x64(True),
    jax.numpy_rank_promotion("raise"),
    jax.numpy_dtype_promotion("strict"),
  ):
    yield


def triples(num=120, seed=0):
  """Returns truth, q, p as [num, V] float64 NumPy arrays."""
  rng = np.random.default_rng(seed)
  truth, q, p = rng.dirichlet(np.full(V, 0.7), (3, num))
  one_hot = np.eye(V)
  q[0], p[0] = one_hot[0], one_hot[1]  # disjoint
  q[1], p[1] = one_hot[2], one_hot[2]
  q[2], p[3] = one_hot[3], one_hot[4]
  q[4], p[4] = [0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.25, 0.25]
  q[5], p[5] = [0.4, 0.4, 0.2, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2]  # ties
  p[6:12] = q[6:12]
  truth[9:12] = q[9:12]
  truth[12:16] = one_hot[:4]
  q[14:30:2, 1] = 0
  p[15:30:2, 2] = 0
  q[20:24, 3:] = p[20:24, :2] = 0
  return tuple(x / x.sum(-1, keepdims=True) for x in (truth, q, p))


TRUTH, Q, P = triples()
TV = 0.5 * np.abs(Q - P).sum(-1)
thresholds_of = jax.jit(theory.block_thresholds)


def arrays():
  return tuple(jnp.asarray(x) for x in (TRUTH, Q, P))


def close(values, want, atol=1e-12):
  np.testing.assert_allclose(np.asarray(values), want, rtol=0, atol=atol)


# One token.


@pytest.mark.parametrize("r", [0.0, 0.35, 1.0, "binary"])
def test_lemma_3(r):
  _, q, p = arrays()
  r = np.arange(len(Q)) % 2 == 0 if r == "binary" else np.full(len(Q), r)
  pi = theory.deferral_target(q, p, jnp.asarray(r))
  assert pi.dtype == jnp.float64
  values = theory.rejection_probability(q, pi)
  close(values, r * TV)
  # and the chance that Algorithm 4's coin says no
  accept = np.minimum(1, np.asarray(pi) / np.where(Q > 0, Q, 1))
  close(values, 1 - (Q * accept).sum(-1))


def stepwise_law(q, accept, replacement):
  """The distribution of one step: what is kept, and what replaces the rest."""
  rejected = (q * (1 - accept)).sum(-1, keepdims=True)
  return q * accept + rejected * replacement


def test_realised_law_is_the_enumeration():
  accept = np.random.default_rng(3).random((len(Q), V))
  values = theory.realised_law(*(jnp.asarray(x) for x in (Q, accept, TRUTH)))
  close(values, stepwise_law(Q, accept, TRUTH))


def test_a_token_verified_step_draws_from_pi():
  # Any pi, related to q or not.
  truth, q, p = arrays()
  for pi in (truth, p, q):
    close(theory.token_verified_law(q, pi), pi)


# Lossy sampling.


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.6, 0.9])
@pytest.mark.parametrize("beta", [1.0, 1.3, 4.0])
def test_lemma_2_both_sides(alpha, beta):
  _, q, p = arrays()
  kwargs = {"alpha": alpha, "beta": beta}
  law = theory.lossy_law(q, p, **kwargs)
  close(law.sum(-1), 1)
  # step by step, as its authors run it
  accept = np.minimum(1, P / ((1 - alpha) * np.where(Q > 0, Q, 1)))
  raised = np.maximum(0, P / beta - Q)
  total = raised.sum(-1, keepdims=True)
  replacement = np.where(total > 0, raised / np.where(total > 0, total, 1), P)
  close(law, stepwise_law(Q, accept, replacement))
  # the printed expression is off by what does not balance
  expression = theory.lossy_expression(q, p, **kwargs)
  missed, gained = theory.lossy_masses(q, p, **kwargs)
  close(expression.sum(-1), 1 - np.asarray(missed) + np.asarray(gained))
  close(expression, np.minimum(Q, P / (1 - alpha)) + raised)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.6, 0.9])
def test_lemma_2_where_the_masses_balance(alpha):
  _, q, p = arrays()
  beta = [[lossy_beta(*pair, alpha)] for pair in zip(Q, P)]
  kwargs = {"alpha": alpha, "beta": jnp.asarray(beta)}
  missed, gained = theory.lossy_masses(q, p, **kwargs)
  close(missed, gained)
  law = theory.lossy_law(q, p, **kwargs)
  close(law, theory.lossy_expression(q, p, **kwargs))
  close(law, lossy_targets.lossy_star.probs(q, p, alpha=alpha), atol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.8])
def test_lossy_target_is_the_heuristics_law(alpha):
  _, q, p = arrays()
  law = theory.lossy_law(q, p, alpha=alpha, beta=1.0)
  close(law, lossy_targets.lossy.probs(q, p, alpha=alpha))
  # Leviathan et al., A.5: no token above p / l
  assert np.all(np.asarray(law) <= P / (1 - alpha) + 1e-12)
  if alpha == 0:
    close(law, P)


# Deferral.


def losses_of(prediction, loss):
  """Returns the expected loss of predictions of `TRUTH`."""
  if loss == "zero_one":
    return 1 - TRUTH[np.arange(len(TRUTH)), prediction.argmax(-1)]
  with np.errstate(divide="ignore", invalid="ignore"):
    terms = -TRUTH * np.log(prediction)
  return np.where(TRUTH > 0, terms, 0).sum(-1)


@EACH_LOSS
def test_expected_loss(loss):
  truth, q, _ = arrays()
  want = losses_of(Q, loss)
  assert np.isinf(want).any() == (loss == "log")
  close(theory.expected_loss(truth, q, loss=loss), want)
  # A model's own estimate is its expected loss if it is right.
  estimate = theory.plug_in_loss(q, loss=loss)
  close(estimate, theory.expected_loss(q, q, loss=loss))


def price_of(alpha, speculative):
  """Returns the price of deferring, and the same by hand."""
  _, q, p = arrays()
  if speculative:
    return theory.speculative_price(q, p, alpha=alpha), alpha * TV
  return alpha, np.full(len(Q), alpha)


@EACH_LOSS
@pytest.mark.parametrize("speculative", [False, True])
@EACH_PRICE
def test_lemmas_1_and_4(alpha, speculative, loss):
  models = arrays()
  price, cost = price_of(alpha, speculative)
  kwargs = {"price": price, "loss": loss}
  keep, take = losses_of(Q, loss), losses_of(P, loss) + cost
  defer = theory.optimal_deferral(*models, **kwargs)
  # the rule as stated, but for sides that meet to rounding
  with np.errstate(invalid="ignore"):  # inf - inf: a tie
    apart = np.abs(keep - take) > 1e-12
  np.testing.assert_array_equal(np.asarray(defer)[apart], (keep > take)[apart])
  assert not np.any(np.asarray(defer)[np.isinf(keep) & np.isinf(take)])
  assert apart.sum() > 70
  least = np.asarray(theory.deferral_risk(*models, defer=defer, **kwargs))
  finite = np.isfinite(least)
  close(least[finite], np.minimum(keep, take)[finite])
  np.testing.assert_array_equal(finite, np.isfinite(np.minimum(keep, take)))
  # and no other deferral, random ones included, has a lower risk
  for r in (0.0, 0.25, 0.5, 1.0):
    other = theory.deferral_risk(*models, defer=jnp.full(len(Q), r), **kwargs)
    assert np.all(least <= np.asarray(other) + 1e-12)


@EACH_LOSS
def test_speculative_risk_charges_the_rejections(loss):
  # Eq. (8): loss of what is taken + alpha times Lemma 3's rejection probability
  truth, q, p = arrays()
  alpha, r = 0.7, 0.6
  defer = jnp.full(len(Q), r)
  price = theory.speculative_price(q, p, alpha=alpha)
  values = theory.deferral_risk(
    truth, q, p, defer=defer, price=price, loss=loss
  )
  pi = theory.deferral_target(q, p, defer)
  rejected = np.asarray(theory.rejection_probability(q, pi))
  loss_part = (1 - r) * losses_of(Q, loss) + r * losses_of(P, loss)
  close(values, loss_part + alpha * rejected)


@pytest.mark.parametrize(
  ("rule", "loss", "speculative"),
  [
    ("diff", "zero_one", False),
    ("opt", "zero_one", True),
    ("diff_log", "log", False),
    ("opt_log", "log", True),
  ],
)
@EACH_PRICE
def test_plug_in_deferral_is_the_rule(rule, loss, speculative, alpha):
  _, q, p = arrays()
  price, _ = price_of(alpha, speculative)
  left, right = deferral.RULES[rule](q, p, alpha=alpha)
  apart = np.abs(np.asarray(left - right)) > 1e-12
  values = theory.plug_in_deferral(q, p, price=price, loss=loss)
  want = np.asarray(left < right)
  np.testing.assert_array_equal(np.asarray(values)[apart], want[apart])
  assert apart.sum() > 90


@EACH_LOSS
@pytest.mark.parametrize("speculative", [False, True])
@EACH_PRICE
def test_lemma_5(alpha, speculative, loss):
  models = arrays()
  price, _ = price_of(alpha, speculative)
  values = np.asarray(theory.regret(*models, price=price, loss=loss))
  bound = np.asarray(theory.regret_bound(*models, loss=loss))
  assert np.all(values >= 0)
  assert np.all(values <= bound + 1e-12)
  assert np.any(values > 0.01)  # some of the rules' decisions are wrong
  if loss == "zero_one":
    uniform = np.asarray(theory.uniform_regret_bound(*models))
    close(uniform, np.abs(TRUTH - Q).max(-1) + np.abs(TRUTH - P).max(-1))
    assert np.all(bound <= uniform + 1e-12)


def test_regret_bound_is_tight():
  # The drafter errs for certain and thinks it a coin toss. At price .5 the
  # plug-in keeps (.49 against .5); deferring would have cost .5 and not 1.
  models = tuple(jnp.array(x) for x in ([1.0, 0], [0.49, 0.51], [1.0, 0]))
  close(theory.regret(*models, price=0.5, loss="zero_one"), 0.5)
  close(theory.regret_bound(*models, loss="zero_one"), 0.51)
  close(theory.uniform_regret_bound(*models), 0.51)


# Blocks.


def test_block_length_by_enumeration():
  rates = np.array([[0.8, 0.5, 0.9], [0.0, 0.7, 1.0], [1.0, 1.0, 1.0]])
  law = np.zeros((3, 4))
  for coins in itertools.product([True, False], repeat=3):
    accepted = [*coins, False].index(False)
    law[:, accepted] += np.where(coins, rates, 1 - rates).prod(-1)
  close(theory.accepted_law(jnp.asarray(rates)), law)
  tokens = theory.tokens_per_block(jnp.asarray(rates))
  close(tokens, law @ np.arange(1, 5))


@pytest.mark.parametrize("rate", [0.0, 0.37, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [1, 4, 10])
def test_one_rate_gives_leviathans_formula(rate, gamma):
  values = theory.tokens_per_block(jnp.full(gamma, rate))
  close(values, speedup.expected_tokens(rate, gamma))
  if rate == 0.8 and gamma == 10:
    close(values, 4.5705033, 5e-8)


def test_block_verification_toy():
  # Sun et al.: context-free, P = (1/3, 2/3), Q = (2/3, 1/3), gamma 2.
  q_row, pi_row = np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3])
  drafts = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]])
  q, pi = (jnp.broadcast_to(jnp.asarray(x), (4, 2, 2)) for x in (q_row, pi_row))
  reach, thresholds = thresholds_of(drafts, q, pi)
  close(reach[:, 0], [0.5, 0.5, 1, 1])
  close(thresholds, [[0, 0.25], [0, 1], [1, 0.5], [1, 1]])
  weight = q_row[np.asarray(drafts)].prod(-1)
  close(weight @ np.asarray(theory.expected_block_accepted(thresholds)), 11 / 9)
  rate = 1 - theory.rejection_probability(q[0], pi[0])
  close(theory.tokens_per_block(rate) - 1, 10 / 9)


@pytest.mark.parametrize("seed", range(4))
def test_block_verification_accepts_no_fewer(seed):
  # A random chain of three drafts over three tokens.
  rng = np.random.default_rng([8, seed])
  law = {
    prefix: rng.dirichlet(np.full(3, 0.8), 2)
    for n in range(3)
    for prefix in itertools.product(range(3), repeat=n)
  }
  drafts = np.array(list(itertools.product(range(3), repeat=3)))
  pairs = np.array([[law[tuple(d[:i])] for i in range(3)] for d in drafts])
  q, pi = pairs[:, :, 0], pairs[:, :, 1]
  q_x, pi_x = (
    np.take_along_axis(x, drafts[..., None], -1)[..., 0] for x in (q, pi)
  )
  weight = q_x.prod(-1)
  close(weight.sum(), 1)
  _, thresholds = thresholds_of(*(jnp.asarray(x) for x in (drafts, q, pi)))
  block = weight @ np.asarray(theory.expected_block_accepted(thresholds))
  token = weight @ np.cumprod(np.minimum(1, pi_x / q_x), 1).sum(1)
  assert block > token + 1e-4
