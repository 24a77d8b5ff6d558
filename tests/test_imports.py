"""The core imports jax, flax, numpy and itself, and nothing heavier."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
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
GENERATE = """
import sys
import speccascade as sc

text = "A clever witch sells the new car."
lab = ("study", "training", "tasks", "cli", "tools")
lab = tuple("speccascade." + name for name in lab)
pair = sc.built_in_pair()
pair.generate(text, "drafter")._repr_html_()
assert "".join(pair.stream(text, "drafter"))
assert not [name for name in sys.modules if name.startswith(lab)]
assert sc.Comparison and lab[0] in sys.modules
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


def test_the_races_run_on_a_box_that_has_jax_and_little_else():
  done = python(
    f"BLOCKED = {(*TASKS, 'gin', 'platformdirs')}\n{BLOCKER}"
    "from benchmarks import ours, race"
  )
  assert done.returncode == 0, done.stderr


def test_the_battery_runs_on_a_box_that_has_jax_and_little_else():
  blocked = (*TASKS, "tensorflow_datasets", "platformdirs")
  done = python(
    f"BLOCKED = {blocked}\n{BLOCKER}from benchmarks.gpu_battery import __main__"
  )
  assert done.returncode == 0, done.stderr


def test_a_pair_generates_without_the_libraries_of_tasks():
  done = python(
    f"BLOCKED = {TASKS}\n{BLOCKER}import speccascade as sc\n"
    "pair = sc.built_in_pair()\n"
    "text = 'A clever witch sells the new car.'\n"
    "print(pair.generate(text, method='drafter').texts[0])"
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip()


def test_a_pair_generates_without_what_measures():
  done = python(GENERATE)
  assert done.returncode == 0, done.stderr


def test_the_api_imports_no_pandas():
  done = python(
    "import sys, speccascade, speccascade.generate.api\n"
    "for name in speccascade.__all__: getattr(speccascade, name)\n"
    "api = speccascade.generate.api\n"
    "for name in api.__all__: getattr(api, name)\n"
    "assert 'pandas' not in sys.modules\n"
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
