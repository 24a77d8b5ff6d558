"""The README is short, and pages name what is there and say what runs."""

import ast
import collections
import inspect
import pathlib
import re

import numpy as np
import pytest

from benchmarks import distillation
from speccascade.decoding.laws import learned
from speccascade.decoding.programs.methods import METHODS
from speccascade.decoding.records import draft_tree
from speccascade.decoding.verification import tree_steps
from speccascade.exchange import FORMATS
from speccascade.study.report import figures, methods_page
from speccascade.tasks import quality
from speccascade.tools.examples import quickstart
from tests.decoding.laws import test_add_a_rule
from tests.decoding.verification import test_tree_steps

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md"]
FOLDERS = "benchmarks|configs|docs|launch|notebooks|speccascade|tests"


def test_the_readme_is_read_in_minutes():
  text = README.read_text(encoding="utf-8")
  assert len(text.splitlines()) <= 90
  # Who is new sees the picture, the commands and Python before all else.
  places = [text.index(x) for x in ("![", "launch/quickstart.sh", "import ")]
  assert places == sorted(places)
  # It names ten pages, and the index, which names all pages.
  assert "](docs/index.md)" in text
  assert len(set(re.findall(r"\]\(docs/(\w+\.md)", text))) <= 11
  index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
  pages = {path.name for path in PAGES[1:]} - {"index.md"}
  assert set(re.findall(r"\]\((\w+\.md)\)", index)) == pages


def test_the_page_of_methods_is_the_code():
  page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
  assert page == methods_page.page(), (
    "python -m speccascade.report.methods_page > docs/methods.md"
  )
  # Every rule has its section, its range of alpha and its source.
  for name, target in methods_page.known_targets().items():
    section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    assert "- Kind: " in section
    assert target.is_lossless or "- alpha: " in section
    # (The divergences of BiLD* and the plainest mixture name it in the text.)
    assert "Source: " in section or name.startswith("bild")


def test_the_worked_numbers_are_those_of_the_docstrings():
  rows = [
    methods_page.example_row(x) for x in methods_page.known_targets().values()
  ]
  by_name = {row[0].strip("`"): row for row in rows}
  assert by_name["lossy"][3] == ".333 .356 .233 .078"
  assert by_name["token_v3"][2:4] == ["keeps 2 3", ".110 .520 .315 .055"]
  assert by_name["chow"][2:5] == ["defers", ".200 .400 .300 .100", "0.70"]
  for _, _, _, pi, accepted, most in rows:
    pi = np.array([float(x) for x in pi.split()])
    assert abs(pi.sum() - 1) < 2e-3
    assert float(accepted) == pytest.approx(
      np.minimum(methods_page.Q, pi).sum(), abs=6e-3
    )
    assert float(most) == pytest.approx((pi / methods_page.P).max(), abs=6e-3)


def test_the_example_is_the_one_that_runs():
  function = test_add_a_rule.surer_by_factor.function
  page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
  assert inspect.getsource(function).strip() in page


WORDS = (
  *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight"),
  *("nine", "ten", "eleven", "twelve"),
)


def words_of(page: str) -> str:
  """Returns a page's text on one line."""
  return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def listed(config: str, macro: str) -> list:
  """Returns the list that a gin file binds to a macro."""
  text = (ROOT / config).read_text(encoding="utf-8")
  return ast.literal_eval(
    re.search(rf"^{macro} = (\[.*?\n\])", text, re.M | re.S)[1]
  )


