"""Draft heads: what they propose, and the law of what is written with them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import DraftTree, HeadsDrafter, Sampling, row_keys
from speccascade.decoding.drafting.heads_drafter import HeadsState
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.judge import goodness
from tests import toy
from tests.decoding.drafting import (
  depth_blocks,
  depth_samples,
  exact,
  toy_heads,
)
from tests.decoding.drafting.depth_blocks import (
  ACCEPT,
  CYCLE,
  DRAFT,
  DRAW,
  SURE,
)

# What is written: heads that know a chain that is all but certain.


def assert_all_accepted(stats, length: int):
  """Asserts one round of one token, and blocks that are accepted whole."""
  blocks = 1 + -(-(length - 1) // 4)
  assert np.all(stats.num_blocks == blocks)
  assert np.all(stats.accepted_at[:, 0] == 1)
  assert np.all(stats.drafter_calls == blocks - 1)
  assert np.all(stats.examined == stats.accepted)


@depth_blocks.EACH_SHAPE
def test_heads_that_know_the_chain_are_always_right(shape, prompted):
  # A hidden state of another token, or a head of another place, would not be.
  heads = toy_heads.ahead(CYCLE, 3, blur=0.01)
  got = depth_blocks.decode_sure(heads, shape, prompted, length=21)
  assert_all_accepted(got.stats, 21)
  drafted = {"chain": 3, "tree": 6, "paths": 6}[shape]
  blocks = got.stats.num_blocks
  assert np.all(got.stats.drafted == drafted * (blocks - 1))
  assert np.all(got.stats.verifier_calls == blocks)


def test_rows_of_a_continuous_batch_begin_without_a_hidden_state():
  heads = toy_heads.ahead(CYCLE, 3, blur=0.01)
  for part in depth_blocks.continuous_parts(heads, length=9):
    assert_all_accepted(part.stats, 9)


def test_a_turn_begins_without_a_hidden_state():
  heads = toy_heads.ahead(CYCLE, 3, blur=0.01)
  for part in depth_blocks.two_turns(heads, length=9):
    assert_all_accepted(part.stats, 9)


# What is proposed.


def propose(drafter, read, length, keys, *, needs_bonus_law=False, last=0):
  """Returns the proposal after a verifier read `read` of `length` tokens."""
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
        jnp.full(rows, length, jnp.int32),
        jnp.ones(rows, bool),
      ),
      keys,
      Sampling.create(1.0),
      needs_bonus_law=needs_bonus_law,
    )[1]

  return run(drafter, state, keys)


QUARTERS = np.array(
  [
    [[0.5, 0.25, 0.25], [0, 0.5, 0.5], [1, 0, 0]],
    [[0.25, 0.75, 0], [0.5, 0.25, 0.25], [0, 0, 1]],
    [[0.25, 0.25, 0.5], [0.5, 0.5, 0], [0.75, 0.25, 0]],
  ]
)


@pytest.mark.parametrize("last", [0, 1])
def test_a_chain_is_drawn_from_the_stated_laws(last, monkeypatch):
  keys = exact.Digits({(): [4, 4]}).choose(monkeypatch)
  drafter = HeadsDrafter(toy_heads.of_laws(QUARTERS), SURE, 2)
  proposal = propose(drafter, 4, 5, keys, needs_bonus_law=True, last=last)
  depth_blocks.assert_is_chain(proposal, QUARTERS[:, last])


def test_a_tree_has_one_law_at_a_depth(monkeypatch):
  keys = exact.Digits({(): [4, 4, 4, 4]}).choose(monkeypatch)
  drafter = HeadsDrafter(
    toy_heads.of_laws(QUARTERS),
    SURE,
    2,
    DraftTree.of_branching([2, 1]),
    draft_tree.WITHOUT_REPLACEMENT,
  )
  depth_blocks.assert_is_tree(propose(drafter, 4, 5, keys), QUARTERS[:2, 0])


@pytest.mark.parametrize(
  ("read", "tree"), [(-1, None), (3, DraftTree.of_branching([2, 1]))]
)
def test_nothing_is_proposed_without_the_last_token_but_one(read, tree):
  drafter = HeadsDrafter(toy_heads.of_laws(QUARTERS), SURE, 2, tree)
  keys = row_keys(0, 0, jnp.arange(3))
  proposal = propose(drafter, read, 5, keys, needs_bonus_law=True)
  for counts in (proposal.count, proposal.calls, proposal.has_bonus_law):
    assert not np.any(counts)
  if tree is not None:
    assert np.all(proposal.branches.parents == -1)


def test_a_state_forgets_what_is_cut_or_overtaken():
  drafter = HeadsDrafter(toy_heads.of_laws(QUARTERS), SURE, 2)
  state = HeadsState(jnp.zeros((3, 2)), jnp.array([2, 3, 4]))
  cut = drafter.rewind(state, jnp.full(3, 3))
  assert np.array_equal(cut.read, [2, 3, -1])
  after = drafter.catch_up(state, None, jnp.array([5, 0, 4]), wide=8)
  assert np.array_equal(after.read, [-1, 3, 4])


# The law of whole decodes.


def test_every_path_of_a_decode_has_the_verifiers_law(monkeypatch):
  q = np.array([[[1 / 2, 1 / 2], [1, 0]], [[1, 0], [1 / 2, 1 / 2]]])
  # Of the first round only the draw is read; the others have one cell.
  first = {(0, DRAFT): [1, 1], (0, ACCEPT): [1, 1], (0, DRAW): [4]}
  cells = {(DRAFT,): [2, 2], (ACCEPT,): [4, 4], (DRAW,): [4]}
  cells = first | exact.nested(cells, [(1,), (2,)])
  heads = toy_heads.of_laws(q)
  decoded = depth_blocks.decode_every_path(heads, cells, monkeypatch)
  # Every number of drafts was accepted, and by both heads.
  assert np.all(np.asarray(decoded.stats.accepted_at).sum(0) > 0)


def law_with_heads(method, alpha, sampling, branching, num_heads: int):
  """Returns the law of the sequences that heads write.

  Head k drafts place k of a block. The next block's heads read the token before
  the drawn one.
  """
  _, logits = depth_samples.random_chain()
  return depth_samples.law_of_blocks(
    method, alpha, sampling, branching, logits, num_heads, reads_last=False
  )


QUICK = {
  "opt, bonus of a head": ("spec_cascade_opt", 3, {"gamma": 2}),
  "token rule in a tree": (
    "spec_cascade_token_v3",
    2,
    {"gamma": 2, "tree": (2, 1), "drawing": "greedy_and_random"},
  ),
  "block": ("spec_decode", 3, {"gamma": 3, "verification": "block"}),
  "traversal": (
    "spec_decode",
    2,
    {"gamma": 2, "drafts": 2, "verification": "traversal"},
  ),
}
NIGHTLY = {
  f"{name}, {num} heads": (name, num, {"gamma": 2})
  for name in depth_samples.TAKING
  for num in (2, 3)
} | {
  f"{name}, {way}": (name, num, options)
  for way, options in depth_samples.TREES.items()
  for name, num in (("spec_decode", 2), ("spec_cascade_chow", 3))
  if name == "spec_decode" or way == f"{draft_tree.GREEDY_AND_RANDOM}, token"
}


@pytest.mark.parametrize("case", toy.nightly(QUICK | NIGHTLY, QUICK))
def test_samples_have_the_law(case):
  method, num, options = (QUICK | NIGHTLY)[case]
  rows = 40_000 if case in QUICK else 200_000
  _, logits = depth_samples.random_chain()
  heads = toy_heads.TableHeads(jnp.asarray(logits[:num], jnp.float32))
  depth_samples.assert_samples(
    law_with_heads, heads, method, num, rows, seed=7, **options
  )


def test_the_law_tells_heads_apart():
  # What the samples are compared with depends on which head drafts a place.
  row, sampling = "spec_cascade_opt", Sampling.create(0.9)
  alpha = depth_samples.telling_alpha(law_with_heads, row, (1, 1), 3)
  with jax.enable_x64(True):
    laws = [
      law_with_heads(row, alpha, sampling, (1, 1), num) for num in (0, 2, 3)
    ]
  for one, other in itertools.pairwise(laws):
    assert goodness.tv(one, other) > 0.02


# What is refused.


@pytest.mark.parametrize(
  ("method", "options", "message"),
  [
    ("spec_decode", {"gamma": 4}, "there are 3 draft heads"),
    *depth_blocks.REFUSED,
  ],
)
def test_what_heads_cannot_do_is_refused(method, options, message):
  heads = toy_heads.ahead(CYCLE, 3, blur=0.01)
  with pytest.raises(ValueError, match=message):
    toy.decode(method, (heads, SURE), inputs=2, **({"gamma": 3} | options))


def test_a_verifier_without_hidden_states_is_refused():
  class Silent(toy.MarkovLM):
    def extend(self, *args, **options):
      state, out = super().extend(*args, **options)
      return state, out.replace(hidden=None)

  jax.tree_util.register_pytree_node(
    Silent, lambda x: ((x.table,), None), lambda _, leaves: Silent(*leaves)
  )
  heads = toy_heads.ahead(CYCLE, 3, blur=0.01)
  with pytest.raises(ValueError, match="leaves no hidden states"):
    toy.decode("spec_decode", (heads, Silent(SURE.table)), inputs=2, gamma=3)
