"""Tokens that a mask forces are not drafted, and the text is the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Constraints,
  Decoder,
  Sampling,
  Stream,
  row_keys,
)
from speccascade.decoding.records.block_records import DRAFT, FORCED
from speccascade.decoding.records.decode_settings import DraftLength
from tests import toy, toy_chains
from tests.decoding.programs.test_streaming import prepared
from tests.decoding.test_constraints import (
  LONG,
  automaton,
  decode,
  forcing,
  stop_of,
)

V, LENGTH = 6, 21
HOW = {"log_probs": True, "trace": True, "max_decode_len": LENGTH}


def forms(first: int = 2, second: int = 7, ends: bool = True):
  """Returns a mask of texts like a form: a value, and the keys after it.

  After a 0 there are `first` forced tokens, and after a 2 there are `second`,
  4 and 5 in turns. A 3 has nothing after it.
  """
  size = 1 + first + second
  moves, allowed = np.zeros((2, size, V), int)
  allowed[0, [0, 2, 3]] = 1
  allowed[0, toy_chains.EOS] = ends
  moves[0, 0], moves[0, 2] = 1, 1 + first
  for state in range(1, size):
    allowed[state, 4 + state % 2] = 1
    moves[state] = 0 if state in (first, size - 1) else state + 1
  return forcing(automaton(moves, allowed))


def states_before(mask, tokens) -> np.ndarray:
  """Returns the automaton's states before each token of a text."""
  states = [0]
  for token in tokens:
    states.append(int(mask.moves[states[-1], token]))
  return np.array(states[:-1], int)


@functools.cache
def both(name: str, temperature: float, **how):
  """Returns a decode that skips forced tokens, and one that drafts them."""
  how = HOW | {"sampling": Sampling.create(temperature)} | dict(how)
  mask = forms()
  plain = mask.replace(forced=None)
  return [decode(name, LONG, mask=each, **how) for each in (mask, plain)]


CASES = {
  "token": ("spec_decode", 1.0, {}),
  "block": ("spec_decode", 1.0, {"verification": "block"}),
  "traversal": ("spec_decode", 0.7, {"verification": "traversal"}),
  "greedy": ("spec_decode", 0.0, {"gamma": 5}),
  "bonus of the verifier": ("spec_cascade_diff", 1.0, {"bonus": "verifier"}),
  "cascade": ("spec_cascade_opt", 1.0, {}),
  "tokens of a cascade": (
    "spec_cascade_token_v3",
    1.0,
    {"verification": "block"},
  ),
}
NIGHTLY = [
  (name, float(not method.greedy_only), {})
  for name, method in METHODS.items()
  if method.execution.label == "speculative" and method.compose is None
]


@pytest.mark.parametrize(
  ("name", "temperature", "how"), [*CASES.values(), *toy.nightly(NIGHTLY)]
)
def test_a_text_is_the_same_whoever_writes_forced_tokens(
  name, temperature, how
):
  got, want = both(name, temperature, **how)
  for field in ("tokens", "lengths", "bad_step"):
    np.testing.assert_array_equal(getattr(got, field), getattr(want, field))
  for field, values in vars(got.log_probs).items():
    np.testing.assert_array_equal(values, getattr(want.log_probs, field))
  for field in ("num_blocks", "verifier_calls", "deferred"):
    mine, other = (getattr(each.stats, field) for each in (got, want))
    np.testing.assert_array_equal(mine, other)
  assert got.stats.drafter_calls.sum() < want.stats.drafter_calls.sum()
  assert "forced" not in want.stats.extra


@pytest.mark.parametrize("case", CASES)
def test_forced_tokens_have_a_source_of_their_own(case):
  name, temperature, how = CASES[case]
  got, want = both(name, temperature, **how)
  mask, stats = forms(), got.stats
  for row, length in enumerate(got.lengths):
    tokens, source = got.tokens[row, :length], got.trace.source[row, :length]
    is_forced = np.asarray(mask.forced)[states_before(mask, tokens)] >= 0
    np.testing.assert_array_equal(source == FORCED, is_forced)
    others = want.trace.source[row, :length]
    np.testing.assert_array_equal(source[~is_forced], others[~is_forced])
    assert np.all(got.trace.writer[row, :length][is_forced] == -1)
    for law in ("pi", "p", "q", "p1", "q1"):
      known = getattr(got.log_probs, law)[row, :length][is_forced]
      assert np.all((known == 0) | (np.isnan(known) & (law in ("q", "q1"))))
    # They could not have been rejected, so they raise no rate.
    assert stats.extra["forced"][row] == is_forced.sum()
    assert stats.accepted[row] == np.sum(source == DRAFT)
    blocks = np.bincount(
      got.trace.block[row, :length][source == DRAFT],
      minlength=stats.num_blocks[row],
    )
    wanted = np.bincount(blocks, minlength=stats.accepted_at.shape[1])
    np.testing.assert_array_equal(stats.accepted_at[row], wanted)
  assert 0 < stats.extra["forced"].sum() < got.lengths.sum()
  assert np.all(stats.accepted <= stats.examined)
  assert np.all(stats.examined <= stats.drafted)
  for field in ("examined", "accepted"):
    by_position = getattr(stats, f"{field}_by_position")
    np.testing.assert_array_equal(by_position.sum(1), getattr(stats, field))
  assert np.all(stats.expected_acceptance <= stats.examined + 1e-4)


