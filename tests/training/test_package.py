"""What the package imports, and its worked examples."""

import doctest
import importlib
import subprocess
import sys

import pytest

CODE = """
import importlib, importlib.abc, pkgutil, sys

class Blocker(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in ("tensorflow", "seqio", "gin", "clu"):
      raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
import speccascade.training
for module in pkgutil.iter_modules(speccascade.training.__path__):
  importlib.import_module("speccascade.training." + module.name)
  print(module.name)
"""


def test_it_imports_without_tensorflow_seqio_and_gin():
  done = subprocess.run(
    [sys.executable, "-c", CODE], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  assert {"finetune", "loop", "trainer"} <= set(done.stdout.split())


@pytest.mark.parametrize("name", ["losses", "optimizers"])
def test_the_worked_examples_hold(name):
  module = importlib.import_module(f"speccascade.training.{name}")
  result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
  assert result.attempted
  assert not result.failed
