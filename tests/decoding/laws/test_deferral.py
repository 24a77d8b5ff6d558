"""Each rule at worked thresholds, a thousandth to either side of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.laws.deferral import RULES
from speccascade.decoding.laws.interval import Interval
from tests import toy

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
  ("bild_js", 1, 0.0537807),  # half the KL of each from (q + p) / 2
  ("bild_nll", 1, -math.log(0.2)),
  ("bild_nll", 2, -math.log(0.7)),
]


# Numbers that floats hold exactly, so that equality is equality.
LINE = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.25, 0.25])
PAIRS = toy.WORKED | {"line": LINE, "same": LINE[:1] * 2}


def pair(number):
  return tuple(jnp.asarray(x, jnp.float32) for x in PAIRS[number])


def keep_set(name, alpha, q, p) -> list:
  """Returns the tokens, or the position, that a rule keeps."""
  left, right = RULES[name](q, p, alpha=jnp.float32(alpha))
  return np.asarray(~(left < right)).astype(int).tolist()


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


# rule, pair, alpha, what is kept; `test_target` has V1 to V3
KEEP_SETS = [
  # exp(-H(p)) is .2780778: min(.64, .8 * .278 = .2225), and .4008 of pair 2
  ("typical", 1, 0.64, [0, 1, 1, 0]),
  ("typical", 1, 0.09, [1, 1, 1, 1]),  # min(.09, .3 * .278 = .0834)
  ("typical", 2, 0.09, [1, 1, 1, 0]),  # min(.09, .3 * .4008 = .1202)
  ("top_k", 1, 1, [0, 1, 0, 0]),
  ("top_k", 1, 2.5, [1, 1, 1, 0]),
  ("top_k", "line", 2, [1, 1, 1]),  # as likely as the second
  ("top_k", "same", 1, [1, 1, 0]),
  ("min2", 1, 0.26, [0, 1, 1, 0]),
  ("min2", 1, 0.24, [0, 1, 0, 0]),
  ("min2", 1, 1.0, [0, 1, 1, 0]),
  ("min2", "line", 0.5, [1, 1, 0]),  # of equals the lower id
  ("min2", "same", 0.0, [1, 1, 0]),
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
  # On the line.
  ("chow", "line", 0.5, 1),  # max q = 1 - alpha keeps
  ("diff", "line", 0.0, 1),  # max q = max p keeps
  ("opt", "line", 0.0, 1),
  ("bild_tv", "line", 0.25, 1),  # D = alpha keeps
  # "at least" keeps the token on the line,
  ("token_v1", "line", 0.0, [1, 1, 0]),
  ("token_v2", "line", 0.25, [1, 1, 1]),
  ("token_v3", "line", 0.5, [1, 1, 1]),
  ("lenient_leviathan", "line", 0.5, [1, 1, 1]),
  ("lenient_cs_paper", "line", 0.5, [1, 1, 1]),  # q <= l p, l = 2
  # "more than" does not,
  ("lenient_cs_code", "line", 0.75, [1, 0, 0]),
  # nor typical acceptance: with p uniform on two, e^-H is 1/2 and the bound
  # min(1, 1/2) is p itself.
  ("typical", "same", 1.0, [0, 0, 0]),
]


@pytest.mark.parametrize(("name", "number", "alpha", "expected"), KEEP_SETS)
def test_worked_keep_sets(name, number, alpha, expected):
  assert keep_set(name, alpha, *pair(number)) == expected


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
def test_what_a_rule_says_of_itself(name):
  # needs_verifier and needs_confidence: does the answer depend on p, on q?
  hangs_on_q = hangs_on_p = False
  rng = np.random.default_rng(0)
  q, p, r = (
    jnp.asarray(x, jnp.float32) for x in rng.dirichlet([1] * 5, (3, 64))
  )
  known = RULES[name]
  # One program for all alphas: some rules search in loops.
  sides = jax.jit(lambda q, p, alpha: known(q, p, alpha=alpha))
  low, high = known.interval.ends(5)
  for alpha in np.linspace(max(low, -0.9), min(high, 4.0), 13):
    if not known.interval.contains(alpha, 5):
      continue
    base = np.less(*sides(q, p, alpha))
    hangs_on_q |= np.any(base != np.less(*sides(r, p, alpha)))
    hangs_on_p |= np.any(base != np.less(*sides(q, r, alpha)))
  assert known.needs_confidence == hangs_on_q
  assert known.needs_verifier == hangs_on_p
  assert known.per_token == (np.ndim(known(q, p, alpha=alpha)[0]) == 2)
  assert known.__doc__


def test_a_rule_of_q_is_called_without_p():
  q, _ = pair(1)
  left, right = RULES["chow"](q, alpha=0.6)
  assert not bool(left < right)
  with pytest.raises(TypeError, match="rule diff needs the verifier's p"):
    RULES["diff"](q, alpha=0.0)


# The ranges of the papers' rules.
RANGES = {
  "chow": "[0, 1]",
  "diff": "[-1, 1]",
  "opt": "any finite number",
  "chow_log": "[0, 1.38629]",
  "diff_log": "[-1.38629, 1.38629]",
  "opt_log": "any finite number",
  "bild_tv": "[0, 1]",
  "bild_kl": "0 or more",
  "bild_js": "[0, 0.693147]",
  "bild_nll": "0 or more",
  "token_v1": "[-1, 1]",
  "token_v2": "[-1, 1]",
  "token_v3": "[0, 1]",
  "typical": "(0, 1]",
  "top_k": "[1, 4]",
  "min2": "[0, 1]",
  "lenient_leviathan": "[0, 1]",
  "lenient_cs_paper": "[0, 1)",
  "lenient_cs_code": "[0, 1)",
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_in_words(name):
  assert RULES[name].interval.describe(4) == RANGES[name]


@pytest.mark.parametrize("name", RULES)
def test_ranges(name):
  interval = RULES[name].interval
  low, high = interval.ends(4)
  for inside in np.linspace(max(low, -9), min(high, 9), 7)[1:-1]:
    assert interval.contains(inside, 4)
  assert not any(
    interval.contains(x, 4) for x in (math.inf, -math.inf, math.nan)
  )
  for end, is_open, outside in (
    (low, interval.low_open, low - 1e-6),
    (high, interval.high_open, high + 1e-6),
  ):
    if math.isfinite(end):
      assert interval.contains(end, 4) == (not is_open)
      assert not interval.contains(outside, 4)


@pytest.mark.parametrize(
  ("interval", "inside", "outside"),
  [
    # Programs use float32, in which a number can be an end, or infinite.
    (Interval(), -3e38, -1e39),
    (Interval(0, 1, low_open=True), 1e-45, 1e-46),
    (Interval(0, 1, high_open=True), 0.9999999, 0.99999999),
    # A closed end is itself, whatever float32 makes of it.
    (Interval(0.1, 0.7), 0.7, 0.70000001),
  ],
)
def test_a_range_is_that_of_float32(interval, inside, outside):
  assert interval.contains(inside, 4)
  assert not interval.contains(outside, 4)


def test_a_range_without_one_end_in_words():
  assert Interval(high=3.0).describe(4) == "(-inf, 3]"
  assert Interval(0, low_open=True).describe(4) == "more than 0"