def passes_of(mask, tokens, width: int) -> tuple[int, int]:
  """Returns the drafted tokens of a text of full blocks, and the passes."""
  states, wide = states_before(mask, tokens), width + 2
  forced = np.asarray(mask.forced)[states] >= 0
  held = drafted = passes = 0
  for start in range(0, len(tokens), width + 1):
    for place in range(start, start + width):
      if forced[place]:
        continue
      drafted += 1
      # The cache lacks the start token, or what was written since it was fed.
      missing = place + 1 - held
      while missing:
        missing -= missing if missing <= wide else min(missing - 2, wide)
        passes += 1
      held = place + 1
  return drafted, passes


@pytest.mark.parametrize("gamma", [2, 6])
def test_forced_tokens_cost_no_pass_of_the_drafter(gamma):
  # The drafter is the verifier, so that every block is accepted whole.
  mask, num = forms(3, 14, ends=False), 8
  models, blocks = (LONG[1], LONG[1]), 42 // (gamma + 1)
  inputs, _ = toy.rows(num)
  got = decode(
    "spec_decode",
    models,
    mask=mask,
    inputs=inputs,
    sampling=Sampling.create(1.0),
    gamma=gamma,
    max_decode_len=42,
  )
  assert np.all(got.stats.num_blocks == blocks)
  assert np.all(got.stats.verifier_extends == blocks)
  for row, tokens in enumerate(got.tokens):
    drafted, passes = passes_of(mask, tokens, gamma)
    assert got.stats.drafted[row] == got.stats.accepted[row] == drafted
    assert got.stats.drafter_calls[row] == passes
  assert got.stats.drafter_calls.sum() < num * blocks * gamma / 2


def test_a_row_ends_inside_of_a_forced_run():
  # A stop that is complete with the second of two forced tokens.
  stops = stop_of(5, 4)
  how = HOW | {"sampling": Sampling.create(1.0), "stops": stops, "gamma": 4}
  mask = forms()
  got = decode("spec_cascade_opt", LONG, mask=mask, **how)
  plain = mask.replace(forced=None)
  want = decode("spec_cascade_opt", LONG, mask=plain, **how)
  for field in ("tokens", "lengths", "stopped"):
    np.testing.assert_array_equal(getattr(got, field), getattr(want, field))
  last = np.take_along_axis(got.trace.source, got.lengths[:, None] - 1, 1)[:, 0]
  assert np.any(got.stopped & (last == FORCED))
  np.testing.assert_array_equal(got.stats.num_blocks, want.stats.num_blocks)
  # The length limit comes inside of a run, too.
  whole, _ = both("spec_cascade_opt", 1.0)
  ends = whole.trace.source[:, -1][whole.lengths == LENGTH]
  assert np.any(ends == FORCED)
  inside = np.arange(LENGTH) < whole.lengths[:, None]
  forced = (whole.trace.source == FORCED) & inside
  np.testing.assert_array_equal(whole.stats.extra["forced"], forced.sum(1))


OTHERS = {
  "unsure": {"draft_length": DraftLength("token_prob", 0.3)},
  "tree": {"gamma": 2, "tree": (2, 1)},
}


@pytest.mark.parametrize("shape", toy.nightly(OTHERS, ["unsure"]))
def test_other_drafters_draft_forced_tokens_like_any_other(shape):
  got, want = both("spec_decode", 1.0, **OTHERS[shape])
  for mine, other in zip(
    jax.tree.leaves(got), jax.tree.leaves(want), strict=True
  ):
    np.testing.assert_array_equal(mine, other)
  assert "forced" not in got.stats.extra


