"""Counts and ratios, on rows worked out by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.records.block_records import Decoded, Stats
from speccascade.generate.batches import decode_counts
from speccascade.generate.points.call_costs import Costs
from speccascade.study.evaluation import efficiency
from speccascade.study.papers import speedup

# gamma 3, two rows.
# Row 0: block 1 drafts 3, accepts 2, the third is rejected and replaced (3
#   tokens, 3 examined); block 2 drafts 3, accepts all, and a bonus (4 tokens).
# Row 1: block 1 drafts 3, the first is accepted and is EOS: 1 token, 1 examined
#   although 3 were drafted.
DECODED = Decoded(
  tokens=jnp.zeros((2, 8), jnp.int32),
  lengths=jnp.array([7, 1]),
  stats=Stats(
    num_blocks=jnp.array([2, 1]),
    drafted=jnp.array([6, 3]),
    examined=jnp.array([6, 1]),
    accepted=jnp.array([5, 1]),
    deferred=jnp.array([2, 0]),
    drafter_calls=jnp.array([6, 3]),
    calls_by_model=jnp.array([[6], [3]]),
    verifier_calls=jnp.array([2, 1]),
    verifier_extends=jnp.array([2, 1]),
    expected_acceptance=jnp.array([4.5, 0.75]),
    accepted_at=jnp.array([[0, 0, 1, 1], [0, 1, 0, 0]]),
    examined_by_position=jnp.array([[2, 2, 2], [1, 0, 0]]),
    accepted_by_position=jnp.array([[2, 2, 1], [1, 0, 0]]),
  ),
  trace=None,
  bad_step=jnp.array([-1, -1]),
)


@pytest.fixture(scope="module")
def counts():
  return decode_counts.total(decode_counts.row_counts(DECODED))


def test_mean_log_probs():
  # Records hold lists, and decoding gives arrays; None and NaN are unknown.
  lists = {"pi": [-1.0, None, -4.0], "q": [None] * 3, "p": ["-inf", -1.0, None]}
  arrays = {name: np.full((2, 3), np.nan) for name in lists}
  arrays["pi"][0, 1] = -7.0
  means = efficiency.mean_log_probs([lists, arrays])
  assert means == {"pi": -4.0, "q": None, "p": None}
  assert efficiency.mean_log_probs([]) is None


def test_definitions(counts):
  assert decode_counts.summary(counts) == {
    "draft_acceptance_rate": 6 / 9,
    "acceptance_rate": 6 / 7,
    "rejection_rate": 1 / 7,
    "expected_acceptance": 5.25 / 7,
    "mean_acceptance_length": 8 / 3,
    "acceptance_histogram": [0, 1, 1, 1],
    "acceptance_by_position": [1.0, 1.0, 0.5],
    "deferral_rate": 3 / 8,
    "rule_deferral_rate": 2 / 8,
    "drafter_calls_per_token": 9 / 8,
    "verifier_extends_per_token": 3 / 8,
    "tokens_per_example": 4,
  }


def test_trees_count_ranks(counts):
  tree = dataclasses.replace(
    counts, accepted_by_rank=((2, 1, 0), (0, 2, 0), (1, 0, 0))
  )
  rates = decode_counts.summary(tree)["acceptance_by_rank"]
  # 3, 2 and 2 blocks examined the depths.
  assert rates == [[2 / 3, 1 / 3], [0, 1], [1 / 2]]
  both = tree + tree
  assert both.accepted_by_rank == ((4, 2, 0), (0, 4, 0), (2, 0, 0))
  # Counts of older versions lack ranks, and so does a sum with them.
  assert (tree + counts).accepted_by_rank == ()
  with pytest.raises(ValueError, match="each tree"):
    _ = tree + dataclasses.replace(tree, accepted_by_rank=((1, 2), (0, 1)))
  # 6 drafts were accepted of 3 first places: 3 of them there.
  known = dataclasses.replace(tree, optimal_acceptance=3.25)
  assert decode_counts.summary(known)["share_of_optimum"] == 3 / 3.25
  assert (known + known).optimal_acceptance == 6.5
  assert (known + tree).optimal_acceptance == 0
  assert "share_of_optimum" not in decode_counts.summary(known + tree)
  no_blocks = decode_counts.total(
    [
      known,
      dataclasses.replace(
        known, optimal_acceptance=0.0, examined_by_position=(0, 0, 0)
      ),
    ]
  )
  assert no_blocks.optimal_acceptance == 3.25
  decoded = DECODED.replace(
    stats=DECODED.stats.replace(
      extra={"accepted_by_rank": jnp.ones((2, 3, 1), int)}
    )
  )
  first, _ = decode_counts.row_counts(decoded)
  assert first.accepted_by_rank == ((1,), (1,), (1,))


def test_forced_tokens_have_a_rate_where_there_are_some(counts):
  assert "forced_rate" not in decode_counts.summary(counts)
  assert "forced" not in counts.to_dict()
  some = dataclasses.replace(counts, forced=2)
  assert decode_counts.Counts(**some.to_dict()) == some
  rates = decode_counts.summary(some + some)
  assert rates.pop("forced_rate") == 2 / counts.num_tokens
  assert rates == decode_counts.summary(counts + counts)


def test_without_blocks_ratios_are_none():
  numbers = decode_counts.summary(
    decode_counts.Counts(1, 5, verifier_calls=5, verifier_extends=5)
  )
  for name in (
    "draft_acceptance_rate",
    "acceptance_rate",
    "rejection_rate",
    "expected_acceptance",
    "mean_acceptance_length",
  ):
    assert numbers[name] is None
  assert numbers["acceptance_histogram"] == []
  assert numbers["deferral_rate"] == 1


def test_different_gammas_do_not_add(counts):
  with pytest.raises(ValueError, match="4 and 2 entries"):
    _ = counts + dataclasses.replace(counts, accepted_at=(0, 1))


COSTS = Costs(1e-4, 0.1, 0.15, {1: 1.0, 4: 1.6}, 1.0, 3.0)


def test_prediction_is_the_corrected_model(counts):
  # Full blocks of 3: (3 - 1) 0.1 + 0.15 + 1.6 = 1.95 a block, 8/3 tokens.
  value = efficiency.predicted_speedup(counts, COSTS, width=4, folds=True)
  assert value == pytest.approx(8 / 3 / 1.95)
  wanted = speedup.predicted_speedup(8 / 3, 3, 0.1, v=1.6, q2=0.15)
  assert value == pytest.approx(float(wanted))


def test_prediction_with_the_exact_bonus(counts):
  # gamma + 1 = 4 drafter calls a block: 0.4 + 1.6 = 2.
  calls = dataclasses.replace(counts, drafter_calls=12)
  value = efficiency.predicted_speedup(calls, COSTS, width=4)
  assert value == pytest.approx(8 / 3 / 2)
  wanted = speedup.predicted_speedup(8 / 3, 3, 0.1, v=1.6, bonus_law=True)
  assert value == pytest.approx(float(wanted))


@pytest.mark.parametrize(
  ("folds", "forced", "drafting"),
  [
    # Of 9 calls 3 begin a block, and 2 or 4 more read a run of forced tokens.
    (True, 2, 4 * 0.1 + 5 * 0.15),
    (False, 4, 5 * 0.1 + 4 * 0.15),
    # There are no more such calls than calls.
    (True, 7, 9 * 0.15),
  ],
)
def test_a_call_that_reads_forced_tokens_costs_more(
  counts, folds, forced, drafting
):
  some = dataclasses.replace(counts, drafter_calls=9, forced=forced)
  value = efficiency.predicted_speedup(some, COSTS, width=4, folds=folds)
  assert value == pytest.approx(8 / (drafting + 3 * 1.6))


def test_prediction_of_references():
  verifier = decode_counts.Counts(2, 8, verifier_extends=8)
  drafter = decode_counts.Counts(2, 8, drafter_calls=8)
  assert efficiency.predicted_speedup(verifier, COSTS) == 1
  assert efficiency.predicted_speedup(drafter, COSTS) == pytest.approx(10)


def test_prediction_needs_the_width(counts):
  assert efficiency.predicted_speedup(counts, COSTS, width=12) is None


def test_sharpness():
  nan, inf = float("nan"), float("inf")
  part = {
    "entropy": [0.2, 0.4, nan],
    "overshoot": [0.0, np.log(4.0), None],
    "ahead": np.array([0.0, 0.95, 0.94]),
    "margin": [0.0, inf, -np.log(0.06)],
  }
  got = efficiency.sharpness([part, part])
  assert got == pytest.approx(
    {
      "entropy": 0.3,
      "overshoot": 2.0,
      "largest_overshoot": 4.0,
      "outside_top_p": 1 / 3,
      "outside_min_p": 1 / 3,
    }
  )
  unbounded = efficiency.sharpness([part | {"overshoot": [1.0, inf, 0.0]}])
  assert unbounded["overshoot"] is unbounded["largest_overshoot"] is None
  unknown = efficiency.sharpness(
    [part | {"overshoot": [nan], "entropy": [nan]}]
  )
  assert unknown["entropy"] is unknown["largest_overshoot"] is None
  assert efficiency.sharpness([]) is None
