"""Lengths of answers relative to the exact verifier's, in pairs."""

import numpy as np
import pytest

from speccascade.study.evaluation import lengths
from speccascade.tasks import corpus_scores


def test_the_interval_is_of_pairs():
  rng = np.random.default_rng(0)
  exact = {index: float(n) for index, n in enumerate(rng.integers(5, 200, 300))}
  own = {index: 1.2 * n for index, n in exact.items()}
  ratio = lengths.relative_length(own, exact)
  # Lengths differ forty times between examples, and no pair does.
  assert ratio["value"] == pytest.approx(1.2)
  assert ratio["high"] - ratio["low"] < 1e-9
  # Answers that have nothing in common but their distribution: the interval
  # holds 1.
  other = dict(enumerate(rng.permutation([*exact.values()])))
  ratio = lengths.relative_length(other, exact)
  assert ratio["low"] < 1 < ratio["high"]
  assert len(ratio["replicates"]) == corpus_scores.REPLICATES


def test_replicates_are_of_the_same_examples_as_those_of_a_score():
  own = {0: 4.0, 5: 2.0, 7: 9.0}
  exact = {0: 2.0, 5: 2.0, 7: 3.0}
  replicates = lengths.relative_length(own, exact)["replicates"]
  # Of each example, how often a resample has it, in percent of three.
  shares = [
    corpus_scores.mean("share", is_it, "").bootstrap(len(replicates)) / 100
    for is_it in np.eye(3)
  ]
  for replicate, counts in zip(replicates, np.transpose(shares)):
    ratio = counts @ [4, 2, 9] / (counts @ [2, 2, 3])
    assert replicate == pytest.approx(ratio, abs=1e-4)


def test_only_what_both_answered_counts():
  ratio = lengths.relative_length({3: 6.0, 4: 100.0}, {2: 1.0, 3: 4.0})
  assert (ratio["value"], ratio["num_examples"]) == (1.5, 1)
  assert lengths.relative_length({3: 6.0}, {2: 1.0}) is None
  assert lengths.relative_length({}, {}) is None
  assert lengths.relative_length({3: 6.0}, {3: 0.0}) is None


def test_a_resample_without_an_exact_token_has_the_ratio_of_all():
  ratio = lengths.relative_length({0: 1.0, 1: 1.0}, {0: 0.0, 1: 1.0})
  assert ratio["value"] == 2
  assert np.isfinite(ratio["replicates"]).all()
