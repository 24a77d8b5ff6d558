"""Look-ahead embeddings: what they propose, and the law of what is written."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  DraftLength,
  DraftTree,
  LookaheadDrafter,
  Sampling,
  Stream,
  decode_continuously,
  row_keys,
)
from speccascade.decoding.drafting import children
from speccascade.decoding.verification import tree_steps
from speccascade.judge import goodness, toy_chains
from tests import toy
from tests.decoding.drafting import exact, toy_lookahead
from tests.decoding.drafting.test_heads import (
  ACCEPT,
  CYCLE,
  DRAFT,
  DRAW,
  LENGTH,
  NEVER,
  SURE,
  acceptance,
  random_chain,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")

V = 3
SHAPES = {
  "chain": {"gamma": 3},
  "tree": {"tree": (2, 1, 1), "gamma": 3},
  "paths": {"drafts": 2, "gamma": 3},
}

# What is written: a chain that is all but certain, and embeddings that know it.


def assert_all_accepted(stats, length: int):
  """Asserts blocks of three drafts that are accepted whole, from the first."""
  blocks = -(-length // 4)
  assert np.all(stats.num_blocks == blocks)
  assert np.all(stats.drafter_calls == blocks)
  assert np.all(stats.examined == stats.accepted)


@pytest.mark.parametrize(
  ("shape", "prompted"),
  toy.nightly(
    itertools.product(SHAPES, (False, True)),
    quick=[("chain", True), ("tree", False)],
  ),
)
def test_embeddings_that_know_the_chain_are_always_right(shape, prompted):
  # An embedding at another place, or one left in a cache, would be wrong: the
  # toy has no law where an embedding stands in the place of a token.
  verifier = SURE.replace(prompted=prompted)
  inputs = toy.padded([(3,), (0, 2), (5, 4)]) if prompted else [[0], [0], [0]]
  options = {"inputs": jnp.asarray(inputs, jnp.int32), "eos_id": NEVER}
  options["max_decode_len"] = length = 21
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  got = toy.decode("spec_decode", (ahead, verifier), **SHAPES[shape], **options)
  alone = toy.decode("verifier", (None, verifier), **options)
  assert np.all(got.bad_step == -1)
  assert np.array_equal(got.tokens, alone.tokens)
  assert_all_accepted(got.stats, length)


def sure_decoder():
  """Returns (embeddings, their verifier, a decoder of 9 tokens)."""
  verifier = SURE.replace(prompted=True)
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  decoder = Decoder(
    METHODS["spec_decode"], gamma=3, max_decode_len=9, eos_id=NEVER
  )
  return ahead, verifier, decoder


@pytest.mark.slow
def test_rows_of_a_continuous_batch_begin_with_drafts():
  ahead, verifier, decoder = sure_decoder()
  inputs = np.arange(5, dtype=np.int32)[:, None]
  call = ahead, verifier, inputs, row_keys(0, 0, jnp.arange(5)), 0.0, toy.GREEDY
  whole = decoder(*call)
  seen = []
  for index, part in decode_continuously(decoder, *call, rows=2, refill=1):
    seen += index.tolist()
    assert np.array_equal(part.tokens, np.asarray(whole.tokens)[index])
    assert_all_accepted(part.stats, 9)
  assert sorted(seen) == list(range(5))


def test_a_turn_begins_with_drafts():
  ahead, verifier, decoder = sure_decoder()
  keys = row_keys(0, 0, jnp.arange(2))
  start = np.array([[3], [2]], np.int32)
  stream = Stream(
    decoder, ahead, verifier, start, keys, 0.0, toy.GREEDY, room=40
  )
  assert_all_accepted(stream.advance(9).stats, 9)
  stream.turn(np.array([[5, 2], [1, -1]], np.int32), keys)
  got = stream.advance(9)
  assert_all_accepted(got.stats, 9)
  follow = np.argmax(CYCLE, axis=1)
  for row, last in zip(np.asarray(got.tokens), (2, 1)):
    for token in row:
      assert token == follow[last]
      last = token


# What is proposed.


P = np.array([[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0, 0.25, 0.75]])
QUARTERS = np.array(
  [
    [[0.5, 0.25, 0.25], [0, 0.5, 0.5], [1, 0, 0]],
    [[0.25, 0.75, 0], [0.5, 0.25, 0.25], [0, 0, 1]],
  ]
)


def drafter_of(depth, tree=None, drawing=children.GREEDY_AND_RANDOM):
  ahead = toy_lookahead.of_laws(QUARTERS)
  model = ahead.language_model(toy.markov(P))
  return LookaheadDrafter(model, 2, depth, tree, drawing)


def propose(drafter, keys, text, held=None, *, bonus_law=False):
  """Returns (state, proposal) after a text, the first `held` tokens read."""
  rows, length = keys.shape[0], len(text)
  tokens = jnp.tile(jnp.array([*text, *[2] * 9], jnp.int32)[None], (rows, 1))
  held = length - 1 if held is None else held

  @jax.jit
  def run(drafter, keys):
    state = drafter.prefill(jnp.zeros((rows, 1), jnp.int32), capacity=20)
    upto = jnp.full(rows, held, jnp.int32)
    state = drafter.catch_up(state, tokens, upto, wide=4)
    return drafter.propose(
      state,
      tokens,
      jnp.full(rows, length, jnp.int32),
      keys,
      Sampling.create(1.0),
      bonus_law=bonus_law,
      active=jnp.ones(rows, bool),
    )

  return run(drafter, keys)


@pytest.mark.parametrize(("last", "held"), [(0, 4), (1, 2)])
def test_a_chain_is_drawn_from_the_stated_laws(last, held, monkeypatch):
  digits = exact.Digits({(): [4, 4]})
  keys = digits.choose(monkeypatch)
  state, proposal = propose(
    drafter_of(2), keys, (0, 1, 2, 2, last), held, bonus_law=True
  )
  assert np.all(proposal.count == 2)
  assert np.all(proposal.calls == 1)
  assert not proposal.bad.any()
  # The verifier's own law, and those of the embeddings: the text alone decides.
  laws = np.stack([P[last], *QUARTERS[:, last]])
  want = np.broadcast_to(laws, (16, 3, 3))
  np.testing.assert_allclose(proposal.q, want, atol=1e-6)
  np.testing.assert_allclose(proposal.q1, want, atol=1e-6)
  assert np.all(proposal.knows_bonus)
  exact.assert_drawn_from(proposal.tokens, proposal.q)
  pairs = {tuple(row) for row in np.asarray(proposal.tokens).tolist()}
  first, second = (np.flatnonzero(law) for law in laws[:2])
  assert pairs == set(itertools.product(first.tolist(), second.tolist()))
  # The cache holds the text, and no embedding.
  assert np.all(state.length == 5)
  kept = drafter_of(2).keep(state, 5, None, jnp.full(16, 1))
  assert np.all(kept.length == 5)


def test_all_embeddings_draft_and_none_is_left_for_the_bonus(monkeypatch):
  keys = exact.Digits({(): [2, 2, 4]}).choose(monkeypatch)
  _, proposal = propose(drafter_of(3), keys, (0, 1), bonus_law=True)
  want = np.broadcast_to([P[1], *QUARTERS[:, 1]], (16, 3, 3))
  np.testing.assert_allclose(proposal.q[:, :3], want, atol=1e-6)
  assert not np.any(proposal.knows_bonus)


def test_a_tree_has_one_law_at_a_depth(monkeypatch):
  digits = exact.Digits({(): [4, 4, 4, 4]})
  keys = digits.choose(monkeypatch)
  tree = DraftTree.of_branching([2, 1])
  drafter = drafter_of(2, tree, children.WITHOUT_REPLACEMENT)
  _, proposal = propose(drafter, keys, (0, 2, 1))
  tokens = np.asarray(proposal.tokens)
  want = np.stack([P[1], QUARTERS[0, 1]])
  np.testing.assert_allclose(
    proposal.q[:, :3], np.broadcast_to(want[[0, 1, 1]], (256, 3, 3)), atol=1e-6
  )
  assert np.all(tokens[:, 0] != tokens[:, 1])
  joint = np.zeros((3, 3))
  np.add.at(joint, (tokens[:, 2], tokens[:, 3]), 1 / len(tokens))
  np.testing.assert_allclose(joint, np.outer(want[1], want[1]), atol=1e-6)


# The law of whole decodes.


def test_every_path_of_a_decode_has_the_verifiers_law(monkeypatch):
  """All uniforms of two rounds, through the compiled loop, in equal cells."""
  p = np.array([[1 / 2, 1 / 2], [1 / 4, 3 / 4]])
  q = np.array([[[1 / 2, 1 / 2], [1, 0]]])
  # The first draft of a block is of the law p itself, and always accepted.
  cells = {(DRAFT,): [4, 2], (ACCEPT,): [1, 4], (DRAW,): [4]}
  digits = exact.Digits(exact.nested(cells, [(0,), (1,)]))
  keys = digits.choose(monkeypatch)
  decoder = Decoder(
    METHODS["spec_decode"], gamma=2, max_decode_len=3, eos_id=NEVER
  )
  program, arguments = decoder.call(
    toy_lookahead.of_laws(q),
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
  accepted = np.asarray(decoded.stats.accepted_at).sum(0)
  assert accepted[0] == 0
  assert np.all(accepted[1:] > 0)


def law_with_embeddings(method, alpha, sampling, branching, num: int):
  """Returns the law of the sequences that are written, token by token.

  A token has the law T(q, p) of what drafts its place in its block: q is p at
  the first place, and the law of an embedding after it. It has the law p where
  nothing drafts. Whatever of pi is not accepted is the end of the block.

  Args:
    method: a name of the table.
    alpha: of the method.
    sampling: a `Sampling`.
    branching: children at each depth.
    num: K.
  """
  p_logits, ahead = random_chain()
  # [K+1, V, V]: of each place of a block, after each last token of the text.
  logits = np.concatenate([p_logits[None], ahead[:num]])
  p1, p = (np.asarray(x) for x in sampling.laws(jnp.asarray(p_logits)))
  q1, q = (np.asarray(x) for x in sampling.laws(jnp.asarray(logits)))
  shape = (num + 1, V, V, V)
  wide = [np.broadcast_to(x[:, :, None], shape) for x in (q1, q)]
  wide += [np.broadcast_to(x[None, None], shape) for x in (p1, p)]
  q1s, qs, p1s, ps = map(jnp.asarray, wide)
  target = METHODS[method].target
  pi = np.asarray(target.probs(q1s, p1s, alpha=alpha, sampled=(qs, ps)))
  law: dict[tuple, float] = {}

  def go(text, chance, read, place):
    last = text[-1] if text else 0
    if text and (last == toy_chains.EOS or len(text) == LENGTH):
      law[text] = law.get(text, 0.0) + chance
      return
    accepted, all_of = np.zeros(V), p[last]
    if place <= num:
      all_of = pi[place, read, last]
      if place < len(branching):
        accepted = acceptance(q[place, read], all_of, branching[place])
    for token in range(V):
      if accepted[token] > 0:
        go((*text, token), chance * accepted[token], read, place + 1)
      ends = all_of[token] - accepted[token]
      if ends > 1e-15:
        go((*text, token), chance * ends, token, 0)

  go((), 1.0, 0, 0)
  got = np.array(
    [law.get(tuple(x), 0.0) for x in toy_chains.sequences(V, LENGTH)]
  )
  return got / got.sum()


@functools.cache
def telling_alpha(method, branching, num: int) -> float:
  """Returns the alpha at which a law tells best if there is an embedding."""
  if METHODS[method].is_lossless:
    return 0.0
  low, high = METHODS[method].alpha_interval.ends(V)
  grid = np.linspace(max(low, -1.0), min(high, 1.0), 9)[1:-1].tolist()
  sampling = Sampling.create(0.9)

  def distance(alpha):
    laws = [
      law_with_embeddings(method, alpha, sampling, branching, each)
      for each in (num - 1, num)
    ]
    return goodness.tv(*laws)

  with jax.enable_x64(True):
    return max(grid, key=distance)


QUICK = {
  "opt": ("spec_cascade_opt", 1, {"gamma": 2}),
}
NIGHTLY = (
  {
    "token rule in a tree": (
      "spec_cascade_token_v3",
      1,
      {"gamma": 2, "tree": (2, 1), "drawing": "greedy_and_random"},
    ),
    "block": ("spec_decode", 2, {"gamma": 3, "verification": "block"}),
  }
  | {
    f"{name}, {num} embeddings": (name, num, {"gamma": 2})
    for name, row in METHODS.items()
    if row.has_blocks and row.compose is None and not row.greedy_only
    for num in (1, 2)
  }
  | {
    f"{drawing}, {verification}": (
      "spec_decode",
      1,
      {
        "gamma": 2,
        "tree": (2, 2),
        "drawing": drawing,
        "verification": verification,
      },
    )
    for drawing in children.DRAWINGS
    for verification in tree_steps.VERIFY
    if verification != "k_seq" or drawing == children.IID
  }
)


@pytest.mark.parametrize("case", toy.nightly(QUICK | NIGHTLY, QUICK))
def test_samples_have_the_law(case):
  method, num, options = (QUICK | NIGHTLY)[case]
  rows = 40_000 if case in QUICK else 200_000
  p_logits, ahead = random_chain()
  branching = options.get("tree", (1,) * options["gamma"])
  alpha = telling_alpha(method, branching, num)
  sampling = Sampling.create(0.9)
  decoded = toy.decode(
    method,
    (
      toy_lookahead.TableAhead(jnp.asarray(ahead[:num], jnp.float32)),
      toy.MarkovLM(jnp.asarray(p_logits, jnp.float32)[None]),
    ),
    alpha,
    sampling,
    inputs=jnp.zeros((rows, 1), jnp.int32),
    keys=row_keys(11, 0, jnp.arange(rows)),
    max_decode_len=LENGTH,
    **options,
  )
  with jax.enable_x64(True):
    law = law_with_embeddings(method, alpha, sampling, branching, num)
  counts = toy.counts(decoded, V, LENGTH)
  assert goodness.p_value(counts, law) > toy.LEVEL


def test_the_law_tells_whether_there_is_an_embedding():
  # Else the samples above would have the right law without one.
  sampling = Sampling.create(0.9)
  alpha = telling_alpha("spec_cascade_opt", (1, 1), 1)
  with jax.enable_x64(True):
    laws = [
      law_with_embeddings("spec_cascade_opt", alpha, sampling, (1, 1), num)
      for num in (0, 1)
    ]
  assert goodness.tv(*laws) > 0.01


# What is refused.


@pytest.mark.parametrize(
  ("method", "options", "message"),
  [
    ("spec_decode", {"gamma": 4}, "set gamma to 3 or less"),
    ("cascade_drafting", {}, "wants a language model as its drafter"),
    ("token_cascade_chow", {}, "wants a language model as its drafter"),
    ("spec_cascade_opt", {"verification": "block"}, "no stated distribution"),
    (
      "spec_decode",
      {"draft_length": DraftLength("max_prob", 0.5)},
      "look-ahead embeddings draft whole blocks",
    ),
  ],
)
def test_what_embeddings_cannot_do_is_refused(method, options, message):
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  with pytest.raises(ValueError, match=message):
    toy.decode(method, (ahead, SURE), inputs=2, **({"gamma": 3} | options))


def test_a_drafter_that_is_too_deep_is_refused():
  with pytest.raises(ValueError, match="there are 2; make it less deep"):
    propose(drafter_of(4), row_keys(0, 0, jnp.arange(1)), (0, 1))
