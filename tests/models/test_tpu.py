"""Programs compile for a TPU, by the compiler alone; blocks have no loop."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import tpu_programs

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None,
  reason="no libtpu: pip install -c constraints.txt -e '.[tpu-compiler]'",
)


def loops(case, *numbers):
  """Returns the names of a program's loops, for each number of rows."""
  # What tests of the core set for themselves would disturb the compiler.
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_", "XLA_", "TPU_"))
  }
  done = subprocess.run(
    [sys.executable, "-m", "tests.tpu_programs", case, *map(str, numbers)],
    capture_output=True,
    text=True,
    env=env | tpu_programs.ENVIRONMENT,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return [json.loads(line) for line in done.stdout.splitlines()]


def test_blocks_of_many_rows_have_no_loop():
  assert loops("blocks", 32) == [[]]
