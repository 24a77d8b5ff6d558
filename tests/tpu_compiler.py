"""Calls the programs that compile for a TPU, each in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import tpu_programs

NEEDED = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None,
  reason="no libtpu: pip install -c constraints.txt -e '.[tpu-compiler]'",
)


def said(program: str, case: str, *rows: int) -> list:
  """Returns what a program of this folder says: its lines of JSON."""
  # What tests of the core set for themselves would disturb the compiler.
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_", "XLA_", "TPU_"))
    or name == "TPU_LIBRARY_PATH"
  }
  done = subprocess.run(
    [sys.executable, "-m", f"tests.{program}", case, *map(str, rows)],
    capture_output=True,
    text=True,
    env=env | tpu_programs.ENVIRONMENT,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return [json.loads(line) for line in done.stdout.splitlines()]
