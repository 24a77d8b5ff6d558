"""The titles of figures: a claim where intervals support one, else its lack."""

import pytest

from speccascade.report import claims, measured
from speccascade.report.measured import MEASURED
from tests.report import synthetic
from tests.report.test_summaries import LARGE, OPT, row
from tests.report.test_winners import PLAIN, large, panel_of, timed


def claim(*rows) -> str:
  return claims.claim([panel_of(*rows)], MEASURED)


@pytest.mark.parametrize(
  ("rows", "line"),
  [
    (
      [timed(PLAIN, 0.9, 70, own=0.01), timed(OPT, 0.5, 71.2, 0.1, own=0.01)],
      "At T = 1 spec_cascade_opt (0.1) is 2.00 times as fast as the large"
      " model, at 71.2 BLEU against 70.0",
    ),
    (
      [timed(PLAIN, 0.5, 69, own=0.01)],
      "At T = 1 spec_decode is 2.00 times as fast as the large model, with the"
      " same distribution",
    ),
    (
      [timed(PLAIN, 1.25, 69, own=0.01), timed(OPT, 0.2, 60, 0.1, own=0.01)],
      "At T = 1 no method as good as the large model is faster: spec_decode is"
      " 0.80 times as fast, with the same distribution",
    ),
    (
      [timed(OPT, 0.97, 71, 0.1, own=0.05)],
      "At T = 1 no method as good as the large model is shown to be faster:"
      " spec_cascade_opt (0.1) is 1.03 times as fast, at 71.0 BLEU against"
      " 70.0",
    ),
    (
      [timed(OPT, 0.5, 69, 0.1, own=0.01)],
      "At T = 1 no method is as good as the large model, which has 70.0 BLEU",
    ),
  ],
)
def test_what_a_title_claims(rows, line):
  assert claim(large(), *rows) == line


def test_a_sure_point_is_named_before_a_faster_one_that_scatters():
  """OPT seems to be the fastest, and nothing tells its time from 1."""
  rows = [
    timed(PLAIN, 0.8, 70, own=0.01),
    timed(OPT, 0.7, 71, 0.1, own=0.4),
  ]
  assert claim(large(), *rows) == (
    "At T = 1 spec_decode is 1.25 times as fast as the large model, with the"
    " same distribution"
  )


def test_each_temperature_has_a_line():
  panels = synthetic.study().panels
  greedy, sampled = claims.claim(panels, MEASURED).split("\n")
  assert greedy.startswith("Greedy, spec_decode_lossy (0.9) is ")
  assert sampled.startswith("At T = 1 spec_cascade_")
  assert claims.claim(panels[::-1], MEASURED) == f"{sampled}\n{greedy}"


def test_greedy_texts_that_are_the_large_models_have_its_tokens():
  study = synthetic.study(
    temperatures=(0.0,), methods=["drafter", "verifier", "spec_decode"]
  )
  assert claims.claim(study.panels, MEASURED).endswith(", with the same tokens")


def test_what_is_modelled_is_no_measurement():
  study = synthetic.study(temperatures=(1.0,))
  line = claims.claim(study.panels, measured.modelled_clock(study.cost_ratio))
  assert " would be " in line
  assert " is " not in line


def test_without_the_large_models_time_nothing_is_claimed():
  assert claim(row(OPT, 0.5, 71, 0.1)) == ""
  assert claim(LARGE) == (
    "At T = 1 no method is as good as the large model, which has 70.0 BLEU"
  )
