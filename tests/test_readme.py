"""The README says what the code does, and pages name what is there."""

import inspect
import pathlib
import re

import pytest

from speccascade.decoding.programs import table
from tests.decoding.laws import test_add_a_rule

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]
FOLDERS = "benchmarks|configs|docs|launch|notebooks|speccascade|tests"


def test_the_table_is_the_code():
  assert table.markdown() in README.read_text(encoding="utf-8")


def test_the_example_is_the_one_that_runs():
  function = test_add_a_rule.surer_by_factor.function
  assert inspect.getsource(function).strip() in README.read_text(
    encoding="utf-8"
  )


def anchors(page: pathlib.Path) -> set[str]:
  """Returns what links may name of a page: its headings, as GitHub has them."""
  text = re.sub("^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
  headings = re.findall("^#+ (.*)$", text.lower(), re.M)
  return {re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_is_there(page):
  text = page.read_text(encoding="utf-8")
  link = r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)"
  for path, anchor in re.findall(link, text):
    linked = page.parent / path if path else page
    assert linked.exists(), path
    assert not anchor or anchor in anchors(linked), anchor
  paths = re.findall(rf"(?<![\w/.~-])(?:{FOLDERS})/[\w./*-]*[\w*]", text)
  assert not [path for path in paths if not list(ROOT.glob(path))]
  for file, word in re.findall(r"(tests/\S+\.py) -k (\w+)", text):
    assert re.search(f"def test_.*{word}", (ROOT / file).read_text("utf-8"))
