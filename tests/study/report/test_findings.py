"""What the first sentence claims: measured points with their intervals."""

import dataclasses

import numpy as np
import pytest

from speccascade.study.report import (
  comparisons,
  findings,
  groups,
  measured,
  writing,
)
from speccascade.study.report.measured import MEASURED
from speccascade.study.rows.results import ResultRow
from tests.study.report import synthetic
from tests.study.report.synthetic import changed
from tests.study.report.test_comparisons import LARGE, OPT, panel_of, row

PLAIN = "spec_decode"
NOISE = np.random.default_rng(3).normal(size=200)


def timed(
  method, latency, quality, alpha=None, *, shared=0.0, own=0.0, **settings
):
  """Returns a row whose latency has replicates.

  Args:
    method: the method's name.
    latency: the relative latency.
    quality: the BLEU.
    alpha: the method's alpha.
    shared: scale of noise that all rows have in common.
    own: scale of noise of the row alone.
    **settings: as in `test_comparisons.row`.
  """
  noise = shared * NOISE + own * np.roll(NOISE, 17)
  replicates = latency * (1 + noise)
  low, high = np.quantile(replicates, [0.025, 0.975])
  return changed(
    row(method, latency, quality, alpha, **settings),
    relative_low=float(low),
    relative_high=float(high),
    replicates=tuple(replicates.tolist()),
    quality={
      "bleu": {
        "value": quality,
        "low": quality - 2,
        "high": quality + 2,
        "replicates": (quality + NOISE).tolist(),
      }
    },
  )


def large() -> ResultRow:
  return timed("verifier", 1.0, 70.0, gamma=None)


def lead(*rows) -> str:
  return str(findings.lead_of(panel_of(*rows)) or "")


def test_a_winner_that_intervals_do_not_support_is_not_claimed():
  """OPT is ahead of SpecDecode by 3%, and the clock scatters by 5%."""
  clause = lead(
    large(),
    timed(PLAIN, 0.69, 70, shared=0.03, gamma=4),
    timed(OPT, 0.67, 71, 0.1, own=0.05, gamma=4),
  )
  assert clause.startswith("spec_cascade_opt 0.1 is 1.49 [1.")
  assert "; the difference from spec_decode (1.45 [1." in clause
  assert "is not significant" in clause
  assert "71.0 BLEU against 70.0, a difference of +1.0" in clause
  assert clause.endswith(
    '; METHOD = "spec_cascade_opt", ALPHA = 0.1, GAMMA = 4'
  )


def test_a_winner_is_significant_in_pairs():
  """Noise that both points share cancels, as the replicates are pairs."""
  clause = lead(
    large(),
    timed(PLAIN, 0.69, 70, shared=0.05),
    timed(OPT, 0.62, 71, 0.1, shared=0.05, own=0.001),
  )
  assert "model, and 1.11 [1.11, 1.12] times as fast as spec_decode;" in clause
  assert "; faster than every other method that is as good; METHOD" in clause


def test_other_methods_may_be_as_fast_as_the_winner():
  clause = lead(
    large(),
    timed(PLAIN, 0.9, 70, own=0.01),
    timed(OPT, 0.5, 71, 0.1, own=0.04),
    timed("spec_cascade_token_v3", 0.51, 72, 0.3, shared=0.04),
  )
  assert clause.startswith("spec_cascade_opt 0.1 is 2.00 [")
  assert "and 1.80 [1." in clause
  assert "not significantly faster than 1 of the 2 other methods" in clause


def test_only_a_measured_alpha_is_named():
  """70 lies between the alphas 0.5 and 0.1: no row has what is between."""
  clause = lead(
    large(),
    timed(PLAIN, 0.9, 70, own=0.01),
    timed(OPT, 0.4, 68, 0.5, own=0.01),
    timed(OPT, 0.6, 72, 0.1, own=0.01),
  )
  assert clause.startswith("spec_cascade_opt 0.1 is 1.67 [1.")
  assert "72.0 BLEU against 70.0" in clause
  assert " 2.00" not in clause  # the interpolated speed-up of Table 2


@pytest.mark.parametrize(
  ("latency", "scatter", "clause"),
  [
    (0.95, 0.05, "no method as good as the large model is shown to be faster;"),
    (0.95, 0.05, "spec_decode is 1.05 [0.9"),
    (1.25, 0.01, "no method as good as the large model is faster; spec_decode"),
    (1.25, 0.01, " is 0.80 [0.7"),
    (
      0.6,
      0.01,
      "large model; no other method is shown to be faster; 69.8 BLEU",
    ),
  ],
)
def test_speculative_decoding_alone(latency, scatter, clause):
  assert clause in lead(large(), timed(PLAIN, latency, 69.8, own=scatter))


def test_a_sure_point_is_named_before_a_faster_one_that_scatters():
  """OPT seems to be the fastest, but its time does not differ from 1."""
  clause = lead(
    large(), timed(PLAIN, 0.8, 70, own=0.01), timed(OPT, 0.7, 71, 0.1, own=0.4)
  )
  assert clause.startswith("spec_decode is 1.25 [")


