"""The README is short, and pages name what is there and say what runs."""

import inspect
import pathlib
import re

import numpy as np
import pytest

from speccascade.decoding.programs import formulas
from tests.decoding.laws import test_add_a_rule

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md"]
FOLDERS = "benchmarks|configs|docs|launch|notebooks|speccascade|tests"


def test_the_readme_is_read_in_minutes():
  text = README.read_text(encoding="utf-8")
  assert len(text.splitlines()) <= 150
  # Who is new sees the picture, the commands and Python before all else.
  places = [text.index(x) for x in ("![", "launch/quickstart.sh", "import ")]
  assert places == sorted(places)
  linked = set(re.findall(r"\]\((docs/\w+\.md)", text))
  pages = {path.relative_to(ROOT).as_posix() for path in PAGES[1:]}
  assert linked == pages


def test_the_page_of_methods_is_the_code():
  page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
  assert page == formulas.page(), (
    "python -m speccascade.decoding.programs.formulas > docs/methods.md"
  )
  # Every rule has its section, its range of alpha and its source.
  for name, target in formulas.known_targets().items():
    section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    assert "- Kind: " in section
    assert target.is_lossless or "- alpha: " in section
    # (The divergences of BiLD* and the plainest mixture name it in the text.)
    assert "Source: " in section or name.startswith("bild")


def test_the_worked_numbers_are_those_of_the_docstrings():
  rows = [formulas.example_row(x) for x in formulas.known_targets().values()]
  by_name = {row[0].strip("`"): row for row in rows}
  assert by_name["lossy"][3] == ".333 .356 .233 .078"
  assert by_name["token_v3"][2:4] == ["keeps 2 3", ".110 .520 .315 .055"]
  assert by_name["chow"][2:5] == ["defers", ".200 .400 .300 .100", "0.70"]
  for _, _, _, pi, accepted, most in rows:
    pi = np.array([float(x) for x in pi.split()])
    assert abs(pi.sum() - 1) < 2e-3
    assert float(accepted) == pytest.approx(
      np.minimum(formulas.Q, pi).sum(), abs=6e-3
    )
    assert float(most) == pytest.approx((pi / formulas.P).max(), abs=6e-3)


def test_the_example_is_the_one_that_runs():
  function = test_add_a_rule.surer_by_factor.function
  page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
  assert inspect.getsource(function).strip() in page


def anchors(page: pathlib.Path) -> set[str]:
  """Returns what links may name of a page: its headings, as GitHub has them."""
  text = re.sub("^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
  headings = re.findall("^#+ (.*)$", text.lower(), re.M)
  return {re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_what_is_named_is_there(page):
  text = page.read_text(encoding="utf-8")
  link = r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)"
  for path, anchor in re.findall(link, text):
    linked = page.parent / path if path else page
    assert linked.exists(), path
    assert not anchor or anchor in anchors(linked), anchor
  paths = re.findall(rf"(?<![\w/.~-])(?:{FOLDERS})/[\w./*-]*[\w*]", text)
  paths = [path.replace("NAME", "*") for path in paths]
  assert not [path for path in paths if not list(ROOT.glob(path))]
  for file, word in re.findall(r"(tests/\S+\.py) -k (\w+)", text):
    assert re.search(f"def test_.*{word}", (ROOT / file).read_text("utf-8"))
