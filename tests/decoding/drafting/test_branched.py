"""Siblings beside the first draft of a chain."""

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AutoregressiveDrafter,
  BranchedDrafter,
  HorizontalDrafter,
  MaxGramDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
  row_keys,
)
from speccascade.decoding.drafting.autoregressive import StopPolicy
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws import lossy_targets
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.judge import goodness
from tests import method_laws, toy

INPUTS = jnp.array([[1], [2], [3]], jnp.int32)


def copier(pair, width):
  return MaxGramDrafter.create(None, width=width, vocab_size=pair[0].vocab_size)


def cascade_of(pair, num_first):
  """Returns (a cascade with siblings beside its first draft, the verifier)."""
  matrix = [[2, 2], [0, 2]]
  inner = cascade_drafter([pair[0]], copier(pair, 2), matrix)
  return BranchedDrafter(inner, num_first), pair[1]


def test_the_shape_of_a_block():
  model = toy.whole(prompted=False)[0]
  for width, num, parents in (
    (3, 3, (-1, -1, -1, 0, 3)),
    (1, 2, (-1, -1)),
    (2, 4, (-1, -1, -1, -1, 0)),
  ):
    chain = AutoregressiveDrafter(model, width)
    drafter = BranchedDrafter(chain, num)
    assert drafter.tree.parents == parents
    assert drafter.width == len(parents)
    assert drafter.tree.depth == width


@pytest.mark.parametrize(
  "verification", toy.nightly(["token", "traversal"], ["token"])
)
def test_greedy_tokens_are_the_verifiers(verification):
  models = toy.whole(prompted=False)
  options = {"inputs": INPUTS, "max_decode_len": 24, "eos_id": 7}
  plain = toy.decode(
    "cascade_drafting",
    (cascade_of(models, 2)[0].drafter, models[1]),
    gamma=4,
    **options,
  )
  got = toy.greedily(
    "cascade_drafting",
    cascade_of(models, 3),
    gamma=4,
    verification=verification,
    **options,
  )
  # Siblings are accepted where the chain's first draft is not.
  first = plain.stats.accepted_at[:, 0] / plain.stats.num_blocks
  assert np.sum(got.stats.accepted_at[:, 0] / got.stats.num_blocks) < np.sum(
    first
  )


def test_all_tokens_at_the_first_place():
  # No block is rejected whole, and each of them writes two tokens or more.
  models = toy.whole(vocab_size=4, prompted=False)
  got = toy.decode(
    "cascade_drafting",
    cascade_of(models, 4),
    sampling=Sampling.create(1.0),
    inputs=INPUTS,
    gamma=4,
    max_decode_len=12,
    eos_id=9,
  )
  assert not np.any(got.stats.accepted_at[:, 0])


def test_a_chain_that_is_the_verifiers_is_kept_whole():
  # What the drafter keeps after a sibling or a chain shows in the acceptance.
  _, verifier = toy.whole(prompted=False)
  for chain in (
    AutoregressiveDrafter(verifier, 3, behind=0),
    HorizontalDrafter(
      (
        AutoregressiveDrafter(verifier, 1, behind=4),
        AutoregressiveDrafter(verifier, 2, behind=4),
      )
    ),
  ):
    got = toy.decode(
      "spec_decode",
      (BranchedDrafter(chain, 3), verifier),
      inputs=INPUTS,
      gamma=3,
      max_decode_len=24,
      eos_id=99,
    )
    assert np.array_equal(got.stats.num_blocks, [6] * 3)
    assert np.array_equal(got.stats.drafted, [30] * 3)


def test_a_chain_keeps_nothing_beside_a_sibling():
  pair = toy.pair(5, 2, seed=3)
  chain = AutoregressiveDrafter(pair.models()[0], 3, behind=0)
  drafter = BranchedDrafter(chain, 2)
  state, _ = drafter.propose(
    drafter.prefill(pair.inputs(3), capacity=8), **arguments(pair, 3)
  )
  # Drafts 0, 2 and 3 are the chain, draft 1 is the sibling.
  path = jnp.array([[0, 2, 3], [0, 2, 0], [1, 0, 0]], jnp.int32)
  kept = drafter.keep(
    state, jnp.ones((3,), jnp.int32), path, jnp.array([3, 1, 1], jnp.int32)
  )
  # The chain's last draft was not read.
  ((held,),) = kept
  assert np.array_equal(held.length, [3, 2, 1])


def arguments(pair, rows):
  """Returns the arguments of a first proposal."""
  return {
    "prefix": Prefix(
      tokens=jnp.full((rows, 8), pair.start, jnp.int32),
      length=jnp.ones((rows,), jnp.int32),
      active=jnp.ones((rows,), bool),
    ),
    "rngs": row_keys(1, 0, jnp.arange(rows)),
    "sampling": Sampling.create(1.0),
    "needs_bonus_law": False,
  }


