"""Draft heads and look-ahead embeddings: proposals, and what is written.

Both draft blocks whose drafts at one depth have one distribution. Here they are
tables of distributions over a chain of order 1, which is their verifier.
"""

from collections.abc import Callable
import dataclasses
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
  HeadsDrafter,
  LookaheadDrafter,
  Sampling,
  Stream,
  row_keys,
)
from speccascade.decoding.drafting.heads_drafter import HeadsState
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.judge import goodness
from tests import toy
from tests.decoding.drafting import (
  depth_samples,
  exact,
  toy_heads,
  toy_lookahead,
)

DRAFT, ACCEPT, DRAW = range(3)  # tags of a round
NEVER = 99  # an EOS that no chain writes


@dataclasses.dataclass(frozen=True)
class Kind:
  """What distinguishes heads from embeddings.

  Attributes:
    of_logits: a function from logits [K, V, V] to a draft model.
    knowing: a function from the distributions of a chain, K and a blur to the
      draft model that knows the chain.
    num: how many of them draft blocks of three.
    idle: rounds at the beginning of a text that draft nothing. No hidden state
      is there for heads yet, and embeddings read the text alone.
    seed: of the samples.
  """

  of_logits: Callable
  knowing: Callable
  num: int
  idle: int
  seed: int

  def sure(self):
    """Returns the draft model of `CYCLE`."""
    return self.knowing(CYCLE, self.num, blur=0.01)


KINDS = {
  "heads": Kind(toy_heads.TableHeads, toy_heads.ahead, 3, 1, 7),
  "embeddings": Kind(toy_lookahead.TableAhead, toy_lookahead.knowing, 2, 0, 11),
}

# What is written: a chain that is all but certain, and drafts that know it.

CYCLE = np.eye(6)[[2, 0, 3, 5, 0, 4]]
SURE = toy.markov(0.999 * CYCLE + 0.001 / 6)
SHAPES = {
  "chain": {"gamma": 3},
  "tree": {"tree": (2, 1, 1), "gamma": 3},
  "paths": {"drafts": 2, "gamma": 3},
}


