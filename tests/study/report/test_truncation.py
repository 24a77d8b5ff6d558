"""Lossy methods compared with the large model at other samplings."""

import math

import pytest

from speccascade.study.report import comparisons, figures, groups, writing
from speccascade.study.report.measured import MEASURED, modelled_clock
from tests.study.report import synthetic

LARGE = synthetic.LARGE


def rows_with(*baselines):
  """Returns sampled rows, with rows of (method, latency, quality) at top-p."""
  rows = synthetic.rows(temperatures=(1.0,))
  first = {row.settings.method: row for row in reversed(rows)}
  for number, (name, latency, quality) in enumerate(baselines):
    row = first[name]
    score = row.quality["bleu"]
    shift = quality - score["value"]
    moved = {
      "value": quality,
      "low": score["low"] + shift,
      "high": score["high"] + shift,
      "replicates": [x + shift for x in score["replicates"]],
    }
    ratio = latency / row.latency.relative_latency
    rows.append(
      synthetic.changed(
        row,
        top_p=0.9 - number / 10,
        quality={"bleu": moved},
        relative_latency=latency,
        relative_low=row.latency.relative_low * ratio,
        relative_high=row.latency.relative_high * ratio,
        replicates=[x * ratio for x in row.latency.replicates],
      )
    )
  return rows


def lines(*baselines, clock=MEASURED):
  [study] = groups.studies(rows_with(*baselines))
  [panel] = study.panels
  found = comparisons.truncations(panel.by(clock))
  return {line.settings.method: line for line in found}


def test_a_truncated_model_that_is_better_at_every_latency():
  found = lines(("spec_decode", 0.2, LARGE + 9), ("verifier", 1.0, LARGE + 10))
  assert set(found) == {
    "spec_decode_lossy",
    "spec_cascade_chow",
    "spec_cascade_opt",
    "spec_cascade_token_v3",
    "token_cascade_chow",
  }
  for line in found.values():
    assert line.verdict == "worse"
    assert line.gap.high < 0
    # The best truncated point is the large model alone, whatever its latency.
    assert line.best_gap.value == pytest.approx(line.best - LARGE - 10)
    assert line.best_gap.low <= line.best_gap.value <= line.best_gap.high


def test_a_truncated_model_that_gains_nothing():
  found = lines(("spec_decode", 0.9, LARGE - 9))
  line = found["spec_cascade_token_v3"]
  [panel] = groups.studies(rows_with())[0].panels
  own = [panel.first(x).quality.value for x in ("verifier", "spec_decode")]
  assert line.best_gap.value == pytest.approx(line.best - max(own))
  assert line.low is None or line.gap.value > 0


def test_without_a_truncated_model_there_is_no_table():
  assert not lines()
  # The large model alone has one latency, and no frontier.
  [section] = writing.sections_of(rows_with())
  assert not any("truncation" in table.name for table in section.tables)
  [section] = writing.sections_of(rows_with(("spec_decode", 0.5, LARGE + 1)))
  stems = [table.name for table in section.tables]
  assert {"truncation_measured", "truncation_modelled"} <= set(stems)


def test_modelled_latency_comes_from_the_counts():
  found = lines(("spec_decode", 0.5, LARGE + 1), clock=modelled_clock(0.1))
  gap = found["spec_decode_lossy"].gap
  assert math.isfinite(gap.value)
  assert gap.low < gap.value < gap.high


def test_the_figure_has_truncation_in_every_panel():
  rows = rows_with(("spec_decode", 0.5, LARGE + 1), ("verifier", 1.0, LARGE))
  [study] = groups.studies(rows)
  plot = figures.truncated(study.panels)
  assert len(plot.panels) == 4  # families of the lossy methods
  for panel in plot.panels:
    methods = {line.method for line in panel.lines}
    assert {"spec_decode", "spec_decode, top_p"} < methods
    assert not any(name.startswith(("verifier", "drafter")) for name in methods)
  shown = {line.method for panel in plot.panels for line in panel.lines}
  assert {"spec_decode_lossy", "spec_cascade_opt"} < shown
  assert not figures.truncated(synthetic.study().panels).panels