def counts() -> list[tuple[str, str, tuple[int, ...]]]:
  """Returns (page, a phrase with a gap for each number, the numbers)."""
  grids = {len(row.alpha_interval.grid or ()) for row in METHODS.values()} - {0}
  lossy = listed("configs/runs/lossy_rules.gin", "METHODS")
  baselines = listed("configs/runs/lossy_rules.gin", "BASELINES")
  samplings = [x for x in baselines if "method" not in x]
  table = listed("configs/quickstart/table.gin", "METHODS")
  (findings,) = (
    node.value.elts
    for node in ast.walk(ast.parse(inspect.getsource(quickstart.findings)))
    if isinstance(node, ast.Return)
  )
  command = words_of("docs/distillation.md").partition("--only")[2]
  taught = re.findall('"[^"]+ on [^"]+"', command.partition("```")[0])
  layouts = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
  layouts = layouts.partition("\n## What is read\n")[2].partition("\n- ")[0]
  searches = {
    path.name
    for path in (ROOT / "speccascade").glob("*.py")
    if re.search(
      "from speccascade.study.search.*skeleton=",
      path.read_text(encoding="utf-8"),
      re.DOTALL,
    )
  }
  dozen = {12: "dozen"}.get(len(table), str(len(table)))
  return [
    ("README.md", "decode by a {} methods", [dozen]),
    ("docs/methods.md", "Of the {} methods", [len(METHODS)]),
    ("docs/quickstart.md", "decode by a {} methods", [dozen]),
    ("docs/quickstart.md", "the test split by a {} methods", [dozen]),
    ("docs/quickstart.md", "against speed of a {} methods", [dozen]),
    (
      "docs/quickstart.md",
      "with a table and {} lines",
      [WORDS[len(findings)]],
    ),
    ("docs/lossy_rules.md", ": {} lossy methods", [len(lossy) - 1]),
    ("docs/lossy_rules.md", "at {} other samplings", [len(samplings)]),
    (
      "docs/distillation.md",
      "was taught in {} ways",
      [WORDS[len(taught)]],
    ),
    (
      "docs/distillation.md",
      "it trains {} drafters",
      [len(distillation.drafters())],
    ),
    (
      "docs/checkpoints.md",
      "reads {} layouts",
      [WORDS[layouts.count("\n| ") - 2]],
    ),
    (
      "docs/comparison.md",
      "trees of {} drawings",
      [WORDS[len(draft_tree.DRAWINGS)]],
    ),
    (
      "docs/trees.md",
      "All {} are exact for every target",
      [WORDS[len(tree_steps.TREE_VERIFY)]],
    ),
    (
      "docs/trees.md",
      "all {} of `spec_decode`",
      [WORDS[len(test_tree_steps.WAYS)]],
    ),
    ("docs/formats.md", "The first {} formats", [WORDS[len(FORMATS) - 3]]),
    (
      "docs/learned_rule.md",
      "all {} kinds are fitted",
      [WORDS[len(learned.KINDS)]],
    ),
    (
      "docs/learned_rule.md",
      "on {} features",
      [WORDS[len(learned.FEATURES)]],
    ),
    ("docs/methods.md", "on {} features", [WORDS[len(learned.FEATURES)]]),
    ("docs/methods.md", "of {} features", [WORDS[len(learned.FEATURES)]]),
    (
      "docs/sweeps.md",
      "has {} to {} alphas a method",
      [WORDS[min(grids)], WORDS[max(grids)]],
    ),
    ("docs/reports.md", "more than {} methods, the", [figures.MAX_LABELS]),
    ("docs/reports.md", "more than {} methods: all", [figures.MAX_LABELS]),
    (
      "docs/your_own_text.md",
      "has {} methods at their default",
      [WORDS[len(listed("configs/own_text/sweep.gin", "METHODS"))]],
    ),
    (
      "docs/architecture.md",
      "the {} searches over points",
      [WORDS[len(searches)]],
    ),
  ]


def test_what_is_counted_is_the_code():
  # Numbers that stand in prose, and what they count.
  for page, phrase, numbers in counts():
    assert phrase.format(*numbers) in words_of(page), page


def test_the_methods_that_are_lossless_when_greedy_are_named():
  named = words_of("docs/sweeps.md").partition(" write the verifier's tokens")[
    0
  ]
  named = named.rpartition("At temperature 0 ")[2]
  assert set(re.findall(r"`(\w+)`", named)) == {
    name
    for name, row in METHODS.items()
    if row.target is not None and row.target.is_lossless_when_greedy
    if not row.is_lossless
  }


def test_every_count_of_methods_is_one_of_these():
  # A number of methods or of rules is compared with the code above, or is of
  # one run that its page describes.
  runs = {
    ("docs/distillation.md", "three methods"),
    ("docs/reports.md", "two methods"),
    ("docs/results.md", "two methods"),
  }
  number = rf"(?:[0-9]+|{'|'.join(WORDS[2:])}|dozen)"
  counted = rf"(?<![\w.,-]){number} (?:[a-z]+ )?(?:methods|rules)\b"
  known = collections.defaultdict(str)
  for page, phrase, numbers in counts():
    known[page] += phrase.format(*numbers) + "\n"
  for path in PAGES:
    page = path.relative_to(ROOT).as_posix()
    for phrase in re.findall(counted, words_of(page)):
      assert phrase in known[page] or (page, phrase) in runs, (page, phrase)


