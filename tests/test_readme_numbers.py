"""Every measured number of the README is that of a committed row.

`CLAIMS` maps each phrase of the README to its numbers: most are computed from
the rows under docs/results by the report's own code. A few rows were not kept,
and are cells of a table of a page. Any other decimal number fails.
"""

from collections.abc import Callable, Sequence
import functools
import json
import pathlib
import re

import pytest

from benchmarks import drafters_figure
from speccascade import built_in
from speccascade.study.report import headline
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.measured import Measured
from speccascade.study.rows import results

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PICTURE = ("multi30k_2016_wide_avx512", "multi30k_2016_wide_greedy")


@functools.cache
def rows(*folders: str) -> list[results.ResultRow]:
  """Returns the committed rows of folders under docs/results."""
  return [
    row
    for folder in folders
    for row in results.read_rows(RESULTS / folder / "rows.jsonl.gz")
  ]


@functools.cache
def picture() -> headline.Headline:
  """Returns what the README's picture shows."""
  return headline.headline(rows(*PICTURE))


def interval(estimate: IntervalEstimate) -> list[str]:
  """Returns a value and its interval, as the README rounds them."""
  return hundredths([estimate.value, estimate.low, estimate.high])


def hundredths(numbers: Sequence[float]) -> list[str]:
  """Returns numbers as the README rounds them."""
  return [f"{x:.2f}" for x in numbers]


def gpu(**selected) -> dict:
  """Returns the one selected row of the H100."""
  (row,) = (
    row
    for line in (RESULTS / "h100/rows.jsonl").read_text("utf-8").splitlines()
    if selected.items() <= (row := json.loads(line)).items()
  )
  return row


def cell(page: str, section: str, row: str, column: str) -> list[float]:
  """Returns the numbers of a cell of a page's table, by its heads."""
  text = (ROOT / page).read_text("utf-8").partition(f"# {section}\n")[2]
  text = re.split(r"\n#+ ", text)[0]
  for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
    head, _, *lines = [
      [part.strip() for part in line.strip("|").split("|")]
      for line in table.splitlines()
    ]
    for line in lines:
      if line[0] == row and column in head:
        return [
          float(x) for x in re.findall(r"[\d.]+", line[head.index(column)])
        ]
  raise AssertionError((page, section, row, column))


def block_cost(folder: str, tokens: int) -> str:
  """Returns what a pass over some tokens costs in the rows' own costs."""
  costs = {
    row.costs.v[tokens]
    for row in rows(folder)
    if row.costs and tokens in row.costs.v
  }
  (cost,) = costs
  return f"{cost:.2f}"


def millions(parameters: int) -> str:
  """Returns a number of parameters as the README rounds it."""
  return f"{parameters / 1e6:.1f}M"


def two_cores(folder: str) -> list[str]:
  """Returns the large model's size and the machine's cores of a folder."""
  row = rows(folder)[0]
  return [
    millions(row.num_parameters["verifier"]),
    row.environment["device"].partition(", ")[2],
  ]


def cascade() -> list[str]:
  """Returns the method and the alpha of the picture's cascade."""
  point = picture().cascade
  return [point.method, f"{point.settings.alpha:g}"]


def megabytes() -> str:
  """Returns the size of the packaged pair."""
  files = built_in.FOLDER.rglob("*")
  size = sum(path.stat().st_size for path in files if path.is_file())
  return f"{size / 1e6:.0f}"


def installed(what: str) -> list[str]:
  """Returns the gigabytes of an install."""
  section = "The quick start, and what to do after it"
  row = f"`pip install -c constraints.txt -e {what}`"
  return [f"{x:g}" for x in cell("docs/quickstart.md", section, row, "on disk")]


def lookup(column: str) -> list[str]:
  """Returns the row of prompt lookup of a table that has no rows of its own."""
  section = "With an hour's drafter"
  cells = cell("docs/results.md", section, "prompt lookup, 5", column)
  return hundredths(cells)


