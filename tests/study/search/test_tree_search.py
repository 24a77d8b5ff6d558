"""The search for a tree of drafts, on chains whose distributions are tables."""

import contextlib
import itertools
import json
import types

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import DraftTree
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.evaluation import walltime
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.papers import blocks, draft_trees
from speccascade.study.search import acceptance, tree_page, tree_search
from speccascade.study.search.effort import Effort
from speccascade.study.search.offers import measure_costs
from speccascade.study.search.tree_search import WantedTrees
from tests.study.search import test_advisor as chains

NUM = 256
TREE = (-1, -1, 0, 0, 1, 2)  # 3 deep, nodes of two children and of one


def study_of(folder=None, num=NUM):
  run = Run(folder, max_decode_len=12, batch_size=num, num_lengths=1)
  return Study(Session(chains.pair(num), chains.sources(num), run), Measuring())


@pytest.mark.parametrize(
  ("method", "temperature", "drawing", "verification"),
  [
    ("spec_decode", 0.0, "greedy_and_random", "token"),
    ("spec_decode", 1.0, "greedy_and_random", "token"),
    ("spec_cascade_token_v3", 1.0, "without_replacement", "token"),
    ("spec_decode", 1.0, "top_k", "token"),
    ("spec_decode", 1.0, "iid", "k_seq"),
  ],
)
def test_a_text_determines_the_blocks_of_a_tree(
  method, temperature, drawing, verification
):
  """Decoded blocks differ from those expected of the same texts by chance."""
  tree = TREE
  if drawing == "iid":
    # Equal draws share what follows them, which the expectation leaves out.
    tree = (-1, -1, -1)
  study = study_of()
  point = Point(
    method,
    gamma=3 if tree is TREE else 1,
    temperature=temperature,
    tree=tree,
    drawing=drawing,
    verification=verification,
  )
  decoded = study.batches(point, shared=False).decode_all(study.examples)
  rates = acceptance.rank_rates_along(
    study,
    point,
    decoded,
    drawing=drawing,
    verification=verification,
    max_children=3,
  )
  more = decoded.stats.num_blocks
  more = more - blocks.blocks(rates, decoded.lengths, tree).num
  if temperature == 0 or drawing == "top_k":
    # The text shows which child each of its tokens is.
    np.testing.assert_allclose(more, 0, atol=1e-5)
    return
  assert np.std(more) > 0.2
  assert abs(np.mean(more)) < 4.5 * np.std(more) / np.sqrt(NUM)


@pytest.mark.parametrize("drawing", ["without_replacement", "iid"])
def test_the_chance_of_a_rank_is_a_mean_over_earlier_draws(drawing):
  """Each first child has its own chance to miss, and its own q after it."""
  q, pi = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
  residual = np.maximum(pi - q, 0) / np.maximum(pi - q, 0).sum()
  got, want = np.zeros((2, 3)), np.zeros((2, 3))
  for first, second in itertools.product(range(3), repeat=2):
    rest = q.copy()
    if drawing == "without_replacement":
      if first == second:
        continue
      rest[first] = 0
      rest /= rest.sum()
    chance = q[first] * rest[second]
    # The trials of `token_verify`, by hand.
    accepted = min(1, pi[first] / q[first])
    want[0, first] += chance * accepted
    missed = chance * (1 - accepted)
    want[1, second] += missed * min(1, residual[second] / rest[second])
    rates = acceptance._of_children(
      *(jnp.asarray(np.tile(x, (1, 3, 1)), jnp.float32) for x in (q, pi)),
      jnp.arange(3)[None],
      jnp.tile(jnp.array([first, second]), (1, 3, 1)),
      jnp.zeros((1, 3, 2), bool),
      drawing,
    )
    got += chance * np.stack(rates)[:, 0]
  np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_pass_reads_the_last_token_and_all_drafts():
  costs = Costs(1e-3, 0.1, 0.1, {1: 1.0, 3: 1.6, 5: 2.8}, 0.1, 1.0)
  texts = types.SimpleNamespace(tokens=np.zeros((2, 4)), lengths=[4, 4])
  offers, _ = tree_search.offers_of(
    types.SimpleNamespace(pair=chains.pair(2)),
    Point("spec_decode", gamma=2),
    WantedTrees(sizes=(2, 4), max_children=2, max_depth=2),
    np.full((1, 2, 2, 2, 4), 0.3),
    np.full((2, 2, 2), 0.3),
    texts,
    costs,
  )
  passes = {1: 1.3, 2: 1.6, 3: 2.2, 4: 2.8}  # of so many drafts
  assert {len(offer.parents) for offer in offers} >= {1, 2, 4}
  for offer in offers:
    depth = DraftTree(offer.parents).depth
    steps = 0.1 * depth + passes[len(offer.parents)]
    np.testing.assert_allclose(offer.here.steps, steps)


