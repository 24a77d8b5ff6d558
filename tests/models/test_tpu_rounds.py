"""What a TPU's compiler makes of whole decodes and of a training step."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import tpu_programs

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="no libtpu: pip install -c constraints.txt -e '.[tpu-compiler]'",
  ),
]


def describe(case, *rows):
  """Returns what `tests.tpu_rounds` says of a case, for each number of rows."""
  # What tests of the core set for themselves would disturb the compiler.
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_", "XLA_", "TPU_"))
    or name == "TPU_LIBRARY_PATH"
  }
  done = subprocess.run(
    [sys.executable, "-m", "tests.tpu_rounds", case, *map(str, rows)],
    capture_output=True,
    text=True,
    env=env | tpu_programs.ENVIRONMENT,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("case", tpu_programs.CASES)
def test_a_round_copies_no_cache_and_loops_over_no_rows(case):
  of_one, of_many = describe(case, 1, 32)
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
  [step] = describe("training", 32)
  # The mesh of 2 x 2 adds up gradients of rows, and products of cut layers.
  assert "all-reduce" in step["sent"]
  assert 2 in step["groups"]
  assert max(step["groups"]) <= 4
  [loop] = step["loops"]
  assert loop.endswith("/while")
  assert not step["callbacks"]
