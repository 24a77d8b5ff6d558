"""Some rounds at a time, and turn after turn: the tokens of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AutoregressiveDrafter,
  BranchedDrafter,
  Decoder,
  MaxGramDrafter,
  Sampling,
  SeveralDrafters,
  Stream,
  cascade_drafter,
  row_keys,
)
from speccascade.decoding.programs import streaming
from tests import toy, toy_chains
from tests.decoding import test_sampled_laws
from tests.decoding.records.test_prompts import NUM, SIDES

LENGTH, WIDTH, ROOM = 8, 32, 44
# Of each row; one takes no part in the first of them.
TURNS = [
  ((2,), (), (3, 0, 5), (6, 6), (0, 7)),
  ((4, 2, 0), (3,), (7,), (5, 5), (6,)),
]


def keys(trial):
  return row_keys(0, trial, jnp.tile(jnp.arange(NUM), len(SIDES)))


def padded(texts, width):
  """Returns the texts, at one side, then at another, then at the third."""
  return np.concatenate([toy.padded(texts, side, width) for side in SIDES])


# Methods that draft trees, by names of their own.
TREES = {
  "tree": (
    "spec_cascade_opt",
    {
      "tree": (2, 2, 1),
      "drawing": "without_replacement",
      "verification": "traversal",
    },
  ),
  "paths": ("spec_decode", {"drafts": 2}),
}


def prepared(name, models, limit=LENGTH):
  """Returns (decoder, models, alpha, sampling) of a method by its name."""
  name, shape = TREES.get(name, (name, {}))
  row = METHODS[name]
  if row.num_drafters == 2:
    models = models, models[1]
  how = {"gamma": 3, "max_decode_len": limit, "eos_id": toy_chains.EOS} | shape
  sampling = toy.GREEDY if row.greedy_only else Sampling.create(1.0)
  decoder = Decoder(row, log_probs=True, **how)
  return decoder, models, row.default_alpha, sampling


def stream_of(name, models, inputs, limit=LENGTH, **how):
  decoder, models, *point = prepared(name, models, limit)
  rngs = row_keys(0, 0, jnp.arange(len(inputs)) % NUM)
  return Stream(decoder, *models, inputs, rngs, *point, **how)


def assert_same(got, want, rows=slice(None)):
  for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    mine, other = np.asarray(mine)[rows], np.asarray(other)[rows]
    if mine.dtype == np.float32:  # after a turn sums have another order
      np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
    else:
      np.testing.assert_array_equal(mine, other)


def llamas():
  return test_sampled_laws.tiny_llama(1), test_sampled_laws.tiny_llama(2)


def beside():
  """Returns two drafters beside each other, and their verifier."""
  drafter, verifier = toy.whole()
  other = drafter.replace(table=jnp.flip(drafter.table, axis=0))
  drafters = (
    AutoregressiveDrafter(model, 3, behind=4) for model in (drafter, other)
  )
  return SeveralDrafters(tuple(drafters)), verifier


def branched():
  """Returns a cascade with siblings beside its first draft, and a verifier."""
  drafter, verifier = toy.whole()
  copier = MaxGramDrafter.create(
    None, width=1, vocab_size=drafter.vocab_size, prompted=True
  )
  cascade = cascade_drafter([drafter], copier, [[1, 2], [0, 1]])
  return BranchedDrafter(cascade, 4), verifier


NAMES = (
  *("spec_cascade_opt", "verifier", "drafter", "cascade_drafting", "bild"),
  *("token_cascade_chow", "oracle_cascade_diff", "spec_decode"),
  "spec_cascade_opt_three",
)
CASES = [
  *((name, toy.whole) for name in (*NAMES, *TREES)),
  *(("cascade_drafting", llamas), ("cascade_drafting", branched)),
  ("spec_decode", beside),
]
QUICK = [("spec_cascade_opt", toy.whole), ("tree", toy.whole)]


@pytest.mark.parametrize(("name", "make"), toy.nightly(CASES, QUICK))
def test_rounds_and_turns_are_the_whole(name, make):
  models = make()
  streaming._advance.clear_cache()  # other tests of this process compile, too

  def whole(texts, trial):
    decoder, both, *point = prepared(name, models)
    inputs = toy.padded(texts, "left", WIDTH)
    return jax.device_get(decoder(*both, inputs, keys(trial), *point))

  texts = [*toy.PROMPTS] * len(SIDES)
  stream = stream_of(name, models, padded(toy.PROMPTS, WIDTH), room=ROOM)
  assert np.all(stream.decoded.lengths == 0)
  rounds = 0
  while not stream.ended.all():
    stream.advance(1 + rounds % 2)
    rounds += 1
  assert rounds > 1
  assert_same(stream.decoded, whole(texts, 0))
  for trial, turn in enumerate(TURNS, start=1):
    said = [
      tuple(tokens[:length].tolist())
      for tokens, length in zip(
        np.asarray(stream.decoded.tokens), np.asarray(stream.decoded.lengths)
      )
    ]
    others = [*turn] * len(SIDES)
    texts = [a + b + c for a, b, c in zip(texts, said, others)]
    stream.turn(padded(turn, 4), keys(trial))
    assert stream.used.tolist() == [
      len(text) - len(prompt) for text, prompt in zip(texts, toy.PROMPTS * 3)
    ]
    has_turn = np.array([len(x) > 0 for x in others])
    assert stream.ended.tolist() == (~has_turn).tolist()
    if trial == 1:  # the next turn cuts this one short
      stream.advance(1)
      continue
    toy.finish(stream, rounds=3)
    assert_same(stream.decoded, whole(texts, trial), has_turn)
  assert len(set(np.asarray(stream.decoded.lengths).tolist())) > 1
  # However many rounds and turns: it was compiled once.
  assert streaming._advance._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spec_cascade_opt", "tree"])
def test_an_encoder_decoder_is_streamed(name):
  models = test_sampled_laws.tiny_t5(1), test_sampled_laws.tiny_t5(2)
  inputs = jnp.asarray(test_sampled_laws.T5_SOURCES)
  stream = stream_of(name, models, inputs, 24)
  toy.finish(stream, rounds=2)
  decoder, _, *point = prepared(name, models, 24)
  want = decoder(*models, inputs, row_keys(0, 0, jnp.arange(2)), *point)
  assert_same(stream.decoded, want)


def test_what_cannot_be_streamed():
  models, inputs = toy.whole(), padded(toy.PROMPTS, 8)[:NUM]
  with pytest.raises(ValueError, match=r"SeqCascade \[Chow\] may write"):
    stream_of("seq_cascade_chow", models, inputs)
  with pytest.raises(ValueError, match="room is 7 tokens; wanted max_decode_"):
    stream_of("verifier", models, inputs, room=7)


@pytest.mark.slow
def test_a_turn_that_cannot_be():
  models = toy.whole()
  # Text 3 5 has no law: the row ends there, and takes no further turn.
  number = models[1].numbers(np.array([[3, 5]]), np.arange(2)[None])[0, 1]
  spoiled = models[1].replace(table=models[1].table.at[number].set(jnp.nan))
  inputs = toy.padded([(3, 5), (0, 2)])
  stream = stream_of("verifier", (None, spoiled), inputs, room=20)
  stream.advance(20)
  assert stream.decoded.bad_step.tolist() == [0, -1]
  rngs = row_keys(0, 1, jnp.arange(2))
  for tokens, message in (
    ([[9], [1]], "prompt 0 has token 9"),
    ([[1] * 7] * 2, r"row 1 has \d tokens, and 7 new ones; with 8 more"),
  ):
    with pytest.raises(ValueError, match=message):
      stream.turn(tokens, rngs)
  with pytest.raises(ValueError, match="rounds is 0"):
    stream.advance(0)
  stream.turn([[2], [2]], rngs)
  assert stream.ended.tolist() == [True, False]
  assert stream.advance(20).lengths.tolist()[0] == 0
  assert stream.decoded.lengths[1] > 0
  source = toy.whole(prompted=False)
  stream = stream_of("verifier", (None, source[1]), jnp.ones((2, 1), jnp.int32))
  with pytest.raises(ValueError, match="a WholeLM continues a source"):
    stream.turn([[2], [2]], rngs)


def test_a_fault_in_a_later_turn_is_where_the_turn_has_it():
  # It counts 2 3 4 5 6 and has no distribution after a 6; after a 0 it ends.
  moves = {0: toy_chains.EOS, 2: 3, 3: 4, 4: 5, 5: 6}
  chain = toy.moving(moves, 8, rest=0.0).replace(prompted=True)
  chain = chain.replace(table=chain.table.at[0, 6].set(jnp.nan))
  inputs = toy.padded([(3, 0), (0,)])
  stream = stream_of("verifier", (None, chain), inputs, room=24)
  stream.advance(LENGTH)
  assert stream.decoded.lengths.tolist() == [1, 1]
  assert stream.decoded.bad_step.tolist() == [-1, -1]
  stream.turn([[5, 3], [7, 0]], row_keys(0, 1, jnp.arange(2)))
  stream.advance(LENGTH)
  assert stream.decoded.tokens[0, :3].tolist() == [4, 5, 6]
  assert stream.decoded.lengths.tolist() == [3, 1]
  assert stream.decoded.bad_step.tolist() == [3, -1]


def test_a_wide_turn_needs_room_for_its_width():
  """A pass writes as many slots as a turn is wide, however few its tokens."""
  chain = toy.moving({2: 3, 3: toy_chains.EOS}, 8, rest=0.0).replace(
    prompted=True
  )
  stream = stream_of(
    "verifier", (None, chain), toy.padded([(2,)]), limit=4, room=12
  )
  stream.advance(4)
  assert stream.used.tolist() == [2]
  rngs = row_keys(0, 1, jnp.arange(1))
  wide = toy.padded([(2,)], width=10)
  message = "row 0 has 2 tokens, and 1 new ones; with 10 more"
  with pytest.raises(ValueError, match=message):
    stream.turn(wide, rngs)
  stream.turn(wide[:, :9], rngs)
  stream.advance(4)
  assert stream.decoded.tokens.tolist() == [[3, toy_chains.EOS, 0, 0]]


def test_a_row_that_is_going_stops_where_it_has_no_turn():
  chain = toy.moving({2: 3, 3: 4, 4: 2}, 8, rest=0.0).replace(prompted=True)
  inputs = toy.padded([(2,), (2,)])
  stream = stream_of("verifier", (None, chain), inputs, room=24)
  stream.advance(2)
  assert stream.ended.tolist() == [False, False]
  assert stream.decoded.lengths.tolist() == [2, 2]
  stream.turn([[4], [-1]], row_keys(0, 1, jnp.arange(2)))
  assert stream.ended.tolist() == [False, True]
  stream.advance(3)
  assert stream.decoded.lengths.tolist() == [3, 0]
  assert stream.decoded.tokens[0, :3].tolist() == [2, 3, 4]
  assert stream.used.tolist() == [6, 2]
