"""Exact laws: every path of a decode on toy chains, for every row of the table.

The law of the output, enumerated over every draft, acceptance, residual and
bonus through the product's own functions, is that of the chain of the row's
target, to 1e-10 in float64. See `enumeration`.
"""

import functools
import math

import jax
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling
from speccascade.decoding import target as targets
from speccascade.decoding.deferral import opt, rule
from speccascade.decoding.target import defer
from tests import toy
from tests.decoding import enumeration

BLOCKS = [name for name, row in METHODS.items() if row.has_blocks]
SAMPLED = [name for name in BLOCKS if not METHODS[name].greedy_only]
TARGETS = [name for name, row in METHODS.items() if row.target is not None]
# (vocabulary, order, gamma, length)
CHAINS = [(3, 2, 1, 5), (3, 2, 2, 4), (3, 2, 3, 5), (4, 1, 2, 4)]
SAMPLINGS = {
  "T=0": {"temperature": 0.0},
  "T=0.5": {"temperature": 0.5},
  "T=1": {"temperature": 1.0},
  "T=1.7": {"temperature": 1.7},
  "top-k": {"temperature": 1.0, "top_k": 2},
  "top-p": {"temperature": 0.9, "top_p": 0.8},
  "both": {"temperature": 1.3, "top_k": 3, "top_p": 0.7},
}
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def alpha_grid(name: str, vocab_size: int) -> np.ndarray:
  low, high = METHODS[name].alpha_interval.ends(vocab_size)
  low, high = max(low, -1.5), min(high, 1.5)
  return low + (high - low) * np.linspace(0.02, 0.98, 41)


@functools.cache
def telling_alpha(name: str, vocab_size: int, order: int) -> float:
  """Returns the alpha whose pi is farthest from both p and q, T = 1."""
  if METHODS[name].target is targets.lossless:
    return 0.0
  chain, row = toy.pair(vocab_size, order), METHODS[name]

  def distance(alpha):
    law = enumeration.laws(chain, row.target, alpha, Sampling.create(1.0))
    pi, p, q = (toy.chain_law(chain, x, 4) for x in (law.pi, law.p, law.q))
    return min(toy.tv(pi, p), toy.tv(pi, q))

  return float(max(alpha_grid(name, vocab_size), key=distance))


def cases(name):
  """Yields (what, pair, gamma, length, laws) for a row of the table."""
  row = METHODS[name]
  for vocab, order, gamma, length in CHAINS:
    chain = toy.pair(vocab, order)
    alpha = telling_alpha(name, vocab, order)
    for label, settings in SAMPLINGS.items():
      sampling = Sampling.create(**settings)
      if row.greedy_only and not sampling.greedy:
        continue
      law = enumeration.laws(chain, row.target, alpha, sampling)
      what = f"{name}, V={vocab}, gamma={gamma}, alpha={alpha:.3g}, {label}"
      yield what, chain, gamma, length, law


def assert_same(got, want, what):
  assert abs(want.sum() - 1) < TOLERANCE, what
  assert np.abs(got - want).max() < TOLERANCE, what


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("name", BLOCKS)
def test_output_has_the_law_of_the_targets_chain(name, verification):
  for what, chain, gamma, length, law in cases(name):
    got = enumeration.speculative_law(
      chain, law, gamma, length, verification=verification
    )
    assert_same(got, toy.chain_law(chain, law.pi, length), what)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_printed_bonus_has_its_own_law(name):
  for what, chain, gamma, length, law in cases(name):
    got = enumeration.speculative_law(
      chain, law, gamma, length, bonus="verifier"
    )
    want = enumeration.verifier_bonus_law(chain, law, gamma, length)
    assert_same(got, want, what)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("policy", ["max_prob", "token_prob"])
@pytest.mark.parametrize("name", SAMPLED)
def test_a_block_may_stop_early(name, policy, verification):
  for vocab, order, gamma, length in CHAINS:
    chain = toy.pair(vocab, order)
    alpha = telling_alpha(name, vocab, order)
    law = enumeration.laws(
      chain, METHODS[name].target, alpha, Sampling.create(0.8)
    )
    lengths = set()
    for threshold in (0.3, 0.6):
      how = {
        "verification": verification,
        "policy": DraftLength(policy, threshold),
      }
      paths = enumeration.block(chain, law, gamma, **how)
      lengths |= set(paths.count[paths.draft_prob > 0].tolist())
      got = enumeration.speculative_law(chain, law, gamma, length, **how)
      what = f"{name}, V={vocab}, gamma={gamma}, below {threshold}"
      assert_same(got, toy.chain_law(chain, law.pi, length), what)
    # Some blocks stopped (an empty block needs the law before the draw).
    least = 0 if policy == "max_prob" else 1
    assert lengths == set(range(least, gamma + 1))


