"""Searches answer as they did, on measurements that are recorded."""

import json

import pytest

from tests.study.search import frozen_advice

GOLDEN = json.loads(frozen_advice.GOLDEN.read_text())


def assert_alike(got, want, place=""):
  """Asserts that texts are equal, and numbers but for rounding."""
  if isinstance(want, dict):
    assert got.keys() == want.keys(), place
    for name in want:
      assert_alike(got[name], want[name], f"{place}/{name}")
  elif isinstance(want, list):
    assert len(got) == len(want), place
    for number, pair in enumerate(zip(got, want)):
      assert_alike(*pair, f"{place}/{number}")
  elif isinstance(want, float):
    assert got == pytest.approx(want, rel=1e-5, abs=1e-7), place
  else:
    assert got == want, place


@pytest.mark.parametrize("name", GOLDEN)
def test_the_answer_is_the_recorded_one(name, tmp_path):
  got = json.loads(json.dumps(frozen_advice.answer(name, tmp_path)))
  assert_alike(got, GOLDEN[name], name)
