"""Counts and ratios, on rows worked out by hand."""

import json

import jax.numpy as jnp
import pytest

from speccascade.analysis import speedup
from speccascade.decoding.types import Decoded, Stats
from speccascade.evaluation import efficiency

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
  return efficiency.total(efficiency.row_counts(DECODED))


def test_sums(counts):
  assert counts.num_examples == 2
  assert counts.num_tokens == 8
  assert counts.accepted_at == (0, 1, 1, 1)
  assert counts.examined_by_position == (3, 2, 2)


def test_definitions(counts):
  numbers = efficiency.summary(counts)
  assert numbers["draft_acceptance_rate"] == 6 / 9
  assert numbers["acceptance_rate"] == 6 / 7
  assert numbers["rejection_rate"] == 1 / 7
  assert numbers["expected_acceptance"] == 5.25 / 7
  assert numbers["mean_acceptance_length"] == 8 / 3
  assert numbers["acceptance_histogram"] == [0, 1, 1, 1]
  assert numbers["acceptance_by_position"] == [1.0, 1.0, 0.5]
  assert numbers["deferral_rate"] == 3 / 8
  assert numbers["rule_deferral_rate"] == 2 / 8
  assert numbers["drafter_calls_per_token"] == 9 / 8
  assert numbers["verifier_extends_per_token"] == 3 / 8
  assert numbers["tokens_per_example"] == 4


def test_histogram_and_positions_agree(counts):
  # Blocks with j accepted drafts, weighted by j, are the accepted drafts.
  histogram = efficiency.acceptance_histogram(counts)
  assert sum(j * n for j, n in enumerate(histogram)) == counts.accepted
  assert sum(histogram) == counts.num_blocks
  assert sum(counts.accepted_by_position) == counts.accepted
  assert sum(counts.examined_by_position) == counts.examined


def test_without_blocks_ratios_are_none():
  alone = efficiency.Counts(
    num_examples=1,
    num_tokens=5,
    num_blocks=0,
    drafted=0,
    examined=0,
    accepted=0,
    deferred=0,
    drafter_calls=0,
    calls_by_model=(0,),
    verifier_calls=5,
    verifier_extends=5,
    expected_acceptance=0.0,
    accepted_at=(0,),
    examined_by_position=(),
    accepted_by_position=(),
  )
  numbers = efficiency.summary(alone)
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


def test_counts_survive_json(counts):
  text = json.dumps(counts.to_dict())
  assert efficiency.Counts.from_dict(json.loads(text)) == counts


def test_different_gammas_do_not_add(counts):
  other = efficiency.Counts.from_dict(
    {**counts.to_dict(), "accepted_at": [0, 1]}
  )
  with pytest.raises(ValueError, match="4 and 2 entries"):
    _ = counts + other


def test_nothing_to_sum():
  with pytest.raises(ValueError, match="no examples"):
    efficiency.total([])


COSTS = efficiency.Costs(
  verifier_step_s=1e-4,
  c=0.1,
  q2=0.15,
  v={1: 1.0, 4: 1.6},
  drafter_prefill=1.0,
  verifier_prefill=3.0,
)


def test_prediction_is_the_corrected_model(counts):
  # Full blocks of 3: (3 - 1) 0.1 + 0.15 + 1.6 = 1.95 a block, 8/3 tokens.
  value = efficiency.predicted_speedup(counts, COSTS, width=4, folds=True)
  assert value == pytest.approx(8 / 3 / 1.95)
  wanted = speedup.predicted_speedup(8 / 3, 3, 0.1, v=1.6, q2=0.15)
  assert value == pytest.approx(float(wanted))


def test_prediction_with_the_exact_bonus(counts):
  # gamma + 1 = 4 drafter calls a block: 0.4 + 1.6 = 2.
  calls = efficiency.Counts.from_dict({**counts.to_dict(), "drafter_calls": 12})
  value = efficiency.predicted_speedup(calls, COSTS, width=4)
  assert value == pytest.approx(8 / 3 / 2)
  wanted = speedup.predicted_speedup(8 / 3, 3, 0.1, v=1.6, bonus_law=True)
  assert value == pytest.approx(float(wanted))


def test_prediction_of_references():
  alone = {
    **efficiency.total(efficiency.row_counts(DECODED)).to_dict(),
    "num_tokens": 8,
    "num_blocks": 0,
  }
  verifier = efficiency.Counts.from_dict(
    {**alone, "drafter_calls": 0, "verifier_extends": 8}
  )
  drafter = efficiency.Counts.from_dict(
    {**alone, "drafter_calls": 8, "verifier_extends": 0}
  )
  assert efficiency.predicted_speedup(verifier, COSTS) == 1
  assert efficiency.predicted_speedup(drafter, COSTS) == pytest.approx(10)


def test_prediction_needs_the_width(counts):
  assert efficiency.predicted_speedup(counts, COSTS, width=12) is None


def test_costs_survive_json():
  text = json.dumps(COSTS.to_dict())
  assert efficiency.Costs.from_dict(json.loads(text)) == COSTS
