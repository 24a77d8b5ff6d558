"""The core imports jax, flax, numpy and itself, and nothing heavier."""

import subprocess
import sys

import pytest

BLOCKED = ("tensorflow", "seqio", "t5x", "gin", "optax", "orbax")

BLOCKER = f"""
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in {BLOCKED!r}:
      raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
"""


def python(code):
  return subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )


def test_core_imports_with_everything_else_blocked():
  # flax itself asks for orbax and optax where they are, and does without.
  done = python(
    BLOCKER + "import pkgutil, importlib\n"
    "import speccascade.decoding, speccascade.models\n"
    "for package in (speccascade.decoding, speccascade.models):\n"
    "  for module in pkgutil.walk_packages(\n"
    "      package.__path__, package.__name__ + '.'):\n"
    "    importlib.import_module(module.name)\n"
    "speccascade.T5Config\n"
  )
  assert done.returncode == 0, done.stderr


def test_the_blocker_blocks():
  done = python(BLOCKER + "import speccascade.cli")
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
