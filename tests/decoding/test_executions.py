"""The compiled loops on toy chains: ends, limits, faults, rows, counts."""

import dataclasses
import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Decoder, Sampling, decoders, row_keys
from speccascade.decoding.drafters import autoregressive
from speccascade.decoding.executions import bild as bild_lib
from speccascade.decoding.executions.oracle_cascade import oracle_cascade
from speccascade.decoding.executions.sequential_cascade import CATCH_UP
from speccascade.decoding.types import BONUS, DRAFT, RESIDUAL
from speccascade.models.markov_lm import MarkovLM
from tests import toy

NEVER = 99  # an end that no vocabulary here has


def decode(
  name, models, alpha, sampling, *, rows=None, inputs=None, keys=None, **how
):
  how = {"gamma": 3, "max_decode_len": 10, "eos_id": toy.EOS} | how
  method = name if not isinstance(name, str) else METHODS[name]
  if inputs is None:
    inputs, keys = toy.rows(rows or models[0].table.shape[0])
  got = Decoder(method=method, **how)(*models, inputs, keys, alpha, sampling)
  return jax.tree.map(np.asarray, got)


def assert_same_rows(got, want, rows=slice(None)):
  np.testing.assert_array_equal(got.lengths, want.lengths[rows])
  np.testing.assert_array_equal(got.tokens, want.tokens[rows])


GREEDY = Sampling.create(0.0)
QUICK_GREEDY = (
  "spec_cascade_opt",
  "spec_cascade_token_v3",
  "lenient_leviathan",
  "lenient_cs_paper",
  "lenient_cs_code",
)


GREEDY_CASES = [
  pytest.param(n, "token", marks=[] if n in QUICK_GREEDY else pytest.mark.slow)
  for n, row in METHODS.items()
  # A mixture of two one-hot laws is still drawn from.
  if row.has_blocks and row.compose is None and n != "ensemble"
]


@pytest.mark.parametrize(
  ("name", "verification"), [*GREEDY_CASES, ("spec_cascade_opt", "block")]
)
def test_greedy_is_the_oracles(name, verification):
  # At temperature 0 there is no chance: token for token what drawing from the
  # target itself gives, whatever the block.
  row, models = METHODS[name], toy.sources()
  want = decode(
    dataclasses.replace(row, execution=oracle_cascade),
    models,
    row.default_alpha,
    GREEDY,
  )
  got = decode(
    name, models, row.default_alpha, GREEDY, verification=verification
  )
  assert_same_rows(got, want)
  assert len(set(got.lengths.tolist())) > 3  # ends at many places


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_greedy_spec_decode_is_the_verifier(gamma):
  models = toy.sources()
  want = decode("verifier", models, 0.0, GREEDY)
  got = decode("spec_decode", models, 0.0, GREEDY, gamma=gamma, trace=True)
  assert_same_rows(got, want)
  # An EOS ends its block: nothing is counted behind it.
  inside = np.arange(10) < got.lengths[:, None]
  drafts = np.sum((got.trace.source == DRAFT) & inside, axis=1)
  np.testing.assert_array_equal(got.stats.accepted, drafts)
  np.testing.assert_array_equal(got.tokens[~inside], 0)
  ends = got.tokens == toy.EOS
  assert np.all(ends.sum(1) <= 1)
  np.testing.assert_array_equal(
    ends.any(1) | (got.lengths == 10), np.ones(len(ends), bool)
  )
  last_accepted = np.take_along_axis(
    got.trace.source, got.lengths[:, None] - 1, 1
  )[:, 0]
  eos_drafts = ends.any(1) & (last_accepted == DRAFT)
  assert eos_drafts.any()  # some ended by an accepted draft: no bonus follows


@pytest.mark.parametrize("length", [1, 2, 7])
def test_decodes_to_exactly_the_limit(length):
  # Nothing ends these rows but the limit; blocks of 4 meet it at every offset
  # and with every number of accepted drafts.
  gamma, models = 3, toy.sources(num=400)
  want = decode("verifier", models, 0.0, GREEDY, eos_id=NEVER)
  got = decode(
    "spec_decode",
    models,
    0.0,
    GREEDY,
    eos_id=NEVER,
    max_decode_len=length,
    trace=True,
    gamma=gamma,
  )
  assert np.all(got.lengths == length)
  np.testing.assert_array_equal(got.tokens, want.tokens[:, :length])
  stats = got.stats
  np.testing.assert_array_equal(stats.accepted_at.sum(1), stats.num_blocks)
  np.testing.assert_array_equal(
    stats.accepted_at @ np.arange(gamma + 1), stats.accepted
  )
  seen = set()
  for row in range(400):
    blocks, counts = np.unique(got.trace.block[row], return_counts=True)
    np.testing.assert_array_equal(blocks, np.arange(stats.num_blocks[row]))
    room, number = int(counts[-1]), int(counts[-1])
    source = got.trace.source[row, -number:]
    seen.add((room, int(np.sum(source == DRAFT))))
  most = min(length, gamma + 1)
  # Cut by the limit all may be drafts; a whole block ends in another token.
  assert {(r, r) for r in range(1, min(most, gamma) + 1)} <= seen
  assert (1, 0) in seen


