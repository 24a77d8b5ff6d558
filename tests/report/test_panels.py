"""Rows as curves: seeds, gammas, pairs, and the two clocks."""

import dataclasses

import numpy as np
import pytest

from speccascade.report import clocks, panels
from speccascade.report.clocks import MEASURED
from speccascade.report.measured import Measured
from tests.report import synthetic
from tests.report.synthetic import changed


def study(**how) -> panels.PairStudy:
  (only,) = panels.studies(synthetic.rows(**how))
  return only


def opt_points(**how) -> tuple[Measured, ...]:
  return study(**how).panels[1].find("spec_cascade_opt").points


def test_a_study_has_a_panel_for_each_temperature():
  pair = study(temperatures=(1.0, 0.0))
  greedy, sampled = pair.panels
  assert (greedy.temperature, sampled.temperature) == (0, 1)
  assert [curve.name for curve in sampled.curves] == list(synthetic.CURVES)
  opt = sampled.find("spec_cascade_opt")
  alphas = [point.settings.alpha for point in opt.points]
  assert alphas == sorted(synthetic.CURVES["spec_cascade_opt"][0])
  assert greedy.large.settings.temperature == 0
  assert (sampled.large.method, sampled.small.method) == ("verifier", "drafter")
  assert pair.title == "small-1400 with large-1000 on generated test"


def test_other_pairs_and_tasks_are_other_studies():
  rows = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  others = [
    changed(row, **{name: value})
    for row in rows
    for name, value in (("drafter", "tiny"), ("task", "wmt"), ("top_k", 5))
  ]
  assert len(panels.studies([*rows, *others])) == 4


def test_seeds_are_averaged():
  single = [opt_points(seeds=(seed,))[2] for seed in (0, 1)]
  both = opt_points(seeds=(0, 1))
  assert len(both) == len(synthetic.CURVES["spec_cascade_opt"][0])
  samples = [point.quality_sample("bleu") for point in single]
  assert samples[0][0] != samples[1][0]
  np.testing.assert_allclose(
    both[2].quality_sample("bleu"), np.mean(samples, axis=0)
  )
  assert both[2].quality("bleu").value == both[2].quality_sample("bleu")[0]
  assert both[2].counts.num_tokens == 2 * single[0].counts.num_tokens
  assert both[2].latency.value == pytest.approx(
    np.mean([point.latency.value for point in single])
  )


def test_intervals_of_one_row_are_its_own():
  (row,) = opt_points()[0].rows
  score, latency = row.quality["bleu"], row.latency
  point = Measured((row,))
  assert point.quality("bleu") == (score["value"], score["low"], score["high"])
  assert point.latency == (
    *(latency.relative_latency, latency.relative_low, latency.relative_high),
  )
  assert opt_points(seeds=(0, 1))[0].quality("bleu").has_interval
  bare = opt_points(seeds=(0, 1), replicates=False)[0]
  assert not bare.quality("bleu").has_interval
  assert not bare.latency.has_interval


def test_gammas_are_curves_of_their_own_and_one_method():
  several = study(gammas=(3, 5))
  panel = several.panels[1]
  assert several.gammas == [3, 5]
  opts = [curve for curve in panel.curves if curve.method == "spec_cascade_opt"]
  assert [curve.gamma for curve in opts] == [3, 5]
  only = panel.at_gamma(3)
  assert {curve.gamma for curve in only.curves} == {3, None}
  assert only.large is panel.large
  merged = {curve.name: curve for curve in panel.by_method()}
  assert list(merged) == list(synthetic.CURVES)
  assert len(merged["spec_cascade_opt"].points) == 12
  assert len(merged["token_cascade_chow"].points) == 4


def test_variants_have_curves_of_their_own():
  rows = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  rows += [changed(row, verification="block") for row in rows]
  (pair,) = panels.studies(rows)
  names = ["spec_decode", "spec_decode, block verification"]
  assert [curve.name for curve in pair.panels[0].curves] == names
  assert len(pair.panels[0].by_method()) == 2


def test_modelled_latency_by_hand():
  pair = study()
  panel, clock = pair.panels[1], clocks.modelled(0.12)
  # SpecDecode: a block of 5 drafts costs 5 c + 1, and yields its tokens. The
  # exact bonus of a cascade drafts once more.
  for method, drafts in (("spec_decode", 5), ("spec_cascade_opt", 6)):
    point = panel.find(method).points[0]
    tokens = point.counts.num_tokens / point.counts.num_blocks
    latency = (drafts * 0.12 + 1) / tokens
    assert clock.of(point).value == pytest.approx(latency)
  assert clock.of(panel.large).value == 1
  assert clock.of(panel.small).value == pytest.approx(0.12)
  # A token cascade steps the large model where it defers.
  point = panel.find("token_cascade_chow").points[0]
  deferred = point.counts.verifier_extends / point.counts.num_tokens
  assert clock.of(point).value == pytest.approx(0.12 + deferred)
  assert pair.cost_ratio == 0.12


def test_modelled_points_have_the_qualities_spread_alone():
  for clock, varies in ((clocks.modelled(0.12), False), (MEASURED, True)):
    latency, quality = zip(*clock.points(opt_points(), "bleu"))
    assert (np.ptp(quality, axis=0) > 0).all()
    assert ((np.ptp(latency, axis=0) > 0) == varies).all()


def test_drafters_of_several_models_are_not_modelled():
  (row,) = opt_points()[0].rows
  counts = dataclasses.replace(row.counts, calls_by_model=(3, 4))
  several = Measured((changed(row, counts=counts),))
  assert clocks.modelled(0.1).of(several) is None


def test_who_writes_what_the_large_model_would():
  greedy, sampled = study().panels
  has_law = lambda panel, name: panel.find(name).points[0].has_large_law
  assert has_law(sampled, "spec_decode")
  assert not has_law(sampled, "drafter")
  assert not has_law(sampled, "spec_decode_lossy")
  # Greedy, all examples agree but for near ties.
  assert has_law(greedy, "spec_decode_lossy")
  assert not has_law(greedy, "spec_cascade_opt")


def test_metrics_known_first():
  (row,) = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  score = row.quality["bleu"]
  rows = [changed(row, quality={"mine": score, "rouge2": score, "bleu": score})]
  (pair,) = panels.studies(rows)
  assert pair.metrics == ["bleu", "rouge2", "mine"]
  rows.append(changed(row, quality={"mine": score}, gamma=9))
  (pair,) = panels.studies(rows)
  assert pair.metrics == ["mine"]
