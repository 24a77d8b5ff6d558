"""Which gammas a row chooses, and how near they come to the best fixed one."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.drafting import draft_pace
from speccascade.decoding.drafting.draft_pace import SIZES, Pace, PaceCosts

# Rounds of 0, 1, 2, 3, 5 and 8 drafts.
COSTS = (1.0, 1.3, 1.5, 1.8, 2.3, 3.0)
DEAR = (1.0, 1.8, 2.6, 3.4, 5.0, 7.4)
RECORDED = json.loads(
  pathlib.Path(__file__).with_name("recorded_drafts.json").read_text()
)


@functools.partial(jax.jit, static_argnums=3)
def step(pace, costs, length, sizes=SIZES):
  """Returns the memory after a round chose, and passes to read before it."""
  pace = pace.next(costs, sizes, length)
  reads = jnp.where(pace.gamma > 0, pace.passes(length), 0)
  return pace.draft(length, pace.gamma - 1), reads


def price(rounds, catch_up):
  return PaceCosts(jnp.asarray(rounds, jnp.float32), jnp.float32(catch_up))


# What is chosen.


def chosen(blocks, rounds=COSTS, catch_up=0.3):
  """Returns the gammas of a row whose drafts are accepted as `blocks` says.

  Args:
    blocks: for each block how many drafts the verifier would accept.
    rounds: as `PaceCosts` has them.
    catch_up: as `PaceCosts` has it.
  """
  pace, length, gammas = Pace.zeros(1), 1, []
  for accepted in blocks:
    pace, _ = step(pace, price(rounds, catch_up), np.full(1, length, np.int32))
    gammas.append(int(pace.gamma[0]))
    length += 1 + min(accepted, gammas[-1])
  return gammas


def test_the_first_gamma_is_that_of_the_prior():
  # At a = 3/4 a block writes 1, 1.75, 2.3125, 2.734, 3.288 and 3.7 tokens.
  tokens = np.cumsum(0.75 ** np.arange(9))[list(SIZES)]
  for rounds in (COSTS, (1, 1.1, 1.2, 1.3, 1.5, 1.8), (1, 1.7, 2.6, 3, 4, 5)):
    best = SIZES[np.argmax(tokens / np.array(rounds))]
    assert chosen([0], rounds) == [best]


def test_gammas_grow_where_drafts_are_accepted_and_fall_where_not():
  assert chosen([8] * 20)[-1] == 8
  assert chosen([0] * 40)[-1] == 0
  assert chosen([8] * 20 + [0] * 60)[-1] == 0


def test_drafts_that_cannot_pay_are_never_tried():
  dear = (1.0, 2.5, 4.0, 5.0, 7.0, 10.0)
  assert set(chosen([8] * 1000, dear, catch_up=1e-4)) == {0}


def test_a_row_without_drafts_tries_them_again_now_and_then():
  gammas = np.array(chosen([0] * 600, catch_up=0.02))
  assert 0 < np.count_nonzero(gammas[100:]) < 25
  # It continues with drafts where they pay by then.
  assert chosen([0] * 60 + [8] * 400, catch_up=0.02)[-1] == 8


def test_reading_what_was_missed_is_priced():
  cheap = sum(map(bool, chosen([0] * 600, catch_up=0.01)))
  dear = sum(map(bool, chosen([0] * 600, catch_up=1.0)))
  assert dear < cheap


def test_tokens_between_two_turns_are_not_a_block():
  pace, _ = step(Pace.zeros(1), price(COSTS, 0.3), np.full(1, 9, np.int32))
  assert pace.gamma[0] > 0
  pace = pace.begin_turn(np.full(1, 40, np.int32))
  after = pace.observe(np.full(1, 41, np.int32))
  assert after.examined[0] == after.accepted[0] == 0
  assert after.held[0] == 40


def test_the_drafter_does_not_hold_a_rejected_draft():
  # At 5 tokens a row drafts 3, and its drafter reads two of them: it holds 7.
  five = np.full(1, 5, np.int32)
  pace = Pace.zeros(1).replace(gamma=np.full(1, 3, np.int32), length=five)
  pace = pace.draft(five, 2)
  assert pace.held[0] == 7
  # One token was written, so of those read 5 are kept. Of 15 tokens 10 are
  # missed,
  # and all but the last two take passes of 8: had 7 been kept, one would do.
  pace = pace.observe(np.full(1, 6, np.int32))
  assert pace.held[0] == 5
  assert pace.passes(np.full(1, 15, np.int32))[0] == 2
  # All of an accepted block is kept.
  whole = pace.replace(held=np.full(1, 7, np.int32), length=five)
  assert whole.observe(np.full(1, 9, np.int32)).held[0] == 7


def test_the_edges_of_what_a_row_remembers():
  rounds, one = draft_pace.IDLE_ROUNDS, np.ones(1, np.int32)
  began = Pace.zeros(1).replace(length=5 * one, held=3 * one)
  # A row that chose no drafts at 5 tokens continues unasked for so many rounds.
  idle = [bool(began.is_idle((5 + num) * one)[0]) for num in range(rounds + 2)]
  assert idle == [True] * rounds + [False] * 2
  # A pass without drafts is none of the drafter's; another one reads the text.
  assert began.draft(7 * one, 2).held[0] == 3
  assert began.replace(gamma=one).draft(7 * one, 2).held[0] == 9
  # A chain's own first pass reads two tokens, a pass that catches up eight.
  missing = {0: 0, 1: 0, 2: 0, 3: 1, 9: 1, 10: 2, 17: 2, 18: 3}
  for num, passes in missing.items():
    assert began.passes((3 + num) * one)[0] == passes


# Against fixed gammas, by recorded costs and acceptance.


def run_lengths(rows) -> np.ndarray:
  """Returns [B, T], how many tokens from each on are accepted in a row."""
  accepted = np.zeros((len(rows), max(map(len, rows)) + 1), int)
  for row, text in enumerate(rows):
    for place in reversed(range(len(text))):
      more = accepted[row, place + 1] + 1
      accepted[row, place] = more if text[place] == "1" else 0
  return accepted


def seconds_fixed(rows, rounds, gamma) -> float:
  """Returns what rows cost with one gamma, in rounds without drafts."""
  total, lengths = 0.0, run_lengths(rows)
  for row, text in enumerate(rows):
    place = 0
    while place < len(text):
      place += 1 + min(lengths[row, place], gamma)
      total += rounds[SIZES.index(gamma)]
  return total


def seconds_adaptive(rows, rounds, catch_up) -> float:
  """Returns what the same rows cost where each chooses its gammas."""
  lengths, pace = run_lengths(rows), Pace.zeros(len(rows))
  ends = np.array([len(text) for text in rows])
  place, total, row = np.zeros(len(rows), int), 0.0, np.arange(len(rows))
  while np.any(place < ends):
    going = place < ends
    pace, reads = step(
      pace, price(rounds, catch_up), (place + 1).astype(np.int32)
    )
    gamma = np.asarray(pace.gamma)
    cost = np.asarray(rounds)[np.searchsorted(SIZES, gamma)]
    total += np.sum(going * (cost + catch_up * np.asarray(reads)))
    accepted = np.minimum(lengths[row, np.minimum(place, ends)], gamma)
    place = np.where(going, place + 1 + accepted, place)
  return float(total)


@pytest.mark.parametrize("text", RECORDED["accepted"])
@pytest.mark.parametrize("machine", RECORDED["costs"])
def test_a_text_takes_at_most_a_twentieth_more_than_with_the_best_gamma(
  machine, text
):
  costs, rows = RECORDED["costs"][machine], RECORDED["accepted"][text]
  rounds = costs["rounds"]
  best = min(seconds_fixed(rows, rounds, gamma) for gamma in SIZES)
  assert seconds_adaptive(rows, **costs) < 1.05 * best


def noise(share, num=16, length=128):
  """Returns rows whose drafts are accepted by chance."""
  bits = np.random.default_rng(0).random((num, length)) < share
  return ["".join("01"[bit] for bit in row) for row in bits.astype(int)]


@pytest.mark.parametrize(
  ("rounds", "rows"),
  [
    (DEAR, RECORDED["accepted"]["noise"]),
    (DEAR, RECORDED["accepted"]["copies"]),
    (COSTS, noise(0.05)),
    (COSTS, noise(0.2)),
  ],
)
def test_where_nothing_pays_little_is_lost(rounds, rows):
  alone = seconds_fixed(rows, rounds, 0)
  assert alone <= min(seconds_fixed(rows, rounds, gamma) for gamma in SIZES)
  assert alone > 0.97 * seconds_adaptive(rows, rounds, 0.35)
