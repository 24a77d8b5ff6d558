"""Invalid probabilities: which end a row, where, and which do not."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, MaxGramDrafter, Sampling
from speccascade.decoding.nested.cascade import cascade_drafter
from speccascade.models.markov_lm import MarkovLM
from tests import toy

FAULTS = {"nan": jnp.nan, "+inf": jnp.inf, "nothing": -jnp.inf}
NEVER = 99

each_fault = pytest.mark.parametrize("fault", FAULTS)


def spoiled(row, fault: str):
  """Returns invalid logits; except for "nothing", one number is wrong."""
  if fault == "nothing":
    return jnp.full_like(row, -jnp.inf)
  return row.at[..., 2].set(FAULTS[fault])


# Of many rows the odd ones have no distribution after token 3.


BOTH = ("drafter", "verifier")
FAULTY = {
  "spec_decode": BOTH,
  "token_cascade_chow": BOTH,
  "verifier": ("verifier",),
  "drafter": ("drafter",),
  "oracle_cascade_diff": BOTH,
  "seq_cascade_chow": BOTH,
  "bild": BOTH,
}
QUICK = ("spec_decode", "token_cascade_chow", "seq_cascade_chow")
ALPHAS = {"token_cascade_chow": 0.5, "seq_cascade_chow": 0.99999}


@functools.cache
def faulty(who, fault):
  """Returns (drafter, verifier), of which the sources of one are spoiled."""
  models = dict(zip(BOTH, toy.sources(eos=-3.0)))
  if who is not None:
    table = models[who].table
    table = table.at[1::2, 3].set(spoiled(table[1::2, 3], fault))
    models[who] = MarkovLM(table)
  return tuple(models.values())


@each_fault
@pytest.mark.parametrize("name", toy.nightly(FAULTY, QUICK))
def test_a_fault_ends_its_row(name, fault):
  sampling = Sampling.create(0.0 if METHODS[name].greedy_only else 1.0)
  call = functools.partial(
    toy.decode, name, alpha=ALPHAS.get(name, 0.0), sampling=sampling
  )
  right = call(faulty(None, None))
  odd = np.arange(64) % 2 == 1
  for who in FAULTY[name]:
    decoded = call(faulty(who, fault), trace=True)
    hit = decoded.bad_step >= 0
    assert hit.any()
    assert not np.any(hit & ~odd)
    # The others ended as they should, none of them through the bad row.
    np.testing.assert_array_equal(decoded.tokens[~hit], right.tokens[~hit])
    # Emitted up to there; what was not written counts for nothing.
    np.testing.assert_array_equal(decoded.lengths[hit], decoded.bad_step[hit])
    inside = np.arange(10) < decoded.lengths[:, None]
    assert np.all(decoded.tokens[~inside] == 0)
    assert np.all((decoded.tokens >= 0) & (decoded.tokens < 7))
    np.testing.assert_array_equal(
      decoded.stats.deferred, np.sum(decoded.trace.deferred & inside, axis=1)
    )
    if name in ("verifier", "drafter", "oracle_cascade_diff"):
      # One by one: exactly after the 3.
      assert np.all(decoded.tokens[hit, decoded.lengths[hit] - 1] == 3)
      np.testing.assert_array_equal(
        decoded.tokens[inside], right.tokens[inside]
      )


# Worked rows, greedy.


def test_minus_infinity_alone_is_a_zero():
  models = tuple(
    MarkovLM(m.table.at[:, :, 4].set(-jnp.inf)) for m in toy.sources()
  )
  decoded = toy.decode("spec_decode", models, 0.0, Sampling.create(1.0))
  assert np.all(decoded.bad_step == -1)
  assert not np.any(decoded.tokens == 4)


def test_the_first_position_can_be_bad():
  bad = MarkovLM(toy.sources()[0].table.at[:, 0].set(jnp.nan))
  decoded = toy.decode("spec_decode", (bad, bad), 0.0, Sampling.create(1.0))
  assert np.all(decoded.bad_step == 0)
  assert np.all(decoded.lengths == 0)


def chain(moves: dict[int, int], fault=None) -> MarkovLM:
  """Counts 0 2 3 4 5 2 3 ..., but for `moves`; a `fault` after 3.

  Each next token has probability .9, so that a sampled fault would show too.
  Source 1 has the fault, source 0 has not.
  """
  follow = {0: 2, 1: 2, 2: 3, 3: 4, 4: 5, 5: 2} | moves
  table = jnp.tile(toy.moving(follow, 6).table, (2, 1, 1))
  if fault is not None:
    table = table.at[1, 3].set(spoiled(table[1, 3], fault))
  return MarkovLM(table)


def decode(name, drafter, verifier, *, gamma=2, length=8, **options):
  """Returns (tokens, where it went bad, stats) of source 1."""
  options |= {"gamma": gamma, "max_decode_len": length, "eos_id": NEVER}
  decoded = toy.decode(name, (drafter, verifier), inputs=2, **options)
  # Source 0 continues whatever happens to its neighbour.
  assert (decoded.lengths[0], decoded.bad_step[0]) == (length, -1)
  return (
    decoded.tokens[1, : decoded.lengths[1]].tolist(),
    decoded.bad_step[1],
    decoded.stats,
  )


# Their exact bonus reads the drafter's distribution after a fully accepted
# block.
@each_fault
@pytest.mark.parametrize(
  "name",
  toy.nightly(
    [
      "spec_cascade_chow",
      "spec_cascade_opt",
      "spec_cascade_token_v3",
      "spec_decode_lossy",
      "spec_decode_lossy_star",
      "ensemble",
    ],
    quick=["spec_cascade_opt", "ensemble"],
  ),
)
def test_a_fault_at_the_bonus_position_is_seen(name, fault):
  """Drafts 2 3, both accepted; the bonus is from the drafter's after 3."""
  models = chain({}, fault), chain({})
  tokens, bad, _ = decode(name, *models)
  assert (tokens, bad) == ([2, 3], 2)
  # Where it is not read it ends nothing: p itself draws the bonus token.
  tokens, bad, _ = decode(name, *models, bonus="verifier", length=6)
  assert (tokens, bad) == ([2, 3, 4, 5, 2, 3], -1)


