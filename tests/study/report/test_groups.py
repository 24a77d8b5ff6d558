"""Rows as curves: seeds, gammas, pairs, and the two clocks."""

import dataclasses

import numpy as np
import pytest

from speccascade.study.report import groups
from speccascade.study.report.measured import (
  MEASURED,
  Measured,
  by_replicate,
  modelled_clock,
)
from tests.study.report import synthetic
from tests.study.report.synthetic import changed, study

ALPHAS = synthetic.CURVES["spec_cascade_opt"][0]
ONE = {"methods": ["spec_decode"], "temperatures": (1.0,)}


def opt_points(**options) -> list[Measured]:
  points = study(methods=["spec_cascade_opt"], **options).panels[-1].points
  assert len(points) == len(ALPHAS)
  return points


def test_a_study_has_a_panel_for_each_temperature():
  pair = study(temperatures=(1.0, 0.0))
  greedy, sampled = pair.panels
  assert [curve.name for curve in sampled.curves] == list(synthetic.CURVES)
  assert [p.settings.alpha for p in opt_points()] == sorted(ALPHAS)
  assert greedy.large.settings.temperature == 0
  assert sampled.large.settings.temperature == 1
  assert pair.pair == "small-1400 with large-1000 on generated test"


def test_other_pairs_and_tasks_are_other_studies():
  rows = synthetic.rows(**ONE)
  others = [
    changed(row, **{name: value})
    for row in rows
    for name, value in (("drafter", "tiny"), ("task", "wmt"), ("top_k", 5))
  ]
  assert len(groups.studies([*rows, *others])) == 4


def test_seeds_are_averaged():
  single = [opt_points(seeds=(seed,))[2] for seed in (0, 1)]
  both = opt_points(seeds=(0, 1))[2]
  samples = [point.quality_sample for point in single]
  assert samples[0][0] != samples[1][0]
  np.testing.assert_allclose(both.quality_sample, np.mean(samples, axis=0))
  assert both.quality.value == both.quality_sample[0]
  assert both.counts.num_tokens == 2 * single[0].counts.num_tokens
  latency = np.mean([point.latency.value for point in single])
  assert both.latency.value == pytest.approx(latency)


def test_intervals_of_one_row_are_its_own():
  point = opt_points()[0]
  (row,) = point.rows
  score, ends = row.quality["bleu"], ("latency", "low", "high")
  assert point.quality == (score["value"], score["low"], score["high"])
  latency = (getattr(row.latency, f"relative_{end}") for end in ends)
  assert point.latency == tuple(latency)
  assert opt_points(seeds=(0, 1))[0].quality.has_interval
  bare = opt_points(seeds=(0, 1), replicates=False)[0]
  assert not bare.quality.has_interval
  assert not bare.latency.has_interval


def test_gammas_are_curves_of_their_own_and_one_method():
  several = study(gammas=(3, 5))
  panel = several.panels[1]
  assert several.gammas == [3, 5]
  opts = [c for c in panel.curves if c.name == "spec_cascade_opt"]
  assert [curve.settings.gamma for curve in opts] == [3, 5]
  only = panel.at_gamma(3)
  assert {point.settings.gamma for point in only.points} == {3, None}
  assert only.large is panel.large
  merged = {method.name: len(method.points) for method in panel.methods}
  assert list(merged) == list(synthetic.CURVES)
  assert merged["spec_cascade_opt"] == 12
  assert merged["token_cascade_chow"] == 4


def test_variants_have_curves_of_their_own():
  rows = synthetic.rows(**ONE)
  rows += [changed(row, verification="block") for row in rows]
  (pair,) = groups.studies(rows)
  names = ["spec_decode", "spec_decode, block verification"]
  for several in (pair.panels[0].curves, pair.panels[0].methods):
    assert [group.name for group in several] == names