@pytest.fixture
def search(monkeypatch, tmp_path):
  """Searches; passes cost what is given, and the clock agrees or does not."""

  def call(c, v, *, clock=lambda offer: 1.0, temperature=1.0, **changes):
    costs = Costs(1e-3, c, c, v, c, 1.0)
    monkeypatch.setattr(
      point_timing,
      "cost_loops",
      lambda *_, **__: chains.tables_of(costs, (1.0, 1.0)),
    )

    def time_points(study, points, **_):
      latencies = {}
      for point in points:
        num = point.draft_tree.num_drafts if point.is_tree else point.gamma
        ours = clock(types.SimpleNamespace(point=point, num=num))
        noise = np.random.default_rng(num).uniform(0.98, 1.02, (3, 8))
        latencies[point] = walltime.latency(ours * noise, np.ones((3, 8)))
      return latencies

    monkeypatch.setattr(point_timing, "time_points", time_points)
    settings = {"sizes": (2, 4), "max_children": 3, "max_depth": 3}
    return tree_search.search(
      pair=types.SimpleNamespace(
        load=lambda vocabulary: chains.pair(32), vocabulary_path=None
      ),
      inputs=types.SimpleNamespace(read=lambda path: chains.sources(32)),
      point=Point("spec_decode", gamma=2, temperature=temperature),
      run=Run(tmp_path, max_decode_len=12, progress=False),
      trees=WantedTrees(**settings | changes),
      effort=Effort(),
    )

  return call


CHEAP = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}


def test_a_tree_pays(search, tmp_path):
  """Passes of any width cost one step, and drafting costs next to nothing."""
  advice = search(0.01, CHEAP, clock=lambda offer: 0.9 / (1 + offer.num))
  best = advice.choice
  assert best.point.is_tree
  assert len(best.parents) == 4
  # Of this size no tree is expected to write more tokens.
  assert best.here.tokens == max(offer.here.tokens for offer in advice.offers)
  assert 0 < best.optimum <= 1
  assert advice.acceptance.shape == (3, 3, 3)
  table = advice.tokens_by_size
  assert (np.diff(table) > -1e-9).all()
  text = tree_page.write(advice)
  assert "use spec_decode with a tree of 4 drafts" in text
  assert "compared with the fastest chain" in text
  assert "| share of the optimum |" in text
  snippet = (tmp_path / "trees.gin").read_text()
  assert f"TREE = {best.parents}\n" in snippet
  assert 'DRAWING = "greedy_and_random"\n' in snippet
  values = json.loads((tmp_path / "trees.json").read_text())
  assert values["choice"]["parents"] == [*best.parents]
  # Each tree is the best of its size that the programme finds.
  for offer in advice.offers:
    if not offer.point.is_tree:
      continue
    tokens = draft_trees.expected_tokens(offer.parents, advice.acceptance)
    assert tokens == pytest.approx(table[len(offer.parents)])


def test_a_chain_or_nothing_pays(search):
  slow = lambda offer: 2.0 if offer.point.is_tree else 0.5
  advice = search(0.01, CHEAP, clock=slow, temperature=0.0)
  assert advice.choice is advice.chain
  assert advice.choice.optimum is None  # of one way of drawing at T = 0
  text = tree_page.answer(advice).text
  assert "no tree is faster" in text
  assert "TREE" not in tree_page.answer(advice).snippet
  advice = search(0.9, CHEAP, clock=lambda offer: 1.5)
  assert advice.choice is None
  text = tree_page.answer(advice).text
  assert "nothing pays with spec_decode" in text
  assert 'METHOD = "verifier"' in text
  json.dumps(tree_page.answer(advice).json, allow_nan=False)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"sizes": ()}, "sizes"),
    ({"sizes": (1,)}, "sizes"),
    ({"max_children": 1}, "max_children"),
    ({"verification": "block"}, "verification is 'block'"),
    ({"verification": "k_seq"}, "weighs independent drafts"),
  ],
)
def test_wrong_wishes_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    WantedTrees(**changes)


@pytest.mark.parametrize(
  ("point", "message"),
  [
    (Point("bild", temperature=0.0), "bild, which drafts no trees"),
    (Point("token_cascade_chow"), "drafts no trees"),
    (Point("cascade_drafting"), "drafts no trees"),
    (Point("spec_decode", gamma=2, drafts=2), "begins with a chain"),
  ],
)
def test_wrong_points_are_refused(point, message):
  with pytest.raises(ValueError, match=message):
    tree_search.search(pair=None, inputs=None, point=point, run=None)


def test_acceptance_is_not_measured_of_masked_models():
  run = Run(banned=("x",), min_decode_len=3)
  with pytest.raises(ValueError, match="MIN_DECODE_LEN and BANNED would mask"):
    tree_search.read_study(None, None, run, None)


def test_the_drafter_must_have_one_cost(monkeypatch):
  monkeypatch.setattr(point_timing, "cost_loops", lambda *_, **__: None)
  budget = types.SimpleNamespace(
    is_spent=lambda: False, tick_of=lambda name: None
  )
  steps = types.SimpleNamespace(
    step=lambda name: contextlib.nullcontext(), budget=budget
  )
  with pytest.raises(ValueError, match="whose steps have no single cost"):
    measure_costs(study_of(num=4), [Point("spec_decode")], 1, steps, "costs")