def test_dropping_a_draft_for_its_own_probability_would_bias():
  # Why `token_prob` keeps the token that it stops at: were it dropped, the
  # worked law [.2, .4, .3, .1] would become [.24, .48, .21, .07]. The drafter's
  # tokens below .2 are dropped and then drawn again from p.
  q, p = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.4, 0.3, 0.1])
  dropped = q < 0.2
  kept = np.where(dropped, 0, np.minimum(q, p))
  rejected = np.where(dropped, 0, q).sum() - kept.sum()
  rest = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
  law = kept + rejected * rest + q[dropped].sum() * p
  np.testing.assert_allclose(law, [0.24, 0.48, 0.21, 0.07], atol=1e-12)


# What a mistake would do: the chains are such that it shows.


def wrong_replacement_law(chain, law, length):
  """The law if a rejected draft were replaced from pi, not the residual."""
  kept = np.minimum(law.q, law.pi)
  rejected = 1 - kept.sum(-1, keepdims=True)
  wrong = kept + rejected * law.pi
  return toy.chain_law(chain, wrong, length)


@pytest.mark.parametrize("name", SAMPLED)
def test_the_chains_show_known_mistakes(name):
  row = METHODS[name]
  shown = {}
  for vocab, order in ((3, 2), (4, 1)):
    chain = toy.pair(vocab, order)
    alpha = telling_alpha(name, vocab, order)
    law = enumeration.laws(chain, row.target, alpha, Sampling.create(1.0))
    right = toy.chain_law(chain, law.pi, 4)
    wrong = {
      "q for pi": toy.chain_law(chain, law.q, 4),
      "pi for the residual": wrong_replacement_law(chain, law, 4),
    }
    if row.target is not targets.lossless:
      wrong["p for pi"] = toy.chain_law(chain, law.p, 4)
      wrong["p for the bonus"] = enumeration.verifier_bonus_law(
        chain, law, 1, 4
      )
    for mistake, other in wrong.items():
      shown[mistake] = max(shown.get(mistake, 0), toy.tv(right, other))
  assert min(shown.values()) > 0.02, shown


def test_the_price_is_paid_in_scaled_total_variation():
  # Remark 3: OPT's TV is of the pair that is sampled from. There is a price at
  # which the other TV gives another law.
  chain = toy.pair(3, 2)

  def unscaled(q, p, *, alpha, sampled=None):
    return opt(q, p, alpha=alpha)

  right, mistaken = METHODS["spec_cascade_opt"].target, defer(rule()(unscaled))
  worst = 0
  for alpha in np.linspace(-1.5, 1.5, 41):
    laws = [
      enumeration.laws(chain, target, alpha, Sampling.create(0.5))
      for target in (right, mistaken)
    ]
    worst = max(worst, toy.tv(*(toy.chain_law(chain, x.pi, 4) for x in laws)))
  assert worst > 0.02


# End points.

# Where the low end of alpha is the verifier itself. OPT's is at minus infinity,
# V3 keeps the verifier's arg-max at 0, typical acceptance has its own scale.
LOW_IS_LOSSLESS = {
  "spec_decode_lossy": 0.0,
  "spec_decode_lossy_star": 0.0,
  "mentored": 0.0,
  "bild_star": 0.0,
  "bild_star_kl": 0.0,
  "bild_star_js": 0.0,
  "spec_cascade_chow": 0.0,
  "spec_cascade_diff": -1.0,
  "spec_cascade_opt": -100.0,
  "spec_cascade_chow_log": 0.0,
  "spec_cascade_diff_log": -math.inf,
  "spec_cascade_opt_log": -100.0,
  "spec_cascade_token_v1": -1.0,
  "spec_cascade_token_v2": -1.0,
  "ensemble": 0.0,
}
HIGH_IS_DRAFTER = {
  "spec_decode_lossy": 0.999,
  "spec_decode_lossy_star": 0.999,
  "mentored": 100.0,
  "bild_star": 1.0,
  "bild_star_js": math.log(2),
  "bild_star_nll": 100.0,
  "spec_cascade_chow": 1.0,
  "spec_cascade_diff": 1.0,
  "spec_cascade_opt": 100.0,
  "spec_cascade_chow_log": math.inf,
  "spec_cascade_diff_log": math.inf,
  "spec_cascade_opt_log": 100.0,
  "spec_cascade_token_v1": 1.0,
  "spec_cascade_token_v2": 1.0,
  "spec_cascade_token_v3": 1.0,
  "ensemble": 1.0,
}