def test_modelled_latency_by_hand():
  pair = study()
  panel = pair.panels[1].by(modelled_clock(0.12))

  def latency(name: str) -> float:
    return panel.first(name).latency.value

  # SpecDecode: a block of 5 drafts costs 5 c + 1, and yields its tokens. The
  # exact bonus of a cascade drafts once more.
  for method, drafts in (("spec_decode", 5), ("spec_cascade_opt", 6)):
    counts = panel.first(method).counts
    cost = (drafts * 0.12 + 1) * counts.num_blocks / counts.num_tokens
    assert latency(method) == pytest.approx(cost)
  assert latency("verifier") == 1
  assert latency("drafter") == pytest.approx(0.12)
  # A token cascade steps the large model where it defers.
  counts = panel.first("token_cascade_chow").counts
  deferred = counts.verifier_extends / counts.num_tokens
  assert latency("token_cascade_chow") == pytest.approx(0.12 + deferred)
  assert pair.cost_ratio == 0.12


def test_modelled_points_have_the_qualities_spread_alone():
  for clock, varies in ((modelled_clock(0.12), False), (MEASURED, True)):
    several = [point.by(clock) for point in opt_points()]
    latency, quality = zip(*by_replicate(several))
    assert (np.ptp(quality, axis=0) > 0).all()
    assert ((np.ptp(latency, axis=0) > 0) == varies).all()


def test_drafters_of_several_models_are_not_modelled():
  (row,) = opt_points()[0].rows
  counts = dataclasses.replace(row.counts, calls_by_model=(3, 4))
  several = Measured((changed(row, counts=counts),))
  assert several.by(modelled_clock(0.1)).latency is None


def test_who_writes_what_the_large_model_would():
  greedy, sampled = study().panels
  for panel, method, is_expected in (
    (sampled, "spec_decode", True),
    (sampled, "drafter", False),
    (sampled, "spec_decode_lossy", False),
    # Greedy, all examples agree but for near ties.
    (greedy, "spec_decode_lossy", True),
    (greedy, "spec_cascade_opt", False),
  ):
    assert panel.first(method).has_large_distribution == is_expected


def test_metrics_known_first():
  (row,) = synthetic.rows(**ONE)
  score = row.quality["bleu"]
  rows = [changed(row, quality={"mine": score, "rouge2": score, "bleu": score})]
  assert groups.studies(rows)[0].metrics == ["bleu", "rouge2", "mine"]
  rows.append(changed(row, quality={"mine": score}, gamma=9))
  (pair,) = groups.studies(rows)
  assert pair.metrics == [pair.points[0].metric] == ["mine"]


def sampled_otherwise(*settings, method="verifier"):
  """Returns rows of the large model at other samplings, and all other rows."""
  rows = synthetic.rows()
  row = next(
    row
    for row in rows
    if (row.settings.method, row.settings.temperature) == (method, 1.0)
  )
  return [synthetic.changed(row, **each) for each in settings], rows


def test_the_large_model_at_other_samplings_joins_the_sampled_panels():
  settings = ({"top_p": 0.9}, {"top_p": 0.8}, {"temperature": 0.7})
  others, rows = sampled_otherwise(*settings, {"top_p": 0.5, "min_p": 0.1})
  speculated, _ = sampled_otherwise({"top_p": 0.9}, method="spec_decode")
  others += speculated
  [study] = groups.studies(others[:2] + rows + others[2:])
  [alone] = groups.studies(rows)
  assert [p.rows for p in study.points] == [p.rows for p in alone.points]
  joined = [point.rows[0] for point in study.baselines]
  assert sorted(row.key for row in joined) == sorted(row.key for row in others)
  greedy, sampled = study.panels
  assert not greedy.baselines
  curves = [
    [tuple(sampled.sampling_changes(p).items()) for p in curve.points]
    for curve in sampled.baseline_curves
  ]
  assert sorted(curves) == [
    [(("temperature", 0.7),)],
    [(("top_p", 0.5), ("min_p", 0.1))],
    [(("top_p", 0.8),), (("top_p", 0.9),)],
    [(("top_p", 0.9),)],
  ]
  # A small model at that sampling makes it a study of its own.
  [small] = sampled_otherwise({"top_p": 0.9}, method="drafter")[0]
  assert len(groups.studies([*rows, *others, small])) == 2
  # Alone, such rows are what is looked at.
  [only] = groups.studies(others[:2])[:1]
  assert not only.baselines