@pytest.mark.parametrize(
  ("kind", "verification"),
  [
    *toy.nightly([("chain", "token"), ("cascade", "traversal")]),
    ("cascade", "token"),
    *toy.nightly([("reviewed", "token")]),
  ],
)
def test_sampled_texts_have_the_verifiers_law(kind, verification):
  pair, length = toy.pair(3, 2), 5
  models = pair.models()
  if kind == "chain":
    drafter = BranchedDrafter(AutoregressiveDrafter(models[0], 2, behind=0), 2)
  elif kind == "cascade":
    drafter = cascade_of(models, 2)[0]
  else:
    small = models[0].replace(table=jnp.flip(models[0].table, axis=-1))
    reviewed = VerticalDrafter(
      drafter=AutoregressiveDrafter(small, 1, behind=4),
      reviewer=models[0],
      alpha=jnp.asarray(0.5),
      width=2,
      target=lossy_targets.lossy,
    )
    drafter = BranchedDrafter(reviewed, 2)
  sampling = Sampling.create(0.9)
  counts = toy.sample(
    "spec_decode",
    (drafter, models[1]),
    None,
    sampling,
    inputs=pair.inputs,
    num=60_000,
    seed=11,
    max_decode_len=length,
    gamma=drafter.tree.depth,
    verification=verification,
  )
  exact = method_laws.text_law(pair, METHODS["spec_decode"], sampling, length)
  assert goodness.p_value(counts, exact) > toy.LEVEL


def test_siblings_are_drawn_without_the_first_draft():
  pair, rows = toy.pair(5, 2, seed=3), 20_000
  chain = AutoregressiveDrafter(pair.models()[0], 2, behind=0)
  branched, inputs = BranchedDrafter(chain, 3), pair.inputs(rows)
  first_round = arguments(pair, rows)
  _, got = branched.propose(branched.prefill(inputs, capacity=8), **first_round)
  _, want = chain.propose(chain.prefill(inputs, capacity=8), **first_round)
  first = np.asarray(got.tokens[:, :3])
  assert np.array_equal(first[:, 0], want.tokens[:, 0])
  assert np.array_equal(got.tokens[:, 3:], want.tokens[:, 1:])
  assert not np.any(got.branches.is_certain)
  # All pairs of first draft and first sibling, by the distribution without
  # replacement.
  q = np.asarray(got.q[0, 0], float)
  exact = q[:, None] * q[None] / (1 - q[:, None])
  np.fill_diagonal(exact, 0)
  counts = np.zeros((5, 5))
  np.add.at(counts, (first[:, 0], first[:, 1]), 1)
  assert not np.any(np.diag(counts))
  off = ~np.eye(5, dtype=bool)
  assert goodness.p_value(counts[off], exact[off]) > toy.LEVEL
  assert all(len({*row}) == 3 for row in first[:200].tolist())


def test_an_empty_block_has_no_siblings():
  pair = toy.pair(5, 2, seed=3)
  model = pair.models()[0]
  branched = BranchedDrafter(copier((model,), 2), 3)
  rows = 4
  first_round = arguments(pair, rows)
  prefix = first_round["prefix"].replace(
    tokens=jnp.tile(jnp.arange(8, dtype=jnp.int32) % 5, (rows, 1)),
    length=jnp.full((rows,), 3, jnp.int32),
  )
  _, got = branched.propose(
    branched.prefill(pair.inputs(rows), capacity=8),
    **first_round | {"prefix": prefix},
  )
  assert np.array_equal(got.count, [0] * rows)
  assert not np.any(got.branches.has_children)


def test_where_the_law_is_unknown_it_is_refused():
  models = toy.whole(prompted=False)
  drafter = BranchedDrafter(AutoregressiveDrafter(models[0], 2, behind=0), 2)
  options = {"inputs": INPUTS, "gamma": 2, "max_decode_len": 8}
  with pytest.raises(ValueError, match="no distribution after the siblings"):
    toy.decode("spec_cascade_opt", (drafter, models[1]), **options)
  got = toy.decode(
    "spec_cascade_opt", (drafter, models[1]), bonus="verifier", **options
  )
  assert np.all(got.stats.accepted > 0)
  tree = TreeDrafter(models[0], DraftTree((-1, -1)))
  with pytest.raises(ValueError, match="a BranchedDrafter takes"):
    toy.decode(
      "spec_decode",
      (BranchedDrafter(tree, 2), models[1]),
      inputs=INPUTS,
      gamma=2,
      max_decode_len=8,
    )


def test_a_chain_that_stops_reads_an_accepted_sibling():
  models = toy.whole(prompted=False)
  never = StopPolicy(jnp.float32(0), before_draw=True)

  def decode(**chain):
    drafter = AutoregressiveDrafter(models[0], 2, **chain)
    return toy.decode(
      "spec_decode",
      (BranchedDrafter(drafter, 3), models[1]),
      inputs=INPUTS,
      gamma=2,
      max_decode_len=24,
      eos_id=99,
    )

  want, got = decode(behind=0), decode(stop=never, behind=2)
  # Some siblings were accepted, and the next block was drafted after them.
  assert np.sum(got.stats.extra["accepted_by_rank"][:, 0, 1:]) > 0
  assert np.array_equal(got.stats.num_blocks, want.stats.num_blocks)
  assert np.array_equal(got.stats.accepted_at, want.stats.accepted_at)
  with pytest.raises(ValueError, match="give the chain behind=2") as error:
    decode(stop=never, behind=0)
  assert "\n" not in str(error.value)
