"""Checks what `gin_internals` reads of gin, on a small configuration."""

import pathlib

import gin
import pytest

import speccascade
from speccascade.cli import gin_internals
from tests import cli_target

CONFIG = """
from __gin__ import dynamic_registration
from tests import cli_target

STEPS = 7
ROOM = %gin.REQUIRED
OTHER = %STEPS
cli_target.work:
  model_dir = %FOLDER
  steps = %STEPS
  rate = 0.25
"""


@pytest.fixture(autouse=True)
def _config():
  gin.parse_config(CONFIG)
  yield
  gin.clear_config()


def test_macros():
  macros = gin_internals.macros()
  assert macros.keys() == {"STEPS", "ROOM", "OTHER"}
  assert macros["STEPS"] == 7
  assert gin_internals.used_macros() == {"STEPS", "FOLDER"}
  assert gin_internals.macro_of(macros["OTHER"]) == "STEPS"
  for name in ("STEPS", "ROOM"):  # a number, and a constant of gin
    assert gin_internals.macro_of(macros[name]) is None
  required = [
    name for name in macros if gin_internals.is_required(macros[name])
  ]
  assert required == ["ROOM"]


def test_bindings():
  [values] = [
    values
    for function, values in gin_internals.bindings()
    if function is cli_target.work
  ]
  assert values.keys() == {"model_dir", "steps", "rate"}
  assert values["rate"] == 0.25
  names = gin_internals.configurable_names()
  assert any(name.endswith("cli_target.work") for name in names)


def test_search_paths(tmp_path):
  (tmp_path / "a.gin").write_text("STEPS = 8\n")
  before = gin_internals.search_paths()
  try:
    gin_internals.set_search_paths([str(tmp_path)])
    assert gin_internals.search_paths() == [str(tmp_path)]
    gin.parse_config_file("a.gin")
    with pytest.raises(OSError, match="Unable to open") as caught:
      gin.parse_config_file("b.gin")
  finally:
    gin_internals.set_search_paths(before)
  assert gin_internals.macros()["STEPS"] == 8
  assert gin_internals.missing_file(str(caught.value)) == "b.gin"


def test_no_other_module_uses_private_names():
  package = pathlib.Path(speccascade.__file__).parent
  users = [
    path.name
    for path in sorted(package.rglob("*.py"))
    if "gin.config." in path.read_text(encoding="utf-8")
  ]
  assert users == ["gin_internals.py"]
