"""Advice on draft heads: tables at costs that are given, and a tiny T5's."""

import dataclasses
import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from speccascade.generate.batches.sources import Source, Sources
from speccascade.generate.pair.model_loading import Model
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.models import StateReader
from speccascade.models.markov_lm import MarkovLM
from speccascade.study.evaluation import timing, walltime
from speccascade.study.measuring import infer, point_timing
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.papers.blocks import acceptance_by_depth, blocks, chain
from speccascade.study.search import (
  advice_page,
  advisor,
  candidates,
  effort,
  tree_page,
  tree_search,
)
from speccascade.study.search.acceptance import rank_rates_along, rates_along
from speccascade.study.search.candidates import Candidate
from speccascade.study.search.effort import Effort
from speccascade.study.search.tree_search import WantedTrees
from speccascade.study.search.wanted import Wanted
from speccascade.tasks.inputs import Inputs
from tests import toy
from tests.decoding.drafting import toy_heads
from tests.decoding.test_sampled_laws import T5_SOURCES, T5_VOCAB, tiny_t5
from tests.generate import tiny
from tests.models.test_lookahead_model import embeddings_of
from tests.study.search import test_advisor, test_tree_search

NUM, NUM_HEADS = 256, 3


@dataclasses.dataclass(frozen=True)
class _Heads(Model):
  """Draft heads without a file."""

  prompted = False
  window = np.inf


def pair(num=NUM):
  """Returns chains that are much alike, with heads that know a mean chain."""
  rng = np.random.default_rng(0)
  mean = rng.normal(0, 2.5, (7, 7))
  mean[:, 1] -= 2.0  # few texts end early
  tables = mean + rng.normal(0, 0.8, (num, 7, 7))
  heads = toy_heads.ahead(special.softmax(mean, axis=-1), NUM_HEADS, blur=0.1)
  verifier = MarkovLM(jnp.asarray(tables, jnp.float32))
  return ModelPair((_Heads(heads, "my heads", ""),), Model(verifier, "p", ""))


def study_of(num=NUM):
  run = Run(max_decode_len=12, batch_size=num, num_lengths=1)
  return Study(Session(pair(num), test_advisor.sources(num), run), Measuring())


def assert_no_bias(more, temperature):
  """Asserts that decoded blocks differ from expected ones by chance alone."""
  if temperature == 0:  # drafts are right or wrong
    np.testing.assert_allclose(more, 0, atol=1e-5)
    return
  assert np.std(more) > 0.2
  assert abs(np.mean(more)) < 4.5 * np.std(more) / np.sqrt(NUM)


class _Words(test_advisor.Words):
  vocab_size = T5_VOCAB


def lookahead_study(drafter_of=embeddings_of):
  """Returns a study of a tiny T5 with two look-ahead embeddings."""
  verifier = tiny_t5(2)
  lookahead = Model(drafter_of(verifier), "my embeddings", "")
  examples = [
    Source(k, str(k), T5_SOURCES[k % 2], ("one",)) for k in range(NUM)
  ]
  session = Session(
    ModelPair((lookahead,), Model(verifier, "p", "")),
    Sources(examples, _Words(), T5_SOURCES.shape[1], "sources"),
    Run(max_decode_len=12, batch_size=NUM, num_lengths=1),
  )
  return Study(session)


def reader_study():
  """Returns a study of a tiny T5 with a state reader."""
  return lookahead_study(StateReader.untrained)


STUDIES = {
  "heads": study_of,
  "lookahead": lookahead_study,
  "reader": reader_study,
}


