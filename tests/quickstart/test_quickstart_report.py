"""What the quick start says of its rows, and the files that it leaves."""

import pytest

from speccascade.decoding.methods import METHODS
from speccascade.quickstart import quickstart_report
from tests.inference.test_results import row
from tests.report.synthetic import changed


def rows(latency=0.625):
  """A small and a large model and speculation, greedy and sampled."""
  return [
    point(method, temperature, value - 7 * temperature, relative)
    for temperature in (0.0, 1.0)
    for method, value, relative in (
      ("drafter", 60.0, 0.25),
      ("verifier", 78.0, 1.0),
      ("spec_decode", 78.0, latency),
    )
  ]


def point(method, temperature, value, latency):
  """A row whose interval of latency reaches 0.1 to either side."""
  return changed(
    row(
      method=method,
      temperature=temperature,
      gamma=4 if METHODS[method].has_blocks else None,
    ),
    quality={
      "bleu": {"value": value, "low": value - 4, "high": value + 4},
      "valid": {"value": 30.0, "low": 20.0, "high": 40.0},
    },
    relative_latency=latency,
    relative_low=latency - 0.1,
    relative_high=latency + 0.1,
    measured_speedup=1 / latency,
    agreement=None
    if temperature
    else {"identical": 199, "near_ties": 1, "num_examples": 200},
    environment={"device": "a chip", "versions": {"jax": "1"}},
  )


FACTS = (
  "a block writes 2.7 tokens and costs v = 1.70 of that model's steps, gamma"
  " drafter steps of c = 0.10 (medians) and the loop around them"
)


def test_a_gain_in_five_lines():
  faster = "faster than the large model, 1.60 [1.38, 1.90] times its speed"
  assert quickstart_report.findings(rows()) == [
    "the small and the large model: 60.0 and 78.0 BLEU greedy, 53.0 and 71.0"
    " BLEU at T = 1",
    f"greedy, spec_decode is {faster}; it wrote that model's tokens in 199 of"
    " 200 sentences (1 others part at a tie within 1e-4)",
    f"at T = 1, spec_decode is {faster}",
    "at T = 1, the fastest method as good as the large model (by BLEU or by"
    f" its law) is spec_decode, with 71.0 BLEU: {faster}",
    "of 2 points with blocks 2 are faster than the large model by the clock, 0"
    f" slower, 0 not told apart: {FACTS}",
  ]


@pytest.mark.parametrize(
  ("latency", "said", "counted"),
  [
    (1.4, "slower than the large model, 0.71 [0.67, 0.77] times", (2, 0)),
    (1.05, "not told apart from the large model, 0.95 [0.87, 1.05]", (0, 2)),
    (0.95, "not told apart from the large model, 1.05 [0.95, 1.18]", (0, 2)),
  ],
)
def test_no_gain_is_claimed_where_there_is_none(latency, said, counted):
  lines = quickstart_report.findings(rows(latency))
  assert len(lines) == 5
  assert [said in line for line in lines[1:4]] == [True] * 3
  assert not any("faster than" in line for line in lines[:4])
  num_slower, num_unsure = counted
  assert lines[4] == (
    "of 2 points with blocks 0 are faster than the large model by the clock,"
    f" {num_slower} slower, {num_unsure} not told apart: {FACTS}"
  )


def test_one_timed_sentence_tells_nothing():
  alike = [
    changed(r, relative_low=r.latency.relative_latency, relative_high=0.625)
    for r in rows()
  ]
  lines = quickstart_report.findings(alike)
  assert "spec_decode is not told apart from the large model" in lines[1]


@pytest.mark.parametrize(
  ("method", "value", "latency", "fastest"),
  [
    ("spec_cascade_opt", 71.5, 0.5, "spec_cascade_opt, with 71.5 BLEU"),
    ("spec_cascade_opt", 70.9, 0.5, "spec_decode, with 71.0 BLEU"),
    ("spec_cascade_opt", 71.5, 0.7, "spec_decode, with 71.0 BLEU"),
    ("oracle_cascade_opt", 71.5, 0.5, "spec_decode, with 71.0 BLEU"),
    ("spec_decode_lossy", 71.0, 0.5, "spec_decode_lossy, with 71.0 BLEU"),
    ("cascade_drafting", 70.5, 0.5, "cascade_drafting, with 70.5 BLEU"),
  ],
)
def test_the_fastest_that_is_as_good(method, value, latency, fastest):
  more = [*rows(), point(method, 1.0, value, latency)]
  assert f"is {fastest}: " in quickstart_report.findings(more)[3]
