"""What the quick start says of its rows, and the files that it leaves."""

import dataclasses

from speccascade.quickstart import quickstart_report
from tests.inference.test_results import row
from tests.report.synthetic import changed


def rows():
  """A small and a large model and speculation, greedy and sampled."""
  return [
    changed(
      row(method=method, temperature=temperature),
      quality={
        "bleu": {"value": value, "low": value - 4, "high": value + 4},
        "valid": {"value": 30.0, "low": 20.0, "high": 40.0},
      },
      relative_latency=latency,
      relative_low=latency - 0.1,
      relative_high=latency + 0.1,
      measured_speedup=1 / latency,
      agreement={"identical": 199, "near_ties": 1, "num_examples": 200},
      environment={"device": "a chip", "versions": {"jax": "1"}},
    )
    for temperature in (0.0, 1.0)
    for method, value, latency in (
      ("drafter", 60.0, 0.25),
      ("verifier", 78.0 - 7 * temperature, 1.0),
      ("spec_decode", 78.0 - 7 * temperature, 0.625),
    )
  ]


def test_findings():
  text = "\n".join(quickstart_report.findings(rows()))
  assert "60.0 BLEU and the large one 78.0; sampled at T = 1" in text
  assert "large one has 71.0" in text
  assert "1.60x as fast as the large model [1.38, 1.90], 1.90 pred" in text
  assert "in 199 of 200 sentences (1 others" in text
  assert "loses" not in text


def test_a_loss_is_told_with_its_reason():
  slow = rows()
  slow[2] = changed(
    dataclasses.replace(slow[2], efficiency={"acceptance_rate": 0.31}),
    relative_latency=1.4,
    relative_low=1.3,
  )
  last = quickstart_report.findings(slow)[-1]
  assert last.startswith("spec_decode at T = 0 loses: 1.40 of the large model")
  assert "0.31 of the drafts" in last
  assert "drafter step costs 0.10" in last
  assert "verifier block 1.70" in last