@pytest.mark.parametrize(
  ("kind", "temperature"),
  toy.nightly(
    [(kind, t) for kind in STUDIES for t in (0.0, 1.0)],
    [(kind, 1.0) for kind in STUDIES],
  ),
)
def test_a_text_determines_its_blocks(kind, temperature):
  """Each draft has its own head; a first block writes one token, or drafts."""
  study = STUDIES[kind]()
  point = Point("spec_decode", gamma=3, temperature=temperature)
  decoded = study.batches(point, shared=False).decode_all(study.examples)
  rates = rates_along(
    study, [point], decoded, is_own=False, max_depth=NUM_HEADS
  )[:, :, :, 0]
  first_drafts = study.pair.first_block_drafts
  assert first_drafts == (kind != "heads")
  expected = blocks(rates, decoded.lengths, chain(3), first_drafts=first_drafts)
  stats = decoded.stats
  if kind == "lookahead":
    # The first draft is the verifier's own.
    inside = np.arange(12) < np.asarray(decoded.lengths)[:, None]
    np.testing.assert_allclose(rates[0, 0, 0][inside], 1, atol=1e-4)
  assert_no_bias(stats.num_blocks - expected.num, temperature)
  for name in ("accepted", "examined"):
    counted = getattr(stats, f"{name}_by_position").sum(0)
    of_texts = getattr(expected, name).sum(0)
    assert np.all(counted > 0)
    # A count of at most NUM * 12 events of chance spreads by its root at most.
    spread = 4.5 * np.sqrt(counted) * temperature
    assert np.all(np.abs(counted - of_texts) <= spread + 1e-3)


@pytest.mark.parametrize(
  ("kind", "temperature"),
  toy.nightly(
    [(kind, t) for kind in STUDIES for t in (0.0, 1.0)], [("heads", 1.0)]
  ),
)
def test_a_text_determines_the_blocks_of_a_tree(kind, temperature):
  study, tree = STUDIES[kind](), test_tree_search.TREE
  point = Point("spec_decode", gamma=3, temperature=temperature, tree=tree)
  decoded = study.batches(point, shared=False).decode_all(study.examples)
  rates = rank_rates_along(
    study,
    point,
    decoded,
    drawing=point.tree_drawing,
    verification="token",
    max_children=2,
    max_depth=NUM_HEADS,
  )
  how = {"first_drafts": study.pair.first_block_drafts}
  expected = blocks(rates, decoded.lengths, tree, **how)
  assert_no_bias(decoded.stats.num_blocks - expected.num, temperature)
  acceptance = acceptance_by_depth(rates, decoded.lengths, NUM_HEADS, **how)
  # The first depth is the mean over all tokens, but for the first token of each
  # text where the first block drafts nothing.
  inside = np.arange(12) < np.asarray(decoded.lengths)[:, None]
  inside[:, 0] &= study.pair.first_block_drafts
  want = rates[0, 0, 0][inside].mean()
  np.testing.assert_allclose(acceptance[0, 0, 0], want)


def tables_of(costs, rounds=(1.0, 1.02)):
  """Returns loops with these costs."""
  loops = test_advisor.tables_of(costs, rounds)
  seconds = dict(loops.seconds)
  for name in ("c", "q2", "drafter"):
    del seconds[name]
  unit = seconds["v1"]
  seconds |= {f"h{num}": unit * cost for num, cost in costs.heads.items()}
  return timing.CostLoops(seconds, loops.num_blocks)


@pytest.fixture
def clocks(monkeypatch):
  """Passes cost what is given, and decodes take as long as expected."""

  def set_costs(costs):
    monkeypatch.setattr(
      point_timing, "cost_loops", lambda *_, **settings: tables_of(costs)
    )

  def time(search, offers):
    return [dataclasses.replace(x, measured=latency(x)) for x in offers]

  def latency(offer):
    ours = offer.here.latency.relative_latency
    noise = np.array([[0.99], [1.0], [1.01]])
    return walltime.latency(ours * noise, np.ones((3, 1)))

  monkeypatch.setattr(advisor.Searcher, "_time", time)
  return set_costs


