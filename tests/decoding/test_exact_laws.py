"""Exact laws: every path of a decode on toy chains, for every row of the table.

The distribution of the output, enumerated over every draft, acceptance,
residual and bonus through the product's own functions, is that of the chain of
the row's target, to 1e-10 in float64. See `enumeration`.
"""

import functools
import math

import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling
from speccascade.decoding.laws import target_checks, targets
from speccascade.judge import goodness
from tests import chunk_laws, method_laws, toy, toy_chains
from tests.decoding import enumeration

BLOCKS = [name for name, row in METHODS.items() if row.has_blocks]
SAMPLED = [name for name in BLOCKS if not METHODS[name].greedy_only]
# A calibrated rule is its plug-in here; tests/decoding/laws/test_learned.py
# draws its parameters.
DAILY = [name for name in BLOCKS if not name.endswith("_calibrated")]
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
  "all": {"temperature": 1.3, "top_k": 3, "top_p": 0.9, "min_p": 0.3},
}
pytestmark = pytest.mark.usefixtures("float64")


def alpha_grid(name: str, vocab_size: int) -> np.ndarray:
  low, high = METHODS[name].alpha_interval.ends(vocab_size)
  low, high = max(low, -1.5), min(high, 1.5)
  return low + (high - low) * np.linspace(0.02, 0.98, 41)


def laws_of(name, chain, alpha=None, **settings):
  """Returns the `method_laws.MethodLaws` of a row's target.

  Args:
    name: of the row.
    chain: a `toy.Pair`.
    alpha: None for `telling_alpha`.
    **settings: of the `Sampling`; temperature 1 by default.
  """
  if alpha is None:
    alpha = telling_alpha(name, chain.vocab_size, chain.order)
  sampling = Sampling.create(**{"temperature": 1.0} | settings)
  return method_laws.laws(chain, METHODS[name].target, alpha, sampling)


@functools.cache
def telling_alpha(name: str, vocab_size: int, order: int) -> float:
  """Returns the alpha whose pi is farthest from both p and q, T = 1."""
  if METHODS[name].target is targets.lossless:
    return 0.0
  chain = toy.pair(vocab_size, order)

  def distance(alpha):
    law = laws_of(name, chain, alpha)
    pi, p, q = (
      toy_chains.chain_law(chain, x, 4) for x in (law.pi, law.p, law.q)
    )
    return min(goodness.tv(pi, p), goodness.tv(pi, q))

  return float(max(alpha_grid(name, vocab_size), key=distance))


def cases(name):
  """Yields (what, pair, gamma, length, laws) for a row of the table."""
  for vocab, order, gamma, length in CHAINS:
    chain = toy.pair(vocab, order)
    for label, settings in SAMPLINGS.items():
      if METHODS[name].greedy_only and label != "T=0":
        continue
      law = laws_of(name, chain, **settings)
      yield f"{name}, V={vocab}, {gamma}, {label}", chain, gamma, length, law


