"""Fitting learned rules: isotonic fits, heads and mixtures of known truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.laws import learned
from speccascade.training import rule_fitting
from speccascade.training.rule_fitting import Fitting, TokenRows

TV = learned.FEATURES.index("total_variation")


def slow_isotonic(y, weights):
  """Returns the increasing fit by its minimax formula, in no clever order."""
  num = len(y)

  def mean(a, b):
    return np.average(y[a : b + 1], weights=weights[a : b + 1])

  return [
    max(min(mean(a, b) for b in range(i, num)) for a in range(i + 1))
    for i in range(num)
  ]


@pytest.mark.parametrize("seed", range(4))
def test_increasing_is_the_isotonic_fit(seed):
  rng = np.random.default_rng(seed)
  num = learned.KNOTS - 7 * seed
  x = rng.permutation(num) / num
  y = np.clip(x + rng.normal(0, 0.4, num), 0, 1)
  line = rule_fitting.increasing(x, y)
  order = np.argsort(x)
  wanted = slow_isotonic(y[order], np.ones(num))
  np.testing.assert_allclose(line.at[:num], x[order], atol=1e-6)
  np.testing.assert_allclose(line.values[:num], wanted, atol=1e-6)
  # The rest fills the array up.
  assert np.all(line.values[num:] == line.values[num - 1])


def test_equal_numbers_are_one_knot_with_the_weight_of_all():
  # 32 groups of 100: 3 at one number, 29 at the other.
  x = np.repeat([0.2, 1.0], [300, 2900]).astype(np.float32)
  y = np.zeros(3200)
  y[300:800] = 1  # in 5 of the 29
  line = rule_fitting.increasing(x, y)
  assert np.unique(line.at).tolist() == np.float32([0.2, 1.0]).tolist()
  got = line(jnp.float32([0.0, 0.2, 0.6, 1.0]))
  wanted = 500 / 2900
  np.testing.assert_allclose(got, [0, 0, wanted / 2, wanted], atol=1e-6)


def draw_rows(num, seed):
  """Returns rows whose truth is known.

  The drafter is overconfident: it is right with probability max q ** 3 where
  the arg-maxes agree, and never elsewhere. The verifier is calibrated.
  """
  rng = np.random.default_rng(seed)
  features = rng.uniform(0.05, 0.95, (num, len(learned.FEATURES)))
  features[:, -1] = rng.integers(0, 2, num)
  max_q, max_p, agree = features[:, 0], features[:, 1], features[:, -1]
  q_right = rng.uniform(size=num) < max_q**3 * agree
  p_right = rng.uniform(size=num) < max_p
  # Where they agree the drafter knows the token as well; elsewhere it does not.
  p_gold = rng.uniform(0.3, 0.9, num)
  q_gold = np.where(agree, p_gold, 0.02)
  columns = (features, q_right, p_right, q_gold, p_gold)
  return TokenRows(*(np.asarray(x, np.float32) for x in columns))


@pytest.fixture(scope="module")
def fitted():
  rows, held_out = draw_rows(20_000, 0), draw_rows(4_000, 1)
  how = Fitting(steps=600, batch_size=512, heads="argmax")
  return rule_fitting.fit(rows, held_out, how), held_out


def test_the_heads_learn_who_is_right(fitted):
  parameters, rows = fitted
  g_q, g_p = learned.confidences(
    parameters["heads"], jnp.asarray(rows.features)
  )
  truth = rows.features[:, 0] ** 3 * rows.features[:, -1]
  assert np.abs(g_q - truth).mean() < 0.04
  assert np.abs(g_p - rows.features[:, 1]).mean() < 0.04
  losses = rule_fitting.losses(parameters, rows, Fitting(heads="argmax"))[
    "drafter right"
  ]
  # An isotonic fit does not see whether the arg-maxes agree.
  assert losses["learned"] < losses["isotonic"] - 0.1
  assert losses["isotonic"] < losses["plug-in"] - 0.1


@pytest.mark.slow
def test_heads_of_draws_learn_the_probability_of_the_right_token():
  how = Fitting(steps=300, batch_size=512, heads="sampled")
  rows = draw_rows(20_000, 3)
  heads = rule_fitting.fit(rows, draw_rows(2_000, 4), how)["heads"]
  g_q, _ = learned.confidences(heads, jnp.asarray(rows.features))
  agree = rows.features[:, -1] == 1
  # q(y) is 0.6 in the mean where they agree, and 0.02 elsewhere.
  assert np.abs(np.asarray(g_q) - np.where(agree, 0.6, 0.02)).mean() < 0.04


def test_the_mixture_pays_where_the_verifier_knows_more(fitted):
  parameters, rows = fitted
  agree = rows.features[:, -1] == 1

  def phi(alpha):
    logit = learned.verifier_logit(
      parameters["mixture"], jnp.asarray(rows.features), jnp.float32(alpha)
    )
    return 1 / (1 + np.exp(-np.asarray(logit)))

  # Where both know the token as well, any price but 0 is too dear.
  assert phi(1.0)[agree].mean() < 0.1
  # Elsewhere p(y) is some 30 times q(y): worth log 30 = 3.4 nats.
  assert phi(0.0)[~agree].mean() > 0.9
  assert phi(1.0)[~agree].mean() > 0.8
  # The dearest rejections are not worth it: TV is 0.5 in the mean.
  assert phi(32.0)[~agree].mean() < 0.3
  # No row's loss is further than a little from the best weight's.
  weights = np.linspace(0, 1, 101)[:, None]
  gold = (1 - weights) * rows.q_gold + weights * rows.p_gold
  best = np.min(-np.log(gold) + 2 * weights * rows.features[:, TV], axis=0)
  got = rule_fitting.mixture_loss(
    parameters["mixture"],
    TokenRows(*map(jnp.asarray, rows)),
    jnp.float32(2.0),
  )
  assert -1e-3 < np.mean(np.asarray(got) - best) < 0.15


@pytest.mark.slow
def test_a_fit_repeats_itself():
  rows, how = draw_rows(500, 2), Fitting(steps=20, batch_size=64)
  first, second = (rule_fitting.fit(rows, rows, how) for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, first, second)


def test_one_point_is_a_level_line():
  line = rule_fitting.increasing(np.array([0.5]), np.array([1.0]))
  assert float(line(jnp.float32(0.1))) == 1
