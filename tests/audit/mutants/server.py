"""Runs pytest in a folder, again and again, without importing JAX again.

  python tests/audit/mutants/server.py

Half of a short test's time goes into imports. They are made once, and each run
is a fork of this process. Each line of stdin is a JSON list: the folder to run
in, the file that the output is written to, seconds of patience, and pytest's
arguments. Each is answered by the exit code, or by "late".
"""

import importlib
import json
import os
import pathlib
import signal
import sys
import time

# Nothing of the package or of its tests, whose copies differ from run to run.
MODULES = (
  *("numpy", "scipy.stats", "jax", "jax.numpy", "jax.scipy.special"),
  *("flax.linen", "flax.struct", "optax", "hypothesis.strategies", "pytest"),
)


def main():
  """Answers until stdin ends."""
  # pytest is imported in the copy, where its own bytecode does not matter.
  sys.dont_write_bytecode = True
  sys.path.pop(0)  # this folder, which holds modules named like others
  for name in MODULES:
    importlib.import_module(name)
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  for line in sys.stdin:
    folder, log, patience_s, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
      _run(pathlib.Path(folder), pathlib.Path(log), arguments)
    answers.write(f"{_wait(child, patience_s)}\n")
    answers.flush()


def _run(folder: pathlib.Path, log: pathlib.Path, arguments: list[str]):
  """Becomes one run of pytest; does not return."""
  import pytest

  code = 3  # pytest's "internal error"
  try:
    os.setsid()
    with log.open("wb") as file:
      os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
      os.dup2(file.fileno(), 1)
      os.dup2(file.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    # What a test starts finds the same copy.
    os.environ["PYTHONPATH"] = str(folder)
    code = int(pytest.main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
  finally:
    os._exit(code)


def _wait(child: int, patience_s: float) -> str:
  """Returns the exit code of a process, or "late" where it was killed."""
  end = time.monotonic() + patience_s
  while time.monotonic() < end:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
      return str(os.waitstatus_to_exitcode(status))
    time.sleep(0.02)
  os.killpg(child, signal.SIGKILL)
  os.waitpid(child, 0)
  return "late"


if __name__ == "__main__":
  main()