WAYS = {
  "token": {"verification": "token"},
  "block": {"verification": "block"},
  "printed bonus": {"bonus": "verifier"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", toy.nightly(BLOCKS, DAILY))
def test_output_has_the_law_of_the_targets_chain(name, way):
  """Or, with the bonus token as printed, what Algorithm 4 then writes."""
  for what, chain, gamma, length, law in cases(name):
    expected = None
    if way == "printed bonus":
      expected = chunk_laws.verifier_bonus_law(chain, law, gamma, length)
    point = chain, law, gamma, length, expected
    enumeration.assert_law(*point, what=what, **WAYS[way])


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("policy", ["max_prob", "token_prob"])
@pytest.mark.parametrize("name", toy.nightly(SAMPLED, DAILY))
def test_a_block_may_stop_early(name, policy, verification):
  for vocab, order, gamma, length in CHAINS:
    chain, lengths = toy.pair(vocab, order), set()
    law = laws_of(name, chain, temperature=0.8)
    for threshold in (0.3, 0.6):
      options = {"policy": DraftLength(policy, threshold)}
      options["verification"] = verification
      paths = enumeration.block(chain, law, gamma, **options)
      lengths |= set(paths.count[paths.draft_prob > 0].tolist())
      what = f"{name}, V={vocab}, gamma={gamma}, {threshold}"
      enumeration.assert_law(chain, law, gamma, length, what=what, **options)
    # Some blocks stopped (an empty block needs the distribution before the
    # draw).
    assert lengths == set(range(policy == "token_prob", gamma + 1))


# What a mistake would do: the chains are such that it shows.


@pytest.mark.parametrize("name", toy.nightly(SAMPLED, DAILY))
def test_the_chains_show_known_mistakes(name):
  shown = {}
  for vocab, order in ((3, 2), (4, 1)):
    chain = toy.pair(vocab, order)
    law = laws_of(name, chain)
    right = toy_chains.chain_law(chain, law.pi, 4)
    wrong = {
      "q for pi": toy_chains.chain_law(chain, law.q, 4),
      "pi for the residual": chunk_laws.wrong_replacement_law(chain, law, 4),
    }
    if METHODS[name].target is not targets.lossless:
      wrong["p for pi"] = toy_chains.chain_law(chain, law.p, 4)
      bonus = chunk_laws.verifier_bonus_law(chain, law, 1, 4)
      wrong["p for the bonus"] = bonus
    for mistake, other in wrong.items():
      shown[mistake] = max(shown.get(mistake, 0), goodness.tv(right, other))
  assert min(shown.values()) > 0.02, shown


# End points.

# The alphas at which pi is p, and q, cut to the row's range. Of the missing
# ones OPT's are at infinity, some rules keep the verifier's arg-max at every
# alpha, typical acceptance has its own scale, and Min2 keeps two tokens or one.
LOW_IS_VERIFIER = {
  "spec_decode_lossy": 0.0,
  "spec_decode_lossy_star": 0.0,
  "mentored": 0.0,
  "mentored_tv": 0.0,
  "cactus": 0.0,
  "bild_star": 0.0,
  "bild_star_kl": 0.0,
  "bild_star_js": 0.0,
  "spec_cascade_chow": 0.0,
  "spec_cascade_chow_log": 0.0,
  "ensemble": 0.0,
  "spec_cascade_opt": -100.0,
  "spec_cascade_opt_log": -100.0,
  "spec_cascade_token_v1": -1.0,
  "spec_cascade_token_v2": -1.0,
  "spec_cascade_diff": -1.0,
  "spec_cascade_diff_log": -math.inf,
}
HIGH_IS_DRAFTER = {
  "spec_decode_lossy": 0.999,
  "spec_decode_lossy_star": 0.999,
  "spec_decode_lossy_from_p": 0.999,
  "mentored_tv": 1.0,
  "cactus": 1e4,
  "bild_star": 1.0,
  "spec_cascade_chow": 1.0,
  "ensemble": 1.0,
  "spec_cascade_token_v1": 1.0,
  "spec_cascade_token_v2": 1.0,
  "spec_cascade_diff": 1.0,
  "spec_cascade_token_v3": 1.0,
  "spec_cascade_top_k": 3.0,
  "spec_cascade_chow_log": math.inf,
  "spec_cascade_diff_log": math.inf,
  "spec_cascade_opt": 100.0,
  "spec_cascade_opt_log": 100.0,
  "mentored": 100.0,
  "bild_star_nll": 100.0,
  "bild_star_js": math.log(2),
}


@pytest.mark.parametrize(
  ("name", "alpha", "model"),
  [
    *((name, alpha, "p") for name, alpha in LOW_IS_VERIFIER.items()),
    *((name, alpha, "q") for name, alpha in HIGH_IS_DRAFTER.items()),
  ],
)
def test_the_ends_of_alpha_are_the_models(name, alpha, model):
  # No zeros here: with one, a drafter and a verifier can be worlds apart, and
  # ratios are infinite.
  chain = toy.pair(3, 2)
  tables = (chain.q_logits, chain.p_logits)
  chain = toy.Pair(*(np.where(np.isinf(x), -4, x) for x in tables))
  alpha = np.clip(alpha, *METHODS[name].alpha_interval.ends(3))
  law = laws_of(name, chain, alpha)
  # The budget's root is found by 30 bisections.
  tolerance = 1e-8 if (name, model) == ("mentored", "p") else enumeration.EXACT
  assert np.abs(law.pi - getattr(law, model)).max() < tolerance


def test_every_row_has_its_ends_named():
  # The ends of a rule that is learned depend on what it learned. A new rule may
  # have ends, too: these lists then get its own.
  plain = {n for n in SAMPLED if METHODS[n].compose is None}
  plain -= {n for n in plain if METHODS[n].has_parameters}
  neither = {"spec_decode", "spec_cascade_typical", "spec_cascade_min2"}
  without_low = {"bild_star_nll", "spec_decode_lossy_from_p"}
  without_low |= {"spec_cascade_token_v3", "spec_cascade_top_k"}
  without_high = neither | {"bild_star_kl"}
  for ends, without in (
    (LOW_IS_VERIFIER, without_low | neither),
    (HIGH_IS_DRAFTER, without_high),
  ):
    assert not without & set(ends)
    assert without | set(ends) <= plain
  assert set(LOW_IS_VERIFIER) | without_low | neither == (
    set(HIGH_IS_DRAFTER) | without_high
  )


# Temperature 0.


@pytest.mark.parametrize(
  "name", [n for n in SAMPLED if METHODS[n].target.is_lossless_when_greedy]
)
def test_lossy_at_temperature_0_is_spec_decode(name):
  chain = toy.pair(3, 2)
  for alpha in (*alpha_grid(name, 3)[::8], METHODS[name].default_alpha):
    law = laws_of(name, chain, alpha, temperature=0.0)
    assert np.array_equal(law.pi, law.p)


def test_opt_and_diff_agree_at_temperature_0():
  # Remark 4, Lemma 8: where they differ both models say the same.
  for seed in range(8):
    chain, decided = toy.pair(4, 1, seed), set()
    for alpha in np.linspace(-1, 1, 21):
      opt_pi, diff_pi = (
        laws_of(f"spec_cascade_{x}", chain, alpha, temperature=0.0).pi
        for x in ("opt", "diff")
      )
      assert np.array_equal(opt_pi, diff_pi)
      decided.add(opt_pi.tobytes())
    assert len(decided) > 1


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_distributions(name):
  # Whatever the pair: zeros, ties, one-hot rows, q = p; also in float32.
  alphas = alpha_grid(name, 7)[[0, 20, 40]]
  for alpha in (*alphas, METHODS[name].default_alpha):
    target_checks.check(METHODS[name].target, alpha=float(alpha))
    q, p = target_checks.trial_pairs(7, np.float64)
    pi = METHODS[name].target.probs(q, p, alpha=float(alpha))
    assert np.abs(np.asarray(pi).sum(-1) - 1).max() < 1e-12
    assert np.asarray(pi).min() >= 0
