"""Each rule at worked thresholds, a thousandth to either side of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import deferral
from speccascade.decoding.deferral import RULES, rule
from speccascade.decoding.interval import FINITE

# Two worked pairs. Entropies: H(q1) 1.1421200, H(p1) 1.2798542; H(q2) is H(p1)
# (the same numbers in another order), H(p2) .9142856. TV is .3 in both.
Q1, P1 = [0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]
Q2, P2 = [0.3, 0.4, 0.2, 0.1], [0.1, 0.7, 0.15, 0.05]

# rule, pair, the alpha from which on it keeps
THRESHOLDS = [
  ("chow", 1, 0.5),  # 1 - max q
  ("chow", 2, 0.6),
  ("diff", 1, -0.1),  # max p - max q
  ("diff", 2, 0.3),
  ("opt", 1, -1 / 3),  # (max p - max q) / TV
  ("opt", 2, 1.0),
  ("chow_log", 1, 1.1421200),
  ("chow_log", 2, 1.2798542),
  ("diff_log", 1, -0.1377342),
  ("diff_log", 2, 0.3655686),
  ("opt_log", 1, -0.4591139),
  ("opt_log", 2, 1.2185622),
  ("bild_tv", 1, 0.3),
  ("bild_tv", 2, 0.3),
  ("bild_kl", 1, 0.2332323),  # .5 ln 2.5 + .3 ln .75 + .15 ln .5 + .05 ln .5
  ("bild_nll", 1, -math.log(0.2)),
  ("bild_nll", 2, -math.log(0.7)),
]


def pair(number):
  q, p = ((Q1, P1), (Q2, P2))[number - 1]
  return jnp.array(q), jnp.array(p)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("name", "number", "alpha"), THRESHOLDS)
def test_worked_thresholds(name, number, alpha, compiled):
  q, p = pair(number)
  call = lambda a: RULES[name](q, p, alpha=a)
  call = jax.jit(call) if compiled else call
  for shift, defers in ((-1e-3, True), (1e-3, False)):
    left, right = call(jnp.float32(alpha + shift))
    assert left.shape == right.shape == ()
    assert bool(left < right) == defers


def test_js_threshold():
  q, p = (np.array(x) for x in (Q1, P1))
  m = (q + p) / 2
  js = (q * np.log(q / m)).sum() / 2 + (p * np.log(p / m)).sum() / 2
  for shift, defers in ((-1e-3, True), (1e-3, False)):
    left, right = RULES["bild_js"](*pair(1), alpha=js + shift)
    assert bool(left < right) == defers


# rule, pair, alpha, the tokens kept
KEPT = [
  ("token_v1", 1, 0.15, [1, 1, 0, 0]),
  ("token_v2", 1, 0.15, [0, 1, 1, 0]),
  ("token_v3", 1, 0.3, [0, 1, 1, 0]),
  ("token_v3", 1, 0.0, [0, 1, 0, 0]),
  ("token_v1", 2, 0.35, [0, 1, 0, 0]),
  ("token_v3", 2, 0.8, [0, 1, 1, 0]),
  # exp(-H(p)) is .2780778, so the bound is min(.09, .3 * .278 = .0834233).
  ("typical", 1, 0.09, [1, 1, 1, 1]),
  ("typical", 2, 0.09, [1, 1, 1, 0]),  # min(.09, .3 * .4008 = .1202)
  ("lenient_leviathan", 1, 0.3, [0, 1, 1, 0]),
  ("lenient_leviathan", 1, 0.0, [0, 1, 0, 0]),
  # q <= p / (1 - alpha), or the arg-max of p
  ("lenient_cs_paper", 1, 0.3, [0, 1, 1, 1]),
  ("lenient_cs_paper", 1, 0.7, [1, 1, 1, 1]),
  ("lenient_cs_paper", 2, 0.0, [0, 1, 0, 0]),
  # p > 1 - alpha, or the arg-max of p
  ("lenient_cs_code", 1, 0.3, [0, 1, 0, 0]),
  ("lenient_cs_code", 1, 0.75, [0, 1, 1, 0]),
  ("lenient_cs_code", 1, 0.85, [1, 1, 1, 0]),
]


@pytest.mark.parametrize(("name", "number", "alpha", "kept"), KEPT)
def test_worked_keep_sets(name, number, alpha, kept):
  left, right = RULES[name](*pair(number), alpha=jnp.float32(alpha))
  assert left.shape == right.shape == (4,)
  np.testing.assert_array_equal(~(left < right), np.array(kept, bool))


def test_typical_threshold():
  # min(.09, .3 exp(-H)), H(p1) = 1.2798543.
  _, right = RULES["typical"](*pair(1), alpha=jnp.float32(0.09))
  np.testing.assert_allclose(right, 0.0834234, atol=1e-7)
  _, right = RULES["typical"](*pair(2), alpha=jnp.float32(0.09))
  np.testing.assert_allclose(right, 0.09, atol=1e-7)


def test_strict_and_not_strict():
  # Numbers that floats hold exactly, so that equality is equality.
  q, p = jnp.array([0.5, 0.5, 0.0]), jnp.array([0.5, 0.25, 0.25])

  def kept(name, alpha, *pair):
    left, right = RULES[name](*(pair or (q, p)), alpha=jnp.float32(alpha))
    return np.asarray(~(left < right))

  assert kept("chow", 0.5)  # max q = 1 - alpha keeps
  assert kept("diff", 0.0)  # max q = max p keeps
  assert kept("opt", 0.0)
  assert kept("bild_tv", 0.25)  # D = alpha keeps
  # "at least" keeps the token on the line,
  np.testing.assert_array_equal(kept("token_v1", 0.0), [1, 1, 0])
  np.testing.assert_array_equal(kept("token_v2", 0.25), [1, 1, 1])
  np.testing.assert_array_equal(kept("token_v3", 0.5), [1, 1, 1])
  np.testing.assert_array_equal(kept("lenient_leviathan", 0.5), [1, 1, 1])
  # "more than" does not,
  np.testing.assert_array_equal(kept("lenient_cs_code", 0.75), [1, 0, 0])
  # nor typical acceptance: with p uniform on two, e^-H is 1/2 and the bound
  # min(1, 1/2) is p itself.
  half = jnp.array([0.5, 0.5, 0.0])
  np.testing.assert_array_equal(kept("typical", 1.0, half, half), [0, 0, 0])
  # and q <= l p keeps what is equal (l = 2).
  np.testing.assert_array_equal(kept("lenient_cs_paper", 0.5), [1, 1, 1])


def test_the_four_greedy_lenience_rules_differ():
  # p = [.4, .3, .2, .1], the drafted token has q = .5.
  p, alpha = jnp.array([0.4, 0.3, 0.2, 0.1]), jnp.float32(0.5)
  q = jnp.full(4, 0.5)
  kept = {}
  for name in ("lenient_leviathan", "lenient_cs_paper", "lenient_cs_code"):
    left, right = RULES[name](q, p, alpha=alpha)
    kept[name] = np.asarray(~(left < right)).astype(int).tolist()
  assert kept == {
    "lenient_leviathan": [1, 1, 1, 0],  # p >= .2
    "lenient_cs_paper": [1, 1, 0, 0],  # .5 <= 2 p, p >= .25
    "lenient_cs_code": [1, 0, 0, 0],  # p > .5, or the arg-max
  }


def test_nll_looks_at_the_drafters_first_best_token():
  q = jnp.array([0.4, 0.4, 0.2])
  p = jnp.array([0.1, 0.6, 0.3])
  _, value = RULES["bild_nll"](q, p, alpha=1.0)
  np.testing.assert_allclose(value, -math.log(0.1), rtol=1e-6)
  _, value = RULES["bild_nll"](q, p.at[0].set(0), alpha=1.0)
  assert np.isinf(value)


def test_opt_prices_the_sampled_pair():
  q, p = pair(2)  # max p - max q = .3, TV .3
  sharp = jnp.array([0.0, 1.0, 0, 0]), jnp.array([1.0, 0, 0, 0])  # TV 1
  for name, alpha in (("opt", 0.5), ("opt_log", 0.6)):
    left, right = RULES[name](q, p, alpha=alpha)
    assert bool(left < right)
    left, right = RULES[name](q, p, alpha=alpha, sampled=sharp)
    assert not bool(left < right)


@pytest.mark.parametrize("name", RULES)
def test_rules_broadcast_over_leading_axes(name):
  q, p = (jnp.array([[a, b]] * 3) for a, b in ((Q1, Q2), (P1, P2)))
  got = RULES[name](q, p, alpha=0.3)
  for number in (1, 2):
    want = RULES[name](*pair(number), alpha=0.3)
    for side, single in zip(got, want):
      assert side.shape == (3, 2, *single.shape)
      np.testing.assert_allclose(side[1, number - 1], single, rtol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_says_of_itself(name):
  # needs_verifier and needs_confidence: does the answer hang on p, on q?
  known, found = RULES[name], {"q": False, "p": False}
  rng = np.random.default_rng(0)
  q, p, r = (
    jnp.asarray(x, jnp.float32) for x in rng.dirichlet([1] * 5, (3, 64))
  )
  for alpha in np.linspace(-0.9, 0.9, 13):
    if not known.interval.contains(alpha, 5):
      continue
    base = np.less(*known(q, p, alpha=alpha))
    found["q"] |= not np.array_equal(base, np.less(*known(r, p, alpha=alpha)))
    found["p"] |= not np.array_equal(base, np.less(*known(q, r, alpha=alpha)))
  assert known.needs_confidence == found["q"]
  assert known.needs_verifier == found["p"]
  assert known.per_token == (np.ndim(known(q, p, alpha=0.3)[0]) == 2)
  assert known.__doc__


def test_a_rule_of_q_is_called_without_p():
  q, _ = pair(1)
  left, right = RULES["chow"](q, alpha=0.6)
  assert not bool(left < right)
  with pytest.raises(TypeError, match="rule diff needs the verifier's p"):
    RULES["diff"](q, alpha=0.0)


RANGES = {
  "chow": "[0, 1]",
  "diff": "[-1, 1]",
  "opt": "any finite number",
  "chow_log": "[0, 1.38629]",
  "diff_log": "[-1.38629, 1.38629]",
  "opt_log": "any finite number",
  "token_v1": "[-1, 1]",
  "token_v2": "[-1, 1]",
  "token_v3": "[0, 1]",
  "typical": "(0, 1]",
  "bild_tv": "[0, 1]",
  "bild_kl": "0 or more",
  "bild_js": "[0, 0.693147]",
  "bild_nll": "0 or more",
  "lenient_leviathan": "[0, 1]",
  "lenient_cs_paper": "[0, 1)",
  "lenient_cs_code": "[0, 1)",
}


@pytest.mark.parametrize("name", RULES)
def test_ranges(name):
  interval = RULES[name].interval
  assert interval.describe(4) == RANGES[name]
  low, high = interval.ends(4)
  for inside in np.linspace(max(low, -9), min(high, 9), 7)[1:-1]:
    assert interval.contains(inside, 4)
  assert not any(
    interval.contains(x, 4) for x in (math.inf, -math.inf, math.nan)
  )
  if math.isfinite(low):
    assert interval.contains(low, 4) == (not interval.low_open)
    assert not interval.contains(low - 1e-6, 4)
  if math.isfinite(high):
    assert interval.contains(high, 4) == (not interval.high_open)
    assert not interval.contains(high + 1e-6, 4)


def test_a_new_rule_is_a_decorated_function():
  @rule(low=0, high=FINITE, low_open=True)
  def ratio(q, p, *, alpha, sampled=None):
    """Defers where max p is alpha times max q."""
    return alpha * deferral.max_prob(q), deferral.max_prob(p)

  assert ratio.name == "ratio"
  assert ratio.__doc__.startswith("Defers where")
  assert ratio.needs_verifier
  assert ratio.interval.describe(9) == "more than 0"
  left, right = ratio(*pair(2), alpha=1.5)
  assert bool(left < right)
