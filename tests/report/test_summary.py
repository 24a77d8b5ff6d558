"""Table 2, differences, the frontier of all and losses, on made-up points."""

import dataclasses
import math

import pytest

from speccascade.report import clocks, curves, findings, report_tables, summary
from speccascade.report.clocks import MEASURED
from tests.report import synthetic


def row(method, latency, quality, *, alpha=None, temperature=1.0, gamma=5):
  """A row with the numbers wanted and no replicates."""
  (made,) = synthetic.rows(
    methods=["verifier"], temperatures=(temperature,), replicates=False
  )
  if method != "verifier":
    (made,) = [
      one
      for one in synthetic.rows(
        methods=["spec_decode"], temperatures=(temperature,), replicates=False
      )
    ]
  return dataclasses.replace(
    made,
    settings=dataclasses.replace(
      made.settings, method=method, alpha=alpha, gamma=gamma
    ),
    label=method,
    quality={"bleu": {"value": quality, "low": quality, "high": quality}},
    latency=dataclasses.replace(
      made.latency,
      relative_latency=latency,
      relative_low=latency,
      relative_high=latency,
    ),
    agreement=None,
  )


def panel_of(*rows) -> curves.Panel:
  (study,) = curves.studies(rows)
  (panel,) = study.panels
  return panel


LARGE = row("verifier", 1.0, 70.0, gamma=None)


def lines(*rows, **known):
  panel = panel_of(LARGE, *rows)
  found = summary.table_2(panel, MEASURED, "bleu", **known)
  return {line.method: line for line in found}


def test_table_2_interpolates():
  # 70 lies half way between 68 at 0.4 and 72 at 0.6.
  found = lines(
    row("spec_cascade_opt", 0.4, 68, alpha=0.5),
    row("spec_cascade_opt", 0.6, 72, alpha=0.1),
  )["spec_cascade_opt"]
  assert found.how == "interpolated"
  assert found.speedup.value == pytest.approx(1 / 0.5)
  assert not found.speedup.has_interval
  assert found.within.value == 72
  assert found.gain.value == 2
  assert (found.best, found.best_latency) == (72, 0.6)


def test_table_2_never_extrapolates():
  found = lines(
    row("spec_cascade_opt", 0.4, 68, alpha=0.5),
    row("spec_cascade_opt", 0.6, 69.9, alpha=0.1),
    row("spec_cascade_diff", 0.3, 71, alpha=0.1),
    row("spec_cascade_chow", 1.2, 73, alpha=0.1),
  )
  never = found["spec_cascade_opt"]
  assert (never.how, never.speedup.value) == ("never", 0)
  assert never.within.value == 69.9
  always = found["spec_cascade_diff"]
  assert always.how == "every point"
  assert always.speedup.value == pytest.approx(1 / 0.3)
  slow = found["spec_cascade_chow"]
  assert slow.speedup.value == pytest.approx(1 / 1.2)
  assert slow.within.value == -math.inf
  cells = [
    column.text(never)
    for column in report_tables.table_2(
      curves.studies([LARGE])[0], MEASURED, "bleu"
    ).columns
  ]
  assert "never" in cells


def test_the_large_models_law_is_its_quality():
  # SpecDecode's samples scored a little less: the law is the same.
  found = lines(row("spec_decode", 0.5, 69.8))["spec_decode"]
  assert found.how == "same law"
  assert found.speedup.value == pytest.approx(2)
  assert found.within.value == 69.8


def test_table_2_by_gamma_or_the_best_of_them():
  rows = [
    row("spec_decode", 0.5, 70, gamma=3),
    row("spec_decode", 0.4, 70, gamma=5),
  ]
  assert lines(*rows)["spec_decode"].speedup.value == pytest.approx(2.5)
  found = lines(*rows, gamma=3)["spec_decode"]
  assert found.speedup.value == pytest.approx(2)
  assert found.gamma == 3


def test_models_and_oracles_have_no_line():
  rows = [row("drafter", 0.1, 60), row("oracle_cascade_diff", 0.3, 75)]
  assert lines(*rows) == {}
  panel = panel_of(LARGE, *rows)
  best = summary.overall_frontier(panel, MEASURED, "bleu")
  assert [point.method for point, _ in best] == ["drafter", "verifier"]
  assert [latency for _, latency in best] == [0.1, 1.0]


def test_without_the_large_model_there_is_no_table():
  panel = panel_of(row("spec_decode", 0.5, 70))
  assert summary.table_2(panel, MEASURED, "bleu") == []


def test_differences_by_hand():
  found = summary.differences(
    panel_of(
      LARGE,
      row("spec_decode", 0.6, 70),
      row("spec_decode_lossy", 0.4, 66, alpha=0.5),
      row("spec_decode_lossy", 0.8, 70, alpha=0.1),
      row("spec_cascade_opt", 0.4, 67, alpha=0.5),
      row("spec_cascade_opt", 0.6, 71, alpha=0.1),
    ),
    MEASURED,
    "bleu",
  )
  (one,) = found
  assert (one.label, one.baseline) == ("spec_cascade_opt", "spec_decode_lossy")
  assert (one.low, one.high) == (0.4, 0.6)
  # 67 to 71 against 66 to 68.
  assert one.gap.value == pytest.approx(69 - 67)
  # At SpecDecode's 0.6: 71 against 68.
  assert one.at_speed.value == pytest.approx(3)
  assert one.verdict == "no interval"


