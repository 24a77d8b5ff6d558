"""What a TPU's compiler makes of whole decodes and of a training step."""

import pytest

from tests import tpu_compiler, tpu_programs

pytestmark = [pytest.mark.slow, tpu_compiler.NEEDED]


@pytest.mark.parametrize("case", tpu_programs.CASES)
def test_a_round_copies_no_cache_and_loops_over_no_rows(case):
  of_one, of_many = tpu_compiler.said("tpu_rounds", case, 1, 32)
  assert of_one["cache_copies"] == of_many["cache_copies"] == 0
  assert min(of_one["launches"], of_many["launches"]) > 0
  assert "jit(run)/while" in of_many["loops"]  # the loop over rounds
  of_one, of_many = (
    [name for name in each["loops"] if "while/body/" in name]
    for each in (of_one, of_many)
  )
  # One row has loops of this package's own, such as a walk down a tree. Loops
  # that the compiler makes have the name of a scatter or a gather.
  assert all(name.endswith("/while") for name in of_one)
  assert of_many == of_one


def test_a_training_step_on_a_mesh_loops_over_its_parts_alone():
  [step] = tpu_compiler.said("tpu_rounds", "training", 32)
  # The mesh of 2 x 2 adds up gradients of rows, and products of cut layers.
  assert "all-reduce" in step["sent"]
  assert 2 in step["groups"]
  assert max(step["groups"]) <= 4
  [loop] = step["loops"]
  assert loop.endswith("/while")
  assert not step["callbacks"]
