"""Drafters of a shorter window than their verifiers': outputs, counts."""

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  DraftLength,
  Sampling,
  Stream,
  decoder,
  row_keys,
)
from speccascade.decoding.drafting import windowed
from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.draft_pace import Pace
from speccascade.decoding.records import prompts
from tests import method_laws, toy, toy_chains
from tests.decoding import driving
from tests.decoding.drafting.test_adaptive import Chains, adaptive, cells_of
from tests.decoding.drafting.test_fast_forward import forms
from tests.decoding.test_constraints import LONG
from tests.decoding.test_constraints import decode as decode_held

PAIR = toy.pair(3, 2)
GAMMA = 2


def prompt_len() -> int:
  return int(np.sum(np.asarray(PAIR.inputs(1)) != prompts.PAD, axis=1)[0])


# Distributions.


def gammas_of(drafter, room: int):
  """Returns a function from what past blocks wrote to the next gamma.

  Args:
    drafter: an `AdaptiveDrafter`; None drafts `GAMMA` tokens.
    room: tokens of an output that the window holds.
  """

  @functools.cache
  def gamma(emitted: tuple[int, ...]) -> int:
    if drafter is None:
      return GAMMA if sum(emitted) + GAMMA <= room else 0
    pace, length = Pace.zeros(1), 1
    for num in (*emitted, 0):
      now = jnp.full((1,), length, jnp.int32)
      pace = pace.next(drafter.costs, drafter.sizes, now)
      fits = length - 1 + pace.gamma <= room
      pace = pace.replace(gamma=jnp.where(fits, pace.gamma, 0))
      pace = pace.draft(now, pace.gamma - 1)
      length += num
    return int(pace.gamma[0])

  return gamma


@pytest.mark.parametrize("room", [1, 3])
@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("sizes", [None, (0, 1, 2), (1, 2)])
def test_every_path_has_its_probability(sizes, verification, room, monkeypatch):
  length, sampling = 5, Sampling.create(1.0)
  law = method_laws.laws(PAIR, METHODS["spec_decode"].target, 0.0, sampling)
  drafter = None
  if sizes is not None:
    drafter = adaptive(
      PAIR.models()[0], (1.0, 1.55, 2.05)[-len(sizes) :], sizes
    )
  gamma_of = gammas_of(drafter, room)
  cells = {gamma: cells_of(law, gamma, verification) for gamma in range(3)}
  rows = driving.paths(PAIR, lambda past: cells[gamma_of(past)], length)
  weights = dict.fromkeys(toy_chains.sequences(3, length), 0.0)
  for path in rows:
    weights[path.tokens] += path.weight
  expected = toy_chains.chain_law(PAIR, law.pi, length)
  np.testing.assert_allclose([*weights.values()], expected, atol=1e-3)
  before = prompt_len() if PAIR.models()[0].prompted else 0
  program = decoder(
    "spec_decode",
    gamma=GAMMA,
    max_decode_len=length,
    eos_id=toy_chains.EOS,
    verification=verification,
    drafter_window=before + room,
  )
  pair = PAIR if drafter is None else Chains(drafter)
  edges = driving.tables(rows, GAMMA)
  for decoded in driving.run(program, pair, edges, 0.0, sampling, monkeypatch):
    assert np.all(decoded.bad_step < 0)
    for row, path in enumerate(rows):
      written = decoded.lengths[row]
      assert tuple(decoded.tokens[row, :written]) == path.tokens
      past = [len(new) for _, new in path.rounds]
      gammas = [gamma_of(tuple(past[:num])) for num in range(len(past))]
      assert decoded.stats.drafted[row] == sum(gammas)
      if drafter is None:
        assert decoded.stats.extra["past_window"][row] == gammas.count(0)


# What is read, and what rows see of each other.


