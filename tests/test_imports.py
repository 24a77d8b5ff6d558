"""The core imports jax, flax, numpy and itself, and nothing heavier."""

import subprocess
import sys

import pytest

BLOCKED = ("tensorflow", "seqio", "t5x", "gin", "optax", "orbax")

TASKS = ("tensorflow", "seqio", "gin", "clu")

BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in BLOCKED:
      raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
"""
WALK = """
import pkgutil, importlib, speccascade
for package in PACKAGES:
  package = importlib.import_module("speccascade." + package)
  for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
"""


def python(code):
  return subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )


@pytest.mark.parametrize(
  ("packages", "blocked"),
  [
    # flax itself asks for orbax and optax where they are, and does without.
    (("decoding", "models", "native"), BLOCKED),
    (("training", "checkpoints"), TASKS),
  ],
)
def test_packages_import_with_everything_else_blocked(packages, blocked):
  names = f"BLOCKED, PACKAGES = {blocked!r}, {packages!r}\n"
  done = python(names + BLOCKER + WALK + "speccascade.T5Config")
  assert done.returncode == 0, done.stderr


def test_the_peer_of_the_races_does_without_what_we_need():
  blocked = ("jax", "flax", "numpy", "absl", "gin", "tqdm")
  fakes = "sys.modules |= dict.fromkeys(('torch', 'transformers'), Mock())"
  done = python(
    f"BLOCKED = {blocked}\n{BLOCKER}from unittest.mock import Mock\n{fakes}\n"
    "from benchmarks import peer\npeer.shapes.source_tokens()"
  )
  assert done.returncode == 0, done.stderr


def test_the_blocker_blocks():
  done = python(f"BLOCKED = {BLOCKED}\n{BLOCKER}import speccascade.cli")
  assert done.returncode != 0
  assert "blocked: gin" in done.stderr


def test_public_names_are_lazy_and_there():
  done = python(
    "import sys, speccascade\n"
    "assert not {'jax', 'tensorflow', 'gin', 'absl'} & set(sys.modules)\n"
    "for name in speccascade.__all__: getattr(speccascade, name)\n"
    "assert set(speccascade.__all__) <= set(dir(speccascade))\n"
  )
  assert done.returncode == 0, done.stderr


def test_unknown_name():
  import speccascade

  with pytest.raises(AttributeError, match="no_such_name"):
    _ = speccascade.no_such_name
