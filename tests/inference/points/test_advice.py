"""What GAMMA = "auto" finds in an advice file."""

import json
import types

import pytest

from speccascade.inference.points import advice_files
from speccascade.inference.points.point import Point

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
  assert auto("verifier") == 1
  with pytest.raises(ValueError, match="says nothing of ensemble with small"):
    auto("ensemble")