@struct.dataclass
class ShortLM(toy.WholeLM):
  """A model that has no distribution past a window."""

  window: int = struct.field(pytree_node=False, default=0)

  def extend(
    self, state, tokens, count, *, read=None, depth=None, ancestors=None
  ):
    held = (state.offset + state.length)[:, None]
    state, out = super().extend(
      state, tokens, count, read=read, depth=depth, ancestors=ancestors
    )
    place = jnp.arange(tokens.shape[1])[None] if read is None else read
    # The distribution after so many tokens is that of the next one.
    is_past = held + place + 2 > self.window
    if depth is not None:
      is_past = held + jnp.zeros_like(place) + 2 > self.window
    logits = jnp.where(is_past[..., None], jnp.nan, out.logits)
    return state, out.replace(logits=logits)


WINDOW, LIMIT = 18, 30
# Rows have prompts of 1 to 8 tokens, and pass the window at different places.
TEXTS = [[2 + (i * j) % 6 for j in range(1 + i % 8)] for i in range(12)]
WAYS = {
  "chain": {},
  "block": {"verification": "block"},
  "tree": {"tree": (-1, -1, 0, 1), "verification": "traversal"},
  "iid": {"tree": (-1, -1, 0, 1), "drawing": "iid", "verification": "k_seq"},
  "stop": {"draft_length": DraftLength("max_prob", 0.5)},
  "adaptive": {},
}


def program_of(way, window=WINDOW):
  return Decoder(
    METHODS["spec_decode"],
    max_decode_len=LIMIT,
    eos_id=8,  # no token
    trace=True,
    drafter_window=window,
    **{"gamma": 4 if way == "adaptive" else 2} | WAYS[way],
  )


def models_of(way, window=WINDOW):
  drafter, verifier = toy.whole()
  drafter = ShortLM(drafter.table, window=window)
  if way == "adaptive":
    drafter = adaptive(drafter, (1.0, 1.3, 1.6, 2.2), (0, 1, 2, 4))
  return drafter, verifier


@pytest.mark.parametrize("temperature", toy.nightly([0.0, 1.0], [1.0]))
@pytest.mark.parametrize("way", WAYS)
def test_blocks_are_drafted_up_to_the_window_and_none_past_it(way, temperature):
  drafter, verifier = models_of(way)
  call = (
    *(toy.padded(TEXTS), row_keys(0, 0, np.arange(len(TEXTS)))),
    *(0.0, Sampling.create(temperature)),
  )
  decoded = jax.device_get(program_of(way)(drafter, verifier, *call))
  assert np.all(decoded.bad_step < 0)
  # Up to the window blocks are those of a drafter that has none.
  plain = models_of(way, window=10**6)
  whole = jax.device_get(program_of(way, None)(*plain, *call))
  past = decoded.stats.extra["past_window"]
  assert "past_window" not in whole.stats.extra
  assert past.sum() > 20
  for row, text in enumerate(TEXTS):
    length, blocks = decoded.lengths[row], decoded.trace.block[row]
    room = WINDOW - len(text)
    starts = [
      int(np.argmax(blocks[:length] == number))
      for number in range(decoded.stats.num_blocks[row])
    ]
    assert past[row] <= sum(start > room - 5 for start in starts)
    assert past[row] >= sum(start >= room for start in starts)
    if way in ("chain", "block", "stop"):
      assert past[row] == sum(start + 2 > room for start in starts)
    first = next((x for x in starts if x + 4 > room), length)
    np.testing.assert_array_equal(
      decoded.tokens[row, :first], whole.tokens[row, :first]
    )
    # A block without drafts is one token.
    if starts and starts[-1] >= room:
      tail = [x for x in starts if x >= room]
      assert tail == list(range(tail[0], length))
  if not temperature:
    np.testing.assert_array_equal(decoded.tokens, whole.tokens)
  # Past the window the model is not called.
  idle = jax.device_get(
    program_of(way, window=1)(*models_of(way, window=1), *call)
  )
  assert idle.stats.drafter_calls.sum() == idle.stats.drafted.sum() == 0
  np.testing.assert_array_equal(
    idle.stats.extra["past_window"], idle.stats.num_blocks
  )
  np.testing.assert_array_equal(idle.stats.num_blocks, idle.lengths)