def test_one_token():
  models = toy.sources()
  for name in ("drafter", "token_cascade_chow", "seq_cascade_chow"):
    want = decode(name, models, 0.5, GREEDY)
    got = decode(name, models, 0.5, GREEDY, max_decode_len=1)
    assert np.all(got.lengths == 1)
    if name != "seq_cascade_chow":  # there the score is that of one token
      np.testing.assert_array_equal(got.tokens[:, 0], want.tokens[:, 0])


# Rows.


SAMPLED = Sampling.create(0.9, top_k=5, top_p=0.95)
ROWS = {
  "speculative": ("spec_cascade_opt", 0.5, {}),
  "block": ("spec_cascade_token_v3", 0.3, {"verification": "block"}),
  "stop": (
    "spec_decode",
    0.0,
    {"draft_length": decoders.DraftLength("max_prob", 0.6)},
  ),
  "stepwise": ("token_cascade_chow", 0.4, {}),
  "sequence": ("seq_cascade_chow", 0.999, {}),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_row_alone_is_the_row_in_the_batch(case):
  name, alpha, how = ROWS[case]
  models = toy.sources()
  inputs, keys = toy.rows(64)
  call = functools.partial(
    decode, name, models, alpha, SAMPLED, trace=True, **how
  )
  whole = call(inputs=inputs, keys=keys)
  order = np.random.default_rng(0).permutation(64)
  for part in (order, np.array([5])):
    got = call(inputs=inputs[part], keys=keys[part])
    assert_same_rows(got, whole, part)
    want = jax.tree.map(operator.itemgetter(part), whole)
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-5),
      got.stats,
      want.stats,
    )
    inside = np.arange(10) < got.lengths[:, None]
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-5),
      *(
        jax.tree.map(operator.itemgetter(inside), x.trace) for x in (got, want)
      ),
    )
  assert len({tuple(row) for row in whole.tokens.tolist()}) > 30


def test_another_seed_is_another_draw():
  models, (inputs, keys) = toy.sources(eos=-3.0), toy.rows(64)
  one, again, other = (
    decode("verifier", models, 0.0, SAMPLED, inputs=inputs, keys=k).tokens
    for k in (keys, keys, row_keys(1, 0, jnp.arange(64)))
  )
  np.testing.assert_array_equal(one, again)
  assert np.mean(np.all(one == other, axis=1)) < 0.2


# Sequential cascades.


def test_token_cascade_is_the_oracle_with_fewer_passes():
  # Same uniforms, same law: the verifier that catches up in blocks must say
  # what one that reads every token says.
  models = toy.sources(order=2, vocab_size=5, eos=-3.0)
  sampling = Sampling.create(0.8)
  how = {"max_decode_len": 24, "trace": True}
  got = decode("token_cascade_chow", models, 0.45, sampling, **how)
  want = decode("oracle_cascade_chow", models, 0.45, sampling, **how)
  assert_same_rows(got, want)
  np.testing.assert_array_equal(got.stats.deferred, want.stats.deferred)
  np.testing.assert_array_equal(got.stats.verifier_calls, got.stats.deferred)
  passes, gaps = [], set()
  for row in range(64):
    fed = total = 0
    for step in range(got.lengths[row]):
      if got.trace.deferred[row, step]:
        gap = step + 1 - fed  # the start token and what was written
        gaps.add(gap)
        total += math.ceil(gap / CATCH_UP)
        fed = step + 1
    passes.append(total)
  np.testing.assert_array_equal(got.stats.verifier_extends, passes)
  assert {1, CATCH_UP, CATCH_UP + 1, 2 * CATCH_UP + 1} <= gaps
  np.testing.assert_array_equal(want.stats.verifier_extends, want.lengths)


