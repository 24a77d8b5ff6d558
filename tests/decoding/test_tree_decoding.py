"""Decoders of trees: the compiled programs, over many rounds."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AutoregressiveDrafter,
  Decoder,
  HorizontalDrafter,
  Sampling,
  SeveralDrafters,
  VerticalDrafter,
)
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.judge import goodness
from speccascade.study.papers import draft_acceptance
from tests import method_laws, toy
from tests.decoding.drafting import models
from tests.decoding.verification.tree_driving import WAYS

SHAPES = {
  "branching": {"tree": (3, 2), "gamma": 2},
  "parents": {"tree": (-1, -1, -1, 0, 0, 1, 3), "gamma": 3},
  "paths": {"drafts": 3, "gamma": 3},
}


def settings(shape, drawing, verification):
  return SHAPES[shape] | {"drawing": drawing, "verification": verification}


GREEDY = [
  ("parents", "without_replacement", "traversal", False),
  ("paths", "iid", "k_seq", True),
]
GREEDY_NIGHTLY = [("branching", "greedy_and_random", "token", True)]
for shape, way in zip(itertools.cycle(("parents", "paths", "branching")), WAYS):
  GREEDY_NIGHTLY.append((shape, *way, shape == "paths"))


@pytest.mark.parametrize(
  ("shape", "drawing", "verification", "prompted"),
  toy.nightly(dict.fromkeys(GREEDY + GREEDY_NIGHTLY), GREEDY),
)
def test_a_greedy_tree_writes_the_greedy_tokens(
  shape, drawing, verification, prompted
):
  # The distributions depend on the whole text, so a cache that keeps a wrong
  # path, or a node that sees a wrong one, shows.
  models = toy.whole(prompted=prompted)
  texts = toy.padded(toy.PROMPTS) if prompted else np.array([[1], [2], [3]])
  got = toy.greedily(
    "spec_decode",
    models,
    **settings(shape, drawing, verification),
    inputs=jnp.asarray(texts, jnp.int32),
    max_decode_len=24,
    eos_id=7,
  )
  assert got.stats.accepted.sum() > 0


def test_a_wide_greedy_tree_accepts_every_draft():
  # All tokens are children at every node, so every block is accepted whole.
  models = toy.whole(vocab_size=4, prompted=False)
  got = toy.decode(
    "spec_decode",
    models,
    inputs=jnp.array([[1], [2]], jnp.int32),
    tree=(4, 4),
    gamma=2,
    max_decode_len=12,
    eos_id=9,
  )
  assert np.array_equal(got.stats.num_blocks, [4, 4])
  assert np.array_equal(got.stats.accepted, [8, 8])
  assert np.array_equal(got.stats.drafted, [80, 80])
  assert np.array_equal(got.stats.accepted_at[:, 2], [4, 4])


@pytest.mark.parametrize("shape", toy.nightly(SHAPES, ["parents"]))
def test_a_drafter_that_is_the_verifier_is_always_right(shape):
  # The output would hide what the drafter itself reads and keeps: a wrong path
  # in its cache costs accepted drafts, and nothing else.
  _, verifier = toy.whole(prompted=False)
  got = toy.decode(
    "spec_decode",
    (verifier, verifier),
    **settings(shape, "without_replacement", "token"),
    inputs=jnp.asarray([[1], [2], [3]], jnp.int32),
    max_decode_len=24,
    eos_id=99,
  )
  blocks = 24 // (SHAPES[shape]["gamma"] + 1)
  assert np.array_equal(got.stats.num_blocks, [blocks] * 3)


# method, shape, drawing, verification, sampling
SAMPLED = [
  ("spec_cascade_opt", "branching", "greedy_and_random", "token", (0.8,)),
  (
    *("spec_cascade_token_v3", "parents", "without_replacement", "traversal"),
    (0.8,),
  ),
]
# A shape and a target for each way.
SAMPLED_NIGHTLY = [
  ("spec_decode", "paths", "iid", "token", (0.8,)),
  *(
    (method, shape, *way, (1.0,))
    for (method, shape), way in zip(
      itertools.product(
        ("spec_decode", "spec_cascade_opt", "spec_cascade_token_v3"), SHAPES
      ),
      WAYS,
    )
  ),
  # Two of three tokens are left, and another one stands in for a third child.
  *(("spec_cascade_token_v3", "branching", *way, (1.0, 2)) for way in WAYS),
]


@pytest.mark.parametrize(
  ("method", "shape", "drawing", "verification", "sampling"),
  toy.nightly(SAMPLED + SAMPLED_NIGHTLY, SAMPLED),
)
def test_sampled_trees(method, shape, drawing, verification, sampling):
  # Blocks are 2 or 3 drafts deep, and 5 tokens take two rounds at least.
  pair, length, sampling = toy.pair(3, 2), 5, Sampling.create(*sampling)
  counts = toy.sample(
    method,
    pair.models(),
    None,
    sampling,
    inputs=pair.inputs,
    num=60_000,
    seed=5,
    max_decode_len=length,
    **settings(shape, drawing, verification),
  )
  exact = method_laws.text_law(pair, METHODS[method], sampling, length)
  assert goodness.p_value(counts, exact) > toy.LEVEL


@pytest.mark.parametrize("parents", [(-1, -1, 1), (-1, -1, -1, 1, 2, 2)])
def test_an_equal_sibling_hands_its_children_to_one_that_has_none(parents):
  # The first draft has no child of its own, and the model reads it all the
  # same: a draft that repeats it gives it children.
  pair, length = toy.pair(3, 2), 4
  counts = toy.sample(
    "spec_decode",
    pair.models(),
    None,
    Sampling.create(1.0),
    inputs=pair.inputs,
    num=20_000,
    seed=3,
    max_decode_len=length,
    tree=parents,
    gamma=2,
    drawing="iid",
  )
  exact = method_laws.text_law(
    pair, METHODS["spec_decode"], Sampling.create(1.0), length
  )
  assert goodness.p_value(counts, exact) > toy.LEVEL


def beside(models, width, designated=None):
  """Returns a `SeveralDrafters` of models."""
  drafters = (
    AutoregressiveDrafter(model, width, behind=width + 1) for model in models
  )
  return SeveralDrafters(tuple(drafters), designated)


def several(pair, width, designated=None):
  """Returns (two drafters beside each other, the verifier) of a pair.

  The designated one is the pair's own.
  """
  drafter, verifier = pair
  other = drafter.replace(table=jnp.flip(drafter.table, axis=-1) * 0.5)
  models = (other, drafter) if designated else (drafter, other)
  return beside(models, width, designated), verifier


def counts_of_several(method, pair, sampling, designated=None):
  """Returns how often two drafters and a verifier wrote each text."""
  return toy.sample(
    method,
    several(pair.models(), 2, designated),
    None,
    sampling,
    inputs=pair.inputs,
    num=60_000,
    seed=2,
    max_decode_len=5,
    gamma=2,
  )


def test_several_drafters_beside_each_other():
  # Greedily they write the verifier's tokens, and sampled its distribution.
  models = several(toy.whole(prompted=False), 3)
  options = {
    "inputs": jnp.array([[1], [2], [3]], jnp.int32),
    "max_decode_len": 24,
    "eos_id": 7,
    "gamma": 3,
  }
  got = toy.greedily("spec_decode", models, **options)
  assert got.stats.accepted.sum() > 0
  pair, sampling = toy.pair(3, 2), Sampling.create(0.9)
  counts = counts_of_several("spec_decode", pair, sampling)
  exact = method_laws.text_law(pair, METHODS["spec_decode"], sampling, 5)
  assert goodness.p_value(counts, exact) > toy.LEVEL
  with pytest.raises(ValueError, match="set DESIGNATED_DRAFTER"):
    toy.decode("spec_cascade_token_v2", models, **options)


def test_several_drafters_draw_independently():
  # Three unrelated tables: all triples of first drafts, and of second ones.
  laws = np.random.default_rng(8).dirichlet(np.ones(4), (3, 4))
  drafters = beside([toy.markov(x) for x in laws], 2)
  inputs = jnp.ones((20_000, 1), jnp.int32)
  proposal = models.propose(drafters, inputs, Sampling.create(1.0))
  drafts = np.asarray(proposal.tokens)
  seen = np.zeros((4,) * 6)
  np.add.at(seen, tuple(drafts.T), 1)
  first = np.einsum("i,j,k->ijk", *(x[0] for x in laws))
  exact = first.reshape(*first.shape, 1, 1, 1) * np.einsum(
    "ia,jb,kc->ijkabc", *laws
  )
  assert goodness.p_value(seen.ravel(), exact.ravel()) > toy.LEVEL


@pytest.mark.parametrize(
  ("method", "designated"),
  [
    ("spec_cascade_opt", 1),
    *toy.nightly([("ensemble", 0), ("spec_cascade_token_v3", 1)]),
    *toy.nightly([("spec_decode_lossy_star", 0)]),
  ],
)
def test_the_target_is_that_of_the_designated_drafter(method, designated):
  # Greedily the tokens are those of a chain of this drafter. Not so of an
  # ensemble, which mixes two greedy tokens.
  pair = toy.whole(prompted=False)
  options = {
    "inputs": jnp.array([[1], [2], [3]], jnp.int32),
    "max_decode_len": 24,
    "eos_id": 7,
    "gamma": 3,
  }
  if method != "ensemble":
    got = toy.decode(method, several(pair, 3, designated), **options)
    chain = toy.decode(method, pair, **options)
    assert np.array_equal(got.tokens, chain.tokens)
  pair, sampling = toy.pair(3, 2), Sampling.create(0.9)
  counts = counts_of_several(method, pair, sampling, designated)
  assert (
    goodness.p_value(
      counts, method_laws.text_law(pair, METHODS[method], sampling, 5)
    )
    > toy.LEVEL
  )


def test_a_designated_drafter_states_its_law_at_every_node():
  drafter, _ = pair = toy.whole(prompted=False)
  drafters, _ = several(pair, 2, designated=1)
  inputs = jnp.array([[1], [2], [3], [4]], jnp.int32)
  proposal = models.propose(drafters, inputs, Sampling.create(1.0))
  start = jnp.zeros((4, 1), jnp.int32)
  for node, path in enumerate([(), (0,), (1,), (0, 2), (1, 3)]):
    text = jnp.concatenate([start, proposal.tokens[:, np.array(path, int)]], 1)
    state = drafter.prefill(inputs, capacity=8)
    count = jnp.full((4,), text.shape[1])
    _, out = drafter.extend(state, text, count)
    expected = jax.nn.softmax(out.logits[:, -1])
    np.testing.assert_allclose(proposal.q[:, node], expected, atol=1e-6)
    np.testing.assert_allclose(proposal.q1[:, node], expected, atol=1e-6)
  # The drafts of the other drafter have its own distribution.
  own = proposal.branches.laws[:, 1]
  np.testing.assert_allclose(own, proposal.q[:, 0], atol=1e-6)
  assert np.abs(proposal.branches.laws[:, 0] - own).max() > 0.01


def test_a_designated_drafter_keeps_the_accepted_path():
  # The designated drafter is the verifier, so its path is always accepted; a
  # wrong path in its cache would cost drafts.
  other, verifier = toy.whole(prompted=False)
  got = toy.decode(
    "spec_decode",
    (beside((other, verifier), 3, designated=1), verifier),
    inputs=jnp.array([[1], [2], [3]], jnp.int32),
    max_decode_len=24,
    eos_id=99,
    gamma=3,
  )
  assert np.array_equal(got.stats.num_blocks, [6] * 3)
  # Three passes draft, and one more reads the tree.
  assert np.array_equal(got.stats.calls_by_model, [[18, 24]] * 3)


def test_a_wrong_designated_drafter_is_refused():
  drafter, verifier = toy.whole(prompted=False)
  row = HorizontalDrafter((AutoregressiveDrafter(drafter, 2),))
  for drafters, designated, message in (
    ((row, row), 0, "HorizontalDrafter, which cannot read a tree"),
    ((row, row), 2, "wanted 0 to 1"),
  ):
    with pytest.raises(ValueError, match=message) as error:
      toy.decode(
        "spec_cascade_opt",
        (SeveralDrafters(drafters, designated), verifier),
        inputs=1,
        gamma=2,
      )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("method", "bonus", "drawing"),
  [
    *toy.nightly([("spec_cascade_chow", "target", "greedy_and_random")]),
    ("spec_cascade_chow", "verifier", "without_replacement"),
    # Here an unknown q would show in pi.
    ("ensemble", "verifier", "greedy_and_random"),
  ],
)
def test_records_are_those_of_the_path(method, bonus, drawing):
  pair = toy.pair(3, 2)
  decoded = toy.decode(
    method,
    pair.models(),
    sampling=Sampling.create(1.0),
    inputs=pair.inputs(500),
    tree=(2, 2),
    gamma=2,
    drawing=drawing,
    bonus=bonus,
    trace=True,
    log_probs=True,
  )
  # The distributions after the tokens themselves, from the tables.
  alpha = METHODS[method].default_alpha
  q, p = (np.asarray(jax.nn.softmax(jnp.asarray(x))) for x in pair.flat())
  pi = METHODS[method].target.probs(jnp.asarray(q), jnp.asarray(p), alpha=alpha)
  follow, trace = pair.next_context(), decoded.trace
  context = np.full(500, pair.start)
  for t in range(int(decoded.lengths.max())):
    inside = decoded.lengths > t
    token = decoded.tokens[:, t]
    laws = {"p": p, "q": q, "pi": np.asarray(pi)}
    with np.errstate(divide="ignore"):
      expected = {x: np.log(law[context, token]) for x, law in laws.items()}
    is_bonus = trace.source[:, t] == 2
    if bonus == "verifier":
      expected["pi"] = np.where(is_bonus, expected["p"], expected["pi"])
      expected["q"] = np.where(is_bonus, np.nan, expected["q"])
    for name, values in expected.items():
      got = getattr(decoded.log_probs, name)[:, t]
      np.testing.assert_allclose(got[inside], values[inside], atol=2e-5)
    if method == "spec_cascade_chow":
      # The rule defers where max q is below 1 - alpha, where q is known.
      defers = q[context].max(axis=1) < 1 - alpha
      known = inside & ~(is_bonus & (bonus == "verifier"))
      assert np.array_equal(trace.deferred[known, t], defers[known])
    context = follow[context, token]
  stats = decoded.stats
  assert np.array_equal(stats.accepted_by_position.sum(1), stats.accepted)
  assert np.array_equal(stats.examined_by_position.sum(1), stats.examined)
  assert np.array_equal(stats.drafted, 6 * stats.num_blocks)
  assert np.array_equal(stats.accepted_at.sum(1), stats.num_blocks)
  by_rank = stats.extra["accepted_by_rank"]
  assert np.array_equal(by_rank.sum(2), stats.accepted_by_position)


def test_a_token_rule_is_read_at_the_first_draft_that_was_rejected():
  # Certain drafts: the first one of a place is the likeliest token there.
  pair, rows = toy.pair(3, 2), 500
  decoded = toy.decode(
    "spec_cascade_token_v3",
    pair.models(),
    sampling=Sampling.create(1.0),
    inputs=pair.inputs(rows),
    tree=(2, 2),
    gamma=2,
    drawing="top_k",
    trace=True,
  )
  method = METHODS["spec_cascade_token_v3"]
  q, p = (jax.nn.softmax(jnp.asarray(x, jnp.float32)) for x in pair.flat())
  first = jnp.argmax(q, axis=1).astype(jnp.int32)
  _, *sides = method.target.at(
    q, p, first, alpha=method.default_alpha, sampled=(q, p)
  )
  follow, context = pair.next_context(), np.full(rows, pair.start)
  trace, seen = decoded.trace, 0
  for t in range(int(decoded.lengths.max())):
    lost = (decoded.lengths > t) & (trace.source[:, t] == 1)
    for got, want in zip((trace.left, trace.right), sides):
      want = np.asarray(want)[context]
      np.testing.assert_allclose(got[lost, t], want[lost], atol=1e-6)
    seen += lost.sum()
    context = follow[context, decoded.tokens[:, t]]
  assert seen > 100


def test_the_rank_of_accepted_drafts_is_counted():
  # The drafter likes 0, then 1, then 2, and the verifier writes 1.
  first, second = (toy.markov([laws] * 3) for laws in ([6, 3, 1], [1, 8, 1]))
  options = {"inputs": 2, "max_decode_len": 9, "eos_id": 9}
  got = toy.decode(
    "spec_decode", (first, second), tree=(3, 2), gamma=2, **options
  )
  # The widest level has 6 drafts. A block writes 3 tokens, 2 of them drafts.
  expected = np.zeros((2, 2, 6), int)
  expected[:, :, 1] = 3
  assert np.array_equal(got.stats.extra["accepted_by_rank"], expected)
  chain = toy.decode("spec_decode", (first, second), gamma=2, **options)
  assert "accepted_by_rank" not in chain.stats.extra


def test_ranks_have_the_chances_of_the_trials():
  laws = np.array([[0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]])
  models = [toy.markov([law] * 4) for law in laws]
  rows, (q, p) = 20_000, laws
  got = toy.decode(
    "spec_decode",
    models,
    sampling=Sampling.create(1.0),
    inputs=rows,
    drafts=2,
    gamma=1,
    max_decode_len=1,
    eos_id=9,
  )
  assert "optimal_acceptance" not in got.stats.extra
  # An accepted draft of the one block is one of the two draws.
  rest = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
  chances = [np.minimum(q, p).sum(), np.minimum(q, rest).sum()]
  chances[1] *= 1 - chances[0]
  observed = got.stats.extra["accepted_by_rank"][:, 0].sum(0)
  counts = np.array([*observed, rows - observed.sum()])
  assert (
    goodness.p_value(counts, np.array([*chances, 1 - sum(chances)])) > toy.LEVEL
  )


@pytest.mark.parametrize(
  ("num", "drawing"),
  [
    (2, "iid"),
    *toy.nightly([(3, "iid"), (3, "greedy_and_random"), (2, "top_k")]),
    (2, "without_replacement"),
    # The optimum is not known.
    (3, "without_replacement"),
  ],
)
def test_the_optimum_is_summed_with_log_probabilities(num, drawing):
  laws = np.array([[0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]])
  got = toy.decode(
    "spec_decode",
    [toy.markov([law] * 4) for law in laws],
    sampling=Sampling.create(1.0),
    inputs=8,
    tree=(num, 1),
    gamma=2,
    drawing=drawing,
    max_decode_len=9,
    eos_id=9,
    log_probs=True,
  )
  wanted = draft_acceptance.optimal_acceptance(*laws, num, drawing)
  if (num, drawing) == (3, "without_replacement"):
    wanted = 0
  expected = wanted * got.stats.examined_by_position[:, 0]
  np.testing.assert_allclose(
    got.stats.extra["optimal_acceptance"], expected, rtol=1e-5
  )


def test_all_drafts_of_trees_are_recorded_where_they_are_asked_for():
  pair = toy.pair(3, 2)
  options = {"sampling": Sampling.create(1.0), "inputs": pair.inputs(300)}
  options |= {"drafts": 2, "gamma": 2, "max_decode_len": 5}
  got = toy.decode("spec_decode", pair.models(), trace="trees", **options)
  trees, trace = got.extra["trees"], got.trace
  assert trees.tokens.shape == (300, 6, 4)
  for row in range(300):
    num = int(got.stats.num_blocks[row])
    kept = trees.is_accepted[row, :num]
    assert kept.sum() == got.stats.accepted[row]
    for block in range(num):
      # The accepted drafts of a block are a path from its root.
      path = np.flatnonzero(kept[block])
      parents = trees.parents[row, block]
      assert np.array_equal(parents[path], [0, *(path + 1)][: len(path)])
      inside = np.arange(5) < got.lengths[row]
      inside &= (trace.block[row] == block) & (trace.source[row] == 0)
      drafts = trees.tokens[row, block, path]
      assert np.array_equal(drafts, got.tokens[row][inside])
  assert (got.stats.num_blocks > 1).any()
  plain = toy.decode("spec_decode", pair.models(), trace=True, **options)
  assert "trees" not in plain.extra
  assert np.array_equal(plain.tokens, got.tokens)


def test_what_stays_a_chain_refuses_trees():
  models = toy.whole(prompted=False)
  tree = TreeDrafter(models[0], DraftTree((-1, -1)))
  inputs = jnp.ones((1, 1), jnp.int32)
  for drafter in (
    VerticalDrafter(drafter=tree, reviewer=models[0], alpha=0.0, width=1),
    HorizontalDrafter((tree,)),
  ):
    with pytest.raises(ValueError, match=r"drafts trees, and a .* cascade"):
      toy.decode("spec_decode", (drafter, models[1]), inputs=inputs)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    ({"tree": (2, 2), "gamma": 3}, "gamma is 3, .* 2 drafts deep"),
    ({"tree": (2, 0), "gamma": 2}, "branching of a tree is"),
    ({"tree": (-1, 2), "gamma": 2}, "the parent of draft 1 is 2"),
    ({"tree": (-1, 0, -1), "gamma": 2}, "numbered level by level"),
    ({"tree": (32, 32, 32), "gamma": 3}, "at most 1024"),
    ({"tree": (2,), "drafts": 2, "gamma": 1}, "leave out one of the two"),
    ({"drawing": "iid", "gamma": 1}, "without a tree"),
    (
      {"tree": (2,), "gamma": 1, "verification": "block"},
      "set 'traversal'",
    ),
    (
      {"tree": (2,), "gamma": 1, "verification": "k_seq"},
      "weighs independent drafts",
    ),
  ],
)
def test_wrong_trees_are_refused_in_one_line(wrong, message):
  with pytest.raises(ValueError, match=message) as error:
    Decoder(METHODS["spec_decode"], max_decode_len=4, eos_id=1, **wrong)
  assert "\n" not in str(error.value)


def test_a_cascade_of_drafters_refuses_a_tree():
  with pytest.raises(ValueError, match="drafts chains"):
    Decoder(
      METHODS["cascade_drafting"],
      max_decode_len=4,
      eos_id=1,
      tree=(2,),
      gamma=1,
    )


def test_a_tree_of_one_branch_shares_the_program_of_its_chain():
  make = lambda **more: Decoder(
    METHODS["spec_decode"], max_decode_len=4, eos_id=1, gamma=2, **more
  )
  program = lambda decoder: decoder.program(False)[0]
  assert program(make(tree=(1, 1))) == program(make())
  block = program(make(verification="block"))
  assert program(make(tree=(-1, 0), verification="traversal")) == block
  iid = {"drawing": "iid", "verification": "k_seq"}
  assert program(make(tree=(1, 1), **iid)) == program(make())
  # The likeliest token is a certain draft, which no chain has.
  assert program(make(tree=(1, 1), drawing="top_k")) != program(make())


def test_trees_of_one_shape_share_a_program():
  make = lambda **more: Decoder(
    METHODS["spec_decode"], max_decode_len=4, eos_id=1, gamma=2, **more
  )
  first, same = make(tree=(2, 1)), make(tree=[2, 1])
  assert first.program(False)[0] == same.program(False)[0]
  assert dataclasses.replace(first, drawing="iid") != first