@pytest.mark.parametrize("name", ["spec_decode", "spec_cascade_opt"])
def test_rows_do_not_depend_on_their_batch(name):
  # In a batch of many, some row nearly always draws, and all rows are read.
  mask = forms()
  how = HOW | {"sampling": Sampling.create(1.0), "mask": mask}
  inputs, _ = toy.rows(LONG[0].table.shape[0])
  whole = decode(name, LONG, **how)
  alone = decode(name, LONG, inputs=inputs[:1], **how)
  for mine, other in zip(jax.tree.leaves(alone), jax.tree.leaves(whole)):
    if mine.dtype.kind == "f":
      np.testing.assert_allclose(mine[0], other[0], rtol=1e-5, atol=1e-6)
    else:
      np.testing.assert_array_equal(mine[0], other[0])
  assert 3 < alone.stats.extra["forced"][0] < alone.lengths[0]


def test_a_fault_before_a_drawn_token_ends_the_row():
  drafter, verifier = LONG
  broken = drafter.replace(table=drafter.table.at[:, 4].set(jnp.nan))
  how = HOW | {"sampling": Sampling.create(1.0), "mask": forms()}
  got = decode("spec_decode", (broken, verifier), **how)
  assert np.any(got.bad_step >= 0)
  for row, step in enumerate(got.bad_step):
    if step >= 0:
      states = states_before(forms(), [*got.tokens[row, :step], 0])
      assert forms().forced[states[-1]] < 0


@pytest.mark.parametrize("name", ["spec_decode", "spec_cascade_opt"])
def test_a_turn_begins_where_texts_begin(name):
  # Six states one after another, of which every other one forces a token of its
  # own. A turn of 8 tokens, in blocks of 1 to 4, ends in the midst of them.
  size, num = 8, 6
  state = np.arange(num)
  allowed = np.ones((num, size), bool)
  allowed[1::2] = np.arange(size) == 2 + state[1::2, None]
  moves = np.tile(((state + 1) % num)[:, None], size)
  mask = forcing(automaton(moves, allowed))
  decoder, models, *point = prepared(name, toy.whole(size), 8)
  turns = [(2, 5), (6, 0)], [(1,), (7, 7, 2)]
  written = []
  for each in (mask, mask.replace(forced=None)):
    stream = Stream(
      decoder,
      *models,
      toy.padded([(3, 2), (4,)]),
      row_keys(0, 0, jnp.arange(2)),
      *point,
      room=60,
      constraints=Constraints(each),
    )
    tokens = []
    for trial in range(3):
      if trial:
        more = toy.padded(turns[trial - 1])
        stream.turn(more, row_keys(0, trial, jnp.arange(2)))
      decoded = toy.finish(stream)
      tokens.append(np.asarray(decoded.tokens))
      for row, length in zip(tokens[-1], np.asarray(decoded.lengths)):
        assert np.all(allowed[np.arange(length) % num, row[:length]])
    written.append(tokens)
  np.testing.assert_array_equal(*written)


def test_passes_are_those_of_a_row_alone_in_every_turn():
  """After a rejection the drafter holds less, after a turn all but a token."""
  size, limit, width, num = 8, 18, 5, 4
  # Two of four tokens are forced, wherever a text is.
  state = np.arange(num)
  allowed = np.ones((num, size), bool)
  allowed[2:] = np.arange(size) == 2 + state[2:, None]
  moves = np.tile(((state + 1) % num)[:, None], size)
  stream = Stream(
    Decoder(
      METHODS["spec_decode"],
      gamma=width,
      max_decode_len=limit,
      eos_id=size,  # no token
      trace=True,
    ),
    *toy.whole(size),
    toy.padded([(3, 2), (4,)]),
    row_keys(0, 0, jnp.arange(2)),
    *(0.0, Sampling.create(1.0)),
    room=90,
    constraints=Constraints(forcing(automaton(moves, allowed))),
  )
  # Longer than what one pass reads.
  turns = [(2, 5) * 6, (6, 0, 7, 7, 2, 2, 3, 6)], [(1,) * 9, (7, 7, 2) * 3]
  num_rejected = 0
  for trial in range(3):
    if trial:
      more = toy.padded(turns[trial - 1], width=12)
      stream.turn(more, row_keys(0, trial, jnp.arange(2)))
    decoded = jax.device_get(toy.finish(stream))
    for row, blocks in enumerate(decoded.trace.block):
      emitted = np.bincount(blocks[: decoded.lengths[row]])
      num_rejected += np.sum(emitted <= width)
      held = start = passes = 0
      for written in emitted:
        held = min(held, start)
        for place in range(start, start + width):
          if place % num < 2:
            passes += -((held - place - 1) // (width + 2))
            held = place + 1
        start += written
      assert decoded.stats.drafter_calls[row] == passes
  assert num_rejected > 5
