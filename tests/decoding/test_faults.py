"""Laws that are no distribution: which end a row, where, and which do not."""

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Decoder, MaxGramDrafter, Sampling
from speccascade.decoding.drafters.cascade import cascade_drafter
from speccascade.models.markov_lm import MarkovLM
from tests import toy

FAULTS = {"nan": jnp.nan, "+inf": jnp.inf, "nothing": -jnp.inf}
# Their exact bonus reads the drafter's law after a fully accepted block.
READS_THE_BONUS_LAW = (
  "spec_cascade_chow",
  "spec_cascade_opt",
  "spec_cascade_token_v3",
  "spec_decode_lossy",
  "spec_decode_lossy_star",
  "ensemble",
)
NEVER = 99


def chain(moves: dict[int, int], fault=None, after=3) -> MarkovLM:
  """Counts 0 2 3 4 5 2 3 ..., but for `moves`; `fault` after one token.

  Each next token has probability .9, so that a sampled fault would show too.
  """
  follow = {0: 2, 1: 2, 2: 3, 3: 4, 4: 5, 5: 2} | moves
  law = np.full((6, 6), 0.02, np.float32)
  for last, token in follow.items():
    law[last, token] = 0.9
  table = jnp.log(jnp.asarray(law))
  if fault is not None:
    bad = jnp.full(6, FAULTS[fault])
    if fault != "nothing":
      bad = table[after].at[0].set(FAULTS[fault])
    table = table.at[after].set(bad)
  return MarkovLM(table[None])


def decode(name, drafter, verifier, *, gamma=2, length=8, alpha=None, **how):
  run = Decoder(METHODS[name], gamma, length, NEVER, **how)
  inputs, keys = toy.rows(1)
  alpha = METHODS[name].default_alpha if alpha is None else alpha
  out = run(drafter, verifier, inputs, keys, alpha, Sampling.create(0.0))
  number = int(out.lengths[0])
  return out.tokens[0, :number].tolist(), int(out.bad_step[0]), out.stats


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", READS_THE_BONUS_LAW)
def test_a_fault_at_the_bonus_position_is_seen(name, fault):
  """Drafts 2 3, both accepted; the bonus law is the drafter's after 3."""
  tokens, bad, _ = decode(name, chain({}, fault), chain({}))
  assert (tokens, bad) == ([2, 3], 2)
  # Where it is not read it ends nothing: p itself draws the bonus token.
  tokens, bad, _ = decode(
    name, chain({}, fault), chain({}), bonus="verifier", length=6
  )
  assert (tokens, bad) == ([2, 3, 4, 5, 2, 3], -1)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("who", ["drafter", "verifier"])
@pytest.mark.parametrize(
  ("name", "alpha"),
  [("spec_decode", 0.0), ("spec_cascade_token_v3", 0.3), ("bild", 3.0)],
)
def test_a_fault_after_a_rejected_draft_ends_nothing(name, alpha, who, fault):
  """The drafter says 2 3 after 0; the verifier has 4 for the 3, and goes on.

  Whoever has no law after a 3 is never asked for one that is used.
  """
  small = chain({}, fault if who == "drafter" else None)
  large = chain({2: 4, 4: 5}, fault if who == "verifier" else None)
  tokens, bad, stats = decode(name, small, large, alpha=alpha)
  assert (tokens, bad) == ([2, 4, 5, 2, 4, 5, 2, 4], -1)
  assert int(stats.accepted[0]) < int(stats.drafted[0])


@pytest.mark.parametrize("fault", FAULTS)
def test_tokens_before_a_fault_are_kept(fault):
  """A block of four, 2 3 4 5, of which the verifier has no law after the 3."""
  tokens, bad, stats = decode(
    "spec_decode", chain({}), chain({}, fault), gamma=4
  )
  assert (tokens, bad) == ([2, 3], 2)
  assert int(stats.accepted[0]) == 2
  # An EOS, or the limit, before it: the fault is never reached.
  tokens, bad, _ = decode(
    "spec_decode", chain({}), chain({}, fault), gamma=4, length=2
  )
  assert (tokens, bad) == ([2, 3], -1)


def test_block_verification_trusts_no_block_with_a_fault():
  """It weighs every draft by the laws after it: none is accepted unread."""
  small, large = chain({}), chain({2: 4, 4: 5}, "nan")
  tokens, bad, _ = decode("spec_decode", small, large, verification="block")
  assert (tokens, bad) == ([2], 1)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("copies", [False, True])
def test_a_cascade_passes_a_fault_on(copies, fault):
  """Of the inner reviewer, of the drafter below it, and of one in the row.

  The one below drafts 2 3 in the first block, and has no law after a 3 to draft
  from in the second, which begins after 2 3 4 5 2.
  """
  right, wrong = chain({}), chain({}, fault)
  bottom, matrix = None, [[3, 1], [0, 2]]
  if copies:
    bottom = MaxGramDrafter.create([2, 2, 3, 4, 5, 2], width=1, vocab_size=6)
    matrix = [[3, 0, 1], [0, 2, 1], [0, 0, 0]]
  for reviewer, small, want in (
    (wrong, right, [2, 3]),
    (right, wrong, [2, 3, 4, 5, 2, 3]),
  ):
    drafter = cascade_drafter((reviewer, small), bottom, matrix)
    tokens, bad, _ = decode("cascade_drafting", drafter, right)
    assert (tokens, bad) == (want, len(want))
  row = cascade_drafter((right, wrong), None, [[2, 2], [0, 0]])
  tokens, bad, _ = decode("cascade_drafting", row, right)
  assert (tokens, bad) == ([2, 3], 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_ends_a_block_is_seen(fault):
  """Before a draw the policy reads the law: BiLD's output depends on it."""
  tokens, bad, _ = decode("bild", chain({}, fault), chain({}))
  assert (tokens, bad) == ([2, 3], 2)