def settings(tmp_path, num, **changes):
  return {
    "pair": types.SimpleNamespace(
      load=lambda vocabulary: pair(num),
      vocabulary_path=None,
      draft_vocabulary=None,
      drafter_checkpoint="/heads",
    ),
    "inputs": types.SimpleNamespace(
      read=lambda path: test_advisor.sources(num)
    ),
    "point": Point("spec_decode", gamma=5, temperature=0.0),
    "run": Run(tmp_path, max_decode_len=12, progress=False),
    **changes,
  }


CHEAP = Costs(1e-3, 0, 0, {1: 1.0, 2: 1.02, 4: 1.04}, 0, 1.0, {1: 0.1, 3: 0.2})


def test_heads_pay(clocks, tmp_path):
  clocks(CHEAP)
  wanted = Wanted(None, (), [1, 3, 8])
  advice = advisor.advise(**settings(tmp_path, 32, wanted=wanted))
  # Three heads draft three tokens at most, and write nothing alone.
  (drafting,) = advice.draftings
  assert drafting.gammas == [1, 3]
  assert drafting.costs.heads == CHEAP.heads
  assert advice.decoded == []
  best = advice.choice
  assert best.point.gamma == 3
  assert best.here.steps == pytest.approx(1.04 + 0.2)
  assert best.one_step.steps == pytest.approx(1 + 0.2)
  text = advice_page.write(advice)
  assert "use spec_decode, gamma 3: " in text
  assert (
    "a draft from 1, 3 heads of my heads costs 0.100, 0.200 verifier" in text
  )
  snippet = (tmp_path / "advice.gin").read_text()
  assert snippet == 'METHOD = "spec_decode"\nGAMMA = 3\n'
  # The decode takes them.
  Candidate(best.study, Point("spec_decode", gamma=3)).check()
  assert drafting.least_rate(1e-6) == 0


def test_gammas_for_more_heads_than_there_are_are_refused(tmp_path):
  wanted = Wanted(None, (), [8, 4])
  message = r"GAMMAS is \[4, 8\], and my heads drafts 3 tokens in a row at most"
  with pytest.raises(ValueError, match=message):
    advisor.advise(**settings(tmp_path, 4, wanted=wanted))


@pytest.mark.slow
def test_a_cascade_is_judged_by_the_blocks_that_it_took(
  clocks, tmp_path, monkeypatch
):
  """Another gamma would write other texts, so the gamma stays."""
  clocks(CHEAP)
  fits = candidates.Loss(0.0, 0.0, 0.0)
  monkeypatch.setattr(advisor, "loss", lambda row, alone: fits)
  wanted = Wanted(0.0, ["spec_cascade_token_v3"], [1, 3], num_decoded=1)
  advice = advisor.advise(**settings(tmp_path, 32, wanted=wanted))
  (tried,) = advice.decoded
  assert tried.point.gamma == tried.row.settings.gamma
  counts = tried.row.counts
  assert tried.here.tokens == counts.num_tokens / counts.num_blocks
  # The distribution after the drafts is that of one more head, where there is
  # one.
  drawn = {1: 0.15, 3: 0.2}[tried.point.gamma]
  assert tried.here.steps == pytest.approx(
    drawn + CHEAP.v[tried.point.gamma + 1] + advice.draftings[0].overhead_of(3)
  )
  json.dumps(advice_page.answer(advice).json, allow_nan=False)


@pytest.mark.slow
def test_nothing_pays(clocks, tmp_path):
  clocks(dataclasses.replace(CHEAP, heads={1: 3.0, 3: 3.5}))
  wanted = Wanted(None, (), [1, 3])
  advice = advisor.advise(**settings(tmp_path, 32, wanted=wanted))
  assert advice.choice is None
  assert advice.draftings[0].least_rate(2.0) is None
  assert (
    "nothing pays: use the verifier alone" in advice_page.answer(advice).text
  )


