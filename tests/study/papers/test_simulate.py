"""The simulator and the formulas agree within the simulator's own error.

Fixed seeds; 4.5 standard errors, which chance exceeds once in 150,000 cases.
The error itself is checked to be small enough to distinguish the systems.
"""

import numpy as np
import pytest

from speccascade.study.papers import ewif
from tests.study.papers import simulate

NUM_BLOCKS = 100_000
SIGMAS = 4.5


def assert_agrees(estimate, want):
  mean, error = estimate
  assert error < 0.015
  assert abs(mean - want) <= SIGMAS * error + 1e-12


BLOCKS_OF_5_AND_8 = (
  np.repeat([0.8, 0.75], [5, 8]),
  np.repeat([0.022, 0.007], [5, 8]),
)
CASES = {
  "vertical": (
    (0.8, 0.2, 10, 5, 0.04, 0.0),
    (0.8, 0.75, 5, 3, 0.04, 0.02),
    (0.5, 0.9, 2, 2, 0.1, 0.01),
    (1.0, 0.4, 3, 2, 0.1, 0.0),
  ),
  "horizontal": (
    ([0.8, 0.7, 0.6], [0.1, 0.05, 0.02]),
    BLOCKS_OF_5_AND_8,
    ([0.3, 0.9], [0.0, 0.0]),
  ),
}


@pytest.mark.parametrize("kind", CASES)
def test_simulation_and_formula_agree(kind):
  for args in CASES[kind]:
    rng = np.random.default_rng(3)
    simulated = getattr(simulate, kind)(rng, *args, num_blocks=NUM_BLOCKS)
    assert_agrees(simulated, getattr(ewif, f"{kind}_ewif")(*args))


def test_acceptance_by_position():
  rates = [0.8, 0.7, 0.6, 0.9]
  rng = np.random.default_rng(6)
  simulated = simulate.accepted_by_position(rng, rates, num_blocks=NUM_BLOCKS)
  want = ewif.acceptance_by_position(rates)
  error = np.sqrt(want * (1 - want) / NUM_BLOCKS)
  assert np.all(np.abs(simulated - want) <= SIGMAS * error)


def test_standard_error_shrinks_with_the_root():
  errors = []
  for num in (2_000, 200_000):
    rng, block = np.random.default_rng(7), ([0.7] * 5, [0.1] * 5)
    errors.append(simulate.horizontal(rng, *block, num_blocks=num)[1])
  assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)
