"""Rows as curves: seeds, gammas, pairs, and the two clocks."""

import dataclasses

import numpy as np
import pytest

from speccascade.report import clocks, curves
from speccascade.report.clocks import MEASURED
from tests.report import synthetic


def study(**known) -> curves.Study:
  (found,) = curves.studies(synthetic.rows(**known))
  return found


def test_a_study_has_a_panel_for_each_temperature():
  found = study(temperatures=(1.0, 0.0))
  assert [panel.temperature for panel in found.panels] == [0.0, 1.0]
  assert [curve.name for curve in found.panels[1].curves] == list(
    synthetic.CURVES
  )
  opt = found.panels[1].find("spec_cascade_opt")
  alphas = [point.settings.alpha for point in opt.points]
  assert alphas == sorted(synthetic.CURVES["spec_cascade_opt"][0])
  assert found.panels[0].large.settings.temperature == 0
  assert found.panels[1].large.method == "verifier"
  assert found.panels[1].small.method == "drafter"
  assert found.title == "small-1400 with large-1000 on generated test"


def test_other_pairs_and_tasks_are_other_studies():
  rows = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  others = [
    dataclasses.replace(
      row, settings=dataclasses.replace(row.settings, **{name: value})
    )
    for row in rows
    for name, value in (("drafter", "tiny"), ("task", "wmt"), ("top_k", 5))
  ]
  assert len(curves.studies([*rows, *others])) == 4


def test_seeds_are_averaged():
  one = study(seeds=(0,)).panels[1].find("spec_cascade_opt").points[2]
  other = study(seeds=(1,)).panels[1].find("spec_cascade_opt").points[2]
  both = study(seeds=(0, 1)).panels[1].find("spec_cascade_opt").points
  assert len(both) == len(synthetic.CURVES["spec_cascade_opt"][0])
  values = [point.quality("bleu").value for point in (one, other)]
  assert values[0] != values[1]
  found = both[2].quality("bleu")
  assert found.value == pytest.approx(np.mean(values))
  np.testing.assert_allclose(
    found.replicates,
    (one.quality("bleu").replicates + other.quality("bleu").replicates) / 2,
  )
  assert both[2].counts.num_tokens == 2 * one.counts.num_tokens
  assert both[2].latency.value == pytest.approx(
    (one.latency.value + other.latency.value) / 2
  )


def test_intervals_of_one_row_are_its_own():
  point = study().panels[1].find("spec_cascade_opt").points[0]
  score = point.rows[0].quality["bleu"]
  assert point.quality_estimate("bleu") == (
    score["value"],
    score["low"],
    score["high"],
  )
  latency = point.rows[0].latency
  assert point.latency_estimate == (
    latency.relative_latency,
    latency.relative_low,
    latency.relative_high,
  )
  merged = study(seeds=(0, 1)).panels[1].find("spec_cascade_opt").points[0]
  assert merged.quality_estimate("bleu").has_interval
  bare = study(seeds=(0, 1), replicates=False).panels[1]
  point = bare.find("spec_cascade_opt").points[0]
  assert not point.quality_estimate("bleu").has_interval
  assert not point.latency_estimate.has_interval


def test_gammas_are_curves_of_their_own_and_one_method():
  panel = study(gammas=(3, 5)).panels[1]
  assert panel.gammas == [3, 5]
  opts = [curve for curve in panel.curves if curve.method == "spec_cascade_opt"]
  assert [curve.gamma for curve in opts] == [3, 5]
  only = panel.at_gamma(3)
  assert {curve.gamma for curve in only.curves} == {3, None}
  assert only.large is panel.large
  merged = {curve.name: curve for curve in curves.by_method(panel)}
  assert list(merged) == list(synthetic.CURVES)
  assert len(merged["spec_cascade_opt"].points) == 12
  assert len(merged["token_cascade_chow"].points) == 4


def test_variants_have_curves_of_their_own():
  rows = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  rows += [
    dataclasses.replace(
      row, settings=dataclasses.replace(row.settings, verification="block")
    )
    for row in rows
  ]
  (found,) = curves.studies(rows)
  names = [curve.name for curve in found.panels[0].curves]
  assert names == ["spec_decode", "spec_decode, block verification"]
  assert len(curves.by_method(found.panels[0])) == 2


def test_modelled_latency_by_hand():
  # SpecDecode: a block of 5 drafts costs 5 c + 1, and yields its tokens.
  found = study()
  point = found.panels[1].find("spec_decode").points[0]
  clock = clocks.modelled(0.12)
  tokens = point.counts.num_tokens / point.counts.num_blocks
  assert clock.of(point).value == pytest.approx((5 * 0.12 + 1) / tokens)
  # The exact bonus of a cascade drafts once more.
  point = found.panels[1].find("spec_cascade_opt").points[0]
  tokens = point.counts.num_tokens / point.counts.num_blocks
  assert clock.of(point).value == pytest.approx((6 * 0.12 + 1) / tokens)
  assert clock.of(found.panels[1].large).value == 1
  assert clock.of(found.panels[1].small).value == pytest.approx(0.12)
  # A token cascade steps the large model where it defers.
  point = found.panels[1].find("token_cascade_chow").points[0]
  deferred = point.counts.verifier_extends / point.counts.num_tokens
  assert clock.of(point).value == pytest.approx(0.12 + deferred)
  assert found.cost_ratio == 0.12


def test_modelled_points_have_the_qualities_spread_alone():
  panel = study().panels[1]
  opt = panel.find("spec_cascade_opt").points
  found = clocks.modelled(0.12).points(opt, "bleu")
  latency, quality = found.replicates
  assert (np.ptp(latency, axis=0) == 0).all()
  assert (np.ptp(quality, axis=0) > 0).all()
  both = MEASURED.points(opt, "bleu")
  assert (np.ptp(both.replicates[0], axis=0) > 0).all()


def test_drafters_of_several_models_are_not_modelled():
  point = study().panels[1].find("spec_decode").points[0]
  row = point.rows[0]
  counts = dataclasses.replace(row.counts, calls_by_model=(3, 4))
  several = curves.Measured((dataclasses.replace(row, counts=counts),))
  assert clocks.modelled(0.1).of(several) is None


def test_who_writes_what_the_large_model_would():
  sampled, greedy = study().panels[1], study().panels[0]
  assert sampled.find("spec_decode").points[0].has_large_law
  assert not sampled.small.has_large_law
  assert not sampled.find("spec_decode_lossy").points[0].has_large_law
  # Greedy, all examples agree but for near ties.
  assert greedy.find("spec_decode_lossy").points[0].has_large_law
  assert not greedy.find("spec_cascade_opt").points[0].has_large_law


def test_metrics_known_first():
  rows = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  score = rows[0].quality["bleu"]
  scores = {"mine": score, "rouge2": score, "bleu": score}
  (found,) = curves.studies([dataclasses.replace(rows[0], quality=scores)])
  assert found.metrics == ["bleu", "rouge2", "mine"]
  with_less = dataclasses.replace(
    rows[0],
    quality={"mine": score},
    settings=dataclasses.replace(rows[0].settings, gamma=9),
  )
  rows = [dataclasses.replace(rows[0], quality=scores), with_less]
  (found,) = curves.studies(rows)
  assert found.metrics == ["mine"]