def reader() -> list[str]:
  """Returns how many times as fast a state reader is, with its best block."""
  path = RESULTS / "smollm2/drafters.jsonl"
  lines = map(json.loads, path.read_text("utf-8").splitlines())
  (line,) = (
    line
    for line in drafters_figure.fastest([*lines])
    if (line["drafter"], line["texts"], line["temperature"])
    == ("state reader, 8192, int8, 11,000 steps", "GSM8K", 0)
  )
  assert line["method"] == "spec_decode"  # whose greedy answers are the same
  return hundredths(line["speedup"])


FIGURE = "Figure 2, T = 1, 1000 sentences of train, test_2016_flickr"
TRAINED = "The pair, trained on train, test_2016_flickr"
PASSES = "Passes of the pair"
VERIFIER = "pair's verifier"
GPU = {"table": FIGURE, "method": "spec_decode, chain of 3"}
GREEDY_ROW = (
  "| T5, {} | Multi30k 2016, greedy | {}, AVX-512 | `spec_decode` |"
  f" [{{}} ({{}} to {{}})](docs/results/{PICTURE[1]}/"
)
SAMPLED_ROW = (
  "| T5, {} | Multi30k 2016, T = 1 | {}, AVX-512 | `spec_decode` |"
  f" [{{}} ({{}} to {{}})](docs/results/{PICTURE[0]}/"
)
CASCADE_ROW = (
  "| T5, {} | Multi30k 2016, T = 1 | {}, AVX-512 | `{}` {} |"
  f" [{{}} ({{}} to {{}})](docs/results/{PICTURE[0]}/"
)
GPU_ROW = (
  "| T5, {}, bfloat16 | Multi30k 2016, T = 1 | one H100 | `spec_decode` |"
  " [{} ({} to {})](docs/results/h100/"
)
LOOKUP_ROW = (
  "| SmolLM2-135M | %s | 2 cores | prompt lookup |"
  " [{} ({} to {})](docs/results.md#with-an-hours-drafter)"
)
READER_ROW = (
  "| SmolLM2-135M | GSM8K, greedy | 2 cores | state reader, int8 |"
  " [{} ({} to {})](docs/results.md#every-kind-of-drafter)"
)
# A phrase of the README with a gap for each number, and the numbers.
CLAIMS: dict[str, Callable[[], Sequence[str]]] = {
  "need Python {} or newer": lambda: re.findall(
    'python_requires=">=(.*?)"', (ROOT / "setup.py").read_text("utf-8")
  ),
  "the Python API ({} GB, without TensorFlow), and `-e '.[lab]'` adds what the"
  " commands need ({} to {} GB)": lambda: [
    *installed("."),
    *installed("'.[lab]'"),
  ],
  "It is tiny ({} MB)": lambda: [megabytes()],
  "`{}`, alpha {} as in the picture": cascade,
  GREEDY_ROW: lambda: [
    *two_cores(PICTURE[1]),
    *interval(picture().greedy_lossless.speed),
  ],
  SAMPLED_ROW: lambda: [
    *two_cores(PICTURE[0]),
    *interval(picture().lossless.speed),
  ],
  CASCADE_ROW: lambda: [
    *two_cores(PICTURE[0]),
    *cascade(),
    *interval(picture().cascade.speed),
  ],
  GPU_ROW: lambda: [
    millions(gpu(table=TRAINED, model=VERIFIER)["parameters"]),
    *hundredths(gpu(**GPU)["speed_up_a_token"]),
  ],
  READER_ROW: reader,
  LOOKUP_ROW % "copying": lambda: lookup("copying"),
  "`{}` {} has {} BLEU, and the large model {}.": lambda: [
    *cascade(),
    f"{picture().cascade.quality.value:.1f}",
    f"{picture().panel.large.quality.value:.1f}",
  ],
  "a block of four costs {} tokens with the picture's large model, {} with the"
  " packaged one, and {} on the H100": lambda: [
    block_cost(PICTURE[0], 4),
    block_cost("trees_built_in", 4),
    *hundredths(
      gpu(table=PASSES, model=VERIFIER, tokens=4)["over_verifier_step"][:1]
    ),
  ],
  "T5-large writes tokens {} ({} to {}) times as fast": lambda: [
    f"{x:.0f}"
    for x in cell(
      "docs/benchmarks.md", "On a GPU", "times as fast", "T5-large, bfloat16"
    )
  ],
}
# How many times as fast a whole answer is, for each row of the README's table.
ANSWERS: dict[str, Callable[[], float]] = {
  GREEDY_ROW: lambda: by_answer(picture().greedy_lossless),
  SAMPLED_ROW: lambda: by_answer(picture().lossless),
  CASCADE_ROW: lambda: by_answer(picture().cascade),
  GPU_ROW: lambda: 1 / gpu(**GPU)["relative_latency"],
}


