"""Commands keep working where nothing reads their output."""

import os
import subprocess
import sys

import pytest

WORK = """
import os, sys, time
from speccascade.runtime import progress, standard_error
standard_error.make_safe()
progress.LINE_S = 0
with open(sys.argv[1], "w") as file:
  with progress.ProgressBar(range(3), total=3, desc="work") as bar:
    for _ in bar:
      os.write(2, b"native")
      print("said", file=sys.stderr, flush=True)
  with standard_error.hold_back(lambda line: True):
    print("held", file=sys.stderr)
  file.write("whole")
"""


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", "0<&- 1>&- 2>&-"])
def test_a_closed_stderr_ends_nothing(tmp_path, closed):
  path = tmp_path / "out"
  shell = f'exec "$0" -c "$1" "$2" {closed}'
  work = (
    WORK.replace('os.write(2, b"native")', "pass") if "full" in closed else WORK
  )
  done = subprocess.run(["sh", "-c", shell, sys.executable, work, str(path)])
  assert done.returncode == 0
  assert path.read_text() == "whole"


def test_a_reader_of_stderr_that_is_gone_ends_nothing(tmp_path):
  path = tmp_path / "out"
  reader, writer = os.pipe()
  os.close(reader)
  work = WORK.replace('os.write(2, b"native")', "pass")
  command = [sys.executable, "-c", work, str(path)]
  done = subprocess.run(command, stderr=writer)
  os.close(writer)
  assert done.returncode == 0
  assert path.read_text() == "whole"


def test_xla_does_not_complain_of_the_program_of_keys():
  # Only the commands hide XLA's errors; a program with the API shows them.
  code = (
    "from speccascade.decoding.laws import draws\n"
    "draws.row_keys(0, 0, [0, 1]).block_until_ready()"
  )
  settings = {"TF_CPP_MIN_LOG_LEVEL": "0", "JAX_PLATFORMS": "cpu"}
  settings["JAX_ENABLE_COMPILATION_CACHE"] = "false"
  done = subprocess.run(
    [sys.executable, "-c", code],
    env=os.environ | settings,
    capture_output=True,
    text=True,
    check=True,
  )
  assert "simplifier" not in done.stderr
