"""Table 2, gaps, the frontier of all and losses, on points made by hand."""

import math

import pytest

from speccascade.report import (
  clocks,
  findings,
  gaps,
  panels,
  point_tables,
  slowdowns,
  speedups,
)
from speccascade.report.clocks import MEASURED
from tests.report import synthetic
from tests.report.synthetic import changed


def row(method, latency, quality, *, alpha=None, temperature=1.0, gamma=5):
  """A row with the numbers wanted and no replicates."""
  (base,) = synthetic.rows(
    methods=["verifier" if method == "verifier" else "spec_decode"],
    temperatures=(temperature,),
    replicates=False,
  )
  return changed(
    base,
    method=method,
    alpha=alpha,
    gamma=gamma,
    label=method,
    quality={"bleu": {"value": quality, "low": quality, "high": quality}},
    relative_latency=latency,
    relative_low=latency,
    relative_high=latency,
    agreement=None,
  )


def opt(latency, quality, alpha, **how):
  return row("spec_cascade_opt", latency, quality, alpha=alpha, **how)


def lossy(latency, quality, alpha, **how):
  return row("spec_decode_lossy", latency, quality, alpha=alpha, **how)


def panel_of(*rows) -> panels.Panel:
  (study,) = panels.studies(rows)
  (panel,) = study.panels
  return panel


LARGE = row("verifier", 1.0, 70.0, gamma=None)


def lines(*rows, **how):
  """Lines of Table 2 by their method."""
  table = speedups.speedups(panel_of(LARGE, *rows), MEASURED, "bleu", **how)
  return {line.method: line for line in table}


def test_table_2_interpolates():
  # 70 lies half way between 68 at 0.4 and 72 at 0.6.
  (line,) = lines(opt(0.4, 68, 0.5), opt(0.6, 72, 0.1)).values()
  assert line.how == "interpolated"
  assert line.speedup.value == pytest.approx(1 / 0.5)
  assert not line.speedup.has_interval
  assert (line.within.value, line.gain.value) == (72, 2)
  assert (line.best, line.best_latency) == (72, 0.6)


def test_table_2_never_extrapolates():
  by_method = lines(
    opt(0.4, 68, 0.5),
    opt(0.6, 69.9, 0.1),
    row("spec_cascade_diff", 0.3, 71, alpha=0.1),
    row("spec_cascade_chow", 1.2, 73, alpha=0.1),
  )
  never = by_method["spec_cascade_opt"]
  assert (never.how, never.speedup.value) == ("never", 0)
  assert never.within.value == 69.9
  always = by_method["spec_cascade_diff"]
  assert always.how == "every point"
  assert always.speedup.value == pytest.approx(1 / 0.3)
  slow = by_method["spec_cascade_chow"]
  assert slow.speedup.value == pytest.approx(1 / 1.2)
  assert slow.within.value == -math.inf
  table = speedups.table(panels.studies([LARGE])[0], MEASURED, "bleu")
  assert "never" in [column.text(never) for column in table.columns]


def test_the_large_models_law_is_its_quality():
  # SpecDecode's samples scored a little less: the law is the same.
  line = lines(row("spec_decode", 0.5, 69.8))["spec_decode"]
  assert line.how == "same law"
  assert line.speedup.value == pytest.approx(2)
  assert line.within.value == 69.8


def test_table_2_by_gamma_or_the_best_of_them():
  rows = [row("spec_decode", x, 70, gamma=g) for x, g in ((0.5, 3), (0.4, 5))]
  for how, speedup in (({}, 2.5), ({"gamma": 3}, 2)):
    line = lines(*rows, **how)["spec_decode"]
    assert line.speedup.value == pytest.approx(speedup)
    assert line.gamma == how.get("gamma")


def test_models_and_oracles_have_no_line():
  rows = [row("drafter", 0.1, 60), row("oracle_cascade_diff", 0.3, 75)]
  assert lines(*rows) == {}
  panel = panel_of(LARGE, *rows)
  best = speedups.overall_frontier(panel, MEASURED, "bleu")
  assert [(point.method, latency) for point, latency in best] == [
    *(("drafter", 0.1), ("verifier", 1.0)),
  ]


def test_without_the_large_model_there_is_no_table():
  panel = panel_of(row("spec_decode", 0.5, 70))
  assert speedups.speedups(panel, MEASURED, "bleu") == []


def gap_of(*rows) -> gaps.Gap:
  (gap,) = gaps.gaps(panel_of(*rows), MEASURED, "bleu")
  return gap


