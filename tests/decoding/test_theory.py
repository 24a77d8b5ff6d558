"""Every lemma, both sides, on random distributions in float64.

The cases hold zeros, ties, one-hot rows, disjoint supports and q = p; the slow
twins are loops over tokens.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.analysis import speedup
from speccascade.decoding import deferral, target, theory, verification

V = 5
PRICES = (-0.4, 0.0, 0.05, 0.3)
LOSSES = ("zero_one", "log")


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
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


def arrays(num=120, seed=0):
  return tuple(jnp.asarray(x) for x in triples(num, seed))


TRUTH, Q, P = triples()
thresholds_of = jax.jit(theory.block_thresholds)
# Worked pairs.
Q1 = np.array([0.5, 0.3, 0.15, 0.05])
P1 = np.array([0.2, 0.4, 0.3, 0.1])
Q2 = np.array([0.3, 0.4, 0.2, 0.1])
P2 = np.array([0.1, 0.7, 0.15, 0.05])


def close(got, want, atol=1e-12):
  np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=atol)


# One token.


@pytest.mark.parametrize("r", [0.0, 0.35, 1.0])
def test_lemma_3(r):
  _, q, p = arrays()
  pi = theory.deferral_target(q, p, jnp.full(len(Q), r))
  assert pi.dtype == jnp.float64
  got = theory.rejection_probability(q, pi)
  close(got, r * 0.5 * np.abs(Q - P).sum(-1))  # r TV
  # and the chance that Algorithm 4's coin says no
  accept = np.minimum(1, np.asarray(pi) / np.where(Q > 0, Q, 1))
  close(got, 1 - (Q * accept).sum(-1))


def test_lemma_3_for_binary_deferral():
  _, q, p = arrays()
  defer = jnp.asarray(np.arange(len(Q)) % 2 == 0)
  pi = theory.deferral_target(q, p, defer)
  tv = 0.5 * np.abs(Q - P).sum(-1)
  close(theory.rejection_probability(q, pi), np.asarray(defer) * tv)


def enumerated_law(q, accept, replacement):
  """The law of one step, path by path."""
  law = np.zeros(V)
  for draft in range(V):
    law[draft] += q[draft] * accept[draft]
    for v in range(V):
      law[v] += q[draft] * (1 - accept[draft]) * replacement[v]
  return law


def test_realised_law_is_the_enumeration():
  rng = np.random.default_rng(3)
  accept, replacement = rng.random((len(Q), V)), TRUTH
  got = theory.realised_law(
    jnp.asarray(Q), jnp.asarray(accept), jnp.asarray(replacement)
  )
  for row, args in enumerate(zip(Q, accept, replacement)):
    close(got[row], enumerated_law(*args))


def test_a_token_verified_step_draws_from_pi():
  # Any pi, related to q or not.
  truth, q, p = arrays()
  for pi in (truth, p, q):
    close(theory.token_verified_law(q, pi), pi)


def test_worked_step():
  q, p = jnp.asarray(Q1), jnp.asarray(P1)
  close(theory.rejection_probability(q, p), 0.3)
  close(theory.accept_probability(q, p), [0.4, 1, 1, 1])


# Lossy sampling.


def solved_beta(q, p, alpha):
  """beta of Lossy*, [N, 1], by sorting the ratios p/q (float64 loop)."""
  betas = []
  for row_q, row_p in zip(q, p):
    missed = np.maximum(0, row_q - row_p / (1 - alpha)).sum()
    ratio = row_p / np.where(row_q > 0, row_q, 1)
    ratio[(row_q == 0) & (row_p > 0)] = np.inf
    best = np.inf  # nothing rejected: nothing to raise
    if missed > 0:
      for cut in np.sort(ratio[row_p > 0]):
        raised = (ratio >= cut) & (row_p > 0)
        mass_p, mass_q = row_p[raised].sum(), row_q[raised].sum()
        if (0 if cut == np.inf else mass_p / cut) - mass_q <= missed:
          best = mass_p / (missed + mass_q)
          break
    betas.append([best])
  return np.array(betas)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.6, 0.9])
@pytest.mark.parametrize("beta", [1.0, 1.3, 4.0])
def test_lemma_2_both_sides(alpha, beta):
  _, q, p = arrays()
  given = {"alpha": alpha, "beta": beta}
  law = theory.lossy_law(q, p, **given)
  close(law.sum(-1), 1)
  # path by path, as its authors run it
  accept = np.minimum(1, P / ((1 - alpha) * np.where(Q > 0, Q, 1)))
  raised = np.maximum(0, P / beta - Q)
  total = raised.sum(-1, keepdims=True)
  raised = np.where(total > 0, raised / np.where(total > 0, total, 1), P)
  for row, args in enumerate(zip(Q, accept, raised)):
    close(law[row], enumerated_law(*args))
  # the printed expression is off by what does not balance
  expression = theory.lossy_expression(q, p, **given)
  missed, gained = theory.lossy_masses(q, p, **given)
  close(expression.sum(-1), 1 - np.asarray(missed) + np.asarray(gained))
  wanted = np.minimum(Q, P / (1 - alpha)) + np.maximum(0, P / beta - Q)
  close(expression, wanted)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.6, 0.9])
def test_lemma_2_where_the_masses_balance(alpha):
  _, q, p = arrays()
  beta = jnp.asarray(solved_beta(Q, P, alpha))
  given = {"alpha": alpha, "beta": beta}
  missed, gained = theory.lossy_masses(q, p, **given)
  close(missed, gained)
  law = theory.lossy_law(q, p, **given)
  close(law, theory.lossy_expression(q, p, **given))
  close(
    law, target.lossy_star.probs(q, p, alpha=alpha, sampled=(q, p)), atol=1e-9
  )


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.8])
def test_lossy_target_is_the_heuristics_law(alpha):
  _, q, p = arrays()
  law = theory.lossy_law(q, p, alpha=alpha, beta=1.0)
  close(law, target.lossy.probs(q, p, alpha=alpha, sampled=(q, p)))
  # Leviathan et al., A.5: no token above p / l
  assert np.all(np.asarray(law) <= P / (1 - alpha) + 1e-12)
  if alpha == 0:
    close(law, P)


def test_worked_lossy_laws():
  q, p = jnp.asarray(Q1), jnp.asarray(P1)
  close(theory.lossy_expression(q, p, alpha=0.4, beta=1.0).sum(), 1.1333, 5e-5)
  close(
    theory.lossy_law(q, p, alpha=0.4, beta=1.0),
    [0.33333, 0.35556, 0.23333, 0.07778],
    atol=5e-6,
  )
  close(
    theory.lossy_law(q, p, alpha=0.4, beta=1.2), [1 / 3, 1 / 3, 1 / 4, 1 / 12]
  )
  close(theory.lossy_masses(q, p, alpha=0.4, beta=1.2), [1 / 6, 1 / 6])
  close(solved_beta(Q1[None], P1[None], 0.2)[0], 1.0666667, 5e-8)
  close(solved_beta(Q2[None], P2[None], 0.3)[0], 1.1951220, 5e-8)
  q, p = jnp.asarray(Q2), jnp.asarray(P2)
  got = theory.lossy_law(q, p, alpha=0.3, beta=1.1951219512)
  close(got, [0.1428571, 0.5857143, 0.2, 0.0714286], atol=5.1e-8)


# Deferral.


def loop_loss(truth, prediction, loss):
  total = 0.0
  for v in range(V):
    if truth[v] > 0 and loss == "zero_one":
      total += truth[v] * (v != int(np.argmax(prediction)))
    elif truth[v] > 0:
      total += truth[v] * (
        -np.log(prediction[v]) if prediction[v] > 0 else np.inf
      )
  return total


def losses_of(prediction, loss):
  return np.array([loop_loss(t, x, loss) for t, x in zip(TRUTH, prediction)])


@pytest.mark.parametrize("loss", LOSSES)
def test_expected_loss(loss):
  truth, q, _ = arrays()
  want = losses_of(Q, loss)
  assert np.isinf(want).any() == (loss == "log")
  close(theory.expected_loss(truth, q, loss=loss), want)
  # A model's own estimate is its expected loss if it is right.
  close(
    theory.plug_in_loss(q, loss=loss),
    theory.expected_loss(q, q, loss=loss),
  )


def prices(alpha, speculative, q, p):
  if speculative:
    return theory.speculative_price(q, p, alpha=alpha)
  return alpha


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("alpha", PRICES)
def test_lemmas_1_and_4(alpha, speculative, loss):
  truth, q, p = arrays()
  price = prices(alpha, speculative, q, p)
  given = {"price": price, "loss": loss}
  tv = 0.5 * np.abs(Q - P).sum(-1)
  cost = alpha * tv if speculative else np.full(len(Q), alpha)
  keep, take = losses_of(Q, loss), losses_of(P, loss) + cost
  defer = theory.optimal_deferral(truth, q, p, **given)
  # the rule as stated, but for sides that meet to rounding
  with np.errstate(invalid="ignore"):  # inf - inf: a tie
    apart = np.abs(keep - take) > 1e-12
  np.testing.assert_array_equal(np.asarray(defer)[apart], (keep > take)[apart])
  assert not np.any(np.asarray(defer)[np.isinf(keep) & np.isinf(take)])
  assert apart.sum() > 70
  least = np.asarray(theory.deferral_risk(truth, q, p, defer=defer, **given))
  finite = np.isfinite(least)
  close(least[finite], np.minimum(keep, take)[finite])
  np.testing.assert_array_equal(finite, np.isfinite(np.minimum(keep, take)))
  # and no other deferral, random ones included, has a lower risk
  for r in (0.0, 0.25, 0.5, 1.0):
    other = theory.deferral_risk(
      truth, q, p, defer=jnp.full(len(Q), r), **given
    )
    assert np.all(least <= np.asarray(other) + 1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_speculative_risk_charges_the_rejections(loss):
  # Eq. (8): loss of what is taken + alpha times Lemma 3's rejection probability
  truth, q, p = arrays()
  alpha, r = 0.7, 0.6
  defer = jnp.full(len(Q), r)
  price = theory.speculative_price(q, p, alpha=alpha)
  got = theory.deferral_risk(truth, q, p, defer=defer, price=price, loss=loss)
  rejected = theory.rejection_probability(
    q, theory.deferral_target(q, p, defer)
  )
  loss_part = (1 - r) * losses_of(Q, loss) + r * losses_of(P, loss)
  close(got, loss_part + alpha * np.asarray(rejected))


@pytest.mark.parametrize(
  ("rule", "loss", "speculative"),
  [
    (deferral.diff, "zero_one", False),
    (deferral.opt, "zero_one", True),
    (deferral.diff_log, "log", False),
    (deferral.opt_log, "log", True),
  ],
  ids=lambda x: getattr(x, "name", str(x)),
)
@pytest.mark.parametrize("alpha", PRICES)
def test_plug_in_deferral_is_the_rule(rule, loss, speculative, alpha):
  _, q, p = arrays()
  price = prices(alpha, speculative, q, p)
  left, right = rule(q, p, alpha=alpha)
  apart = np.abs(np.asarray(left - right)) > 1e-12
  got = theory.plug_in_deferral(q, p, price=price, loss=loss)
  want = np.asarray(left < right)
  np.testing.assert_array_equal(np.asarray(got)[apart], want[apart])
  assert apart.sum() > 90


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("alpha", PRICES)
def test_lemma_5(alpha, speculative, loss):
  truth, q, p = arrays()
  price = prices(alpha, speculative, q, p)
  got = np.asarray(theory.regret(truth, q, p, price=price, loss=loss))
  bound = np.asarray(theory.regret_bound(truth, q, p, loss=loss))
  assert np.all(got >= 0)
  assert np.all(got <= bound + 1e-12)
  assert np.any(got > 0.01)  # some of the rules' decisions are wrong
  if loss == "zero_one":
    uniform = np.asarray(theory.uniform_regret_bound(truth, q, p))
    close(uniform, np.abs(TRUTH - Q).max(-1) + np.abs(TRUTH - P).max(-1))
    assert np.all(bound <= uniform + 1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_regret_is_0_where_both_models_know_the_truth(loss):
  truth, _, _ = arrays()
  for alpha in PRICES:
    got = theory.regret(truth, truth, truth, price=alpha, loss=loss)
    close(got, 0)
  close(theory.regret_bound(truth, truth, truth, loss=loss), 0)


def test_regret_bound_is_tight():
  # The drafter errs for certain and thinks it a coin toss. At price .5 the
  # plug-in keeps (.49 against .5); deferring would have cost .5 and not 1.
  truth, q, p = (jnp.array(x) for x in ([1.0, 0], [0.49, 0.51], [1.0, 0]))
  given = (truth, q, p)
  close(theory.regret(*given, price=0.5, loss="zero_one"), 0.5)
  close(theory.regret_bound(*given, loss="zero_one"), 0.51)
  close(theory.uniform_regret_bound(*given), 0.51)


def test_unknown_losses_are_refused():
  truth, q, _ = arrays(num=30)
  with pytest.raises(ValueError, match="'hinge'"):
    theory.expected_loss(truth, q, loss="hinge")
  with pytest.raises(ValueError, match="'hinge'"):
    theory.plug_in_loss(q, loss="hinge")


# Blocks.


def test_block_length_by_enumeration():
  rates = np.array([[0.8, 0.5, 0.9], [0.0, 0.7, 1.0], [1.0, 1.0, 1.0]])
  law = np.zeros((3, 4))
  for row, coins in itertools.product(
    range(3), itertools.product([False, True], repeat=3)
  ):
    chance = np.prod(np.where(coins, rates[row], 1 - rates[row]))
    accepted = 3 if all(coins) else coins.index(False)
    law[row, accepted] += chance
  got = theory.accepted_law(jnp.asarray(rates))
  close(got, law)
  tokens = theory.tokens_per_block(jnp.asarray(rates))
  close(tokens, law @ np.arange(1, 5))


@pytest.mark.parametrize("rate", [0.0, 0.37, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [1, 4, 10])
def test_one_rate_gives_leviathans_formula(rate, gamma):
  got = theory.tokens_per_block(jnp.full(gamma, rate))
  close(got, speedup.expected_tokens(rate, gamma))
  if rate == 0.8 and gamma == 10:
    close(got, 4.5705033, 5e-8)


def test_block_verification_toy():
  # Sun et al.: context-free, P = (1/3, 2/3), Q = (2/3, 1/3), gamma 2.
  q_row, pi_row = np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3])
  drafts = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]])
  q = jnp.broadcast_to(jnp.asarray(q_row), (4, 2, 2))
  pi = jnp.broadcast_to(jnp.asarray(pi_row), (4, 2, 2))
  reach, thresholds = thresholds_of(drafts, q, pi)
  close(reach[:, 0], [0.5, 0.5, 1, 1])
  close(thresholds, [[0, 0.25], [0, 1], [1, 0.5], [1, 1]])
  weight = q_row[np.asarray(drafts)].prod(-1)
  close(weight @ np.asarray(theory.expected_block_accepted(thresholds)), 11 / 9)
  rate = 1 - theory.rejection_probability(q[0], pi[0])
  close(theory.tokens_per_block(rate) - 1, 10 / 9)


def chain(rng, gamma, size=3):
  """Returns laws for every draft of a random chain: drafts [N, G], q, pi."""
  drafts = list(itertools.product(range(size), repeat=gamma))
  law = {
    prefix: rng.dirichlet(np.full(size, 0.8), 2)
    for n in range(gamma)
    for prefix in itertools.product(range(size), repeat=n)
  }
  pairs = np.array([[law[d[:i]] for i in range(gamma)] for d in drafts])
  return np.array(drafts), pairs[:, :, 0], pairs[:, :, 1]


def test_block_verification_accepts_no_fewer():
  rng = np.random.default_rng(8)
  for _ in range(4):
    drafts, q, pi = chain(rng, gamma=3)
    q_x = np.take_along_axis(q, drafts[..., None], -1)[..., 0]
    pi_x = np.take_along_axis(pi, drafts[..., None], -1)[..., 0]
    weight = q_x.prod(-1)
    close(weight.sum(), 1)
    _, thresholds = thresholds_of(
      jnp.asarray(drafts), jnp.asarray(q), jnp.asarray(pi)
    )
    block = weight @ np.asarray(theory.expected_block_accepted(thresholds))
    token = weight @ np.cumprod(np.minimum(1, pi_x / q_x), 1).sum(1)
    assert block > token + 1e-4


def test_the_decoder_uses_these_thresholds():
  # One draft of the chain per row; one coin just below or above its threshold,
  # every other refuses. Positions with a threshold of 0 or 1 have no two sides.
  drafts, q, pi = chain(np.random.default_rng(9), gamma=3)
  _, h = thresholds_of(jnp.asarray(drafts), jnp.asarray(q), jnp.asarray(pi))
  h = np.asarray(h)
  inside = (h > 1e-4) & (h < 1 - 1e-4)
  bonus = np.full((len(drafts), 1, 3), 1 / 3)
  q, pi = (np.concatenate([x, bonus], axis=1) for x in (q, pi))
  with jax.enable_x64(False):
    verify = jax.jit(verification.block_verify)
    for position, side in itertools.product(range(3), (-1e-5, 1e-5)):
      coins = np.ones(h.shape)
      coins[:, position] = h[:, position] + side
      got = verify(
        jnp.asarray(drafts, jnp.int32),
        jnp.full(len(drafts), 3, jnp.int32),
        *(jnp.asarray(x, jnp.float32) for x in (q, pi, coins)),
        jnp.full(len(drafts), 0.5),
      )
      rows = inside[:, position]
      want = position + 1 if side < 0 else 0
      np.testing.assert_array_equal(np.asarray(got.num_accepted)[rows], want)
      assert rows.sum() > 2
