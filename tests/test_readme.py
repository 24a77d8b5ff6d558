"""The README says what the code does."""

import inspect
import pathlib

from speccascade.decoding import table
from tests.decoding import test_add_a_rule

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_table_is_the_code():
  assert table.markdown() in README.read_text(encoding="utf-8")


def test_the_example_is_the_one_that_runs():
  function = test_add_a_rule.surer_by_factor.function
  assert inspect.getsource(function).strip() in README.read_text(
    encoding="utf-8"
  )


def test_every_path_named_exists():
  words = README.read_text(encoding="utf-8").replace("(", " ").replace("`", " ")
  roots = ("configs/", "docs/", "launch/", "speccascade/", "tests/")
  paths = {word.strip("),.:") for word in words.split()}
  named = {path for path in paths if path.startswith(roots)}
  missing = [path for path in named if not (README.parent / path).exists()]
  assert named
  assert not missing
