"""The certified share of positions, against certificates text by text."""

import types

import numpy as np
import pytest
from scipy import special

from speccascade.decoding.laws import certificates
from speccascade.decoding.laws.targets import lossless
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.search import advice_page, advisor, certified
from speccascade.study.search.acceptance import rates_along
from speccascade.study.search.effort import Effort
from speccascade.study.search.wanted import Wanted
from tests import toy
from tests.study.search import frozen_advice, test_advisor, test_heads_advice

NUM = 32
TABLES = [np.asarray(model.table) for model in toy.sources(NUM, eos=-0.5)]
# Lossless, rules of p alone, and one of q.
POINTS = [
  Point(method, alpha, gamma=2, temperature=0.0)
  for method, alpha in [
    ("spec_decode", None),
    ("spec_cascade_token_v3", 0.5),
    ("spec_cascade_token_v3", 0.9),
    ("spec_cascade_opt", 0.3),
  ]
]


def study_of(pair):
  run = Run(max_decode_len=12, batch_size=NUM, num_lengths=1)
  sources = test_advisor.sources(NUM)
  return Study(Session(pair, sources, run), Measuring())


@pytest.fixture(scope="module")
def studied():
  """Returns the chains' study, and what its verifier writes greedily."""
  study = study_of(test_advisor.pair(NUM))
  alone = Point("verifier", temperature=0.0)
  return study, study.batches(alone, shared=False).decode_all(study.examples)


def test_positions_have_the_certificates_of_their_distributions(studied):
  """One position after the other, from the chains' own tables."""
  study, texts = studied
  found = certified.positions(study, POINTS, texts)
  pairs, values = [], []
  for row in range(NUM):
    before = 0
    for place in range(texts.lengths[row]):
      pairs.append([table[row, before] for table in TABLES])
      values.append(found[:, row, place])
      before = texts.tokens[row, place]
  q, p = special.softmax(np.swapaxes(pairs, 0, 1), axis=-1)
  for point, of_point in zip(POINTS, np.transpose(values)):
    target = point.spec.target
    if point.method == "spec_cascade_opt":  # it reads q
      target = lossless
    accepted = certificates.accepted_drafts(target, p, point.alpha)
    bounds = certificates.least_rejected(p, accepted)
    wanted = certificates.divergences(p, q).certify(bounds)
    np.testing.assert_array_equal(of_point, wanted)
    assert 0 < of_point.mean() < 1


def test_a_certified_draft_is_accepted(studied):
  study, texts = studied
  found = certified.positions(study, POINTS, texts)
  rates = rates_along(study, POINTS, texts, is_own=False)[0, 0, 0]
  is_drafted = certified.drafted(study, texts)
  assert is_drafted.sum() == np.sum(texts.lengths)
  assert (rates[found & is_drafted] == 1).all()
  # What accepts more certifies more.
  exact, v3, looser, *_ = found[:, is_drafted]
  assert (exact <= v3).all()
  assert (v3 <= looser).all()
  assert exact.mean() < v3.mean() < looser.mean()


def test_positions_that_are_never_drafted_do_not_count():
  study = test_heads_advice.study_of(8)
  tokens = np.full((8, 5), 2, np.int32)
  texts = types.SimpleNamespace(tokens=tokens, lengths=np.arange(8) % 5 + 1)
  is_drafted = certified.drafted(study, texts)
  assert not is_drafted[:, 0].any()
  np.testing.assert_array_equal(is_drafted.sum(axis=1), texts.lengths - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_advice_has_the_share_of_greedy_points(temperature, tmp_path):
  """Not of drawn drafts, nor of a model that drafts nothing."""
  wanted = Wanted(None, (), (2,))
  advice = frozen_advice.on_recorded_measurements(
    lambda: advisor.advise(
      **frozen_advice.settings(
        tmp_path, Point("verifier", gamma="auto", temperature=temperature)
      ),
      wanted=wanted,
      effort=Effort(),
    )
  )
  page = advice_page.answer(advice)
  (table,) = page.tables.values()
  assert ("certified" in table) == (temperature == 0)
  if temperature:
    assert not advice.certified
    assert {x["certified"] for x in page.values["offers"]} == {None}
    return
  timed = advice.lossless
  share = page.values["lossless"]["certified"]
  found = certified.positions(
    timed.study, [timed.point], advice.draftings[0].alone
  )
  is_drafted = certified.drafted(timed.study, advice.draftings[0].alone)
  assert share == pytest.approx(found[0][is_drafted].mean())
  by_method = {x["method"]: x["certified"] for x in page.values["offers"]}
  assert by_method["drafter"] is None
