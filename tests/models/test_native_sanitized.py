"""The native code under sanitizers: memory, undefined behaviour, races."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from speccascade.native import library

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
COMPILER = shutil.which("g++")
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    sys.platform != "linux" or COMPILER is None,
    reason="sanitizers are those of g++ on Linux",
  ),
]
# What reads and writes memory, each handler in small calls. Whole decodes are
# compiled for longer than they run.
TESTS = ("attention", "chains", "laws", "trees", "walks")
# Python is not compiled for the sanitizer, which therefore comes first.
SANITIZED_TESTS = """
import sys
import pytest
from speccascade import native
from speccascade.native import library
library.FLAGS += (
  "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
)
assert native.is_available()
sys.exit(pytest.main(sys.argv[1:]))
"""


def file_of(name: str) -> str:
  """Returns the path of a library of the compiler; skips if there is none."""
  command = [COMPILER, f"-print-file-name={name}"]
  path = subprocess.run(command, capture_output=True, text=True).stdout.strip()
  if not os.path.isabs(path):
    pytest.skip(f"{name} of g++ is not installed")
  return path


def test_no_handler_leaves_its_arrays(tmp_path):
  preloaded = f"{file_of('libasan.so')} {file_of('libstdc++.so.6')}"
  tests = [str(HERE / f"test_native_{name}.py") for name in TESTS]
  options = ["-q", "-m", "not slow", "-k", "not decoders", "-n", "0"]
  process = subprocess.run(
    [sys.executable, "-c", SANITIZED_TESTS, *options, *tests],
    cwd=ROOT,
    env=os.environ
    | {
      "LD_PRELOAD": preloaded,
      "ASAN_OPTIONS": "detect_leaks=0",  # Python's own, all of them
      "XDG_CACHE_HOME": str(tmp_path),
      "PYTHONPATH": str(ROOT),
    },
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, (
    process.stdout[-4000:] + process.stderr[-4000:]
  )
  assert " passed" in process.stdout
  (compiled,) = (tmp_path / "speccascade" / "native").glob("*.so")
  symbols = subprocess.run(
    ["nm", "-D", compiled], capture_output=True, text=True
  )
  assert "__asan_" in symbols.stdout


def run_stages(folder: pathlib.Path, *flags: str):
  """Returns the finished process of stages.cc, watched for races."""
  file_of("libtsan.so")
  program = folder / "stages"
  paths = [
    f"-I{HERE / 'sanitized'}",
    f"-I{pathlib.Path(library.__file__).parent}",
  ]
  command = [COMPILER, "-std=c++17", "-O1", "-g", "-fsanitize=thread"]
  command += ["-Wno-tsan", "-pthread", *paths, *flags]
  command += [str(HERE / "sanitized" / "stages.cc"), "-o", str(program)]
  subprocess.run(command, check=True, capture_output=True, text=True)
  return subprocess.run([program], capture_output=True, text=True)


def test_stages_have_no_race(tmp_path):
  process = run_stages(tmp_path, "-DKNOWS_FENCE")
  assert process.returncode == 0, process.stdout + process.stderr[:4000]
  assert process.stdout == "every unit ran once\n"


def test_a_missing_order_is_a_race(tmp_path):
  # The sanitizer does not know the fence: without it, it must complain.
  process = run_stages(tmp_path)
  assert "data race" in process.stderr
