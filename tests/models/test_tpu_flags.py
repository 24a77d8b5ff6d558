"""No round of a decode has what TPUs are slow at, by their compiler."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import tpu_flags, tpu_programs

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="no libtpu: pip install -c constraints.txt -e '.[tpu-compiler]'",
  ),
]


def flags(case):
  """Returns `tpu_flags.flags` of a case, from a process of its own."""
  # What tests of the core set for themselves would disturb the compiler.
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_", "XLA_", "TPU_"))
  }
  done = subprocess.run(
    [sys.executable, "-m", "tests.tpu_flags", case],
    capture_output=True,
    text=True,
    env=env | tpu_programs.ENVIRONMENT,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", tpu_flags.CASES)
def test_no_flag(case):
  """No loop over rows, and no search of a vocabulary in order.

  Keys are tested before they are turned. One row goes to the matrix unit: in a
  batch of several, attention to one token of each row does not.
  """
  found = flags(case)
  if case != "one row":
    del found["sums"]
  assert not any(found.values()), found
