"""The compiled loops on toy chains: ends, limits, rows, counts, passes."""

import dataclasses
import functools
import math
import operator

import jax
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling, cascade_drafter
from speccascade.decoding.loops.oracle_cascade import oracle_cascade
from speccascade.decoding.loops.sequential_cascade import CATCH_UP
from tests import toy
from tests.decoding.drafting.models import copier

SAMPLED = Sampling.create(0.9, top_k=5, top_p=0.95)


def assert_same_rows(actual, expected, rows=slice(None)):
  np.testing.assert_array_equal(actual.lengths, expected.lengths[rows])
  np.testing.assert_array_equal(actual.tokens, expected.tokens[rows])


# Greedy.


QUICK_GREEDY = (
  "spec_cascade_opt",
  "spec_cascade_token_v3",
  "lenient_leviathan",
  "lenient_cs_paper",
  "lenient_cs_code",
)
GREEDY_CASES = [
  pytest.param(n, {}, id=n, marks=() if n in QUICK_GREEDY else pytest.mark.slow)
  for n, row in METHODS.items()
  # A mixture of two one-hot distributions is still drawn from.
  if row.has_blocks
  and row.compose is None
  and n not in ("ensemble", "spec_cascade_mixture")
]
GREEDY_CASES += [
  pytest.param("spec_cascade_opt", {"verification": "block"}, id="block"),
  pytest.param(
    "spec_decode", {"gamma": 1}, id="gamma 1", marks=pytest.mark.slow
  ),
  pytest.param("spec_decode", {"gamma": 4}, id="gamma 4"),
]


@pytest.mark.parametrize(("name", "options"), GREEDY_CASES)
def test_greedy_is_the_oracles(name, options):
  # At temperature 0 there is no chance: token for token what drawing from the
  # target itself gives, whatever the block.
  row, models = METHODS[name], toy.sources()
  oracle = dataclasses.replace(row, execution=oracle_cascade)
  expected = toy.decode(oracle, models, row.default_alpha)
  actual = toy.decode(row, models, **options)
  assert_same_rows(actual, expected)
  assert len(set(actual.lengths.tolist())) > 3  # ends at many places


# Rows.

RECORDED = {"trace": True, "log_probs": True}

ROWS = {
  "speculative": ("spec_cascade_opt", 0.5, {}),
  "block": ("spec_cascade_token_v3", 0.3, {"verification": "block"}),
  "stop": ("spec_decode", 0.0, {"draft_length": DraftLength("max_prob", 0.6)}),
  "stepwise": ("token_cascade_chow", 0.4, {}),
  "sequence": ("seq_cascade_chow", 0.999, {}),
  "nested": ("cascade_drafting", 0.0, {}),
}


@pytest.mark.parametrize("case", toy.nightly(ROWS, ("block", "stop")))
def test_a_row_alone_is_the_row_in_the_batch(case):
  name, alpha, options = ROWS[case]
  inputs, keys = toy.rows(64)
  drafter, verifier = toy.sources()
  if case == "nested":
    parts = (drafter,), copier(7), [[2, 3], [0, 3]]
    drafter = cascade_drafter(*parts, lenience=3.0)
  call = functools.partial(
    toy.decode, name, (drafter, verifier), alpha, SAMPLED, **RECORDED, **options
  )
  whole = call(inputs=inputs, keys=keys)
  order = np.random.default_rng(0).permutation(64)
  for part in (order, np.array([5])):
    actual = call(inputs=inputs[part], keys=keys[part])
    assert_same_rows(actual, whole, part)
    expected = jax.tree.map(operator.itemgetter(part), whole)
    inside = np.arange(10) < actual.lengths[:, None]
    same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(same, actual.stats, expected.stats)
    written = functools.partial(jax.tree.map, operator.itemgetter(inside))
    records = ((x.trace, x.log_probs) for x in (actual, expected))
    jax.tree.map(same, *map(written, records))
  assert len({tuple(row) for row in whole.tokens.tolist()}) > 30


# Counts.


def test_token_cascade_is_the_oracle_with_fewer_passes():
  # Same uniforms, same law: the verifier that catches up in blocks must say
  # what one that reads every token says.
  models = toy.sources(order=2, vocab_size=5, eos=-3.0)
  sampling = Sampling.create(0.8)
  options = {"max_decode_len": 24, "trace": True}
  actual, expected = (
    toy.decode(name, models, 0.45, sampling, **options)
    for name in ("token_cascade_chow", "oracle_cascade_chow")
  )
  assert_same_rows(actual, expected)
  np.testing.assert_array_equal(actual.stats.deferred, expected.stats.deferred)
  np.testing.assert_array_equal(
    actual.stats.verifier_calls, actual.stats.deferred
  )
  gaps = []
  for row, length in enumerate(actual.lengths):
    # Fed are the start token and what was written before a deferred one.
    fed = np.flatnonzero(actual.trace.deferred[row, :length]) + 1
    gaps.append(np.diff(fed, prepend=0))
  passes = [np.ceil(gap / CATCH_UP).sum() for gap in gaps]
  np.testing.assert_array_equal(actual.stats.verifier_extends, passes)
  assert {1, CATCH_UP, CATCH_UP + 1, 2 * CATCH_UP + 1} <= set(
    np.concatenate(gaps).tolist()
  )
  np.testing.assert_array_equal(
    expected.stats.verifier_extends, expected.lengths
  )


def test_the_threshold_of_long_sequences_survives():
  # 1 - alpha is below the precision of float32: log1p is taken in float64.
  host_alpha = METHODS["seq_cascade_chow"].execution.host_alpha
  assert host_alpha(1.0) == -math.inf
  np.testing.assert_allclose(host_alpha(1 - 1e-12), math.log(1e-12), rtol=1e-4)