GREEDY = (READER_ROW, LOOKUP_ROW % "copying")


def by_answer(point: Measured) -> float:
  """Returns how many times as fast as the large model's its answers are."""
  (row,) = point.rows
  return 1 / row.latency.relative_latency


NUMBER = r"(?<![\w.-])-?\d+\.\d+\b(?!\.)|\d+ \(\d+ to \d+\)"


def prose(text: str) -> str:
  """Returns a page's text on one line, without code blocks."""
  return " ".join(re.sub("^```.*?^```", "", text, flags=re.S | re.M).split())


def unmapped(text: str) -> list[str]:
  """Returns the measured numbers of a text that no claim has."""
  for phrase, numbers in CLAIMS.items():
    text = text.replace(phrase.format(*numbers()), "")
  return re.findall(NUMBER, re.sub(r"\]\([^)]*\)", "]", text))


@pytest.mark.parametrize("phrase", CLAIMS)
def test_a_number_is_that_of_its_row(phrase):
  text = prose((ROOT / "README.md").read_text("utf-8"))
  assert phrase.format(*CLAIMS[phrase]()) in text


def test_every_number_of_the_readme_has_a_row():
  text = prose((ROOT / "README.md").read_text("utf-8"))
  assert unmapped(text) == []
  # A number without a row, or another one in the place of a row's, is found.
  assert unmapped(text + " It is 3.72 times as fast.") == ["3.72"]
  assert unmapped(text + " 33 (20 to 40) times") == ["33 (20 to 40)"]
  assert "1.72" in unmapped(text.replace("[1.71 (", "[1.72 ("))


@pytest.mark.parametrize("phrase", ANSWERS)
def test_a_speed_is_of_answers(phrase):
  """A longer answer takes longer, whatever a token takes."""
  low, high = map(float, CLAIMS[phrase]()[-2:])
  assert low <= ANSWERS[phrase]() <= high


def test_every_speed_of_the_readme_is_of_answers():
  text = (ROOT / "README.md").read_text("utf-8")
  table = text.partition("| times as fast |")[2].partition("\n\n")[0]
  # Besides there are the line of dashes, and greedy rows, whose answers are the
  # large model's own.
  assert table.count("\n| ") == len(ANSWERS) + len(GREEDY) + 1
  # The points of the picture write answers as long as the large model's.
  shown = picture()
  for point in (shown.greedy_lossless, shown.lossless, shown.cascade):
    assert 0.95 < point.relative_length.value < 1.05
    assert point.seconds_per_answer == point.rows[0].latency.walltime_s


def intervals(text: str) -> list[str]:
  """Returns the values with a 95% interval of a text, without plus signs."""
  text = " ".join(text.replace("+", "").split())
  return re.findall(r"-?[\d.]+ \[[-\d. ,a-z]*\d\]", text)


def test_every_interval_of_the_results_is_of_a_committed_table():
  tables = set()
  for path in RESULTS.rglob("*.md"):
    tables.update(intervals(path.read_text("utf-8")))
  found = intervals((ROOT / "docs/results.md").read_text("utf-8"))
  assert len(found) > 150
  assert [x for x in found if x not in tables] == []
