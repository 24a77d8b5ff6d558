"""The table, what it refuses, and what it compiles."""

import contextlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling
from speccascade.decoding.drafting.max_gram import MaxGramDrafter
from speccascade.decoding.programs import decoders, methods
from speccascade.models.markov_lm import MarkovLM
from tests import toy, toy_chains


def test_labels_differ():
  # Names and labels themselves are in the README, see `test_readme`.
  labels = [row.label for row in METHODS.values()]
  assert len(set(labels)) == len(labels)


def test_defaults_are_in_range():
  for row in METHODS.values():
    row.check_alpha(row.default_alpha, 32128)
    row.check_alpha(row.default_alpha, 7)


SETTINGS = {"gamma": 2, "max_decode_len": 4, "eos_id": toy_chains.EOS}
PRINTED = {"verification": "block", "bonus": "verifier"}


def call(name, models=None, alpha=None, temperature=0.0):
  models = toy.sources() if models is None else models
  sampling = Sampling.create(temperature)
  return toy.decode(name, models, alpha, sampling, inputs=64, **SETTINGS)


def test_unknown_names_have_near_misses():
  with pytest.raises(ValueError, match="unknown method 'spec_cascade_op'") as e:
    methods.find("spec_cascade_op")
  assert "did you mean spec_cascade_opt" in str(e.value)
  with pytest.raises(ValueError, match="wanted one of drafter, verifier") as e:
    methods.find("zzzzz")
  assert all(name in str(e.value) for name in METHODS)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"gamma": 0}, "gamma is 0; .*from 1 to 1024"),
    ({"max_decode_len": 0}, "max_decode_len is 0; .*from"),
    ({"bonus": "p"}, "bonus is 'p'; .*or 'verifier'"),
    ({"verification": "tree"}, "verification is 'tree'; wanted 'token', "),
    ({"trace": 1}, "trace is 1; .*or False"),
    (PRINTED, "'verifier' has no stated distribution"),
  ],
)
def test_settings_are_checked(changes, message):
  with pytest.raises(ValueError, match=message):
    decoders.decoder("spec_cascade_opt", **SETTINGS | changes)


IGNORED = [
  (name, {"draft_length": DraftLength("max_prob", 0.4)})
  for name, row in METHODS.items()
  if (not row.has_blocks and name != "bild") or row.compose is not None
]
IGNORED += [
  (name, {"verification": "block"})
  for name, row in METHODS.items()
  if not row.has_blocks
]
IGNORED += [("bild", {"draft_length": DraftLength("token_prob", 0.4)})]


@pytest.mark.parametrize(("name", "ignored"), IGNORED)
def test_a_setting_that_a_method_ignores_is_refused(name, ignored):
  [setting] = ignored
  with pytest.raises(ValueError, match=f"{setting} is '.*: leave it") as caught:
    decoders.decoder(name, **SETTINGS | ignored)
  assert f"; {METHODS[name].label} takes '" in str(caught.value)


def test_a_threshold_of_a_fixed_draft_length_is_refused():
  with pytest.raises(ValueError, match="and 'fixed' has none"):
    DraftLength("fixed", 0.4)


@pytest.mark.parametrize(
  ("name", "changes", "message"),
  [
    ("spec_decode", {"gamma": 5}, "gamma is 5; .*MaxGramDrafter, .* of 2: set"),
    (
      "spec_decode",
      {"draft_length": DraftLength("max_prob", 0.4)},
      "draft_length is 'max_prob'; .*a MaxGramDrafter",
    ),
    *(
      (name, {}, "the drafter is a MaxGramDrafter, .* wants a language model")
      for name in ("bild", "token_cascade_chow", "oracle_cascade_opt")
    ),
    *(
      (name, {}, "the drafter is a MaxGramDrafter, .* wants a language model")
      for name in ("seq_cascade_chow", "drafter")
    ),
  ],
)
def test_a_drafter_that_does_not_fit_is_refused(name, changes, message):
  copier = MaxGramDrafter(jnp.zeros((7,), jnp.int32), 2)
  decoder = decoders.decoder(name, **SETTINGS | changes)
  arguments = METHODS[name].default_alpha, Sampling.create(0.0)
  with pytest.raises(ValueError, match=message) as caught:
    decoder.check(copier, toy.sources()[1], *arguments)
  assert "\n" not in str(caught.value)


def test_a_bonus_that_changes_nothing_shares_its_program():
  for name in ("spec_decode", "cascade_drafting", "token_cascade_chow", "bild"):
    programs = {
      decoders.decoder(name, **SETTINGS, bonus=bonus).program(greedy=True)
      for bonus in ("target", "verifier")
    }
    assert len(programs) == 1, name


def test_the_printed_bonus_of_a_lossless_block_is_exact():
  decoders.decoder("spec_decode", **SETTINGS | PRINTED)


@pytest.mark.parametrize(
  ("policy", "message"),
  [
    (("long",), "policy is 'long'; .*or 'token_p"),
    (("max_prob", 1.5), "threshold is 1.5; wanted a number"),
    (("max_prob", math.nan), "threshold is nan"),
  ],
)
def test_draft_lengths_are_checked(policy, message):
  with pytest.raises(ValueError, match=message):
    DraftLength(*policy)