def test_gaps_by_hand():
  gap = gap_of(
    *(LARGE, row("spec_decode", 0.6, 70)),
    *(lossy(0.4, 66, 0.5), lossy(0.8, 70, 0.1)),
    *(opt(0.4, 67, 0.5), opt(0.6, 71, 0.1)),
  )
  assert (gap.label, gap.baseline) == ("spec_cascade_opt", "spec_decode_lossy")
  assert (gap.low, gap.high) == (0.4, 0.6)
  # 67 to 71 against 66 to 68.
  assert gap.gap.value == pytest.approx(69 - 67)
  # At SpecDecode's 0.6: 71 against 68.
  assert gap.at_speed.value == pytest.approx(3)
  assert gap.verdict == "no interval"


def test_greedy_lossy_is_spec_decode():
  greedy = dict(temperature=0.0)
  gap = gap_of(
    row("verifier", 1.0, 70.0, gamma=None, **greedy),
    *(row("spec_decode", 0.6, 70, **greedy), lossy(0.58, 70, 0.5, **greedy)),
    *(opt(0.4, 67, 0.5, **greedy), opt(0.7, 73, 0.1, **greedy)),
  )
  assert gap.baseline == "spec_decode"
  assert gap.gap.value == pytest.approx(71 - 70)


def test_no_common_latencies_is_said():
  gap = gap_of(LARGE, lossy(0.4, 66, 0.5), opt(0.6, 71, 0.1))
  assert gap.verdict == "no common latencies"
  assert gap.low is None


def test_verdicts_follow_the_intervals():
  (study,) = panels.studies(synthetic.rows())
  sampled = study.panels[1]
  by_label = {gap.label: gap for gap in gaps.gaps(sampled, MEASURED, "bleu")}
  better = by_label["SpecCascade [OPT]"]
  assert better.verdict == "better"
  assert better.gap.low > 0
  assert by_label["SpecCascade [Chow]"].verdict == "worse"
  # The resamples are paired: what they share cancels.
  large = sampled.large.quality("bleu")
  assert better.gap.high - better.gap.low < (large.high - large.low) / 2


def test_losses_have_their_reasons():
  (study,) = panels.studies(
    synthetic.rows(methods=["verifier", "spec_decode"], overhead=1.25)
  )
  model = clocks.modelled(study.cost_ratio)
  (loss,) = slowdowns.slowdowns(study.panels[1], model)
  point = study.panels[1].find("spec_decode").points[0]
  costs = synthetic.COSTS
  block = 4 * costs.c + costs.q2 + costs.v[6]
  assert loss.predicted_block == pytest.approx(block)
  assert loss.measured_block == pytest.approx(1.25 * block)
  assert (loss.c, loss.v) == (costs.c, costs.v[6])
  assert loss.modelled == model.of(point).value
  assert loss.latency == point.latency
  (said,) = findings.notices([loss])
  assert "0.65 of its examined drafts accepted" in said
  assert "costs 2.73 steps, and took 3.41" in said
  assert "the pass over 6 tokens 2.10" in said
  assert "it would win, with 0.61" in said
  assert findings.notices([]) == []


@pytest.mark.parametrize(("low", "lost"), [(0.99, 0), (1.01, 1)])
def test_a_loss_needs_the_whole_interval(low, lost):
  slow = changed(
    row("spec_decode", 1.05, 70), relative_low=low, relative_high=1.1
  )
  assert len(slowdowns.slowdowns(panel_of(LARGE, slow), None)) == lost


def test_findings_say_what_the_tables_say():
  (study,) = panels.studies(synthetic.rows())
  model = clocks.modelled(study.cost_ratio)
  greedy, sampled = findings.findings(study, (MEASURED, model), "bleu")
  assert (greedy.title, sampled.title) == ("greedy (T = 0)", "T = 1")
  measured, modelled = ("\n".join(said) for _, said in sampled.by_clock)
  (gap,) = [
    gap.gap
    for gap in gaps.gaps(study.panels[1], MEASURED, "bleu")
    if gap.label == "SpecCascade [OPT]"
  ]
  verdict = f"SpecCascade [OPT] is better, {gap.value:+.2f} [{gap.low:+.2f},"
  assert verdict in measured
  assert "Against SpecDecode [Lossy]" in measured
  assert "the fastest is TokenCascade [Chow]: it is" in measured
  assert "would be" in modelled
  assert "in 199 of 200 examples; 1 more part" in "\n".join(greedy.models)
  small = study.panels[1].small.quality("bleu").value
  assert f"the small model has {small:.1f} [" in sampled.models[0]


def test_ablated_takes_one_alpha():
  rows = synthetic.rows(gammas=(3, 5), temperatures=(1.0,))
  panel = panel_of(*rows, row("bild_star", 0.5, 70, alpha=0.2))
  by_method = {same[0].method: same for same in point_tables.ablated(panel)}
  assert "bild_star" not in by_method  # one gamma alone
  assert "token_cascade_chow" not in by_method  # no gamma
  points = by_method["spec_cascade_opt"]
  assert [point.settings.gamma for point in points] == [3, 5]
  assert len({point.settings.alpha for point in points}) == 1