def test_sequence_cascade_threshold():
  # The kept row is the drafter's own, the other one the verifier's law.
  models, sampling = toy.sources(), Sampling.create(1.0)
  small = decode("drafter", models, 0.0, sampling)
  q = np.asarray(jax.nn.log_softmax(models[0].table, axis=-1), np.float64)
  score = np.zeros(64)
  for row in range(64):
    last = 0
    for token in small.tokens[row, : small.lengths[row]]:
      score[row] += q[row, last, token]
      last = token
  middle = np.sort(score)[31:33].mean()
  cut = {
    "seq_cascade_chow": (-math.expm1(middle), score >= middle),
  }
  mean = score / small.lengths
  middle = np.sort(mean)[31:33].mean()
  cut["seq_cascade_chow_norm"] = (-math.expm1(middle), mean >= middle)
  for name, (alpha, keeps) in cut.items():
    got = decode(name, models, alpha, sampling)
    same = np.all(got.tokens == small.tokens, axis=1)
    np.testing.assert_array_equal(got.stats.verifier_calls == 0, keeps)
    assert np.all(same[keeps])
    assert not np.all(same[~keeps])
  # alpha 1 keeps everything, alpha 0 nothing (no sequence is certain).
  for alpha, kept in ((1.0, True), (0.0, False)):
    got = decode("seq_cascade_chow", models, alpha, sampling)
    assert np.all((got.stats.verifier_calls == 0) == kept)


def test_the_threshold_of_long_sequences_survives():
  # 1 - alpha is below the precision of float32: log1p is taken in float64.
  method = METHODS["seq_cascade_chow"]
  assert method.execution.host_alpha(1.0) == -math.inf
  np.testing.assert_allclose(
    method.execution.host_alpha(1 - 1e-12), math.log(1e-12), rtol=1e-4
  )


# BiLD.


def bild_by_hand(q, p, fallback, rollback, length):
  """Decodes one source as the authors' code decides; greedy, one by one.

  Args:
    q: [V, V] drafter laws by the last token.
    p: [V, V].
    fallback: threshold on max q.
    rollback: threshold on -log p of a drafted token.
    length: most tokens.

  Returns:
    (tokens, large calls, small tokens that were rescored).
  """
  tokens, large, small = [], 0, 0
  last = lambda: tokens[-1] if tokens else 0
  ask_large_only = True  # it starts with a large step
  while True:
    window, here = [], last()
    while not ask_large_only and len(window) < bild_lib.WINDOW:
      if q[here].max() < fallback:
        break  # the small prediction is discarded
      here = int(np.argmax(q[here]))
      window.append(here)
    large += 1
    small += len(window)
    ask_large_only = False
    before = [last(), *window]
    for m, token in enumerate(window):
      if -np.log(p[before[m], token]) > rollback:
        best = int(np.argmax(p[before[m]]))
        if best != token:
          window = [*window[:m], best]
          ask_large_only = True
        break  # later offenders are not looked at
    if not ask_large_only:
      window.append(int(np.argmax(p[before[-1]])))
    for token in window:
      tokens.append(token)
      if token == toy.EOS or len(tokens) == length:
        return tokens, large, small


@pytest.mark.parametrize("gamma", [2, 5])
def test_bild_against_its_decisions_by_hand(gamma):
  # gamma means nothing to it.
  models = toy.sources(num=200, vocab_size=5, eos=-1.0)
  q, p = (
    np.asarray(jax.nn.softmax(m.table.astype(jnp.float32), axis=-1))
    for m in models
  )
  for fallback, rollback in ((0.45, 1.2), (0.6, 2.0), (0.0, 0.7), (1.0, 5.0)):
    got = decode(
      "bild",
      models,
      rollback,
      GREEDY,
      gamma=gamma,
      max_decode_len=30,
      draft_length=decoders.DraftLength("max_prob", fallback),
    )
    for row in range(200):
      tokens, large, small = bild_by_hand(
        q[row], p[row], fallback, rollback, 30
      )
      assert got.lengths[row] == len(tokens)
      np.testing.assert_array_equal(got.tokens[row, : len(tokens)], tokens)
      assert got.stats.verifier_calls[row] == large
      assert got.stats.drafted[row] == small


def worked_bild():
  """Five tokens; 2 -> 3 -> 4 -> 2 for the small model, sure of itself.

  The large model agrees with 2 -> 3, dislikes 3 -> 4 (its own is 0), and starts
  with 2.
  """
  q, p = np.full((5, 5), 0.02), np.full((5, 5), 0.02)
  for table, moves in (
    (q, {0: 2, 2: 3, 3: 4, 4: 2, 1: 0}),
    (p, {0: 2, 2: 3, 3: 0, 4: 2, 1: 0}),
  ):
    for last, token in moves.items():
      table[last, token] = 0.92
  return tuple(
    MarkovLM(jnp.log(jnp.asarray(x, jnp.float32))[None]) for x in (q, p)
  )