def test_without_intervals_nothing_is_significant():
  clause = lead(LARGE, row(PLAIN, 0.6, 70), row(OPT, 0.5, 71, 0.1))
  assert clause.startswith(
    "no method as good as the large model is shown to be faster;"
    " spec_cascade_opt 0.1 is 2.00 times as fast"
  )


def test_what_is_not_as_good_or_not_fast_is_not_a_candidate():
  rows = [
    row("drafter", 0.1, 75, gamma=None),
    row("oracle_cascade_diff", 0.1, 75),
    row(OPT, 0.1, 69.9, 0.1),
  ]
  assert lead(LARGE, *rows) == (
    "no method is as good as the large model, which has 70.0 BLEU"
  )
  assert lead(*rows) == ""
  several = findings.candidates(panel_of(LARGE, row(PLAIN, 0.7, 69), *rows))
  assert [x.method for x in several] == [PLAIN]
  # Without SpecDecode the claim is against the large model.
  clause = lead(large(), timed(OPT, 0.5, 71, 0.1, own=0.01))
  assert clause.startswith("spec_cascade_opt 0.1 is 2.00 [")
  assert "; spec_decode was not measured; " in clause


def test_bindings_are_those_of_a_config():
  settings = row(OPT, 0.5, 71, 0.1).settings
  plain = 'METHOD = "spec_cascade_opt", ALPHA = 0.1, GAMMA = 5'
  assert findings.bindings(settings) == plain
  usual = {"verification": "token", "bonus": "target", "draft_length": "fixed"}
  assert findings.bindings(dataclasses.replace(settings, **usual)) == plain
  more = dataclasses.replace(
    settings,
    verification="block",
    bonus="verifier",
    draft_length="max_prob",
    draft_threshold=0.4,
  )
  assert findings.bindings(more) == (
    f'{plain}, VERIFICATION = "block", BONUS = "verifier", DRAFT_LENGTH ='
    " ('max_prob', 0.4)"
  )


def test_a_report_begins_with_a_line_for_each_temperature():
  rows = [
    row(method, latency, 70, temperature=t, gamma=g)
    for t in (0.0, 1.0)
    for method, latency, g in (("verifier", 1.0, None), (PLAIN, 0.5, 4))
  ]
  (study,) = groups.studies(rows)
  sampled, greedy = findings.leads(study.panels, [MEASURED])
  assert sampled.sentence == (
    "T = 1: no method as good as the large model is shown to be faster;"
    " spec_decode is 2.00 times as fast."
  )
  assert greedy.sentence.startswith("greedy (T = 0): ")
  assert greedy.settings == 'METHOD = "spec_decode", GAMMA = 4'
  (section,) = writing.sections_of(rows)
  assert list(map(str, section.leads)) == [str(sampled), str(greedy)]
  assert section.untimed == ""
  (bare,) = groups.studies(rows[1:2])
  assert findings.leads(bare.panels, [MEASURED]) == []


def test_rows_without_times_say_how_to_draw_the_modelled_figure():
  rows = [changed(x, latency=None) for x in synthetic.rows(temperatures=(1.0,))]
  (section,) = writing.sections_of(rows)
  assert section.untimed.startswith(
    "Nothing was timed. The modelled figure is for c = 0.12 (--cost_ratio)"
  )
  assert "predicted from its calls" in section.leads[0].claim
  (bare,) = writing.sections_of([changed(x, costs=None) for x in rows])
  assert bare.untimed.startswith("Nothing was timed. --cost_ratio=0.1, ")
  assert not bare.leads


def test_calls_have_no_interval():
  study = synthetic.study(temperatures=(1.0,))
  model = measured.modelled_clock(study.cost_ratio)
  lead = findings.lead_of(study.panels[0].by(model))
  assert lead.claim.startswith("predicted from its calls, ")
  assert " would be " in lead.claim
  assert "[" not in lead.claim


def test_the_speed_of_one_point_has_one_interval():
  # Table 2 and the sentences name the same point of SpecDecode: it has the
  # interval of its row in both, and not that of fewer resamples in one.
  plain = timed("spec_decode", 0.7, 70.0, own=0.05)
  plain = changed(plain, relative_low=0.6, relative_high=0.81)
  panel = panel_of(large(), plain)
  (line,) = comparisons.speedups(panel)
  (candidate,) = findings.candidates(panel)
  assert line.speedup == candidate.speed == (1 / 0.7, 1 / 0.81, 1 / 0.6)


def test_a_c_that_the_clock_contradicts_is_reported():
  rows = [
    changed(row, costs=row.costs.by_clock(5 * row.costs.c))
    for row in (large(), timed("spec_decode", 0.7, 70.0, own=0.05))
  ]
  (study,) = groups.studies(rows)
  # What is modelled takes the clock's c, and the report says that they differ.
  assert study.cost_ratio == rows[0].costs.c
  (sentences,) = findings.findings(study, [MEASURED]).values()
  assert any(x.startswith("Hot loops give c = ") for x in sentences)
  (study,) = groups.studies([large()])
  (sentences,) = findings.findings(study, [MEASURED]).values()
  assert not any("Hot loops" in x for x in sentences)