# `test_deferral` has the ranges of all rules.
OUTSIDE = {
  "spec_cascade_chow": (1.5, r"alpha is 1.5; .*\[Chow\] takes \[0, 1\]"),
  "spec_cascade_opt": (math.inf, "alpha is inf; .* takes any finite number"),
  "spec_decode_lossy": (1.0, r"alpha is 1; .* takes \[0, 1\)"),
  "spec_decode_lossy_star": (-0.1, r"takes \[0, 1\)"),
  "mentored": (-0.01, "takes 0 or more"),
  "seq_cascade_chow": (1.01, r"takes \[0, 1\]"),
  "token_cascade_chow_log": (1.95, r"takes \[0, 1.94591\]"),  # ln 7
  "ensemble": (math.nan, "alpha is nan"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_alpha_outside_its_range_is_refused_with_the_range(name):
  alpha, message = OUTSIDE[name]
  with pytest.raises(ValueError, match=message):
    call(name, alpha=alpha)


def test_lossless_takes_any_alpha():
  METHODS["spec_decode"].check_alpha(17.0, 7)
  METHODS["verifier"].check_alpha(-3.0, 7)


def test_two_vocabularies_are_refused():
  small, large = toy.sources()[0], MarkovLM(jnp.zeros((1, 9, 9)))
  message = "drafter has 7 vocabulary rows, verifier 9; a pair must"
  with pytest.raises(ValueError, match=message):
    call("spec_decode", models=(small, large))


@pytest.mark.parametrize(
  ("name", "missing"),
  [
    *(("spec_decode", "drafter"), ("spec_decode", "verifier")),
    *(("verifier", "verifier"), ("drafter", "drafter")),
  ],
)
def test_a_missing_model_is_named(name, missing):
  model = toy.sources()[0]
  models = (None if x == missing else model for x in ("drafter", "verifier"))
  with pytest.raises(ValueError, match=f"needs a {missing}; none was given"):
    call(name, tuple(models))


@pytest.mark.parametrize(
  "name", [n for n, row in METHODS.items() if row.greedy_only]
)
def test_greedy_methods_refuse_a_temperature(name):
  with pytest.raises(ValueError, match="temperature 0 only; temperature is"):
    call(name, temperature=0.5)


def reads_confidence(target):
  """Returns whether pi changes with q at temperature 1, all else the same."""
  if target.kind is not None:  # parameters that correct nothing may not read q
    return True
  rng = np.random.default_rng(0)
  laws = rng.dirichlet([1] * 5, (5, 64))
  q, other, p, *sampled = jnp.asarray(laws, jnp.float32)
  interval = target.interval
  alphas = [*(interval.grid or ()), interval.default]
  pi = jax.jit(
    lambda q, alpha: target.probs(q, p, alpha=alpha, sampled=tuple(sampled))
  )
  return any(np.any(pi(q, x) != pi(other, x)) for x in alphas)


@pytest.mark.parametrize(
  "name", [n for n, row in METHODS.items() if row.has_blocks and row.target]
)
def test_rules_that_read_q_refuse_a_drafter_without_confidence(name):
  copier = MaxGramDrafter(jnp.zeros((7,), jnp.int32), 2)
  models, alpha = (copier, toy.sources()[1]), METHODS[name].default_alpha
  # The checks of a call alone: nothing is compiled for what is let pass.
  check = decoders.decoder(name, **SETTINGS).check
  message = "confidence, and a MaxGramDrafter has none"
  refused = pytest.raises(ValueError, match=message)
  reads = reads_confidence(METHODS[name].target)
  with refused if reads else contextlib.nullcontext():
    check(*models, alpha, Sampling.create(0.0))


def test_the_default_cascade_reviews_gamma_tokens():
  medium, small = toy.sources()
  drafter = METHODS["cascade_drafting"].compose((medium, small), 5, 0.0)
  widths = lambda row: [part.width for part in row.drafters]
  reviewed = drafter.drafters[0]
  assert widths(drafter) == [5, 2]
  assert widths(reviewed.drafter) == [2, 2]
  assert reviewed.drafter.drafters[0].drafter.width == 2


# Compiling.


def test_alpha_temperature_and_seed_compile_nothing_new():
  decoders._run.clear_cache()  # other tests of this process compile the same
  inputs, keys = toy.rows(64)
  first = {"alpha": 0.1, "temperature": 1.0, "top_p": 0.9}
  first |= {"threshold": 0.4, "keys": keys}

  def decode(**changes):
    """Returns (how many programs a call compiles, its tokens)."""
    how, before = first | changes, decoders._run._cache_size()
    # A fresh decoder and fresh models each time, as a sweep makes them.
    decoded = toy.decode(
      "spec_cascade_opt",
      tuple(MarkovLM(model.table + 0.0) for model in toy.sources()),
      how["alpha"],
      Sampling.create(how["temperature"], top_p=how["top_p"]),
      inputs=inputs,
      keys=how["keys"],
      draft_length=DraftLength("max_prob", how["threshold"]),
      **SETTINGS,
    )
    return decoders._run._cache_size() - before, decoded.tokens

  number, tokens = decode()
  assert number == 1
  for change in (
    {"alpha": 0.9},
    {"temperature": 0.4},
    {"top_p": 0.5},
    {"threshold": 0.8},
    {"keys": jax.random.split(keys[0], 64)},
  ):
    number, others = decode(**change)
    assert number == 0, change
    assert not np.array_equal(others, tokens), change
  # Greedy is the second and last program.
  assert decode(temperature=0.0, top_p=None)[0] == 1
  assert decode(temperature=0.0, top_p=None, alpha=0.7)[0] == 0