def assert_alike(got, want):
  """Asserts that two decodes have the same tokens and counts."""
  np.testing.assert_array_equal(got.tokens, want.tokens)
  for field, value in vars(want.stats).items():
    if isinstance(value, np.ndarray):
      np.testing.assert_array_equal(getattr(got.stats, field), value, field)


@pytest.mark.parametrize(
  "way", toy.nightly(WAYS, ("chain", "tree", "adaptive"))
)
def test_a_row_alone_is_that_row_in_a_batch_refilled_and_in_pieces(way):
  drafter, verifier = models_of(way)
  program, point = program_of(way), (0.0, Sampling.create(1.0))
  inputs, keys = toy.padded(TEXTS), row_keys(0, 0, np.arange(len(TEXTS)))
  alone = [
    program(drafter, verifier, inputs[[row]], keys[np.array([row])], *point)
    for row in range(len(TEXTS))
  ]
  alone = jax.tree.map(lambda *x: np.concatenate(x), *alone)
  call = (drafter, verifier, inputs, keys, *point)
  for places, part in toy.refilled(program, *call, rows=5, refill=2):
    at_places = jax.tree.map(lambda x, at=places: x[at], alone)
    assert_alike(part, at_places)
  stream = Stream(program, *call)
  decoded = jax.device_get(toy.finish(stream, rounds=2))
  assert_alike(decoded, alone)


@pytest.mark.parametrize("way", ["chain", "tree", "adaptive"])
def test_external_turns_take_room_of_the_window(way):
  drafter, verifier = models_of(way)
  program = dataclasses.replace(program_of(way), max_decode_len=8)
  inputs = toy.padded(TEXTS)
  keys = [row_keys(0, turn, np.arange(len(TEXTS))) for turn in range(2)]
  stream = Stream(
    *(program, drafter, verifier, inputs, keys[0], 0.0, Sampling.create(1.0)),
    room=40,
  )
  first = jax.device_get(toy.finish(stream, rounds=3))
  stream.turn(np.full((len(TEXTS), 10), 3, np.int32), keys[1])
  second = jax.device_get(toy.finish(stream, rounds=3))
  assert np.all(second.bad_step < 0)
  lengths = np.array([len(text) for text in TEXTS])
  passed = lengths + first.lengths + 10 > WINDOW
  assert passed.any()
  assert second.stats.drafted[passed].sum() == 0
  assert second.stats.drafter_calls[passed].sum() == 0
  np.testing.assert_array_equal(
    second.stats.extra["past_window"][passed], second.stats.num_blocks[passed]
  )
  assert second.stats.drafted[~passed].sum() > 0 or passed.all()


def test_forced_tokens_are_the_verifiers_past_the_window():
  how = {"max_decode_len": 21, "trace": True, "mask": forms()}
  how["sampling"] = Sampling.create(0.0)
  whole = decode_held("spec_decode", LONG, **how)
  short = decode_held("spec_decode", LONG, drafter_window=9, **how)
  np.testing.assert_array_equal(short.tokens, whole.tokens)
  assert (
    0 < short.stats.extra["forced"].sum() < whole.stats.extra["forced"].sum()
  )
  assert short.stats.extra["past_window"].sum() > 0


# What is refused.


@pytest.mark.parametrize(
  "name",
  [
    "spec_cascade_opt",
    "spec_decode_lossy",
    "cascade_drafting",
    "bild",
    "verifier",
  ],
)
def test_what_needs_the_drafter_everywhere_is_refused(name):
  with pytest.raises(ValueError, match="needs the drafter at every token"):
    decoder(name, gamma=2, max_decode_len=4, eos_id=1, drafter_window=3)


def test_a_drafter_without_a_model_of_its_own_is_refused():
  model, _ = PAIR.models()
  inner = windowed.within(AutoregressiveDrafter(model, 2), 3)
  with pytest.raises(ValueError, match="one language model"):
    windowed.within(inner, 3)
  with pytest.raises(ValueError, match="no distribution"):
    inner.check_review(METHODS["spec_cascade_opt"].target, None)
