"""Masks and stops: texts held to an automaton, and texts that one ends."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Constraints,
  Decoder,
  MaxGramDrafter,
  Sampling,
  Stream,
  TokenAutomaton,
  row_keys,
)
from speccascade.decoding.programs import decoders
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding.programs.test_streaming import prepared
from tests.decoding.test_sampled_laws import tiny_llama

TREES = {
  "tree": {"gamma": 2, "tree": (2, 2)},
  "paths": {"gamma": 2, "drafts": 2},
  "traversal": {"gamma": 2, "tree": (2, 1), "verification": "traversal"},
}


def automaton(moves, allowed=None, ends=()) -> TokenAutomaton:
  """Returns an automaton of one class a token.

  Args:
    moves: [S][V] states.
    allowed: [S][V]; None allows all.
    ends: the states that end a text.
  """
  moves = np.asarray(moves, np.int32)
  allowed = np.ones(moves.shape, bool) if allowed is None else allowed
  return TokenAutomaton(
    classes=jnp.arange(moves.shape[1], dtype=jnp.int32),
    moves=jnp.asarray(moves),
    allowed=jnp.asarray(allowed, bool),
    ends=jnp.asarray(np.isin(np.arange(len(moves)), ends)),
  )


def forcing(mask: TokenAutomaton) -> TokenAutomaton:
  """Returns a mask of one class a token that names its forced tokens."""
  allowed = np.asarray(mask.allowed)
  only = np.where(allowed.sum(1) == 1, allowed.argmax(1), -1)
  return mask.replace(forced=jnp.asarray(only, jnp.int32))


def pairs_of_tokens(size: int) -> TokenAutomaton:
  """Returns a mask that looks at the last token alone; an EOS always may be."""
  allowed = np.random.default_rng(5).random((size, size)) < 0.6
  allowed[:, toy_chains.EOS] = True
  return automaton(np.tile(np.arange(size), (size, 1)), allowed)


def at_the_third_two(size: int) -> TokenAutomaton:
  """Returns an automaton that ends a text at its third 2."""
  moves = np.tile(np.arange(4)[:, None], (1, size))
  moves[:3, 2] += 1
  return automaton(moves, ends=[3])


def two_after_zero(size: int) -> TokenAutomaton:
  """Returns a mask of even texts, none empty, in which a 2 follows each 0.

  Its states hold the parity of a text, so that each token counts.
  """
  # The states after an even text and an odd one, that end in a 0 or in another.
  zero, other = np.array([1, 2]), np.array([3, 4])
  parity = np.array([0, 0, 1, 0, 1])
  is_zero = np.arange(size) == 0
  moves = np.where(
    is_zero, zero[1 - parity][:, None], other[1 - parity][:, None]
  )
  allowed = np.ones((5, size), bool)
  allowed[:, toy_chains.EOS] = np.arange(5) == 3
  allowed[zero] = np.arange(size) == 2
  return automaton(moves, allowed)


def masked_tables(models, mask: TokenAutomaton):
  """Returns chains that a mask of pairs leaves, normalised."""
  masked = [
    model.replace(table=jnp.where(mask.allowed, model.table, -jnp.inf))
    for model in models
  ]
  return tuple(masked)


def decode(
  name, models, alpha=None, sampling=toy.GREEDY, mask=None, stops=None, **how
):
  """Returns what a method writes, as `toy.decode`, under constraints."""
  if METHODS[name].num_drafters == 2:
    models = models, models[1]
  texts = Constraints(mask, stops)
  return toy.decode(name, models, alpha, sampling, constraints=texts, **how)


def assert_same(got, want):
  for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    np.testing.assert_array_equal(mine, other)


MODELS = toy.sources(num=24, vocab_size=6)
LONG = toy.sources(num=24, vocab_size=6, eos=-2.0)


@pytest.mark.parametrize("name", toy.nightly(METHODS, ["spec_cascade_opt"]))
def test_a_masked_model_is_a_model_of_the_masked_law(name):
  # The mask looks at the last token alone, as the chains do, so that chains
  # with other tables are the masked models.
  mask = pairs_of_tokens(6)
  assert not np.all(mask.allowed)
  own = masked_tables(MODELS, mask)
  row = METHODS[name]
  how = {"log_probs": True, "trace": True}
  for sampling in (toy.GREEDY, Sampling.create(1.0), Sampling.create(0.8, 2)):
    if row.greedy_only and not sampling.greedy:
      continue
    got = decode(name, MODELS, sampling=sampling, mask=mask, **how)
    assert_same(got, decode(name, own, sampling=sampling, **how))
    for line, length in zip(got.tokens, got.lengths):
      text = [0, *line[:length]]
      assert all(mask.allowed[pair] for pair in itertools.pairwise(text))


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("name", ["spec_decode", "spec_cascade_opt"])
def test_trees_are_masked_at_each_node(name, shape):
  mask = pairs_of_tokens(6)
  how = TREES[shape] | {"log_probs": True, "sampling": Sampling.create(1.0)}
  got = decode(name, MODELS, mask=mask, **how)
  assert_same(got, decode(name, masked_tables(MODELS, mask), **how))


@method_laws.in_float64
def held_law(pair, mask, target, alpha, sampling, length: int) -> np.ndarray:
  """Returns the distribution of texts whose every token has the distribution of
  masked models.

  Text by text, in float64, in the order of `toy_chains.sequences`.
  """
  follow = pair.next_context()
  size = pair.vocab_size

  @functools.cache
  def next_law(context: int, state: int) -> np.ndarray:
    allowed = np.asarray(mask.allowed)[state]
    laws = []
    for table in (pair.q_logits, pair.p_logits):
      logits = np.asarray(table, np.float64).reshape(-1, size)[context]
      logits = jnp.asarray(np.where(allowed, logits, -np.inf))
      laws.append(sampling.laws(logits))
    (q1, q), (p1, p) = laws
    if target is None:
      return np.asarray(p)
    drafts = jnp.zeros((1,), jnp.int32)
    pi, *_ = target.at(
      q1[None], p1[None], drafts, alpha=alpha, sampled=(q[None], p[None])
    )
    return np.asarray(pi[0])

  def chance(text: tuple) -> float:
    context, state, product = pair.start, 0, 1.0
    ends = [token == toy_chains.EOS for token in text]
    if any(ends[:-1]) or not (ends[-1] or len(text) == length):
      return 0.0
    for token in text:
      product *= next_law(context, state)[token]
      context = follow[context, token]
      state = int(mask.moves[state, token])
    return product

  return np.array([chance(text) for text in toy_chains.sequences(size, length)])


LAWS = {
  "verifier": {},
  "spec_decode": {"gamma": 2},
  "spec_cascade_opt": {"gamma": 3},
  "spec_cascade_token_v3": {"gamma": 2, "verification": "block"},
  "token_cascade_chow": {},
  "oracle_cascade_diff": {},
  "spec_decode tree": {"gamma": 2, "tree": (2, 2)},
  "spec_cascade_opt traversal": TREES["traversal"],
  "spec_decode forced": {"gamma": 2},
  "spec_decode forced traversal": {"gamma": 3, "verification": "traversal"},
  "spec_cascade_opt forced": {"gamma": 3},
  "spec_cascade_token_v3 forced": {"gamma": 2, "verification": "block"},
}


@pytest.mark.parametrize("case", LAWS)
def test_texts_have_the_law_of_the_masked_conditionals(case):
  name, how = case.split()[0], LAWS[case] | {"max_decode_len": 4}
  how = {"gamma": 1} | how
  pair, mask, rows = toy.pair(3, 2), two_after_zero(3), 20_000
  sampling, alpha = Sampling.create(0.9), METHODS[name].default_alpha
  target = METHODS[name].target
  point = target, alpha, sampling, 4
  law = held_law(pair, mask, *point)
  free = held_law(pair, automaton([[0] * 3]), *point)
  np.testing.assert_allclose(law.sum(), 1)
  decoded = decode(
    name,
    pair.models(),
    sampling=sampling,
    mask=forcing(mask) if "forced" in case else mask,
    inputs=pair.inputs(rows),
    **how,
  )
  seen = toy.counts(decoded, 3, 4)
  assert goodness.p_value(seen, law) > toy.LEVEL
  # The whole distribution conditioned on the texts that the mask allows is
  # another one.
  whole = np.where(law > 0, free, 0)
  whole /= whole.sum()
  is_far = goodness.tv(whole, law) > 0.03
  assert is_far or case != "spec_decode"
  assert not is_far or goodness.p_value(seen, whole) < toy.LEVEL


def test_a_drafter_without_mass_on_the_mask_drafts_uniformly():
  drafter, verifier = MODELS
  only = jnp.arange(6) == 3
  drafter = drafter.replace(table=jnp.where(only, drafter.table, -jnp.inf))
  allowed = np.ones((1, 6), bool)
  allowed[0, 3] = False
  mask, sampling = automaton([[0] * 6], allowed), Sampling.create(1.0)
  got = decode("spec_decode", (drafter, verifier), sampling=sampling, mask=mask)
  assert np.all(got.bad_step < 0)
  assert got.stats.accepted.sum()
  assert not np.any((got.tokens == 3) & (np.arange(10) < got.lengths[:, None]))


def test_a_fault_of_a_model_is_not_masked_away():
  drafter, verifier = MODELS
  broken = verifier.replace(table=verifier.table.at[..., 3].set(jnp.nan))
  allowed = np.ones((1, 6), bool)
  allowed[0, 3] = False
  mask = automaton([[0] * 6], allowed)
  got = decode("spec_decode", (drafter, broken), mask=mask)
  assert np.all(got.bad_step == 0)


def last_state(tokens, length, stops: TokenAutomaton) -> int:
  """Returns the state after the tokens of a text."""
  state = 0
  for token in tokens[:length]:
    state = int(stops.moves[state, token])
  return state


def cut(tokens, length, stops: TokenAutomaton) -> int:
  """Returns how many tokens there are up to the first stop, it included."""
  state = 0
  for place, token in enumerate(tokens[:length]):
    state = int(stops.moves[state, token])
    if stops.ends[state]:
      return place + 1
  return int(length)


# Ends a text after "2 3" and after "4 4 0": states "", 2, 4, 44, end.
STOPS = automaton(
  [
    [0, 0, 1, 0, 2, 0],
    [0, 0, 1, 4, 2, 0],
    [0, 0, 1, 0, 3, 0],
    [4, 0, 1, 0, 3, 0],
    [4, 4, 4, 4, 4, 4],
  ],
  ends=[4],
)


def stop_of(first: int, second: int, size: int = 6) -> TokenAutomaton:
  """Returns an automaton that ends a text after two tokens in a row."""
  moves = np.zeros((3, size), np.int32)
  moves[:, first] = 1
  moves[1, second] = 2
  return automaton(moves, ends=[2])


@pytest.mark.parametrize(
  "name", toy.nightly(METHODS, ["spec_decode", "token_cascade_chow"])
)
def test_a_stop_cuts_the_text_that_would_have_been(name):
  method = METHODS[name]
  sampling = toy.GREEDY if method.greedy_only else Sampling.create(1.0)
  how = {"sampling": sampling, "max_decode_len": 20, "log_probs": True}
  whole = decode(name, LONG, **how)
  stops = STOPS
  if method.greedy_only:  # few texts, which may lack those of `STOPS`
    row = whole.tokens[np.argmax(whole.lengths)]
    stops = stop_of(*row[2:4])
  got = decode(name, LONG, stops=stops, **how)
  ends = [cut(*row, stops) for row in zip(whole.tokens, whole.lengths)]
  assert np.any(ends < whole.lengths)
  if method.execution.is_one_loop:
    # The sequence cascade looks at what a text of its drafter ends with.
    np.testing.assert_array_equal(got.lengths, ends)
    inside = np.arange(20) < np.array(ends)[:, None]
    np.testing.assert_array_equal(got.tokens[inside], whole.tokens[inside])
    for field in vars(got.log_probs):
      mine, other = (getattr(x.log_probs, field) for x in (got, whole))
      np.testing.assert_array_equal(mine[inside], other[inside])
  for tokens, length, stopped in zip(got.tokens, got.lengths, got.stopped):
    assert cut(tokens, length, stops) == length
    assert stopped == stops.ends[last_state(tokens, length, stops)]


def test_no_block_is_made_after_a_stop():
  how = {"sampling": Sampling.create(1.0), "max_decode_len": 20, "trace": True}
  whole = decode("spec_decode", LONG, **how)
  got = decode("spec_decode", LONG, stops=STOPS, **how)
  for row, length in enumerate(got.lengths):
    blocks = 1 + whole.trace.block[row, length - 1]
    assert got.stats.num_blocks[row] == blocks
    assert got.stats.verifier_calls[row] == blocks
  assert got.stats.num_blocks.sum() < whole.stats.num_blocks.sum()


PROMPTS, TURN = [(3, 2), (4,)], [(2, 5), (6, 0)]


def two_turns(decoder, models, point, texts: Constraints) -> list:
  """Returns what two rows write after their prompts, and after a turn more."""
  keys = row_keys(0, 0, jnp.arange(2))
  call = *models, toy.padded(PROMPTS), keys, *point
  stream = Stream(decoder, *call, room=30, constraints=texts)
  first = toy.finish(stream)
  stream.turn(toy.padded(TURN), keys)
  return [first, toy.finish(stream)]


@pytest.mark.parametrize(
  "name",
  ["spec_decode", "spec_decode forced", "tree", "token_cascade_chow"],
)
def test_every_turn_of_a_stream_is_a_text_of_its_own(name):
  models = tiny_llama(1), tiny_llama(2)
  name, *is_forced = name.split()
  decoder, models, *point = prepared(name, models, 6)
  size = models[1].vocab_size
  mask = two_after_zero(size)
  if is_forced:
    # Every other token is a 2, so that a turn ends where one is to come.
    allowed = np.stack([np.ones(size), np.arange(size) == 2])
    mask = forcing(automaton([[1] * size, [0] * size], allowed))
  stops = automaton([[1] * size, [2] * size, [3] * size, [3] * size], ends=[3])
  texts = Constraints(mask, stops)
  first, second = two_turns(decoder, models, point, texts)
  keys = row_keys(0, 0, jnp.arange(2))
  call = toy.padded(PROMPTS, width=16), keys, *point, texts
  want = decoder(*models, *call)
  assert_same(first.tokens, want.tokens)
  written = [
    tuple(row[:num]) for row, num in zip(first.tokens, np.array(first.lengths))
  ]
  whole = [a + b + c for a, b, c in zip(PROMPTS, written, TURN)]
  want = decoder(*models, toy.padded(whole, width=16), *call[1:])
  assert_same(second.tokens, want.tokens)
  assert np.all(np.asarray(second.lengths) <= 3)


@pytest.mark.parametrize("is_forced", [False, True])
def test_rows_that_are_refilled_are_held_to_their_own_text(is_forced):
  mask, rows = two_after_zero(6), 24
  mask = forcing(mask) if is_forced else mask
  inputs, keys = toy.rows(rows)
  settings = {"gamma": 3, "max_decode_len": 9, "eos_id": toy_chains.EOS}
  decoder = Decoder(METHODS["spec_cascade_opt"], **settings)
  texts, sampling = Constraints(mask, STOPS), Sampling.create(1.0)
  whole = decoder(*MODELS, inputs, keys, 0.3, sampling, texts)
  call = *MODELS, np.asarray(inputs), keys, 0.3, sampling, texts
  for place, part in toy.refilled(decoder, *call, rows=5):
    assert_same(part.tokens, np.asarray(whole.tokens)[place])
    assert_same(part.stopped, np.asarray(whole.stopped)[place])
    counts = jax.tree.map(lambda x, place=place: x[place], whole.stats)
    assert_same(part.stats, counts)


def side_by_side(*parts: TokenAutomaton) -> tuple[TokenAutomaton, list[int]]:
  """Returns automata of one class a token in one, and where each begins."""
  firsts = np.cumsum([0, *(len(part.moves) for part in parts)])
  moves = [part.moves + first for part, first in zip(parts, firsts)]
  ends = np.concatenate([part.ends for part in parts])
  joined = automaton(np.concatenate(moves), ends=np.flatnonzero(ends))
  return joined, firsts[:-1].tolist()


AT_A_FOUR = automaton([[0, 0, 0, 0, 1, 0], [1] * 6], ends=[1])
OWN_STOPS = (STOPS, automaton([[0] * 6]), stop_of(3, 3), AT_A_FOUR)


@pytest.mark.parametrize("name", ["spec_cascade_opt", "token_cascade_chow"])
def test_a_stop_of_one_row_ends_no_other(name):
  inputs, keys = toy.rows(24)
  joined, places = side_by_side(*OWN_STOPS)
  own = np.arange(24) % 4
  begins = jnp.asarray(np.array(places)[own], jnp.int32)
  settings = {"gamma": 3, "max_decode_len": 16, "eos_id": toy_chains.EOS}
  decoder = Decoder(METHODS[name], **settings)
  texts = Constraints(stops=joined, begins=begins)
  call = *LONG, np.asarray(inputs), keys, 0.3, Sampling.create(1.0), texts
  got = decoder(*call)
  for number, stops in enumerate(OWN_STOPS):
    alone = decoder(*call[:-1], Constraints(stops=stops))
    rows = own == number
    for field in ("tokens", "lengths", "stopped"):
      mine, other = (np.asarray(getattr(x, field)) for x in (got, alone))
      np.testing.assert_array_equal(mine[rows], other[rows])
    assert np.any(np.asarray(got.stopped)[rows]) == (number != 1)
  # Rows that take the place of others bring their own stops.
  for place, part in toy.refilled(decoder, *call, rows=5):
    assert_same(part.tokens, np.asarray(got.tokens)[place])
    assert_same(part.stopped, np.asarray(got.stopped)[place])


def test_the_turns_of_a_row_end_at_its_own_stops():
  models = tiny_llama(1), tiny_llama(2)
  decoder, models, *point = prepared("spec_decode", models, 6)
  size = models[1].vocab_size
  # A text ends after two tokens, or after four.
  parts = [
    automaton(
      [[min(state + 1, num)] * size for state in range(num + 1)], ends=[num]
    )
    for num in (2, 4)
  ]
  joined, begins = side_by_side(*parts)
  texts = Constraints(stops=joined, begins=jnp.asarray(begins, jnp.int32))
  for out in two_turns(decoder, models, point, texts):
    ended = np.asarray(out.stopped)
    lengths = np.asarray(out.lengths)
    assert ended.any()
    np.testing.assert_array_equal(lengths[ended], np.array([2, 4])[ended])
    assert np.all(lengths[~ended] < np.array([2, 4])[~ended])


def test_a_chain_is_followed_token_by_token():
  rng = np.random.default_rng(0)
  chain = automaton(rng.integers(0, 5, (5, 6)))
  for num in (1, 5, 40):
    tokens = rng.integers(0, 6, (3, num))
    is_text = rng.random((3, num)) < 0.8
    states = np.asarray(chain.follow(jnp.array([0, 3, 4]), tokens, is_text))
    for row, state in enumerate((0, 3, 4)):
      for place in range(num):
        state = int(chain.moves[state, tokens[row, place]])
        state = state if is_text[row, place] else 0
        assert states[row, place] == state


def test_other_tables_of_one_shape_compile_nothing():
  decoder = Decoder(
    METHODS["spec_decode"], gamma=2, max_decode_len=5, eos_id=toy_chains.EOS
  )
  rows = toy.rows(4)
  sizes = []
  for seed in (1, 2):
    allowed = np.random.default_rng(seed).random((2, 6)) < 0.7
    allowed[:, toy_chains.EOS] = True
    mask = automaton([[0, 1] * 3] * 2, allowed)
    decoder(*MODELS, *rows, 0.0, Sampling.create(1.0), Constraints(mask))
    sizes.append(decoders._run._cache_size())
  assert sizes[0] == sizes[1]


def test_automata_of_another_vocabulary_are_refused():
  with pytest.raises(ValueError, match=r"mask has 4 tokens.*models have 6"):
    decode("verifier", MODELS, mask=two_after_zero(4))


def test_a_law_that_no_mask_reaches_is_refused_in_a_mixture():
  copies = MaxGramDrafter.create(None, width=3, vocab_size=6)
  mask = two_after_zero(6)
  with pytest.raises(ValueError, match=r"mixes in.*use a small model"):
    decode("ensemble", (copies, MODELS[1]), 0.3, mask=mask)
  got = decode("spec_decode", (copies, MODELS[1]), mask=mask)
  want = decode("verifier", MODELS, mask=mask)
  assert_same(got.tokens, want.tokens)


def split(whole: TokenAutomaton, halt: int | None = None) -> TokenAutomaton:
  """Returns the same automaton with kinds; its tokens are other columns."""
  order = jnp.asarray([3, 1, 5, 0, 2, 4], jnp.int32)
  kinds = jnp.argsort(order).astype(jnp.int32)
  moves = whole.moves[:, order].astype(jnp.int16)
  allowed = whole.allowed
  if halt is not None:
    allowed = whole.moves != halt
    moves = jnp.where(allowed[:, order], moves, 0)
  return whole.replace(
    moves=moves,
    allowed=allowed,
    kinds=kinds,
    halt=None if halt is None else jnp.int32(halt),
  )


@pytest.mark.parametrize("name", ["spec_decode", "spec_cascade_opt"])
def test_tables_of_kinds_write_what_joint_tables_write(name):
  mask = two_after_zero(6)
  # State 2 ends a text: a 3 and a 4 follow each other.
  moves = np.zeros((3, 6), int)
  moves[:, 3], moves[1, 4], moves[2] = 1, 2, 2
  stops = automaton(moves, ends=[2])
  for sampling in (toy.GREEDY, Sampling(temperature=1.0)):
    want = decode(name, MODELS, None, sampling, mask, stops)
    got = decode(
      name, MODELS, None, sampling, split(mask), split(stops, halt=2)
    )
    assert_same(got, want)
    assert np.asarray(got.stopped).any()
  tree = TREES["tree"]
  want = decode("spec_decode", MODELS, None, toy.GREEDY, mask, stops, **tree)
  got = decode(
    "spec_decode",
    MODELS,
    None,
    toy.GREEDY,
    split(mask),
    split(stops, halt=2),
    **tree,
  )
  assert_same(got, want)
