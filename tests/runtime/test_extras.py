"""The extras of the messages are setup.py's; a missing package is one line."""

import os
import pathlib
import runpy
import subprocess
import sys
from unittest import mock

import pytest
import setuptools

from speccascade.runtime import extras

ROOT = pathlib.Path(__file__).parents[2]
# Where the name in imports is not that of the distribution.
IMPORTED = {"absl-py": "absl", "gin-config": "gin", "orbax-checkpoint": "orbax"}
# What the base install's own requirements bring: jax, and flax.
INDIRECT = {"jaxlib", "optax", "scipy"}
BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] == {package!r}:
      raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Blocker())
"""


def names(requirements):
  """Returns the names in imports of a list of requirements."""
  plain = [line.partition(">=")[0] for line in requirements]
  return {IMPORTED.get(name, name.replace("-", "_")) for name in plain}


@pytest.fixture(scope="module")
def declared():
  """The arguments of setup.py's call of setup."""
  with mock.patch.object(setuptools, "setup") as setup:
    runpy.run_path(str(ROOT / "setup.py"))
  return setup.call_args.kwargs


def test_the_packages_are_those_of_setup(declared):
  base = names(declared["install_requires"]) | INDIRECT
  assert set(extras.BASE) == base
  wanted = {
    extra: names(requirements) - base
    for extra, requirements in declared["extras_require"].items()
    if extra not in ("dev", "docs")  # no command of the package needs them
  }
  assert {name: set(each) for name, each in extras.EXTRAS.items()} == wanted


def test_the_version_is_the_same_everywhere(declared):
  import speccascade

  version = declared["version"]
  assert speccascade.__version__ == version
  cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
  assert f"\nversion: {version}\n" in cited
  changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
  assert f"\n## {version}\n" in changes


@pytest.mark.parametrize("has_environment", [False, True])
@pytest.mark.parametrize(
  ("command", "package", "target"),
  [
    ("decode", "gin", "'.[lab]'"),
    ("report", "pandas", "'.[lab]'"),
    ("checkpoints.inspect", "tensorstore", "."),
  ],
)
def test_a_missing_package_is_one_line(
  tmp_path, command, package, target, has_environment
):
  blocker = tmp_path / "blocker"
  blocker.mkdir()
  (blocker / "sitecustomize.py").write_text(BLOCKER.format(package=package))
  (tmp_path / "rows.jsonl").touch()
  line = (
    f"error: {package} is not installed here: pip install -c constraints.txt"
    f" -e {target}"
  )
  if has_environment:
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    line += ", or use the environment that is here: . .venv/bin/activate"
  flags = {
    "report": ["--results_dir=."],
    "checkpoints.inspect": [f"--source={ROOT}/tests/golden/tiny_a/t5x_native"],
  }
  paths = os.pathsep.join([str(blocker), str(ROOT)])
  done = subprocess.run(
    [sys.executable, "-m", f"speccascade.{command}", *flags.get(command, ())],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": paths},
  )
  assert (done.returncode, done.stderr) == (1, f"{line}\n")
  assert not done.stdout


def test_other_packages_are_not_named():
  assert extras.line(ModuleNotFoundError(name="no_such_package")) is None
  assert extras.line(ModuleNotFoundError("no name")) is None
  assert extras.line(ImportError(name="gin")) is None