def test_bild_worked():
  # Large: 2. Small: 3 4 2 3 4 2 3 4 2 3 (a window of ten); 4 has -log p = 3.9,
  # so it is replaced by 0 and the rest dropped: 2 3 0. One large step alone:
  # 2. Small again: 3 4 ... : 3 0. Large alone: 2 ...
  models = worked_bild()
  got = decode(
    "bild", models, 3.0, GREEDY, rows=1, max_decode_len=9, trace=True
  )
  np.testing.assert_array_equal(got.tokens[0], [2, 3, 0, 2, 3, 0, 2, 3, 0])
  np.testing.assert_array_equal(got.trace.block[0], [0, 1, 1, 2, 3, 3, 4, 5, 5])
  np.testing.assert_array_equal(
    got.trace.source[0], [BONUS, DRAFT, RESIDUAL] * 3
  )
  assert got.stats.verifier_calls[0] == 6
  assert got.stats.drafted[0] == 30
  # A threshold above 3.9 lets it all pass: window and bonus, 11 a call.
  got = decode("bild", models, 4.0, GREEDY, rows=1, max_decode_len=12)
  np.testing.assert_array_equal(
    got.tokens[0], [2, 3, 4, 2, 3, 4, 2, 3, 4, 2, 3, 0]
  )
  assert got.stats.verifier_calls[0] == 2


@pytest.mark.parametrize(
  ("length", "examined", "accepted", "histogram"),
  [
    (9, 9, 6, [0, 0, 3, 0]),
    # The last block has room for two tokens: both are accepted drafts, and the
    # third was drafted but is not examined.
    (8, 8, 6, [0, 0, 3, 0]),
    (7, 7, 5, [0, 1, 2, 0]),
  ],
)
def test_counts_worked(length, examined, accepted, histogram):
  # Small: 2 3 4; large: 2 3 and then 0 for the 4, over and over. Each block
  # drafts three, accepts two and writes three.
  models = worked_bild()
  got = decode(
    "spec_decode", models, 0.0, GREEDY, rows=1, max_decode_len=length
  )
  np.testing.assert_array_equal(got.tokens[0], ([2, 3, 0] * 3)[:length])
  stats = jax.tree.map(lambda x: x[0].tolist(), got.stats)
  assert stats.num_blocks == stats.verifier_calls == 3
  assert stats.verifier_extends == 3
  assert stats.drafted == stats.drafter_calls == 9
  assert stats.examined == examined
  assert stats.accepted == stats.expected_acceptance == accepted
  assert stats.accepted_at == histogram
  assert stats.deferred == 0  # there is no rule
  assert sum(stats.examined_by_position) == examined
  assert sum(stats.accepted_by_position) == accepted


def test_bild_defaults():
  assert (bild_lib.WINDOW, bild_lib.FALLBACK) == (10, 0.6)
  assert METHODS["bild"].default_alpha == 5.0
  drafted = [
    decode("bild", toy.sources(), 5.0, GREEDY, **how).stats.drafted
    for how in (
      {},
      {"draft_length": decoders.DraftLength("max_prob", 0.6)},
      {"draft_length": decoders.DraftLength("max_prob", 0.0)},
    )
  ]
  np.testing.assert_array_equal(drafted[0], drafted[1])
  assert np.any(drafted[0] < drafted[2])


# Faults.


FAULTS = {"nan": jnp.nan, "+inf": jnp.inf, "nothing": -jnp.inf}
FAULTY = {
  "spec_decode": ("drafter", "verifier"),
  "token_cascade_chow": ("drafter", "verifier"),
  "verifier": ("verifier",),
  "drafter": ("drafter",),
  "oracle_cascade_diff": ("drafter", "verifier"),
  "seq_cascade_chow": ("drafter", "verifier"),
  "bild": ("drafter", "verifier"),
}
QUICK_FAULTY = ("spec_decode", "token_cascade_chow", "seq_cascade_chow")


