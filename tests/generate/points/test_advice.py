"""What GAMMA = "auto" and "adaptive" find in an advice file."""

import dataclasses
import json
import types

import numpy as np
import pytest

from speccascade.generate.points import advice_files
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from tests.decoding.drafting import toy_heads

PAIR = types.SimpleNamespace(
  drafter_name="small", verifier_name="large", composed=None
)
OPT = "spec_cascade_opt"
OFFERS = [
  *(("small", OPT, -0.5, 2), ("small", OPT, 0.3, 3), ("small", OPT, 0.9, 8)),
  *(("small", "spec_decode", None, 4), ("other", "spec_decode", None, 9)),
]


@pytest.fixture
def auto(tmp_path):
  """Returns a function from a method and its alpha to the gamma found."""
  point = Point(OPT, gamma="auto", advice=tmp_path)
  names = ("drafter", "method", "alpha", "gamma")
  offers = [dict(zip(names, offer)) for offer in OFFERS]
  about = advice_files.about(point, PAIR)
  text = json.dumps({"about": about, "offers": offers})
  (tmp_path / advice_files.FILE_NAME).write_text(text)

  def gamma(method, alpha=None):
    asked = Point(method, alpha, gamma="auto", advice=tmp_path)
    return advice_files.resolve_gamma(asked, PAIR).gamma

  return gamma


@pytest.mark.parametrize(
  ("alpha", "gamma"), [(-0.5, 2), (-0.4, 2), (0.3, 3), (0.5, 3), (0.7, 8)]
)
def test_the_nearest_alpha_tells_the_gamma(auto, alpha, gamma):
  assert auto(OPT, alpha) == gamma


def test_advice_is_of_one_drafter_and_of_blocks(auto):
  assert auto("spec_decode") == 4
  assert auto("verifier") == Point("verifier").gamma
  with pytest.raises(ValueError, match="says nothing of ensemble with small"):
    auto("ensemble")


def test_costs_of_calls_are_costs_of_rounds(tmp_path):
  # A drafter step .25, a pass over two tokens .375, and verifier passes of
  # 1 + (N - 1) / 8; a catch-up pass reads 8 tokens.
  costs = Costs(0.01, 0.25, 0.375, {1: 1.0, 5: 1.5, 9: 2.0}, 0.0, 1.0)
  folds = DraftCosts.of_calls(costs, folds=True)
  assert folds.sizes == (0, 1, 2, 3, 5, 8)
  assert folds.rounds == (1.0, 1.5, 1.875, 2.25, 3.0, 4.125)
  assert folds.catch_up == 1.125
  exact = DraftCosts.of_calls(costs, folds=False).rounds
  assert exact == (1.0, 1.625, 2.0, 2.375, 3.125, 4.25)
  narrow = dataclasses.replace(costs, v={1: 1.0, 4: 1.375})
  assert DraftCosts.of_calls(narrow, folds=True).sizes == (0, 1, 2, 3)
  # A block of 5 drafts is reviewed by a pass over 6 tokens, which none timed.
  narrow = dataclasses.replace(costs, v={1: 1.0, 5: 1.5})
  assert DraftCosts.of_calls(narrow, folds=True).sizes == (0, 1, 2, 3)
  # From the file.
  pair = types.SimpleNamespace(**vars(PAIR), drafters=[0], drafter_lm=object())
  point = Point("spec_decode", gamma="adaptive", advice=tmp_path)
  advice = {"about": advice_files.about(point, pair), "offers": []}
  file = tmp_path / advice_files.FILE_NAME
  file.write_text(json.dumps(advice))
  with pytest.raises(ValueError, match="no costs of rounds with small"):
    advice_files.resolve_gamma(point, pair)
  advice["costs"] = {"small": dataclasses.asdict(costs)}
  file.write_text(json.dumps(advice))
  assert advice_files.resolve_gamma(point, pair).draft_costs == folds


def test_which_drafters_choose_their_gammas():
  def resolve(**pair):
    pair = types.SimpleNamespace(**vars(PAIR) | pair)
    point = Point("spec_decode", gamma="adaptive")
    return advice_files.resolve_gamma(point, pair)

  one = {"drafters": [0], "drafter_lm": object()}
  assert resolve(**one).gamma == "adaptive"
  for change, message in (
    ({"composed": object(), "composed_name": "copies"}, "composed, copies"),
    ({"drafters": [0, 1]}, "has 2 drafters"),
    ({"drafter_lm": toy_heads.of_laws(np.ones((1, 2, 2)) / 2)}, "all drafts"),
  ):
    with pytest.raises(ValueError, match=message):
      resolve(**one | change)