def assert_all_accepted(kind, stats, length: int, drafts: int = 3):
  """Asserts blocks of three drafts in a row that are accepted whole."""
  idle = KINDS[kind].idle
  drafting = -(-(length - idle) // 4)
  assert np.all(stats.num_blocks == idle + drafting)
  assert np.all(stats.verifier_calls == idle + drafting)
  assert np.all(stats.accepted_at[:, 0] == idle)
  assert np.all(stats.drafter_calls == drafting)
  assert np.all(stats.drafted == drafts * drafting)
  assert np.all(stats.examined == stats.accepted)


@pytest.mark.parametrize(
  ("kind", "shape", "prompted"),
  toy.nightly(
    itertools.product(KINDS, SHAPES, (False, True)),
    quick=[
      (kind, *case)
      for kind in KINDS
      for case in (("chain", True), ("tree", False))
    ],
  ),
)
def test_what_knows_the_chain_is_always_right(kind, shape, prompted):
  # A hidden state of another token, a head of another place, or an embedding
  # that was left in a cache would not be. The toy of embeddings has no
  # distribution where an embedding stands in the place of a token.
  verifier = SURE.replace(prompted=prompted)
  inputs = toy.padded([(3,), (0, 2), (5, 4)]) if prompted else [[0], [0], [0]]
  got = toy.greedily(
    "spec_decode",
    (KINDS[kind].sure(), verifier),
    inputs=jnp.asarray(inputs, jnp.int32),
    eos_id=NEVER,
    max_decode_len=21,
    **SHAPES[shape],
  )
  drafts = {"chain": 3, "tree": 6, "paths": 6}[shape]
  assert_all_accepted(kind, got.stats, 21, drafts)


def decoder_of(gamma: int, length: int) -> Decoder:
  return Decoder(
    METHODS["spec_decode"], gamma=gamma, max_decode_len=length, eos_id=NEVER
  )


@pytest.mark.parametrize("kind", toy.nightly(KINDS, ["heads"]))
def test_rows_of_a_continuous_batch_begin_as_texts_do(kind):
  # Five rows, two at a time, each of which is as where all are decoded at once.
  verifier, decoder = SURE.replace(prompted=True), decoder_of(3, 9)
  inputs, keys = np.arange(5, dtype=np.int32)[:, None], jnp.arange(5)
  drafter = KINDS[kind].sure()
  call = drafter, verifier, inputs, row_keys(0, 0, keys), 0.0, toy.GREEDY
  whole = decoder(*call)
  for index, part in toy.refilled(decoder, *call, rows=2, refill=1):
    assert np.array_equal(part.tokens, np.asarray(whole.tokens)[index])
    assert_all_accepted(kind, part.stats, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_begins_as_a_text_does(kind):
  keys = row_keys(0, 0, jnp.arange(2))
  stream = Stream(
    decoder_of(3, 9),
    KINDS[kind].sure(),
    SURE.replace(prompted=True),
    np.array([[3], [2]], np.int32),
    keys,
    0.0,
    toy.GREEDY,
    room=40,
  )
  assert_all_accepted(kind, stream.advance(9).stats, 9)
  stream.turn(np.array([[5, 2], [1, -1]], np.int32), keys)
  got = stream.advance(9)
  # The second turn follows its own prompt: token 1 goes to 0, and so does
  # token 4, which ended the first turn.
  follow = np.argmax(CYCLE, axis=1)
  for row, last in zip(np.asarray(got.tokens), (2, 1)):
    for token in row:
      assert token == follow[last]
      last = token
  assert_all_accepted(kind, got.stats, 9)


# What is proposed. Embeddings have the first two of these distributions.

QUARTERS = np.array(
  [
    [[0.5, 0.25, 0.25], [0, 0.5, 0.5], [1, 0, 0]],
    [[0.25, 0.75, 0], [0.5, 0.25, 0.25], [0, 0, 1]],
    [[0.25, 0.25, 0.5], [0.5, 0.5, 0], [0.75, 0.25, 0]],
  ]
)
P = np.array([[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0, 0.25, 0.75]])
HEADS = toy_heads.of_laws(QUARTERS)


def propose_heads(drafter, read, keys, *, needs_bonus_law=False, last=0):
  """Returns the proposal after 5 tokens, of which a verifier read `read`."""
  rows = keys.shape[0]
  state = HeadsState(
    hidden=jnp.tile(jnp.array([[0.0, last]]), (rows, 1)),
    read=jnp.full(rows, read, jnp.int32),
  )

  @jax.jit
  def run(drafter, state, keys):
    return drafter.propose(
      state,
      Prefix(
        jnp.zeros((rows, 9), jnp.int32),
        jnp.full(rows, 5, jnp.int32),
        jnp.ones(rows, bool),
      ),
      keys,
      Sampling.create(1.0),
      needs_bonus_law=needs_bonus_law,
    )[1]

  return run(drafter, state, keys)


def embeddings_drafter(depth, *tree):
  ahead = toy_lookahead.of_laws(QUARTERS[:2])
  return LookaheadDrafter(ahead.language_model(toy.markov(P)), 2, depth, *tree)


def propose_embeddings(
  drafter, keys, text, held=None, *, needs_bonus_law=False
):
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
      Prefix(tokens, jnp.full(rows, length, jnp.int32), jnp.ones(rows, bool)),
      keys,
      Sampling.create(1.0),
      needs_bonus_law=needs_bonus_law,
    )

  return run(drafter, keys)


def assert_is_chain(proposal, laws: np.ndarray):
  """Asserts that 16 rows draft two tokens, all pairs of both distributions.

  Args:
    proposal: the proposal, with a distribution after the drafts.
    laws: [3, V], of both drafts and of the place after them.
  """
  assert np.all(proposal.count == 2)
  assert not proposal.bad.any()
  want = np.broadcast_to(laws, (16, 3, 3))
  np.testing.assert_allclose(proposal.q, want, atol=1e-6)
  np.testing.assert_allclose(proposal.q1, want, atol=1e-6)
  assert np.all(proposal.has_bonus_law)
  exact.assert_drawn_from(proposal.tokens, proposal.q)
  # Every draft is drawn for itself: all pairs of tokens of either distribution
  # come.
  pairs = {tuple(row) for row in np.asarray(proposal.tokens).tolist()}
  first, second = (np.flatnonzero(law) for law in laws[:2])
  assert pairs == set(itertools.product(first.tolist(), second.tolist()))


@pytest.mark.parametrize("last", [0, 1])
def test_a_chain_of_heads_is_drawn_from_the_stated_laws(last, monkeypatch):
  keys = exact.Digits({(): [4, 4]}).choose(monkeypatch)
  drafter = HeadsDrafter(HEADS, SURE, 2)
  proposal = propose_heads(drafter, 4, keys, needs_bonus_law=True, last=last)
  assert_is_chain(proposal, QUARTERS[:, last])


@pytest.mark.parametrize(("last", "held"), [(0, 4), (1, 2)])
def test_a_chain_of_embeddings_is_drawn_from_the_stated_laws(
  last, held, monkeypatch
):
  keys = exact.Digits({(): [4, 4]}).choose(monkeypatch)
  state, proposal = propose_embeddings(
    embeddings_drafter(2),
    keys,
    (0, 1, 2, 2, last),
    held,
    needs_bonus_law=True,
  )
  assert np.all(proposal.calls == 1)
  # The verifier's own distribution, and those of the embeddings: the text alone
  # decides.
  assert_is_chain(proposal, np.stack([P[last], *QUARTERS[:2, last]]))
  # The cache holds the text, and no embedding.
  (held,) = state
  assert np.all(held.length == 5)
  (kept,) = embeddings_drafter(2).keep(state, 5, None, jnp.full(16, 1))
  assert np.all(kept.length == 5)


def test_all_embeddings_draft_and_none_is_left_for_the_bonus(monkeypatch):
  keys = exact.Digits({(): [2, 2, 4]}).choose(monkeypatch)
  _, proposal = propose_embeddings(
    embeddings_drafter(3), keys, (0, 1), needs_bonus_law=True
  )
  want = np.broadcast_to([P[1], *QUARTERS[:2, 1]], (16, 3, 3))
  np.testing.assert_allclose(proposal.q[:, :3], want, atol=1e-6)
  assert not np.any(proposal.has_bonus_law)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_has_one_law_at_a_depth(kind, monkeypatch):
  # 256 rows draft trees (2, 1) without replacement.
  keys = exact.Digits({(): [4, 4, 4, 4]}).choose(monkeypatch)
  tree = DraftTree.of_branching([2, 1]), draft_tree.WITHOUT_REPLACEMENT
  if kind == "heads":
    proposal = propose_heads(HeadsDrafter(HEADS, SURE, 2, *tree), 4, keys)
    laws = QUARTERS[:2, 0]
  else:
    drafter = embeddings_drafter(2, *tree)
    _, proposal = propose_embeddings(drafter, keys, (0, 2, 1))
    laws = np.stack([P[1], QUARTERS[0, 1]])
  tokens = np.asarray(proposal.tokens)
  want = np.broadcast_to(laws[[0, 1, 1]], (256, 3, 3))
  np.testing.assert_allclose(proposal.q[:, :3], want, atol=1e-6)
  assert not np.any(proposal.has_bonus_law)
  assert np.all(tokens[:, 0] != tokens[:, 1])
  # Each child has a uniform of its own, and the distribution of its depth.
  for draft, law in ((0, laws[0]), (2, laws[1]), (3, laws[1])):
    share = np.bincount(tokens[:, draft], minlength=3) / len(tokens)
    np.testing.assert_allclose(share, law, atol=1e-6)
  joint = np.zeros((3, 3))
  np.add.at(joint, (tokens[:, 2], tokens[:, 3]), 1 / len(tokens))
  np.testing.assert_allclose(joint, np.outer(laws[1], laws[1]), atol=1e-6)


@pytest.mark.parametrize(
  ("read", "tree"), [(-1, None), (3, DraftTree.of_branching([2, 1]))]
)
def test_heads_propose_nothing_without_the_last_token_but_one(read, tree):
  drafter = HeadsDrafter(HEADS, SURE, 2, tree)
  keys = row_keys(0, 0, jnp.arange(3))
  proposal = propose_heads(drafter, read, keys, needs_bonus_law=True)
  for counts in (proposal.count, proposal.calls, proposal.has_bonus_law):
    assert not np.any(counts)
  if tree is not None:
    assert np.all(proposal.branches.parents == -1)


def test_a_state_of_heads_forgets_what_is_cut_or_overtaken():
  drafter = HeadsDrafter(HEADS, SURE, 2)
  state = HeadsState(jnp.zeros((3, 2)), jnp.array([2, 3, 4]))
  cut = drafter.rewind(state, jnp.full(3, 3))
  assert np.array_equal(cut.read, [2, 3, -1])
  after = drafter.catch_up(state, None, jnp.array([5, 0, 4]), wide=8)
  assert np.array_equal(after.read, [-1, 3, 4])


# The distribution of whole decodes.

# Distributions of the drafts, all uniforms of the rounds, and how many drafts
# blocks can have accepted. Of the first round of heads only the draw is read,
# so that the others have one cell. The first draft of embeddings is of the
# distribution p itself, and always accepted.
PATHS = {
  "heads": (
    [[[1 / 2, 1 / 2], [1, 0]], [[1, 0], [1 / 2, 1 / 2]]],
    {(0, DRAFT): [1, 1], (0, ACCEPT): [1, 1], (0, DRAW): [4]}
    | exact.nested(
      {(DRAFT,): [2, 2], (ACCEPT,): [4, 4], (DRAW,): [4]}, [(1,), (2,)]
    ),
    [0, 1, 2],
  ),
  "embeddings": (
    [[[1 / 2, 1 / 2], [1, 0]]],
    exact.nested(
      {(DRAFT,): [4, 2], (ACCEPT,): [1, 4], (DRAW,): [4]}, [(0,), (1,)]
    ),
    [1, 2],
  ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_path_of_a_decode_has_the_verifiers_law(kind, monkeypatch):
  # Three tokens; all uniforms go through the compiled loop, in equal cells.
  laws, cells, accepted = PATHS[kind]
  p = np.array([[1 / 2, 1 / 2], [1 / 4, 3 / 4]])
  digits = exact.Digits(cells)
  keys = digits.choose(monkeypatch)
  program, arguments = decoder_of(2, 3).call(
    KINDS[kind].of_logits(toy_heads.logits_of(laws)),
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
  accepted_at = np.asarray(decoded.stats.accepted_at).sum(0)
  assert np.flatnonzero(accepted_at).tolist() == accepted


# kind, method, how many heads or embeddings, settings
QUICK = {
  "heads, opt, bonus of a head": ("heads", "spec_cascade_opt", 3, {"gamma": 2}),
  "heads, token rule in a tree": (
    "heads",
    "spec_cascade_token_v3",
    2,
    {"gamma": 2, "tree": (2, 1), "drawing": "greedy_and_random"},
  ),
  "heads, block": (
    "heads",
    "spec_decode",
    3,
    {"gamma": 3, "verification": "block"},
  ),
  "heads, traversal": (
    "heads",
    "spec_decode",
    2,
    {"gamma": 2, "drafts": 2, "verification": "traversal"},
  ),
  "embeddings, opt": ("embeddings", "spec_cascade_opt", 1, {"gamma": 2}),
}
NIGHTLY = {
  "embeddings, token rule in a tree": (
    "embeddings",
    "spec_cascade_token_v3",
    1,
    {"gamma": 2, "tree": (2, 1), "drawing": "greedy_and_random"},
  ),
  "embeddings, block": (
    "embeddings",
    "spec_decode",
    2,
    {"gamma": 3, "verification": "block"},
  ),
  "heads, spec_cascade_chow, greedy_and_random, token": (
    "heads",
    "spec_cascade_chow",
    3,
    depth_samples.TREES["greedy_and_random, token"],
  ),
}
for kind, few in (("heads", 2), ("embeddings", 1)):
  for num, name in itertools.product((few, few + 1), depth_samples.TAKING):
    NIGHTLY[f"{kind}, {name}, {num}"] = kind, name, num, {"gamma": 2}
  for way, options in depth_samples.TREES.items():
    NIGHTLY[f"{kind}, {way}"] = kind, "spec_decode", few, options


@pytest.mark.parametrize("case", toy.nightly(QUICK | NIGHTLY, QUICK))
def test_samples_have_the_law(case):
  kind, method, num, options = (QUICK | NIGHTLY)[case]
  rows = 40_000 if case in QUICK else 200_000
  _, logits = depth_samples.random_chain()
  drafter = KINDS[kind].of_logits(jnp.asarray(logits[:num], jnp.float32))
  depth_samples.assert_samples(
    kind, drafter, method, num, rows, KINDS[kind].seed, **options
  )


@pytest.mark.parametrize(
  ("kind", "nums", "far"),
  [("heads", (0, 2, 3), 0.02), ("embeddings", (0, 1), 0.01)],
)
def test_the_law_tells_how_many_there_are(kind, nums, far):
  # Else the samples above would have the right distribution with one fewer.
  row, sampling = "spec_cascade_opt", Sampling.create(0.9)
  alpha = depth_samples.telling_alpha(kind, row, (1, 1), nums[-1])
  laws = [
    depth_samples.law(kind, row, alpha, sampling, (1, 1), num) for num in nums
  ]
  for one, other in itertools.pairwise(laws):
    assert goodness.tv(one, other) > far


# What is refused.

# (method, options, message)
REFUSED = [
  ("cascade_drafting", {}, "wants a language model as its drafter"),
  ("token_cascade_chow", {}, "wants a language model as its drafter"),
  ("spec_cascade_opt", {"verification": "block"}, "no stated distribution"),
  (
    "spec_decode",
    {"draft_length": DraftLength("max_prob", 0.5)},
    "draft whole blocks",
  ),
]


@pytest.mark.parametrize(
  ("kind", "method", "options", "message"),
  [
    ("heads", "spec_decode", {"gamma": 4}, "there are 3 draft heads"),
    ("embeddings", "spec_decode", {"gamma": 4}, "set gamma to 3 or less"),
    *((kind, *case) for kind in KINDS for case in REFUSED),
  ],
)
def test_what_neither_can_do_is_refused(kind, method, options, message):
  models = KINDS[kind].sure(), SURE
  with pytest.raises(ValueError, match=message):
    toy.decode(method, models, inputs=2, **({"gamma": 3} | options))


def test_a_block_that_is_too_deep_for_embeddings_is_refused():
  with pytest.raises(ValueError, match="are 2; make it less deep"):
    propose_embeddings(
      embeddings_drafter(4), row_keys(0, 0, jnp.arange(1)), (0, 1)
    )


def test_a_verifier_without_hidden_states_is_refused_for_heads():
  class Silent(toy.MarkovLM):
    def extend(self, *args, **options):
      state, out = super().extend(*args, **options)
      return state, out.replace(hidden=None)

  jax.tree_util.register_pytree_node(
    Silent, lambda x: ((x.table,), None), lambda _, leaves: Silent(*leaves)
  )
  models = KINDS["heads"].sure(), Silent(SURE.table)
  with pytest.raises(ValueError, match="leaves no hidden states"):
    toy.decode("spec_decode", models, inputs=2, gamma=3)
