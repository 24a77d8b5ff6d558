"""Learned rules: what they see, their plug-ins, their distributions, what they
compile.

The tests of the table cover the rows with parameters that correct nothing.
Here the parameters are drawn, so that each of them matters.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from speccascade.decoding import METHODS, Sampling
from speccascade.decoding.laws import deferral, fitted, learned
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.target_checks import trial_pairs
from speccascade.decoding.programs import decoders
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding import enumeration

ROWS = [name for name, row in METHODS.items() if row.has_parameters]
BLOCKS = [name for name in ROWS if METHODS[name].has_blocks]
ALPHA = 0.4


def drawn(kind: fitted.ParameterKind, seed: int = 0):
  """Returns parameters of a kind, drawn at random."""
  rng = np.random.default_rng(seed)
  plug_in = kind.plug_in()
  if kind is learned.CALIBRATION:
    # The drafter is less sure than it says, and the verifier surer.
    def line(low, high):
      at, values = np.sort(rng.uniform(0, 1, (2, learned.KNOTS)))
      values = low + (high - low) * values
      return learned.Increasing(np.float32(at), np.float32(values))

    return learned.Calibration(of_q=line(0, 0.6), of_p=line(0.4, 1))
  return jax.tree.map(
    lambda leaf: rng.normal(0, 0.7, leaf.shape).astype(np.float32), plug_in
  )


def fitted_alpha(name: str, alpha: float = ALPHA, seed: int = 0) -> FittedAlpha:
  return FittedAlpha(alpha, drawn(METHODS[name].target.kind, seed))


# What a rule sees.


def slow_features(q, p) -> list[float]:
  """Returns the features of one pair, in float64 and one by one."""
  q, p = (np.asarray(x, np.float64) for x in (q, p))
  most = [sorted(x, reverse=True) for x in (q, p)]
  places = [min(np.flatnonzero(x == x.max())) for x in (q, p)]
  return [
    most[0][0],
    most[1][0],
    stats.entropy(q),
    stats.entropy(p),
    most[0][0] - most[0][1],
    most[1][0] - most[1][1],
    q[places[1]],
    p[places[0]],
    sum(max(b - a, 0) for a, b in zip(q, p)),
    float(places[0] == places[1]),
  ]


def test_features():
  q, p = trial_pairs(7)
  wanted = [slow_features(*pair) for pair in zip(q, p)]
  np.testing.assert_allclose(learned.features(q, p), wanted, atol=1e-6)
  assert len(wanted[0]) == len(learned.FEATURES)


def test_an_increasing_function_is_lines_between_its_knots():
  line = drawn(learned.CALIBRATION).of_q
  x = np.linspace(-0.5, 1.5, 101, dtype=np.float32)
  wanted = np.interp(x, line.at, line.values)
  np.testing.assert_allclose(line(jnp.asarray(x)), wanted, atol=1e-5)
  # Knots that only fill the array up, as a fit leaves them.
  few = learned.Increasing(
    *(np.pad(v, (0, 9), mode="edge") for v in (line.at, line.values))
  )
  np.testing.assert_allclose(few(jnp.asarray(x)), wanted, atol=1e-5)


def test_a_network_is_one_hidden_layer():
  network = drawn(learned.HEADS, 3)
  x = np.random.default_rng(1).normal(size=(5, 2, len(learned.FEATURES)))
  w = jax.tree.map(np.float64, network)
  hidden = np.tanh((x - w.mean) * w.scale @ w.kernel + w.bias)
  got = network(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(
    got, hidden @ w.out + w.shift, rtol=1e-4, atol=1e-4
  )


# Without parameters, and with them.


@pytest.mark.parametrize(
  ("rule", "plug_in", "atol"),
  [
    (learned.chow_calibrated, deferral.chow, 0),
    (learned.diff_calibrated, deferral.diff, 0),
    (learned.opt_calibrated, deferral.opt, 0),
    # The sigmoid of a logit; and 1 has no logit.
    (learned.learned, deferral.opt, 3e-6),
  ],
)
def test_a_rule_that_corrects_nothing_is_its_plug_in(rule, plug_in, atol):
  q, p = trial_pairs(7)
  got, wanted = (r(q, p, alpha=ALPHA, sampled=(p, q)) for r in (rule, plug_in))
  np.testing.assert_allclose(got, wanted, rtol=0, atol=max(atol, 2e-7))


def test_the_learned_rule_prices_what_its_heads_say():
  q, p = trial_pairs(7)
  alpha = fitted_alpha("spec_cascade_learned")
  left, right = learned.learned(q, p, alpha=alpha, sampled=(q, q))
  seen = np.array([slow_features(*pair) for pair in zip(q, p)], np.float32)
  outputs = np.asarray(alpha.parameters(jnp.asarray(seen)), np.float64)
  most = np.clip(seen[:, :2].astype(np.float64), 1e-6, 1 - 1e-6)
  g_q, g_p = (1 / (1 + (1 - most) / most * np.exp(-outputs))).T
  # TV is that of the sampled pair, and is 0 here.
  np.testing.assert_allclose(left, g_q, atol=1e-5)
  np.testing.assert_allclose(right, g_p, atol=1e-5)
  _, priced = learned.learned(q, p, alpha=alpha, sampled=(q, p))
  tv = np.maximum(p - q, 0).sum(-1)
  np.testing.assert_allclose(priced, g_p - ALPHA * tv, atol=1e-5)
  assert not np.array_equal(left < right, np.max(q, -1) < np.max(p, -1))


def test_calibrated_rules_compare_what_the_fits_say():
  q, p = trial_pairs(7)
  alpha = fitted_alpha("spec_cascade_opt_calibrated")
  c = alpha.parameters
  c_q = np.interp(np.max(q, -1), c.of_q.at, c.of_q.values)
  c_p = np.interp(np.max(p, -1), c.of_p.at, c.of_p.values)
  tv = np.maximum(p - q, 0).sum(-1)
  for rule, wanted in (
    (learned.chow_calibrated, (c_q, 1 - ALPHA + 0 * c_q)),
    (learned.diff_calibrated, (c_q, c_p - ALPHA)),
    (learned.opt_calibrated, (c_q, c_p - ALPHA * tv)),
  ):
    np.testing.assert_allclose(rule(q, p, alpha=alpha), wanted, atol=1e-5)
  # The price is that of the pair that tokens are drawn from.
  drawn_from = q[::-1], p
  tv = np.maximum(p - q[::-1], 0).sum(-1)
  got = learned.opt_calibrated(q, p, alpha=alpha, sampled=drawn_from)
  np.testing.assert_allclose(got, (c_q, c_p - ALPHA * tv), atol=1e-5)


def test_the_mixture_mixes_the_sampled_pair():
  q, p = trial_pairs(7)
  # A network of zeros: phi is 1 / (1 + exp(asinh(alpha))), at 0 a half.
  for alpha, phi in ((0.0, 0.5), (0.75, 1 / 3), (-0.75, 2 / 3)):
    pi = learned.mixture.probs(q, p, alpha=alpha, sampled=(p, q))
    np.testing.assert_allclose(pi, (1 - phi) * p + phi * q, atol=1e-6)
  alpha = fitted_alpha("spec_cascade_mixture")
  seen = np.array([slow_features(*pair) for pair in zip(q, p)], np.float32)
  price = np.float32(np.arcsinh(ALPHA))
  inputs = np.concatenate([seen, np.full((len(q), 1), price)], 1)
  logit = np.asarray(alpha.parameters(jnp.asarray(inputs)))[:, 0] - price
  phi = 1 / (1 + np.exp(-logit.astype(np.float64)))[:, None]
  pi = learned.mixture.probs(q, p, alpha=alpha)
  np.testing.assert_allclose(pi, (1 - phi) * q + phi * p, atol=1e-5)
  assert phi.std() > 0.05


# Distributions, with parameters that were drawn.


@pytest.mark.parametrize("name", toy.nightly(BLOCKS, BLOCKS[:2]))
def test_output_has_the_law_of_the_targets_chain(name):
  """Path by path, as tests/decoding/test_exact_laws.py does for the table."""
  target = METHODS[name].target
  chain, sampling = toy.pair(3, 2), Sampling.create(0.8)
  law = method_laws.laws(chain, target, fitted_alpha(name), sampling)
  plug_in = method_laws.laws(chain, target, ALPHA, sampling)
  assert np.abs(law.pi - plug_in.pi).max() > 0.01
  for verification in ("token", "block"):
    enumeration.assert_law(chain, law, 2, 4, verification=verification)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_samples_have_the_law_of_the_parameters(name):
  """Chi-square at 1e-6 on 100,000 rows, which the plug-in must fail."""
  chain, length = toy.pair(3, 2), 4
  alpha, sampling = fitted_alpha(name), Sampling.create(1.0)
  of = functools.partial(method_laws.laws, chain, METHODS[name].target)
  laws = [
    toy_chains.chain_law(chain, of(a, sampling).pi, length)
    for a in (alpha, ALPHA)
  ]
  seen = toy.sample(
    name,
    chain.models(),
    alpha,
    sampling,
    inputs=chain.inputs,
    num=100_000,
    seed=5,
    gamma=2,
    max_decode_len=length,
  )
  assert goodness.p_value(seen, laws[0]) > toy.LEVEL
  assert goodness.p_value(seen, laws[1]) < toy.LEVEL


# Programs, and what is refused.


def test_other_parameters_and_alphas_compile_nothing_new():
  """And rows of parameters of one shape share no program with one another."""
  decoders._run.clear_cache()  # other tests of this process compile the same
  models = toy.sources(num=4)
  outputs = []
  for seed, alpha in itertools.product((0, 1), (-0.5, 0.5)):
    given = fitted_alpha("spec_cascade_learned", alpha, seed)
    decoded = toy.decode(
      "spec_cascade_learned", models, given, Sampling.create(1.0)
    )
    outputs.append(decoded.tokens)
  assert decoders._run._cache_size() == 1
  assert len({x.tobytes() for x in outputs}) > 1


@pytest.mark.parametrize(
  ("name", "given", "message"),
  [
    (
      "spec_cascade_learned",
      "spec_cascade_opt_calibrated",
      "takes parameters of the kind 'heads', and was given others",
    ),
    (
      "spec_cascade_learned",
      "spec_cascade_mixture",
      "takes parameters of the kind 'heads', and was given others",
    ),
    (
      "spec_cascade_opt",
      "spec_cascade_learned",
      "no parameters, .*pass alpha as a number",
    ),
  ],
)
def test_parameters_of_another_rule_are_refused(name, given, message):
  with pytest.raises(ValueError, match=message):
    METHODS[name].check_alpha(fitted_alpha(given), 7)


def test_an_alpha_outside_the_range_is_refused_with_parameters_too():
  with pytest.raises(ValueError, match=r"alpha is 3; SpecCascade \[Chow, cal"):
    METHODS["spec_cascade_chow_calibrated"].check_alpha(
      fitted_alpha("spec_cascade_chow_calibrated", 3.0), 7
    )
