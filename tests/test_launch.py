"""What the launch scripts install: an interpreter notes what pip is told."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Answers what has no pip in it by the real interpreter; has jax if $HAS_JAX.
FAKE = f"""#!/bin/bash
case "$*" in
  *"-m pip install"*) echo "${{@: -8}}" >>"$VENV/calls" ;;
  *m.version*) [ -n "$HAS_JAX" ] ;;
  *pip*) ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def install(tmp_path):
  """Runs `environment base`; returns (what it said, what pip was to do)."""
  venv = tmp_path / "venv"
  (venv / "bin").mkdir(parents=True)
  (venv / "bin" / "python").write_text(FAKE)
  (venv / "bin" / "python").chmod(0o755)

  def call(**env):
    command = f"source {ROOT}/launch/environment.sh && environment base"
    said = subprocess.run(
      ["bash", "-euo", "pipefail", "-c", command],
      env={"PATH": os.environ["PATH"], "VENV": str(venv), "HAS_JAX": "", **env},
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    calls = venv / "calls"
    last = calls.read_text().splitlines()[-1] if calls.exists() else ""
    calls.unlink(missing_ok=True)
    return said, last

  call.venv = venv
  return call


def test_an_empty_environment(install):
  said, call = install()
  assert call.endswith("--constraint constraints.txt --editable .")
  assert "installing . with" in said
  # Our own jax is no other's, and the second time there is nothing to do.
  said, call = install(HAS_JAX="yes")
  assert "up to date" in said
  assert not call


def test_jax_of_an_accelerator(install):
  said, call = install(SPECCASCADE_JAX="tpu")
  assert call.endswith("constraints.txt jax[tpu] --editable .")
  assert "installing . and jax[tpu] with" in said
  assert "up to date" in install(HAS_JAX="yes")[0]  # which is remembered


def test_a_jax_that_is_there_stays(install):
  said, call = install(HAS_JAX="yes", SPECCASCADE_JAX="tpu")
  constraints = install.venv / "constraints.txt"
  assert call.endswith(f"--constraint {constraints} --editable .")
  assert "keeping the jax" in said
  kept, all_ = (
    {line.partition("==")[0] for line in path.read_text().splitlines()}
    for path in (constraints, ROOT / "constraints.txt")
  )
  assert all_ - kept == {"jax", "jaxlib"}
  assert "up to date" in install(HAS_JAX="yes")[0]
