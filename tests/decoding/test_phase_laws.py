"""Alpha by phase: each token has the target at the alpha of its own prefix.

The automaton of the marker and the chains make a larger chain, see
`phase_laws`, so that what holds of one alpha is asked here in the same way: by
enumeration in float64, along every path of the compiled loops, and by samples.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Sampling
from speccascade.decoding.laws import targets
from speccascade.decoding.laws.deferral import opt
from speccascade.decoding.laws.phases import EXACT
from speccascade.decoding.records.block_records import Branches, Proposal
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.verification import tree_steps
from speccascade.judge import goodness
from tests import chunk_laws, method_laws, toy, toy_chains
from tests.decoding import enumeration
from tests.decoding import tree_reference as reference
from tests.decoding.drafting.test_sampled_drafts import (
  LARGE,
  LARGE_LOGITS,
  MEDIUM,
  MEDIUM_LOGITS,
  SMALL,
  SMALL_LOGITS,
)
from tests.decoding.drafting.test_sampled_drafts import PAIR as THREE_PAIR
from tests.decoding.drafting.test_sampled_drafts import laws as laws_of_logits
from tests.decoding.loops import test_paths
from tests.decoding.verification import tree_driving
from tests.decoding.verification.tree_driving import WAYS
from tests.phase_laws import MARKER, TURNS, PhasedPair

PHASED = [name for name, row in METHODS.items() if row.takes_phases]
BLOCKS = [name for name in PHASED if METHODS[name].has_blocks]
ONE_DRAFTER = [name for name in BLOCKS if METHODS[name].compose is None]
SAMPLED = [name for name in ONE_DRAFTER if not METHODS[name].greedy_only]
STEPWISE = [name for name in PHASED if not METHODS[name].has_blocks]
LENGTH = 5
# Of greedy lenience: chains whose lenient tokens are not the verifier's.
_SEEDS = {True: 0, False: None}
PAIRS = {
  (name, greedy): PhasedPair(toy.pair(3, 2, _SEEDS[greedy]), marker)
  for name, marker in {"marker": MARKER, "turns": TURNS}.items()
  for greedy in (False, True)
}


def sampling_of(name: str, temperature: float = 1.0) -> Sampling:
  return Sampling.create(0.0 if METHODS[name].greedy_only else temperature)


def pair_of(name: str, marker: str = "marker") -> PhasedPair:
  return PAIRS[marker, METHODS[name].greedy_only]


def _is_near_tie(name: str, marker: str, alpha: float) -> bool:
  """Returns whether float32 and float64 may decide a rule differently."""
  row, pair = METHODS[name], pair_of(name, marker)
  if row.target.rule is None:
    return False
  law = pair.laws(row.target, alpha, EXACT, sampling_of(name))
  before = pair.alpha(alpha, EXACT).before
  left, right = test_paths.sides_of(row.target.rule, before, law)
  gap = np.abs(np.subtract(left, right))
  return bool(np.any((gap > 0) & (gap < 1e-6)))


@functools.cache
def telling(name: str, marker: str = "marker") -> tuple[float, float]:
  """Returns (alpha, distance): the alpha before an exact phase that shows most.

  The distance is that from the laws of other phases: swapped, always before,
  and always exact. Of the alphas that show the phases, the one that rejects
  most is taken, so that markers are drafted that are not written.
  """
  row, pair, sampling = METHODS[name], pair_of(name, marker), sampling_of(name)
  interval, best = row.alpha_interval, (0.0, -1.0, -1.0)

  def distances(alpha):
    law = pair.laws(row.target, alpha, EXACT, sampling)
    others = [
      pair.laws(row.target, EXACT, alpha, sampling).pi,
      pair.laws(row.target, alpha, alpha, sampling).pi,
      law.p,
      np.where(pair.phase[:, None] == 1, law.p, law.q),
    ]
    right, *wrong = (
      toy_chains.chain_law(pair, x, LENGTH) for x in (law.pi, *others)
    )
    *phases, drafter = (goodness.tv(right, x) for x in wrong)
    return min(phases), drafter

  for alpha in interval.grid or (0.1, 0.3, 0.5, 0.7, 0.9):
    if interval.contains(alpha, 3) and not _is_near_tie(name, marker, alpha):
      far, rejects = distances(alpha)
      shows = min(far, 0.025), rejects
      if shows > (min(best[1], 0.025), best[2]):
        best = alpha, far, rejects
  return best[:2]


def case(name: str, marker: str = "marker", temperature: float = 1.0):
  """Returns (pair, alpha, law) of a method that is exact after the marker."""
  pair, (alpha, _) = pair_of(name, marker), telling(name, marker)
  sampling = sampling_of(name, temperature)
  law = pair.laws(METHODS[name].target, alpha, EXACT, sampling)
  return pair, pair.alpha(alpha, EXACT), law


@pytest.mark.parametrize("name", PHASED)
def test_the_phases_show(name):
  # What follows would pass by itself if all phases wrote alike.
  assert telling(name)[1] > 0.02


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", PHASED)
def test_a_target_has_the_alpha_of_each_place(name):
  """Or is the verifier, where the phase is exact, whatever the rule."""
  target, pair = METHODS[name].target, pair_of(name)
  alpha = telling(name)[0]
  # Another one: with one alpha twice the phases could change places.
  interval = METHODS[name].alpha_interval
  others = [METHODS[name].default_alpha, *(interval.grid or (0.3, 0.7))]
  other = next(x for x in others if x != alpha and interval.contains(x, 3))
  for before, after in ((alpha, other), (alpha, EXACT), (EXACT, alpha)):
    law = pair.laws(target, before, after, sampling_of(name))
    q1, p1, q, p = map(jnp.asarray, (law.q1, law.p1, law.q, law.p))
    placed = pair.alpha(before, after).at(jnp.asarray(pair.phase))
    pi, left, right = target(q1, p1, alpha=placed, sampled=(q, p))
    np.testing.assert_allclose(pi, law.pi, atol=1e-14)
    if target.rule is None:
      assert left is None
      continue
    for phase, each in enumerate((before, after)):
      here = pair.phase == phase
      if each == EXACT:
        assert np.all(left[here] < right[here])
        continue
      mine = target.rule(q1, p1, alpha=each, sampled=(q, p))
      for side, expected in zip((left, right), mine):
        np.testing.assert_array_equal(side[here], np.asarray(expected)[here])


WAYS_OF_CHAINS = {
  "token": {"verification": "token"},
  "block": {"verification": "block"},
  "printed bonus": {"bonus": "verifier"},
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("marker", ["marker", "turns"])
@pytest.mark.parametrize("way", WAYS_OF_CHAINS)
@pytest.mark.parametrize(
  "name", toy.nightly(BLOCKS, ["spec_cascade_opt", "spec_decode_lossy"])
)
def test_output_has_the_law_of_the_phases(name, way, marker):
  pair, _, law = case(name, marker)
  expected = None
  if way == "printed bonus":
    expected = chunk_laws.verifier_bonus_law(pair, law, 2, LENGTH)
  point = pair, law, 2, LENGTH, expected
  enumeration.assert_law(*point, what=f"{name} {way}", **WAYS_OF_CHAINS[way])


# The compiled loops.


@method_laws.in_float64
def sides_of(pair: PhasedPair, name: str, before, law) -> list[np.ndarray]:
  """Returns the two sides in each context: it defers where it is exact."""
  sides = test_paths.sides_of(METHODS[name].target.rule, before, law)
  if METHODS[name].target.rule is None:
    return sides
  is_exact = pair.phase == 1
  is_exact = is_exact.reshape(-1, *[1] * (sides[0].ndim - 1))
  return [
    np.where(is_exact, end, side) for side, end in zip(sides, (-np.inf, np.inf))
  ]


def assert_phases(pair: PhasedPair, results, contexts):
  """Asserts what is recorded and counted of the phases."""
  for decoded in results:
    inside = np.arange(decoded.tokens.shape[1]) < decoded.lengths[:, None]
    phases = pair.phase[contexts]
    recorded = decoded.trace.extra["phase"]
    np.testing.assert_array_equal(recorded[inside], phases)
    assert {*phases} == {0, 1}
    count = lambda here, recorded=recorded: np.stack(
      [np.sum(here & (recorded == phase), axis=1) for phase in (0, 1)], axis=1
    )
    extra = decoded.stats.extra
    np.testing.assert_array_equal(extra["tokens_by_phase"], count(inside))
    is_accepted = inside & (decoded.trace.source == 0)
    accepted, examined = (
      extra[f"{what}_by_phase"] for what in ("accepted", "examined")
    )
    np.testing.assert_array_equal(examined.sum(1), decoded.stats.examined)
    if decoded.stats.num_blocks.any():
      np.testing.assert_array_equal(accepted, count(is_accepted))
      is_lost = inside & (decoded.trace.source == 1)
      np.testing.assert_array_equal(examined, accepted + count(is_lost))


BLOCK, PRINTED = {"verification": "block"}, {"bonus": "verifier"}
# A marker that begins in one block and ends in the next one, or is rejected in
# the middle of a block; settings, gamma, length.
PATHS = {
  "spec_cascade_opt": (2, 5, {}),
  "spec_cascade_token_v3": (2, 4, BLOCK),
  "spec_decode_lossy": (3, 4, {}),
  "ensemble": (2, 4, PRINTED),
}
NIGHTLY_PATHS = [
  (name, marker, way)
  for name in SAMPLED
  for marker, way in (("marker", "token"), ("turns", "block"))
]


def assert_paths(name, marker, gamma, length, settings, monkeypatch):
  pair, alpha, law = case(name, marker)
  sides = sides_of(pair, name, alpha.before, law)
  point = name, gamma, length, settings, 1.0
  results, contexts = test_paths.assert_speculative_paths(
    point, pair, alpha, law, sides, monkeypatch
  )
  assert_phases(pair, results, contexts)


@pytest.mark.parametrize("marker", ["marker", *toy.nightly(["turns"])])
@pytest.mark.parametrize("name", PATHS)
def test_blocks_take_every_path(name, marker, monkeypatch):
  assert_paths(name, marker, *PATHS[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "marker", "way"), NIGHTLY_PATHS)
def test_blocks_of_every_method_take_every_path(name, marker, way, monkeypatch):
  assert_paths(name, marker, 2, 4, {"verification": way}, monkeypatch)


@pytest.mark.parametrize("marker", ["marker", *toy.nightly(["turns"])])
@pytest.mark.parametrize(
  "name",
  toy.nightly(STEPWISE, ["token_cascade_chow", "oracle_cascade_diff"]),
)
def test_single_tokens_take_every_path(name, marker, monkeypatch):
  pair, alpha, law = case(name, marker, temperature=0.8)
  if name.startswith("token_cascade"):
    # What a prompt ends with is no part of the text: a 0 after this one is not
    # the end of a marker.
    prompted = dataclasses.replace(pair.pair, prompt=(1, 2))
    pair = PhasedPair(prompted, pair.marker)
  sides = sides_of(pair, name, alpha.before, law)
  defers = sides[0] < sides[1]
  point = name, pair, alpha, law, sides, defers, monkeypatch
  assert_phases(pair, *test_paths.assert_stepwise_paths(*point))


@pytest.mark.parametrize(
  "name", [name for name in ONE_DRAFTER if METHODS[name].greedy_only]
)
def test_greedy_blocks_write_the_tokens_of_the_phases(name):
  pair, alpha, law = case(name)
  got = toy.decode(name, pair.models(), alpha, inputs=2, max_decode_len=9)
  follow, context = pair.next_context(), pair.start
  for token in got.tokens[0, : got.lengths[0]]:
    assert law.pi[context, token] == 1
    context = follow[context, token]


# Trees.


def proposal_of(tree: DraftTree, step: tree_driving.Step) -> Proposal:
  """Returns the drafted trees, of which the phases read the tokens alone."""
  rows = step.tokens.shape[0]
  branches = Branches(
    tree, "", jnp.asarray(step.parents), jnp.asarray(step.certain)
  )
  none = jnp.zeros((rows, tree.num_drafts + 1))
  return Proposal(
    tokens=jnp.asarray(step.tokens),
    count=none[:, 0],
    q=none,
    q1=none,
    copied=none,
    calls=none,
    bad=none,
    branches=branches,
  )


# The marker is complete at one node or another, or nowhere, by what is drafted.
SHAPES = ((-1, -1, 0, 0), (-1, -1, 0, 1, 2), (-1, 0, 1))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
  ("name", "drawing", "verification", "parents", "prefix"),
  toy.nightly(
    [(name, *way, SHAPES[0], (0, 0)) for name in ONE_DRAFTER for way in WAYS]
    + [
      ("spec_cascade_opt", *way, parents, (0, 2))
      for way in WAYS
      for parents in SHAPES[1:]
    ],
    [
      ("spec_cascade_token_v3", *way, SHAPES[0], (0, 0))
      for way in (("without_replacement", "traversal"), ("iid", "token"))
    ],
  ),
)
def test_a_tree_has_the_phase_of_each_path(
  name, drawing, verification, parents, prefix
):
  """By the edges of every uniform of a block, as for one alpha."""
  pair, alpha, law = case(name)
  follow = pair.next_context()
  greedy = METHODS[name].greedy_only

  def context(tokens) -> int:
    return functools.reduce(lambda at, x: follow[at, x], tokens, pair.start)

  tree = DraftTree(parents)
  of = {
    field: functools.partial(
      lambda table, x: table[context((*prefix, *x))], table
    )
    for field, table in vars(law).items()
  }
  outcomes = list(
    tree_driving.drafts(tree, of["q"], of["q1"], drawing, greedy=greedy)
  )
  verify = tree_steps.TREE_VERIFY[verification]
  step = tree_driving.Step(verify, tree, drawing, outcomes, of["q"], of["pi"])
  # The target at the nodes is made as the review makes it: by the phases that
  # it finds in the trees.
  before = context(prefix) // pair.pair.num_contexts
  phase = alpha.phases_at(
    jnp.full(len(outcomes), before, jnp.int32), proposal_of(tree, step)
  )
  step.pi = target_at(name, pair, law, alpha, step, context, prefix, phase)
  visits = verification == "traversal"
  visit = tree_driving.visited_law if visits else tree_driving.walked_law
  written = visit(step, outcomes)
  drawn = reference.Tree(
    lambda tokens: law.q[context(tokens)],
    lambda tokens: law.pi[context(tokens)],
    parents,
    drawing,
    prefix,
  )
  error = reference.sequence_error(drawn, written, tree.depth + 1)
  assert error < 1e-10


def target_at(name, pair, law, alpha, step, context, prefix, phase):
  """Returns pi at the nodes of drafted trees, by given phases."""
  nodes = range(step.size + 1)
  paths = [
    [tree_driving.path(step.tree, tokens, node) for node in nodes]
    for tokens in step.tokens
  ]
  at = np.array([[context((*prefix, *path)) for path in row] for row in paths])
  q1, p1, q, p = (jnp.asarray(x[at]) for x in (law.q1, law.p1, law.q, law.p))
  target = METHODS[name].target
  return np.asarray(target.probs(q1, p1, alpha=alpha.at(phase), sampled=(q, p)))


TREES = {
  "branching": {"tree": (2, 2), "gamma": 2},
  "traversal": {
    "tree": (-1, -1, 0, 1, 2),
    "gamma": 3,
    "verification": "traversal",
    "drawing": "without_replacement",
  },
  "paths": {"drafts": 2, "gamma": 2, "drawing": "iid"},
}


@pytest.mark.parametrize("marker", ["marker", *toy.nightly(["turns"])])
@pytest.mark.parametrize(
  ("name", "shape"),
  [
    ("spec_cascade_token_v3", "branching"),
    ("spec_cascade_opt", "traversal"),
    *toy.nightly([("spec_decode_lossy", "paths"), ("ensemble", "branching")]),
  ],
)
def test_compiled_trees(name, shape, marker):
  """Samples, and what each token was drawn from."""
  pair, alpha, law = case(name, marker)
  records = {"trace": True, "log_probs": True}
  how = TREES[shape] | {"max_decode_len": LENGTH}
  decoded = toy.decode(
    name,
    pair.models(),
    alpha,
    Sampling.create(1.0),
    inputs=pair.inputs(20_000),
    **how,
    **records,
  )
  contexts = contexts_of(pair, decoded)
  inside = np.arange(LENGTH) < decoded.lengths[:, None]
  assert_phases(pair, [decoded], contexts)
  assert_log_probs(decoded, inside, contexts, {"pi": law.pi, "q": law.q})
  rule = METHODS[name].target.rule
  if rule is not None and not rule.per_token:
    sides = sides_of(pair, name, alpha.before, law)
    for side, values in zip(("left", "right"), sides):
      recorded = getattr(decoded.trace, side)[inside]
      np.testing.assert_allclose(recorded, values[contexts], atol=1e-5)
  counts = toy.counts(decoded, 3, LENGTH)
  exact = toy_chains.chain_law(pair, law.pi, LENGTH)
  assert goodness.p_value(counts, exact) > toy.LEVEL


def contexts_of(pair, decoded) -> np.ndarray:
  """Returns [N], the context of each token of all rows."""
  rows = zip(decoded.tokens, decoded.lengths)
  paths = [test_paths.context_path(pair, row[:num]) for row, num in rows]
  return np.concatenate(paths)


def assert_log_probs(decoded, inside, contexts, tables):
  tokens = decoded.tokens[inside]
  for field, table in tables.items():
    with np.errstate(divide="ignore"):
      expected = np.log(table[contexts, tokens])
    values = getattr(decoded.log_probs, field)[inside]
    np.testing.assert_allclose(values, expected, atol=1e-4, err_msg=field)


# Three models: the inner pair has the phases of the whole text, too.


@pytest.mark.parametrize(
  ("before", "after"),
  [(-0.3, EXACT), *toy.nightly([(EXACT, -0.3), (-0.3, 0.4)])],
)
def test_three_models_have_the_phases_of_the_text(before, after):
  pair, sampling = PhasedPair(THREE_PAIR, MARKER), Sampling.create(2.5)
  target = targets.defer(opt)
  logits = SMALL_LOGITS, MEDIUM_LOGITS, LARGE_LOGITS
  (s1, s), (m1, m), (p1, p) = (laws_of_logits(sampling, x) for x in logits)
  tables = []
  for alpha in (before, after):
    if alpha == EXACT:
      tables.append((m, p))
      continue
    q = target.probs(s1, m1, alpha=alpha, sampled=(s, m))
    q1 = target.probs(s1, m1, alpha=alpha, sampled=(s1, m1))
    tables.append((q, target.probs(q1, p1, alpha=alpha, sampled=(q, p))))
  is_after = pair.phase[:, None] == 1
  q, pi = (
    np.where(is_after, *(np.tile(x, (pair.num_states, 1)) for x in both[::-1]))
    for both in zip(*tables)
  )
  decoded = toy.decode(
    "spec_cascade_opt_three",
    ((MEDIUM, SMALL), LARGE),
    pair.alpha(before, after),
    sampling,
    inputs=jnp.ones((12_000, 3), jnp.int32),
    max_decode_len=LENGTH,
    gamma=2,
    log_probs=True,
  )
  inside = np.arange(LENGTH) < decoded.lengths[:, None]
  contexts = contexts_of(pair, decoded)
  assert_log_probs(decoded, inside, contexts, {"q": q, "pi": pi})
  pi = np.asarray(pi, np.float64)
  exact = toy_chains.chain_law(pair, pi / pi.sum(-1, keepdims=True), LENGTH)
  counts = toy.counts(decoded, 3, LENGTH)
  assert goodness.p_value(counts, exact) > toy.LEVEL


def test_every_method_with_an_alpha_has_its_laws_here():
  assert {*BLOCKS} - {*ONE_DRAFTER} == {"spec_cascade_opt_three"}
  without = {name for name, row in METHODS.items() if row.uses_alpha}
  without -= {*PHASED}
  assert without == {"bild", "seq_cascade_chow", "seq_cascade_chow_norm"}