@pytest.mark.slow
def test_the_best_tree_of_heads(clocks, tmp_path, monkeypatch):
  v = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}
  clocks(dataclasses.replace(CHEAP, v=v))

  def time_points(study, points, **_):
    latencies = {}
    for point in points:
      Candidate(study, point).check()
      num = point.draft_tree.num_drafts if point.is_tree else point.gamma
      latencies[point] = walltime.latency(
        np.full((3, 8), 0.9 / (1 + num)), np.ones((3, 8))
      )
    return latencies

  monkeypatch.setattr(point_timing, "time_points", time_points)
  point = Point("spec_decode", gamma=5, temperature=1.0)
  advice = tree_search.search(
    **settings(tmp_path, 32, point=point),
    trees=WantedTrees(sizes=(2, 4), max_children=3, max_depth=8),
    effort=Effort(),
  )
  # There are as many levels as heads, and all levels are drafted at once.
  assert advice.acceptance.shape == (NUM_HEADS, 3, 3)
  best = advice.choice
  assert len(best.parents) == 4
  drawn = {1: 0.1, 2: 0.15, 3: 0.2}
  for offer in advice.offers:
    assert offer.point.gamma <= NUM_HEADS
    assert offer.here.steps == pytest.approx(1 + drawn[offer.point.gamma])
    assert 0 < offer.optimum <= 1
  assert "the heads draft all levels of a tree at once" in tree_page.write(
    advice
  )
  assert f"TREE = {best.parents}\n" in (tmp_path / "trees.gin").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", "blockwise", "lookahead"])
def test_a_decode_takes_the_answer(kind, tmp_path, monkeypatch):
  """A tiny T5 with heads on disk, timed on this machine."""
  large = tiny.save(tmp_path / "large", 1)
  heads = tiny.save_heads(tmp_path / "heads", large, kind=kind)
  lines = [json.dumps({"inputs": text, "targets": "one"}) for text in "abcd"]
  (tmp_path / "in.jsonl").write_text("\n".join(lines))
  shared = {
    "pair": PairSpec(drafter_checkpoint=heads, verifier_checkpoint=large),
    "inputs": Inputs(
      input_file=str(tmp_path / "in.jsonl"),
      vocabulary=tiny.Vocabulary(),
      task_feature_lengths={"inputs": 8},
    ),
  }
  point = Point("spec_decode", gamma=1, temperature=1.0)
  quick = Effort(rounds=1)
  monkeypatch.setattr(effort, "Budget", test_advisor.late)
  advice = advisor.advise(
    **shared,
    point=point,
    run=Run(tmp_path / "advice", max_decode_len=8, progress=False),
    wanted=Wanted(None, (), [1, 2, 8]),
    effort=quick,
  )
  (drafting,) = advice.draftings
  assert {*drafting.costs.heads} == {1, 2}
  assert min(drafting.costs.heads.values()) > 0
  advice_page.write(advice, ["advise"])
  assert advice.lossless.point.gamma in (1, 2)
  auto = dataclasses.replace(point, gamma="auto", advice=tmp_path / "advice")
  result = infer.infer(
    **shared,
    point=auto,
    run=Run(tmp_path / "out", max_decode_len=8, progress=False),
  )
  assert result.row.settings.gamma == advice.lossless.point.gamma
  most = 3 + (kind == "lookahead")
  searched = tree_search.search(
    **shared,
    point=point,
    run=Run(tmp_path / "trees", max_decode_len=8, progress=False),
    trees=WantedTrees(sizes=(most + 1,), max_children=2),
    effort=quick,
  )
  assert searched.acceptance.shape == (most, 2, 2)
  # A tree of more drafts than a block has depths is not a chain.
  assert any(offer.point.is_tree for offer in searched.offers)


def test_the_costs_of_a_state_reader_are_those_of_a_model():
  study = reader_study()
  loops = timing.cost_loops(
    study.pair.drafter_lm,
    study.pair.verifier_lm,
    T5_SOURCES[:1],
    widths=[4],
    max_decode_len=4,
    sampling=toy.GREEDY,
    rounds=2,
  )
  costs = loops.costs
  assert 0 < costs.c <= costs.q2
  assert not costs.heads