def test_every_metric_is_listed():
  section = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
  section = section.partition("\n## Metrics\n")[2].partition("\n## ")[0]
  cells = re.findall(r"^\| (`[^|]*`) \|", section, re.M)
  assert re.findall(r"`(\w+)`", " ".join(cells)) == [*quality.METRICS]


def test_lists_have_as_many_entries_as_is_said():
  for page, phrase, entry in (
    ("CONTRIBUTING.md", "A new rule\nis {} edits", r"^\d\. "),
    ("docs/architecture.md", "takes {} edits:", r"^\d\. "),
    ("docs/methods.md", "{} options belong", r"^- "),
    ("docs/judge.md", "one of {} kinds", r"^\| `\w+` \| "),
  ):
    text = (ROOT / page).read_text(encoding="utf-8")
    _before, number, after = re.split(phrase.format(r"(\w+)"), text, maxsplit=1)
    entries = re.search(rf"(?:{entry}.*\n(?:[ \n].*\n?)*)+", after, re.M)[0]
    num = len(re.findall(entry, entries, re.M))
    assert WORDS[num] == number.lower(), page


def anchors(page: pathlib.Path) -> set[str]:
  """Returns what links may name of a page: its headings, as GitHub has them."""
  text = re.sub("^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
  headings = re.findall("^#+ (.*)$", text.lower(), re.M)
  names = {re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in headings}
  return names | set(re.findall(r'^<a id="([\w-]+)"></a>$', text, re.M))


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


def test_docstrings_name_modules_and_functions_of_their_package():
  package = ROOT / "speccascade"
  packages = collections.defaultdict(dict)
  for path in sorted(package.rglob("*.py")):
    name = path.relative_to(package).parts[0]
    packages[name][path] = path.read_text(encoding="utf-8")
  wrong = []
  for texts in packages.values():
    whole = "\n".join(texts.values())
    modules = {part for path in texts for part in (path.stem, path.parent.name)}
    for path, text in texts.items():
      for name in re.findall(r"\b[Ss]ee\s+`([a-z_]+)`", text):
        is_defined = rf"^\s*(?:(?:def|class) )?{name}\s*(?:[:=(,]|$)"
        is_known = name in modules or re.search(is_defined, whole, re.M)
        if not is_known and not re.search(rf"import .*\b{name}\b", text):
          wrong.append((path.name, name))
  assert not wrong


def test_the_map_has_each_thing_to_change_once():
  text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
  things = re.findall(r"^- \*\*(.*?)\*\*", text, re.M)
  assert len(things) > 20
  assert len(things) == len(set(things))


def test_the_map_names_what_is_there():
  text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
  package = ROOT / "speccascade"
  named = re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)(?::\s+(\w+))?`", text)
  assert len(named) > 100
  for path, name in named:
    if path.endswith("/NAME.py"):
      continue
    # A module without its folder is a neighbour of the module before it.
    places = [package / path] if "/" in path else [*package.rglob(path)]
    assert any(place.exists() for place in places), path
    if name:
      is_defined = rf"^\s*(?:(?:class|def) )?{name}\b"
      texts = [place.read_text(encoding="utf-8") for place in places]
      assert any(re.search(is_defined, x, re.M) for x in texts), (path, name)


def test_the_map_has_every_folder():
  text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
  folders = {x.parent.name for x in ROOT.glob("speccascade/*/__init__.py")}
  folders |= {
    f"decoding/{x.parent.name}"
    for x in ROOT.glob("speccascade/decoding/*/__init__.py")
  }
  listed = re.findall(r"^- `([\w/]+)/`: ", text, re.M)
  assert set(listed) | {"decoding"} == folders
  assert len(listed) == len(set(listed))


def test_rows_of_tables_have_the_cells_of_their_header():
  wrong = []
  for path in PAGES:
    num = 0
    for line in path.read_text(encoding="utf-8").splitlines():
      cells = len(re.findall(r"(?<!\\)\|", line)) * line.startswith("|")
      num = (num or cells) if cells else 0
      if cells != num:
        wrong.append((path.name, line[:60]))
  assert not wrong