def test_greedy_lossy_is_spec_decode():
  greedy = dict(temperature=0.0)
  found = summary.differences(
    panel_of(
      row("verifier", 1.0, 70.0, gamma=None, **greedy),
      row("spec_decode", 0.6, 70, **greedy),
      row("spec_decode_lossy", 0.58, 70, alpha=0.5, **greedy),
      row("spec_cascade_opt", 0.4, 67, alpha=0.5, **greedy),
      row("spec_cascade_opt", 0.7, 73, alpha=0.1, **greedy),
    ),
    MEASURED,
    "bleu",
  )
  (one,) = found
  assert one.baseline == "spec_decode"
  assert one.gap.value == pytest.approx(71 - 70)


def test_no_common_latencies_is_said():
  (one,) = summary.differences(
    panel_of(
      LARGE,
      row("spec_decode_lossy", 0.4, 66, alpha=0.5),
      row("spec_cascade_opt", 0.6, 71, alpha=0.1),
    ),
    MEASURED,
    "bleu",
  )
  assert one.verdict == "no common latencies"
  assert one.low is None


def test_verdicts_follow_the_intervals():
  (study,) = curves.studies(synthetic.rows())
  found = {
    one.label: one
    for one in summary.differences(study.panels[1], MEASURED, "bleu")
  }
  assert found["SpecCascade [OPT]"].verdict == "better"
  assert found["SpecCascade [OPT]"].gap.low > 0
  assert found["SpecCascade [Chow]"].verdict == "worse"
  narrow = found["SpecCascade [OPT]"].gap
  large = study.panels[1].large.quality_estimate("bleu")
  # The resamples are paired: what they share cancels.
  assert narrow.high - narrow.low < (large.high - large.low) / 2


def test_losses_have_their_reasons():
  (study,) = curves.studies(
    synthetic.rows(methods=["verifier", "spec_decode"], overhead=1.25)
  )
  panel = study.panels[1]
  model = clocks.modelled(study.cost_ratio)
  (loss,) = summary.losses(panel, model)
  point = panel.find("spec_decode").points[0]
  costs = synthetic.COSTS
  block = 4 * costs.c + costs.q2 + costs.v[6]
  assert loss.predicted_block == pytest.approx(block)
  assert loss.measured_block == pytest.approx(1.25 * block)
  assert (loss.c, loss.v) == (costs.c, costs.v[6])
  assert loss.modelled == model.of(point).value
  assert loss.latency.value == point.latency.value
  (said,) = findings.notices([loss])
  assert "0.65 of its examined drafts accepted" in said
  assert "costs 2.73 steps, and took 3.41" in said
  assert "the pass over 6 tokens 2.10" in said
  assert "it would win, with 0.61" in said
  assert findings.notices([]) == []


def test_a_loss_needs_the_whole_interval():
  (study,) = curves.studies(
    synthetic.rows(methods=["verifier", "spec_decode"], temperatures=(1.0,))
  )
  panel = study.panels[0]
  (base,) = panel.find("spec_decode").points[0].rows
  for low, lost in ((0.99, 0), (1.01, 1)):
    timed = dataclasses.replace(
      base.latency, relative_latency=1.05, relative_low=low, relative_high=1.1
    )
    changed = dataclasses.replace(base, latency=timed)
    found = panel_of(*panel.large.rows, changed)
    assert len(summary.losses(found, None)) == lost


def test_findings_say_what_the_tables_say():
  (study,) = curves.studies(synthetic.rows())
  model = clocks.modelled(study.cost_ratio)
  found = findings.findings(study, (MEASURED, model), "bleu")
  assert [one.title for one in found] == ["greedy (T = 0)", "T = 1"]
  sampled = dict(found[1].by_clock)
  measured = "\n".join(sampled[MEASURED.title])
  (gap,) = [
    one
    for one in summary.differences(study.panels[1], MEASURED, "bleu")
    if one.label == "SpecCascade [OPT]"
  ]
  assert (
    f"SpecCascade [OPT] is better, {gap.gap.value:+.2f} [{gap.gap.low:+.2f},"
  ) in measured
  assert "Against SpecDecode [Lossy]" in measured
  assert "the fastest is TokenCascade [Chow]: it is" in measured
  assert "would be" in "\n".join(sampled[model.title])
  assert "in 199 of 200 examples; 1 more part" in "\n".join(found[0].models)
  small = study.panels[1].small.quality("bleu").value
  assert f"the small model has {small:.1f} [" in found[1].models[0]


def test_ablated_takes_one_alpha():
  (study,) = curves.studies(
    [
      *synthetic.rows(gammas=(3, 5), temperatures=(1.0,)),
      row("bild_star", 0.5, 70, alpha=0.2),
    ]
  )
  found = {
    points[0].method: points
    for points in report_tables.ablated(study.panels[0])
  }
  assert "bild_star" not in found  # one gamma alone
  assert "token_cascade_chow" not in found  # no gamma
  points = found["spec_cascade_opt"]
  assert [point.settings.gamma for point in points] == [3, 5]
  assert len({point.settings.alpha for point in points}) == 1
