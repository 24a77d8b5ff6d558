"""A drafter that reads the verifier's states: proposals, and what is written.

The verifier of the first tests has states that sum up the whole text, and its
reader goes on from any such state. A state of another token would give other
laws. The reader of the last tests has laws of its own wherever it reads its own
states, so that the law that is written tells which it read.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Constraints,
  Decoder,
  DraftLength,
  Sampling,
  StateDrafter,
  Stream,
  TokenAutomaton,
  row_keys,
)
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding import test_constraints
from tests.decoding.drafting import exact, toy_heads, toy_reader

NEVER = 99  # an EOS that no model writes
DRAFT, ACCEPT, DRAW = range(3)  # tags of a round


def verifier_of(prompted: bool = True):
  [_, verifier] = toy.whole(prompted=prompted)
  return toy_reader.StatesLM(verifier.table, prompted)


def reader_of(verifier, blur: float = 1.0):
  return toy_reader.CountingReader(verifier.vocab_size, verifier.prompted, blur)


SHAPES = {
  "chain": {"gamma": 3},
  "tree": {"tree": (2, 1, 1), "gamma": 3},
  "paths": {"drafts": 2, "gamma": 3},
  "wide tree": {"tree": (2, 2), "gamma": 2, "drawing": "iid"},
}
INPUTS = toy.padded([(3,), (0, 2), (5, 4, 1, 1, 7, 2, 2)])


def inputs_of(prompted: bool):
  return jnp.asarray(INPUTS if prompted else [[0], [0], [0]], jnp.int32)


@pytest.mark.parametrize(
  ("shape", "prompted"),
  toy.nightly(
    [(shape, prompted) for shape in SHAPES for prompted in (False, True)],
    quick=[("chain", True), ("chain", False), ("tree", True)],
  ),
)
def test_a_reader_that_knows_the_verifier_is_always_right(shape, prompted):
  verifier = verifier_of(prompted)
  got = toy.greedily(
    "spec_decode",
    (reader_of(verifier), verifier),
    inputs=inputs_of(prompted),
    eos_id=NEVER,
    max_decode_len=21,
    **SHAPES[shape],
  )
  depth = SHAPES[shape]["gamma"]
  blocks = -(-21 // (depth + 1))
  # The first block drafts, too: the prompt's states are there.
  assert np.all(got.stats.num_blocks == blocks)
  assert np.all(got.stats.verifier_calls == blocks)
  assert np.all(got.stats.accepted_at[:, 0] == 0)


@pytest.mark.parametrize("verification", ["token", "block"])
def test_samples_of_what_knows_the_verifier_are_all_accepted(verification):
  verifier = verifier_of()
  decoded = toy.decode(
    "spec_decode",
    (reader_of(verifier), verifier),
    sampling=Sampling.create(1.0),
    inputs=inputs_of(True),
    eos_id=NEVER,
    max_decode_len=21,
    verification=verification,
  )
  assert np.all(decoded.stats.examined == decoded.stats.accepted)
  assert np.all(decoded.stats.num_blocks == 6)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_reader_that_is_often_wrong_writes_the_same(shape):
  # Rejected drafts leave states behind, which must not be read.
  verifier = verifier_of()
  got = toy.greedily(
    "spec_decode",
    (reader_of(verifier, blur=-1.0), verifier),
    inputs=inputs_of(True),
    eos_id=NEVER,
    max_decode_len=12,
    **SHAPES[shape],
  )
  assert np.all(got.stats.accepted == 0)


def test_a_reader_that_is_right_at_times_has_laws_of_the_text_alone():
  # Blocks of all lengths are accepted, and the next block reads the verifier's
  # states again: a flat reader's laws are flat ones of the verifier's.
  verifier = verifier_of()
  models = reader_of(verifier, blur=0.5), verifier
  options = {"inputs": inputs_of(True), "eos_id": NEVER, "max_decode_len": 40}
  decoded = toy.decode(
    "spec_decode",
    models,
    sampling=Sampling.create(1.0),
    trace=True,
    **options,
  )
  accepted_at = np.asarray(decoded.stats.accepted_at).sum(0)
  assert np.all(accepted_at > 0)
  # Greedily it is as sure as the verifier, and always right.
  got = toy.greedily("spec_decode", models, **options)
  assert np.all(got.stats.num_blocks == 10)


def decoder_of(gamma: int, length: int, **options) -> Decoder:
  return Decoder(
    METHODS["spec_decode"],
    gamma=gamma,
    max_decode_len=length,
    eos_id=NEVER,
    **options,
  )


def test_rows_of_a_continuous_batch_begin_as_texts_do():
  verifier, decoder = verifier_of(), decoder_of(3, 9)
  inputs, keys = toy.padded(toy.PROMPTS), jnp.arange(5)
  call = reader_of(verifier), verifier, inputs, row_keys(0, 0, keys), 0.0
  whole = decoder(*call, toy.GREEDY)
  for index, part in toy.refilled(decoder, *call, toy.GREEDY, rows=2, refill=1):
    assert np.array_equal(part.tokens, np.asarray(whole.tokens)[index])
    assert np.all(part.stats.num_blocks == 3)


@pytest.mark.parametrize("tree", [None, (2, 1)])
def test_a_turn_is_read_with_its_states(tree):
  # One row has no turn, then all have; the middle of a block ends the first.
  verifier, keys = verifier_of(), row_keys(0, 0, jnp.arange(3))
  options = {} if tree is None else {"tree": tree}
  stream = Stream(
    decoder_of(2, 7, **options),
    reader_of(verifier),
    verifier,
    np.asarray(INPUTS, np.int32),
    keys,
    0.0,
    toy.GREEDY,
    room=60,
  )
  texts = [row[row >= 0].tolist() for row in np.asarray(INPUTS)]

  def advance(turn):
    got = stream.advance(20)
    for row, text in enumerate(texts):
      if turn is not None and not turn[row]:
        continue
      text += (turn or [[]] * 3)[row]
      alone = toy.decode(
        "verifier",
        (None, verifier),
        inputs=jnp.asarray([text], jnp.int32),
        eos_id=NEVER,
        max_decode_len=7,
      )
      assert np.array_equal(got.tokens[row], alone.tokens[0])
      text += alone.tokens[0].tolist()
      assert got.stats.num_blocks[row] == 3

  advance(None)
  for turn in ([[5, 2, 6], [], [1]], [[2], [3, 3], [4, 4, 0, 1]]):
    stream.turn(toy.padded(turn, width=4), keys)
    advance(turn)


@pytest.mark.parametrize("policy", ["max_prob", "token_prob"])
def test_chains_end_where_a_policy_says(policy):
  verifier = verifier_of()
  options = {"inputs": inputs_of(True), "eos_id": NEVER, "max_decode_len": 12}
  alone = toy.decode("verifier", (None, verifier), **options)
  got = toy.decode(
    "spec_decode",
    (reader_of(verifier, 0.7), verifier),
    draft_length=DraftLength(policy, 0.5),
    trace=True,
    **options,
  )
  assert np.array_equal(got.tokens, alone.tokens)
  assert np.sum(got.stats.num_blocks) >= 9
  assert np.all(got.stats.examined == got.stats.accepted)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_masked_verifier_writes_what_it_writes_alone(shape):
  # No token twice in a row; the reader knows nothing of it.
  verifier = verifier_of()
  size = verifier.vocab_size
  mask = TokenAutomaton(
    classes=jnp.arange(size, dtype=jnp.int32),
    moves=jnp.tile(jnp.arange(size, dtype=jnp.int32)[None], (size, 1)),
    allowed=~jnp.eye(size, dtype=bool),
    ends=jnp.zeros(size, bool),
  )
  got = toy.greedily(
    "spec_decode",
    (reader_of(verifier), verifier),
    inputs=inputs_of(True),
    eos_id=NEVER,
    max_decode_len=16,
    constraints=Constraints(mask=mask),
    **SHAPES[shape],
  )
  assert not np.any(got.tokens[:, 1:] == got.tokens[:, :-1])
  assert np.all(got.stats.accepted > 4)
  with pytest.raises(ValueError, match="a mask does not reach that of a"):
    toy.decode(
      "spec_cascade_opt",
      (reader_of(verifier), verifier),
      inputs=inputs_of(True),
      constraints=Constraints(mask=mask),
    )


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_forced_tokens_and_stops_end_as_those_of_the_verifier_alone(shape):
  """Only one token may follow some; a text ends inside of a block."""
  verifier = verifier_of()
  size = verifier.vocab_size
  mask = test_constraints.forcing(test_constraints.two_after_zero(size))
  got = toy.greedily(
    "spec_decode",
    (reader_of(verifier), verifier),
    inputs=inputs_of(True),
    eos_id=NEVER,
    max_decode_len=24,
    constraints=Constraints(mask, test_constraints.at_the_third_two(size)),
    **SHAPES[shape],
  )
  tokens, lengths = np.asarray(got.tokens), np.asarray(got.lengths)
  texts = [row[:num] for row, num in zip(tokens, lengths)]
  assert any((text == 0).any() for text in texts)
  for text in texts:
    followers = text[1:][text[:-1] == 0]
    assert np.all(followers == 2)
    assert len(text) == 24 or (text == 2).sum() == 3
  assert lengths.min() < 24
  assert np.all(got.stats.accepted > 0)


def test_samples_under_a_mask_have_the_masked_verifiers_law():
  table, p = random_laws()
  mask = test_constraints.forcing(test_constraints.pairs_of_tokens(V))
  assert not np.all(mask.allowed)
  masked = np.where(np.asarray(mask.allowed), p, -np.inf)
  want = law("spec_decode", 0.0, SAMPLING, 2, table, masked)
  reader = toy_reader.TableReader(jnp.asarray(table, jnp.float32))
  assert_law(reader, p, want, constraints=Constraints(mask=mask))


# What is proposed.

QUARTERS = np.array([[0.5, 0.25, 0.25], [0, 0.5, 0.5], [0.75, 0, 0.25]])


def test_a_chain_is_drawn_from_the_stated_laws(monkeypatch):
  keys = exact.Digits({(): [4, 4]}).choose(monkeypatch)
  rng = np.random.default_rng(0)
  laws = QUARTERS[rng.integers(0, 3, (2, 3, 3))]
  drafter = StateDrafter.of(
    toy_reader.TableReading(toy_heads.logits_of(laws)), 2
  )
  verifier, rows = toy.markov(QUARTERS), keys.shape[0]
  text = [0, 2, 1, 1, 2]
  tokens = jnp.tile(jnp.array([*text, *[0] * 6], jnp.int32)[None], (rows, 1))

  @jax.jit
  def run(drafter, keys):
    inputs = jnp.zeros((rows, 1), jnp.int32)
    states = drafter.prefill_with(verifier, inputs, capacity=12)
    upto = jnp.full(rows, 4, jnp.int32)
    state, _ = drafter.catch_up_with(verifier, states, tokens, upto, wide=3)
    return drafter.propose(
      state,
      Prefix(tokens, upto + 1, jnp.ones(rows, bool)),
      keys,
      Sampling.create(1.0),
      needs_bonus_law=True,
    )[1]

  proposal = run(drafter, keys)
  exact.assert_drawn_from(proposal.tokens, proposal.q)
  first, second = np.asarray(proposal.tokens).T
  # The first draft reads the verifier's state at token 3, later ones its own.
  want = [np.broadcast_to(laws[0, 1, 2], (rows, 3)), laws[1, 2, first]]
  want.append(laws[1, first, second])
  np.testing.assert_allclose(proposal.q, np.stack(want, axis=1), atol=1e-6)
  assert np.all(proposal.calls == 3)


# The law of whole decodes.


@pytest.mark.parametrize("reader", toy_reader.READERS)
def test_every_path_of_a_decode_has_the_verifiers_law(reader, monkeypatch):
  p = np.array([[1 / 2, 1 / 2], [1 / 4, 3 / 4]])
  halves = np.array([[1 / 2, 1 / 2], [1, 0]])
  rng = np.random.default_rng(1)
  laws = halves[rng.integers(0, 2, (2, 2, 2))]
  digits = exact.Digits(
    exact.nested(
      {(DRAFT,): [2, 2], (ACCEPT,): [4, 4], (DRAW,): [4]}, [(0,), (1,)]
    )
    | {(2, DRAFT): [1, 1], (2, ACCEPT): [4, 1], (2, DRAW): [4]}
  )
  keys = digits.choose(monkeypatch)
  program, arguments = decoder_of(2, 3).call(
    toy_reader.READERS[reader](toy_heads.logits_of(laws)),
    toy.markov(p),
    jnp.zeros((digits.num_rows, 1), jnp.int32),
    keys,
    0.0,
    Sampling.create(1.0),
  )
  decoded = jax.jit(program.run)(*arguments)
  tokens = np.asarray(decoded.tokens)
  shares = np.zeros((2, 2, 2))
  np.add.at(shares, tuple(tokens.T), 1 / len(tokens))
  want = p[0][:, None, None] * p[:, :, None] * p[None]
  np.testing.assert_allclose(shares, want, atol=1e-6)


V, LENGTH, SAMPLING = 3, 4, Sampling.create(0.9)


@method_laws.in_float64
def law(method, alpha, sampling, depth: int, table, p_logits):
  """Returns the law of the sequences that blocks of `depth` drafts write.

  The first draft of a block reads the verifier's state at the token before the
  last one, and each later one, and the place after them, the reader's own.
  """
  p1, p = (np.asarray(x) for x in sampling.laws(jnp.asarray(p_logits)))
  q1, q = (np.asarray(x) for x in sampling.laws(jnp.asarray(table)))
  shape = table.shape
  p1s, ps = (np.broadcast_to(x[None, None], shape) for x in (p1, p))
  arrays = [jnp.asarray(x) for x in (q1, p1s, q, ps)]
  target = METHODS[method].target
  pi = target.probs(*arrays[:2], alpha=alpha, sampled=tuple(arrays[2:]))
  pi, found = np.asarray(pi), {}

  def go(text, chance, place):
    last = text[-1] if text else 0
    if text and (last == toy_chains.EOS or len(text) == LENGTH):
      found[text] = found.get(text, 0.0) + chance
      return
    before = text[-2] if len(text) > 1 else 0
    at = int(place > 0), before, last
    accepted = np.minimum(q[at], pi[at]) if place < depth else np.zeros(V)
    for token in range(V):
      if accepted[token] > 0:
        go((*text, token), chance * accepted[token], place + 1)
      if pi[at][token] - accepted[token] > 1e-15:
        ends = pi[at][token] - accepted[token]
        go((*text, token), chance * ends, 0)

  go((), 1.0, 0)
  got = [found.get(tuple(x), 0.0) for x in toy_chains.sequences(V, LENGTH)]
  return np.array(got) / sum(got)


def random_laws():
  rng = np.random.default_rng(3)
  p = rng.normal(0, 1.2, (V, V))
  p[:, toy_chains.EOS] = np.clip(p[:, toy_chains.EOS], -1.0, 0.0)
  table = 0.5 * p[None, None] + rng.normal(0, 1.0, (2, V, V, V))
  return table, p


def assert_law(
  drafter, p, want, *, method="spec_decode", alpha=0.0, num=40_000, **how
):
  """Asserts that samples of drafts two tokens deep have a law.

  Args:
    drafter: over the tokens of the verifier.
    p: [V, V] logits of the verifier, a chain of order 1.
    want: the law of the texts, as `law` returns it.
    method: its name.
    alpha: its alpha.
    num: how many texts.
    **how: further settings of `Decoder`.
  """
  counts = toy.sample(
    method,
    (drafter, toy.MarkovLM(jnp.asarray(p, jnp.float32)[None])),
    alpha,
    SAMPLING,
    inputs=lambda num: jnp.zeros((num, 1), jnp.int32),
    num=num,
    seed=5,
    max_decode_len=LENGTH,
    gamma=2,
    **how,
  )
  assert goodness.p_value(counts, want) > toy.LEVEL


QUICK = ["spec_cascade_opt", "spec_cascade_token_v3"]
TAKING = [
  name
  for name, row in METHODS.items()
  if row.has_blocks and row.compose is None and not row.greedy_only
  if row.target is not None
]


@pytest.mark.parametrize("method", toy.nightly(TAKING, QUICK))
def test_samples_of_a_cascade_have_the_law(method):
  table, p = random_laws()
  row, alpha = METHODS[method], 0.0
  wrong = table[:1].repeat(2, axis=0)
  want = law(method, alpha, SAMPLING, 2, table, p)
  if not row.is_lossless:
    low, high = row.alpha_interval.ends(V)
    grid = np.linspace(max(low, -1.0), min(high, 1.0), 9)[1:-1].tolist()
    alpha = max(
      grid,
      key=lambda x: goodness.tv(
        *(law(method, x, SAMPLING, 2, t, p) for t in (table, wrong))
      ),
    )
    want = law(method, alpha, SAMPLING, 2, table, p)
  reader = toy_reader.TableReader(jnp.asarray(table, jnp.float32))
  assert_law(reader, p, want, method=method, alpha=alpha)


TREES = {
  "without replacement": {"drawing": "without_replacement"},
  "traversal": {"drawing": "iid", "verification": "traversal"},
  "greedy and random": {"drawing": "greedy_and_random"},
}


@pytest.mark.parametrize(
  ("way", "reader"),
  toy.nightly(
    [(way, reader) for way in TREES for reader in toy_reader.READERS],
    [("without replacement", "three states")],
  ),
)
def test_samples_of_trees_have_the_verifiers_law(way, reader):
  table, p = random_laws()
  want = law("spec_decode", 0.0, SAMPLING, 2, table, p)
  reader = toy_reader.READERS[reader](jnp.asarray(table, jnp.float32))
  assert_law(reader, p, want, tree=(2, 2), **TREES[way])


# What is refused.


@pytest.mark.parametrize("method", ["cascade_drafting", "token_cascade_chow"])
def test_methods_without_reviewed_blocks_are_refused(method):
  verifier = verifier_of()
  with pytest.raises(ValueError, match="wants a language model as its drafter"):
    toy.decode(method, (reader_of(verifier), verifier), inputs=2)


def test_targets_of_q_take_no_verification_of_whole_blocks():
  verifier = verifier_of()
  models = reader_of(verifier), verifier
  for options in (
    {"verification": "block"},
    {"drafts": 2, "drawing": "iid", "verification": "traversal"},
  ):
    with pytest.raises(ValueError, match="depends on where a block begins"):
      toy.decode("spec_cascade_opt", models, inputs=2, **options)


def test_verifiers_without_states_are_refused():
  [_, silent] = toy.whole(prompted=True)
  verifier = verifier_of()
  with pytest.raises(ValueError, match="does not hand out the hidden states"):
    toy.decode(
      "spec_decode", (reader_of(verifier), silent), inputs=inputs_of(True)
    )


def test_it_drafts_within_no_other_drafter():
  drafter = StateDrafter.of(toy_reader.Counting(verifier_of()), 2)
  with pytest.raises(ValueError, match="give a language model"):
    drafter.prefill(inputs_of(True), capacity=9)
