"""The table, what it refuses, and what it compiles."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  DraftLength,
  Sampling,
  decoders,
  methods,
)
from speccascade.decoding.drafters.max_gram import MaxGramDrafter
from speccascade.models.markov_lm import MarkovLM
from tests import toy

# Every name of the design, and the paper's label.
NAMES = {
  "drafter": "Small model",
  "verifier": "Large model",
  "spec_decode": "SpecDecode",
  "spec_decode_lossy": "SpecDecode [Lossy]",
  "spec_decode_lossy_star": "SpecDecode [Lossy*]",
  "mentored": "Mentored",
  "bild_star": "BiLD*",
  "bild": "BiLD",
  "seq_cascade_chow": "SeqCascade [Chow]",
  "token_cascade_chow": "TokenCascade [Chow]",
  "token_cascade_chow_log": "TokenCascade [Chow, log]",
  "oracle_cascade_diff": "Oracle [Diff]",
  "oracle_cascade_chow": "Oracle [Chow]",
  "oracle_cascade_opt": "Oracle [OPT]",
  "oracle_cascade_diff_log": "Oracle [Diff, log]",
  "oracle_cascade_opt_log": "Oracle [OPT, log]",
  "spec_cascade_chow": "SpecCascade [Chow]",
  "spec_cascade_diff": "SpecCascade [Diff]",
  "spec_cascade_opt": "SpecCascade [OPT]",
  "spec_cascade_chow_log": "SpecCascade [Chow, log]",
  "spec_cascade_diff_log": "SpecCascade [Diff, log]",
  "spec_cascade_opt_log": "SpecCascade [OPT, log]",
  "spec_cascade_token_v1": "SpecCascade [Token V1]",
  "spec_cascade_token_v2": "SpecCascade [Token V2]",
  "spec_cascade_token_v3": "SpecCascade [Token V3]",
  "spec_cascade_typical": "SpecCascade [Typical]",
  "ensemble": "Ensemble",
  "lenient_leviathan": "Lenient [Leviathan]",
  "lenient_cs_paper": "Lenient [CS Drafting, paper]",
  "lenient_cs_code": "Lenient [CS Drafting, code]",
}


def test_names_and_labels():
  for name, label in NAMES.items():
    assert METHODS[name].label == label
  labels = [row.label for row in METHODS.values()]
  assert len(set(labels)) == len(labels)


def test_defaults_are_in_range():
  for row in METHODS.values():
    row.check_alpha(row.default_alpha, 32128)
    row.check_alpha(row.default_alpha, 7)


def settings(**changes):
  return {"gamma": 2, "max_decode_len": 4, "eos_id": toy.EOS} | changes


def call(name, models=None, alpha=None, sampling=None, **changes):
  decoder = decoders.decoder(name, **settings(**changes))
  models = toy.sources() if models is None else models
  alpha = METHODS[name].default_alpha if alpha is None else alpha
  sampling = Sampling.create(0.0) if sampling is None else sampling
  return decoder(*models, *toy.rows(64), alpha, sampling)


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
    ({"gamma": 0}, "gamma is 0; wanted 1 or more"),
    ({"max_decode_len": 0}, "max_decode_len is 0; wanted 1 or more"),
    ({"bonus": "p"}, "bonus is 'p'; wanted 'target'"),
    ({"verification": "tree"}, "verification is 'tree'; wanted one of token,"),
    (
      {"verification": "block", "bonus": "verifier"},
      "block verification with bonus 'verifier' has no stated law",
    ),
  ],
)
def test_settings_are_checked(changes, message):
  with pytest.raises(ValueError, match=message):
    decoders.decoder("spec_cascade_opt", **settings(**changes))


def test_the_printed_bonus_of_a_lossless_block_is_exact():
  decoders.decoder(
    "spec_decode", **settings(verification="block", bonus="verifier")
  )


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: DraftLength("long"), "policy is 'long'; wanted one of fixed, max"),
    (lambda: DraftLength("max_prob", 1.5), "threshold is 1.5; wanted a number"),
    (lambda: DraftLength("max_prob", math.nan), "threshold is nan"),
  ],
)
def test_draft_lengths_are_checked(make, message):
  with pytest.raises(ValueError, match=message):
    make()


OUTSIDE = {
  "spec_cascade_chow": (1.5, r"alpha is 1.5; .*\[Chow\] takes \[0, 1\]"),
  "spec_cascade_diff": (-1.1, r"takes \[-1, 1\]"),
  "spec_cascade_opt": (math.inf, "alpha is inf; .* takes any finite number"),
  "spec_decode_lossy": (1.0, r"alpha is 1; .* takes \[0, 1\)"),
  "spec_decode_lossy_star": (-0.1, r"takes \[0, 1\)"),
  "mentored": (-0.01, "takes 0 or more"),
  "bild_star_js": (0.7, r"takes \[0, 0.693147\]"),
  "bild": (-1.0, "takes 0 or more"),
  "seq_cascade_chow": (1.01, r"takes \[0, 1\]"),
  "token_cascade_chow": (-0.01, r"takes \[0, 1\]"),
  "token_cascade_chow_log": (1.95, r"takes \[0, 1.94591\]"),  # ln 7
  "spec_cascade_typical": (0.0, r"takes \(0, 1\]"),
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
  with pytest.raises(
    ValueError, match="drafter has 7 vocabulary rows, verifier 9; a pair must"
  ):
    call("spec_decode", models=(small, large))


@pytest.mark.parametrize(
  ("name", "given", "missing"),
  [
    ("spec_decode", (None, 1), "a drafter"),
    ("spec_decode", (1, None), "a verifier"),
    ("verifier", (1, None), "a verifier"),
    ("drafter", (None, 1), "a drafter"),
  ],
)
def test_a_missing_model_is_named(name, given, missing):
  model = toy.sources()[0]
  models = tuple(model if x else None for x in given)
  with pytest.raises(ValueError, match=f"needs {missing}; none was given"):
    call(name, models=models)


@pytest.mark.parametrize(
  "name", [n for n, row in METHODS.items() if row.greedy_only]
)
def test_greedy_methods_refuse_a_temperature(name):
  with pytest.raises(ValueError, match="temperature 0 only; temperature is"):
    call(name, sampling=Sampling.create(0.5))


def refusal(decoder, models, alpha) -> str | None:
  try:
    decoder.check(*models, alpha, Sampling.create(0.0))
  except ValueError as error:
    return str(error)
  return None


def test_rules_that_read_q_refuse_a_drafter_without_confidence():
  copier = MaxGramDrafter(jnp.zeros((7,), jnp.int32), 2)
  models = (copier, toy.sources()[1])
  refused = set()
  for name, row in METHODS.items():
    if not row.has_blocks or row.target is None:
      continue
    decoder = decoders.decoder(name, **settings())
    # The checks of a call alone: nothing is compiled for what is let pass.
    message = refusal(decoder, models, row.default_alpha)
    if message is not None:
      assert "confidence, and a MaxGramDrafter has none" in message
      refused.add(name)
  reads_q = {"chow", "diff", "opt", "chow_log", "diff_log", "opt_log"}
  reads_q |= {"token_v1"}
  want = {f"spec_cascade_{rule}" for rule in reads_q}
  want |= {n for n in METHODS if n.startswith("bild_star")}
  want |= {"lenient_cs_paper", "spec_cascade_opt_three"}
  assert refused == want


def test_the_default_cascade_reviews_gamma_tokens_and_copies_two():
  medium, small = toy.sources()
  drafter = METHODS["cascade_drafting"].compose((medium, small), 5, 0.0)
  widths = lambda row: [part.width for part in row.drafters]
  reviewed = drafter.drafters[0]
  assert widths(drafter) == [5, 2]
  assert widths(reviewed.drafter) == [2, 2]
  assert reviewed.drafter.drafters[0].drafter.width == 2


# Compiling.


def programs(decode, *args, **kwargs):
  """Returns (how many programs a call makes `_run` compile, its result)."""
  before = decoders._run._cache_size()
  made = decode(*args, **kwargs)
  return decoders._run._cache_size() - before, made


def test_alpha_temperature_and_seed_compile_nothing_new():
  models, (inputs, keys) = toy.sources(), toy.rows(64)

  def decode(
    alpha, temperature, top_p=0.9, rngs=keys, threshold=0.4, method="opt"
  ):
    # A fresh decoder and fresh models each time, as a sweep makes them.
    decoder = decoders.decoder(
      f"spec_cascade_{method}",
      **settings(draft_length=DraftLength("max_prob", threshold)),
    )
    copies = tuple(MarkovLM(m.table + 0.0) for m in models)
    got = decoder(
      *copies, inputs, rngs, alpha, Sampling.create(temperature, top_p=top_p)
    )
    return np.asarray(got.tokens)

  number, first = programs(decode, 0.1, 1.0)
  assert number == 1
  changes = [
    {"alpha": 0.9, "temperature": 1.0},
    {"alpha": 0.1, "temperature": 0.4},
    {"alpha": 0.1, "temperature": 1.0, "top_p": 0.5},
    {"alpha": 0.1, "temperature": 1.0, "threshold": 0.8},
    {
      "alpha": 0.1,
      "temperature": 1.0,
      "rngs": jax.random.split(keys[0], 64),
    },
  ]
  for change in changes:
    number, made = programs(decode, **change)
    assert number == 0, change
    assert not np.array_equal(made, first), change
  # Greedy is the second and last program.
  assert programs(decode, 0.1, 0.0, top_p=None)[0] == 1
  assert programs(decode, 0.7, 0.0, top_p=None)[0] == 0