@functools.cache
def faulty(who, fault, order=1):
  """Sources of which the odd ones have a bad row behind token 3."""
  made = []
  for role, model in zip(("drafter", "verifier"), toy.sources(eos=-3.0)):
    table = model.table
    if role == who and fault is not None:
      bad = jnp.full(table.shape[-1], FAULTS[fault])
      if fault != "nothing":
        bad = table[1, 3].at[2].set(FAULTS[fault])
      table = table.at[1::2, 3].set(bad)
    made.append(MarkovLM(table))
  return tuple(made)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
  "name",
  [
    pytest.param(n, marks=[] if n in QUICK_FAULTY else pytest.mark.slow)
    for n in FAULTY
  ],
)
def test_a_row_that_meets_a_fault_ends_there(name, fault):
  alpha = {"token_cascade_chow": 0.5, "seq_cascade_chow": 0.99999}.get(
    name, 0.0
  )
  sampling = GREEDY if METHODS[name].greedy_only else Sampling.create(1.0)
  right = decode(name, faulty(None, None), alpha, sampling)
  for who in FAULTY[name]:
    got = decode(name, faulty(who, fault), alpha, sampling, trace=True)
    even, odd = slice(0, None, 2), slice(1, None, 2)
    assert np.all(got.bad_step[even] == -1)
    np.testing.assert_array_equal(got.tokens[even], right.tokens[even])
    hit = got.bad_step[odd] >= 0
    assert hit.any()
    met = got.bad_step[odd][hit]
    tokens, lengths = got.tokens[odd][hit], got.lengths[odd][hit]
    np.testing.assert_array_equal(lengths, met)  # emitted up to there
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    assert np.all(tokens[~inside] == 0)
    assert np.all((tokens >= 0) & (tokens < 7))
    # What was not written counts for nothing.
    written = np.arange(got.tokens.shape[1]) < got.lengths[:, None]
    np.testing.assert_array_equal(
      got.stats.deferred, np.sum(got.trace.deferred & written, axis=1)
    )
    if name in ("verifier", "drafter", "oracle_cascade_diff"):
      # One by one: exactly behind the 3.
      before = np.take_along_axis(tokens, lengths[:, None] - 1, axis=1)
      assert np.all(before == 3)
      np.testing.assert_array_equal(
        tokens[inside], right.tokens[odd][hit][inside]
      )
    # The others ended as they should, none of them through the bad row.
    safe = np.flatnonzero(got.bad_step[odd] < 0)
    np.testing.assert_array_equal(
      got.tokens[odd][safe], right.tokens[odd][safe]
    )


def test_minus_infinity_alone_is_a_zero():
  models = tuple(
    MarkovLM(m.table.at[:, :, 4].set(-jnp.inf)) for m in toy.sources()
  )
  got = decode("spec_decode", models, 0.0, Sampling.create(1.0))
  assert np.all(got.bad_step == -1)
  assert not np.any(got.tokens == 4)


def test_the_first_position_can_be_bad():
  table = toy.sources()[0].table
  bad = MarkovLM(table.at[:, 0].set(jnp.nan))
  got = decode("spec_decode", (bad, bad), 0.0, Sampling.create(1.0))
  assert np.all(got.bad_step == 0)
  assert np.all(got.lengths == 0)


# Draft lengths.


@pytest.mark.parametrize("before", [True, False])
def test_the_drafter_stops_where_the_policy_says(before):
  # Its proposals against the policy, law by law.
  model = toy.sources()[0]
  q1 = np.asarray(jax.nn.softmax(model.table, axis=-1))
  stop = autoregressive.StopPolicy(jnp.float32(0.45), before_draw=before)
  drafter = autoregressive.AutoregressiveDrafter(model, 4, stop=stop)
  inputs, keys = toy.rows(64)
  state = drafter.prefill(inputs, capacity=16)
  tokens = jnp.zeros((64, 12), jnp.int32)
  sampling = Sampling.create(0.7)
  _, proposal = drafter.propose(
    state,
    tokens,
    jnp.ones(64, jnp.int32),
    keys,
    sampling,
    bonus_law=True,
    active=jnp.ones(64, bool),
  )
  sampled = np.asarray(sampling.laws(model.table)[1])
  counts = np.asarray(proposal.count)
  for row in range(64):
    last, count = 0, 0
    for step in range(4):
      if before and q1[row, last].max() < 0.45:
        break
      np.testing.assert_allclose(
        proposal.q[row, step], sampled[row, last], atol=1e-6
      )
      token = int(proposal.tokens[row, step])
      count += 1
      prob, last = sampled[row, last, token], token
      if not before and prob < 0.45:
        break
    assert counts[row] == count
    # At `count` stands the law of the bonus position.
    np.testing.assert_allclose(
      proposal.q[row, count], sampled[row, last], atol=1e-6
    )
    np.testing.assert_allclose(
      proposal.q1[row, count], q1[row, last], atol=1e-6
    )
    assert proposal.calls[row].sum() == count + 1
  assert set(counts) == set(range(0 if before else 1, 5))
