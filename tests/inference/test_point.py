"""What a point says of its passes, and which settings are one point."""

import pytest

from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.inference.point import Point

RUN = {"max_decode_len": 8, "task": "t", "split": "", "num_examples": 1}
RUN |= {"drafter": "s", "verifier": "l"}
MAX_PROB = ("max_prob", 0.5)


@pytest.mark.parametrize(
  ("method", "more", "folds"),
  [
    ("spec_decode", {}, True),
    # A target of both laws needs the drafter's at the bonus position.
    ("spec_cascade_opt", {}, False),
    ("spec_cascade_opt", {"bonus": "verifier"}, True),
    # A drafter that may stop computes the law of where it stopped.
    ("spec_decode", {"draft_length": MAX_PROB}, False),
    ("verifier", {}, False),
  ],
)
def test_whose_drafters_read_two_tokens_at_once(method, more, folds):
  assert Point(method, **more).folds == folds


@pytest.mark.parametrize(
  ("method", "width"),
  [("spec_decode", 5), ("verifier", 1), ("token_cascade_chow", 4)],
)
def test_a_verifier_pass_is_as_wide_as_a_block_and_one(method, width):
  assert Point(method, gamma=4).verify_width == width


def test_costs_predict_where_calls_are_of_one_width():
  # A block costs 3 c + q2 + v_5 = 2.4 steps, and writes 8 / 2 tokens.
  costs = Costs(1e-3, 0.1, 0.2, {1: 1.0, 5: 1.9}, 1.0, 1.0)
  counts = Counts(
    **{"num_examples": 1, "num_tokens": 8, "num_blocks": 2, "drafted": 8},
    **{"accepted_at": (0, 0, 0, 2, 0), "drafter_calls": 8},
    **{"verifier_calls": 2, "verifier_extends": 2},
  )
  for method, speedup in (("spec_decode", 4 / 2.4), ("cascade_drafting", None)):
    point = Point(method, gamma=4)
    assert point.is_predictable == (speedup is not None)
    predicted = point.predicted_speedup(counts, costs)
    assert predicted == (speedup and pytest.approx(speedup))
  assert not Point("bild", temperature=0.0).is_predictable


@pytest.mark.parametrize(
  ("method", "more"),
  [
    ("spec_decode", {"top_k": 0, "top_p": 1.0}),
    ("spec_decode", {"alpha": 0.5}),
    ("verifier", {"draft_length": MAX_PROB, "gamma": 2}),
  ],
)
def test_what_changes_nothing_is_no_other_point(method, more):
  key = lambda **settings: Point(method, **settings).settings(**RUN).key
  assert key(**more) == key()
  assert key(temperature=0.5) != key()


def test_the_fallback_of_bild_is_a_draft_length():
  plain, never, often = (
    Point("bild", temperature=0.0, draft_length=policy).settings(**RUN)
    for policy in ("fixed", ("max_prob", 0.0), MAX_PROB)
  )
  assert len({plain.key, never.key, often.key}) == 3
  assert plain.draft_length is None
  assert (often.draft_length, often.draft_threshold) == MAX_PROB
