"""Look-ahead embeddings: what they propose, and the law of what is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  DraftTree,
  LookaheadDrafter,
  Sampling,
  row_keys,
)
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.judge import goodness
from tests import toy
from tests.decoding.drafting import (
  depth_blocks,
  depth_samples,
  exact,
  toy_lookahead,
)
from tests.decoding.drafting.depth_blocks import (
  ACCEPT,
  CYCLE,
  DRAFT,
  DRAW,
  SURE,
)

# What is written: embeddings that know a chain that is all but certain.


def assert_all_accepted(stats, length: int):
  """Asserts blocks of three drafts that are accepted whole, from the first."""
  blocks = -(-length // 4)
  assert np.all(stats.num_blocks == blocks)
  assert np.all(stats.drafter_calls == blocks)
  assert np.all(stats.examined == stats.accepted)


@depth_blocks.EACH_SHAPE
def test_embeddings_that_know_the_chain_are_always_right(shape, prompted):
  # An embedding at another place, or one left in a cache, would be wrong: the
  # toy has no law where an embedding stands in the place of a token.
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  got = depth_blocks.decode_sure(ahead, shape, prompted, length=21)
  assert_all_accepted(got.stats, 21)


@pytest.mark.slow
def test_rows_of_a_continuous_batch_begin_with_drafts():
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  for part in depth_blocks.continuous_parts(ahead, length=9):
    assert_all_accepted(part.stats, 9)


def test_a_turn_begins_with_drafts():
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  for part in depth_blocks.two_turns(ahead, length=9):
    assert_all_accepted(part.stats, 9)


# What is proposed.


P = np.array([[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0, 0.25, 0.75]])
QUARTERS = np.array(
  [
    [[0.5, 0.25, 0.25], [0, 0.5, 0.5], [1, 0, 0]],
    [[0.25, 0.75, 0], [0.5, 0.25, 0.25], [0, 0, 1]],
  ]
)


def drafter_of(depth, tree=None, drawing=draft_tree.GREEDY_AND_RANDOM):
  ahead = toy_lookahead.of_laws(QUARTERS)
  model = ahead.language_model(toy.markov(P))
  return LookaheadDrafter(model, 2, depth, tree, drawing)


def propose(drafter, keys, text, held=None, *, needs_bonus_law=False):
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


@pytest.mark.parametrize(("last", "held"), [(0, 4), (1, 2)])
def test_a_chain_is_drawn_from_the_stated_laws(last, held, monkeypatch):
  keys = exact.Digits({(): [4, 4]}).choose(monkeypatch)
  state, proposal = propose(
    drafter_of(2), keys, (0, 1, 2, 2, last), held, needs_bonus_law=True
  )
  assert np.all(proposal.calls == 1)
  # The verifier's own law, and those of the embeddings: the text alone decides.
  laws = np.stack([P[last], *QUARTERS[:, last]])
  depth_blocks.assert_is_chain(proposal, laws)
  # The cache holds the text, and no embedding.
  (held,) = state
  assert np.all(held.length == 5)
  (kept,) = drafter_of(2).keep(state, 5, None, jnp.full(16, 1))
  assert np.all(kept.length == 5)


def test_all_embeddings_draft_and_none_is_left_for_the_bonus(monkeypatch):
  keys = exact.Digits({(): [2, 2, 4]}).choose(monkeypatch)
  _, proposal = propose(drafter_of(3), keys, (0, 1), needs_bonus_law=True)
  want = np.broadcast_to([P[1], *QUARTERS[:, 1]], (16, 3, 3))
  np.testing.assert_allclose(proposal.q[:, :3], want, atol=1e-6)
  assert not np.any(proposal.has_bonus_law)


def test_a_tree_has_one_law_at_a_depth(monkeypatch):
  keys = exact.Digits({(): [4, 4, 4, 4]}).choose(monkeypatch)
  tree = DraftTree.of_branching([2, 1])
  drafter = drafter_of(2, tree, draft_tree.WITHOUT_REPLACEMENT)
  _, proposal = propose(drafter, keys, (0, 2, 1))
  depth_blocks.assert_is_tree(proposal, np.stack([P[1], QUARTERS[0, 1]]))


# The law of whole decodes.


def test_every_path_of_a_decode_has_the_verifiers_law(monkeypatch):
  q = np.array([[[1 / 2, 1 / 2], [1, 0]]])
  # The first draft of a block is of the law p itself, and always accepted.
  cells = {(DRAFT,): [4, 2], (ACCEPT,): [1, 4], (DRAW,): [4]}
  cells = exact.nested(cells, [(0,), (1,)])
  ahead = toy_lookahead.of_laws(q)
  decoded = depth_blocks.decode_every_path(ahead, cells, monkeypatch)
  accepted = np.asarray(decoded.stats.accepted_at).sum(0)
  assert accepted[0] == 0
  assert np.all(accepted[1:] > 0)


def law_with_embeddings(method, alpha, sampling, branching, num: int):
  """Returns the law of the sequences that are written with `num` embeddings.

  The first place of a block has the law p, and those after it have the laws of
  the embeddings, after the last token of the text.
  """
  p, ahead = depth_samples.random_chain()
  logits = np.concatenate([p[None], ahead])
  return depth_samples.law_of_blocks(
    method, alpha, sampling, branching, logits, num + 1, reads_last=True
  )


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
    for name in depth_samples.TAKING
    for num in (1, 2)
  }
  | {
    way: ("spec_decode", 1, options)
    for way, options in depth_samples.TREES.items()
  }
)


@pytest.mark.parametrize("case", toy.nightly(QUICK | NIGHTLY, QUICK))
def test_samples_have_the_law(case):
  method, num, options = (QUICK | NIGHTLY)[case]
  rows = 40_000 if case in QUICK else 200_000
  _, logits = depth_samples.random_chain()
  ahead = toy_lookahead.TableAhead(jnp.asarray(logits[:num], jnp.float32))
  depth_samples.assert_samples(
    law_with_embeddings, ahead, method, num, rows, seed=11, **options
  )


def test_the_law_tells_whether_there_is_an_embedding():
  # Else the samples above would have the right law without one.
  row, sampling = "spec_cascade_opt", Sampling.create(0.9)
  alpha = depth_samples.telling_alpha(law_with_embeddings, row, (1, 1), 1)
  with jax.enable_x64(True):
    laws = [
      law_with_embeddings(row, alpha, sampling, (1, 1), num) for num in (0, 1)
    ]
  assert goodness.tv(*laws) > 0.01


# What is refused.


@pytest.mark.parametrize(
  ("method", "options", "message"),
  [
    ("spec_decode", {"gamma": 4}, "set gamma to 3 or less"),
    *depth_blocks.REFUSED,
  ],
)
def test_what_embeddings_cannot_do_is_refused(method, options, message):
  ahead = toy_lookahead.knowing(CYCLE, 2, blur=0.01)
  with pytest.raises(ValueError, match=message):
    toy.decode(method, (ahead, SURE), inputs=2, **({"gamma": 3} | options))


def test_a_drafter_that_is_too_deep_is_refused():
  with pytest.raises(ValueError, match="there are 2; make it less deep"):
    propose(drafter_of(4), row_keys(0, 0, jnp.arange(1)), (0, 1))
