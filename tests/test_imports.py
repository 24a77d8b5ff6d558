"""The core imports jax, flax, numpy and itself, and nothing heavier."""

import ast
import pathlib
import re
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
lab = ["report", "search", "planning", "evaluation.quality"]
lab += ["inference.measuring.study", "inference.rows.results"]
lab = tuple("speccascade." + name for name in lab)
pair = sc.built_in_pair()
pair.generate(text, "drafter")._repr_html_()
assert "".join(pair.stream(text, "drafter"))
assert not [name for name in sys.modules if name.startswith(lab)]
assert sc.Comparison and lab[-1] in sys.modules
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
    "for name in speccascade.generate.api.__all__: getattr(speccascade.generate.api, name)\n"
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


def modules():
  """Yields the path of each module and its tree."""
  for path in sorted((ROOT / "speccascade").rglob("*.py")):
    yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_imports_run_down_the_list():
  text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
  rows = re.findall("^\\| (`.*?) \\|", text.partition("## ")[0], re.M)
  names = [re.findall(r"`(\w+)[./]", row) for row in rows]
  place = {name: row for row, each in enumerate(names) for name in each}
  paths = (ROOT / "speccascade").iterdir()
  there = {path.stem for path in paths if path.suffix in ("", ".py")}
  assert place.keys() == there - {"__init__", "__pycache__"}
  upwards = set()
  for path, tree in modules():
    of = path.relative_to(ROOT / "speccascade").parts[0].removesuffix(".py")
    for node in ast.walk(tree):
      if of == "__init__" or not isinstance(node, ast.ImportFrom):
        continue
      package, *parts = node.module.split(".")
      if package == "speccascade":
        imported = parts[:1] or [alias.name for alias in node.names]
        upwards |= {(of, x) for x in imported if place[x] < place[of]}
  # Measuring reads counts and costs, the records of what generates text.
  assert upwards == {("cli", "checkpoints"), ("evaluation", "inference")}


def floors_of_the_core() -> list[list[str]]:
  """Returns the rooms of `decoding/` floor by floor, the lowest first."""
  text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
  [row] = re.findall(r"^\| `decoding/` \| .*: (.*) \|$", text, re.M)
  return [re.findall(r"`(\w+)/`", floor) for floor in row.split(" < ")]


def arrows_of_the_core():
  """Yields (room, room or name that a module of it imports, where)."""
  core = ROOT / "speccascade" / "decoding"
  for path, tree in modules():
    if core not in path.parents or path == core / "__init__.py":
      continue
    room, *_ = path.relative_to(core).parts
    for node in ast.walk(tree):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
      for name in names:
        package, _, inside = name.partition("speccascade.decoding.")
        if inside and not package:
          imported = inside.partition(".")[0]
          yield room, imported, f"{path.relative_to(core)}:{node.lineno}"


def test_imports_of_the_core_run_down_its_floors():
  floors = floors_of_the_core()
  floor_of = {room: n for n, rooms in enumerate(floors) for room in rooms}
  core = (ROOT / "speccascade" / "decoding").iterdir()
  assert floor_of.keys() == {path.name for path in core} - {
    "__init__.py",
    "__pycache__",
  }
  # Two rooms of one floor do not know each other. What is no room is the
  # package itself, which imports all of them.
  upwards = [
    f"{where} imports {imported}"
    for room, imported, where in arrows_of_the_core()
    if imported != room
    and floor_of.get(imported, len(floors)) >= floor_of[room]
  ]
  assert not upwards


def test_names_tell_apart():
  # Two packages that mirror each other may share the names of their modules.
  files, classes = {}, {}
  for path, tree in modules():
    files.setdefault(path.name, []).append(path.parent.name)
    for node in tree.body:
      if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        classes.setdefault(node.name, []).append(path.name)
  several = {name: x for name, x in files.items() if len(x) > 1}
  del several["__init__.py"], several["__main__.py"]
  assert all(sorted(x) == ["llama", "t5", "t5gemma"] for x in several.values())
  assert not [name for name, x in classes.items() if len(x) > 1]