@each_fault
@pytest.mark.parametrize("who", BOTH)
@pytest.mark.parametrize(
  ("name", "alpha"),
  [("spec_decode", 0.0), ("spec_cascade_token_v3", 0.3), ("bild", 3.0)],
)
def test_a_fault_after_a_rejected_draft_ends_nothing(name, alpha, who, fault):
  """The drafter says 2 3 after 0; the verifier has 4 for the 3, and continues.

  Whoever has no distribution after a 3 is never asked for one that is used.
  """
  small = chain({}, fault if who == "drafter" else None)
  large = chain({2: 4, 4: 5}, fault if who == "verifier" else None)
  tokens, bad, stats = decode(name, small, large, alpha=alpha)
  assert (tokens, bad) == ([2, 4, 5, 2, 4, 5, 2, 4], -1)
  assert stats.accepted[1] < stats.drafted[1]


@each_fault
def test_tokens_before_a_fault_are_kept(fault):
  """A block of four, 2 3 4 5, of which the verifier fails after the 3."""
  models = chain({}), chain({}, fault)
  tokens, bad, stats = decode("spec_decode", *models, gamma=4)
  assert (tokens, bad) == ([2, 3], 2)
  assert stats.accepted[1] == 2
  # An EOS, or the limit, before it: the fault is never reached.
  tokens, bad, _ = decode("spec_decode", *models, gamma=4, length=2)
  assert (tokens, bad) == ([2, 3], -1)


def test_block_verification_trusts_no_block_with_a_fault():
  """It weighs every draft by p and q after it: none is accepted unread."""
  models = chain({}), chain({2: 4, 4: 5}, "nan")
  tokens, bad, _ = decode("spec_decode", *models, verification="block")
  assert (tokens, bad) == ([2], 1)


# A tree in which 2 3 4 are drafted, and 0 2 3 beside them.
TREE = {"gamma": 3, "tree": (2, 1, 1)}


@each_fault
@pytest.mark.parametrize("verification", ["token", "traversal"])
def test_a_fault_on_the_path_of_a_tree_is_seen(verification, fault):
  """The path 2 3 is accepted, and one of both fails after the 3."""
  how = TREE | {"verification": verification}
  tokens, bad, stats = decode("spec_decode", chain({}), chain({}, fault), **how)
  assert (tokens, bad) == ([2, 3], 2)
  assert stats.accepted[1] == 2
  # The drafter is asked for a third draft.
  tokens, bad, _ = decode("spec_decode", chain({}, fault), chain({}), **how)
  assert (tokens, bad) == ([2, 3], 2)


@each_fault
def test_a_fault_beside_the_path_of_a_tree(fault):
  """The drafts are 2 3 4; the verifier, which fails after 3, writes 2 4."""
  models = chain({}), chain({2: 4, 4: 5}, fault)
  tokens, bad, stats = decode("spec_decode", *models, **TREE)
  assert (tokens, bad) == ([2, 4, 5, 2, 4, 5, 2, 4], -1)
  assert 0 < stats.accepted[1] < 8
  # A traversal weighs all drafts by the distributions after them.
  how = TREE | {"verification": "traversal"}
  tokens, bad, _ = decode("spec_decode", *models, **how)
  assert (tokens, bad) == ([2], 1)


@each_fault
def test_a_fault_that_ends_a_block_is_seen(fault):
  """Before a draw the policy reads the law: BiLD's output depends on it."""
  tokens, bad, _ = decode("bild", chain({}, fault), chain({}))
  assert (tokens, bad) == ([2, 3], 2)


REVIEWED = [[3, 1], [0, 2]]
AND_COPIES = [[3, 0, 1], [0, 2, 1], [0, 0, 0]]


@each_fault
@pytest.mark.parametrize(
  ("wrong", "matrix", "expected"),
  [
    *toy.nightly([("medium", REVIEWED, [2, 3])]),
    ("medium", AND_COPIES, [2, 3]),
    # It drafts 2 3 in the first block, and has no distribution after a 3 to
    # draft from in the second, which begins after 2 3 4 5 2.
    ("small", REVIEWED, [2, 3, 4, 5, 2, 3]),
    *toy.nightly([("small", AND_COPIES, [2, 3, 4, 5, 2, 3])]),
    # Not reviewed, one after the other.
    ("medium", [[3, 1], [0, 0]], [2, 3]),
    ("small", [[2, 2], [0, 0]], [2, 3]),
  ],
)
def test_a_cascade_passes_a_fault_on(wrong, matrix, expected, fault):
  """From the inner reviewer, the drafter below it, and those in a row."""
  pair = tuple(
    chain({}, fault if who == wrong else None) for who in ("medium", "small")
  )
  bottom = None
  if matrix is AND_COPIES:
    bottom = MaxGramDrafter.create([2, 2, 3, 4, 5, 2], width=1, vocab_size=6)
  drafter = cascade_drafter(pair, bottom, matrix)
  tokens, bad, _ = decode(
    "cascade_drafting", drafter, chain({}), gamma=drafter.width
  )
  assert (tokens, bad) == (expected, len(expected))