def at_end(name, alpha):
  """Returns the laws with alpha cut to the row's range."""
  # No zeros here: with one, a drafter and a verifier can be worlds apart, and
  # ratios are infinite.
  chain = toy.pair(3, 2)
  flat = [np.where(np.isinf(x), -4, x) for x in chain.flat()]
  shape = chain.q_logits.shape
  chain = toy.Pair(*(x.reshape(shape) for x in flat))
  low, high = METHODS[name].alpha_interval.ends(3)
  alpha = min(max(alpha, low), high)
  law = enumeration.laws(
    chain, METHODS[name].target, alpha, Sampling.create(1.0)
  )
  return law


@pytest.mark.parametrize("name", LOW_IS_LOSSLESS)
def test_the_low_end_is_the_verifier(name):
  law = at_end(name, LOW_IS_LOSSLESS[name])
  # The budget's root is found by 30 bisections.
  tolerance = 1e-8 if name == "mentored" else TOLERANCE
  assert np.abs(law.pi - law.p).max() < tolerance


@pytest.mark.parametrize("name", HIGH_IS_DRAFTER)
def test_the_high_end_is_the_drafter(name):
  law = at_end(name, HIGH_IS_DRAFTER[name])
  assert np.abs(law.pi - law.q).max() < TOLERANCE


def test_every_row_has_its_ends_named():
  plain = {n for n in SAMPLED if METHODS[n].compose is None}
  without_low = {"spec_decode", "bild_star_nll", "spec_cascade_token_v3"}
  without_low |= {"spec_cascade_typical"}
  assert set(LOW_IS_LOSSLESS) == plain - without_low
  without_high = {"spec_decode", "bild_star_kl", "spec_cascade_typical"}
  assert set(HIGH_IS_DRAFTER) == plain - without_high


# Temperature 0.


@pytest.mark.parametrize(
  "name", ["spec_decode_lossy", "spec_decode_lossy_star", "mentored"]
)
def test_lossy_at_temperature_0_is_spec_decode(name):
  chain = toy.pair(3, 2)
  for alpha in (*alpha_grid(name, 3)[::8], METHODS[name].default_alpha):
    law = enumeration.laws(
      chain, METHODS[name].target, alpha, Sampling.create(0.0)
    )
    assert np.array_equal(law.pi, law.p)


def test_opt_and_diff_agree_at_temperature_0():
  # Remark 4, Lemma 8: where they differ both models say the same.
  rows = METHODS["spec_cascade_opt"], METHODS["spec_cascade_diff"]
  for seed in range(8):
    chain, decided = toy.pair(4, 1, seed), set()
    for alpha in np.linspace(-1, 1, 21):
      pi = [
        enumeration.laws(chain, row.target, alpha, Sampling.create(0.0)).pi
        for row in rows
      ]
      assert np.array_equal(*pi)
      decided.add(pi[0].tobytes())
    assert len(decided) > 1


def test_deltas_keep_one_model_a_token():
  # A position rule's pi is q or p, never a third thing.
  chain = toy.pair(3, 2)
  alpha = telling_alpha("bild_star", 3, 2)
  law = enumeration.laws(
    chain, METHODS["bild_star"].target, alpha, Sampling.create(1.0)
  )
  is_q = np.all(law.pi == law.q, axis=-1)
  is_p = np.all(law.pi == law.p, axis=-1)
  assert np.all(is_q | is_p)
  assert is_q.any()
  assert is_p.any()


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_distributions(name):
  # Whatever the pair: zeros, ties, one-hot rows, q = p; also in float32.
  alphas = alpha_grid(name, 7)[[0, 20, 40]]
  for alpha in (*alphas, METHODS[name].default_alpha):
    targets.check(METHODS[name].target, alpha=float(alpha))
    q, p = targets.trial_pairs(7, np.float64)
    pi = METHODS[name].target.probs(q, p, alpha=float(alpha))
    assert np.abs(np.asarray(pi).sum(-1) - 1).max() < 1e-12
    assert np.asarray(pi).min() >= 0
