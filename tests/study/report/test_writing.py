"""The report's files are functions of the rows."""

import csv
import dataclasses
import gzip
import json
import re

import pytest

from speccascade import report
from speccascade.runtime import files
from speccascade.study.report import shown_examples, writing
from speccascade.study.rows import results
from tests.generate import test_token_view
from tests.study.report import synthetic
from tests.study.report.synthetic import changed

NAMES = ["verifier", "spec_decode", "spec_decode_lossy", "spec_cascade_opt"]
ROWS = synthetic.rows(
  temperatures=(1.0,),
  gammas=(3, 5),
  seeds=(0, 1),
  methods=[*NAMES, "token_cascade_chow"],
)


def save(folder, rows):
  folder.mkdir(exist_ok=True)
  text = "".join(row.to_json() + "\n" for row in rows)
  (folder / "rows.jsonl").write_text(text, encoding="utf-8")
  return folder


def record(index, method="spec_decode") -> dict:
  settings = {"method": method, "alpha": None, "gamma": 5}
  traced = test_token_view.record()
  traced["aux"]["index"] = index
  settings["temperature"] = 1.0
  return {"settings": settings, "label": "A label", **traced}


def lines_of(path) -> list[dict]:
  with path.open() as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Results of one pair, and the report on them."""
  folder = save(tmp_path_factory.mktemp("sweep"), ROWS)
  lines = [json.dumps(record(index)) + "\n" for index in (1, 0)]
  (folder / "examples.jsonl").write_text("".join(lines), encoding="utf-8")
  assert report.main([f"--results_dir={folder}"]) == 0
  return folder


def test_the_printed_summary_names_the_settings(folder, tmp_path):
  sections = writing.sections_of(ROWS)
  lines = [line for section in sections for line in writing.summary(section)]
  assert lines
  for line in lines:
    assert re.match(r"(T = |greedy \(T = 0\))", line)
    assert "METHOD" not in line or "GAMMA = " in line
  # A decode has one point: its settings and its quality.
  [row] = [row for row in ROWS if row.settings.alpha is not None][:1]
  save(tmp_path, [row])
  said = []
  writing.from_folder(tmp_path, progress=False, say=said.append)
  [line] = said
  words = ", ".join(row.settings.words)
  assert line.startswith(f"{row.label} ({words}): ")
  assert all(name in line for name in ("alpha", "gamma", "temperature"))


def test_what_it_leaves(folder):
  files = {path.name: path for path in (folder / "report").iterdir()}
  figures = {
    f"{name}_gamma{gamma}.{kind}"
    for name in (
      "figure1",
      "figure2_measured",
      "figure2_modelled",
      "acceptance_by_position",
      "acceptance_histogram",
    )
    for gamma in (3, 5)
    for kind in ("png", "svg")
  }
  assert set(files) == figures | {
    "gamma.png",
    "gamma.svg",
    "index.html",
    "report.md",
    "rows.csv",
    "points.csv",
    "acceptance.csv",
    "losses.csv",
    "gamma.csv",
    "table2_measured.csv",
    "table2_modelled.csv",
    "differences_measured.csv",
    "differences_modelled.csv",
  }
  page = files["index.html"].read_text()
  assert "2 of the 2 traced texts of examples.jsonl" in page
  assert min(path.stat().st_size for path in files.values()) > 100
  linked = re.findall(r'href="([^"#:]+)"', page)
  assert {"../rows.jsonl", "../examples.jsonl", "rows.csv"} < set(linked)
  assert {"figure1_gamma3.svg", "table2_modelled.csv"} < set(linked)
  for name in linked:
    assert (folder / "report" / name).is_file(), name
  for line in files["report.md"].read_text().splitlines():
    if line.startswith("!["):
      assert line.split("(")[-1][:-1] in files


def test_the_same_rows_give_the_same_bytes(folder):
  args = [f"--results_dir={folder}", f"--output_dir={folder / 'again'}"]
  assert report.main(args) == 0
  for path in (folder / "report").iterdir():
    again = (folder / "again" / path.name).read_bytes()
    assert again == path.read_bytes(), path.name


HOSTILE = "a\x1b[2J\u202e\x9b[b](javascript:alert(1))<c>\x07`d|"


def test_names_of_a_pair_drive_no_terminal_and_are_not_links():
  """Escape sequences, marks of direction, links and markup in the rows."""
  rows = [
    dataclasses.replace(
      changed(row, drafter=HOSTILE, verifier=HOSTILE, task=HOSTILE),
      environment={"device": HOSTILE, "versions": {HOSTILE: HOSTILE}},
      label=HOSTILE,
    )
    for row in ROWS
  ]
  sections = writing.sections_of(rows)
  traced = test_token_view.record()
  traced["inputs"] = HOSTILE
  examples = shown_examples.ShownExamples([traced], HOSTILE)
  page = writing.page(sections, examples, ["javascript:alert(1)/rows.jsonl"])
  pages = {**writing.texts(rows, sections), "index.html": page}
  for name, text in pages.items():
    sent = re.findall(r"[^\n\t -~\u00a1-\uffff]|[\u2028-\u202e]", text)
    assert not sent, name
    assert r"\x1b[2J\u202e" in text or name.endswith(".csv")
  assert not re.search(r"\]\(javascript|<c>", pages["report.md"])
  assert not re.search('href="javascript:|<c>', page)


def test_the_kind_of_the_drafter_is_named():
  rows = [
    dataclasses.replace(row, drafter_kind="state reader" if i else "")
    for i, row in enumerate(ROWS)
  ]
  [section] = writing.sections_of(rows)
  small = rows[0].settings.drafter
  assert f"{small}, state reader:" in section.about
  assert "state reader" not in writing.sections_of(ROWS)[0].about
  for row in rows[:2]:
    assert results.ResultRow.from_json(row.to_json()) == row
  assert "drafter_kind" not in rows[0].to_json()


def test_given_costs_and_metric():
  rows = [
    changed(row, quality={**row.quality, "valid": row.quality["bleu"]})
    for row in synthetic.rows(temperatures=(1.0,))
  ]
  for settings, metric, ratio in (
    ({"metric": "valid", "cost_ratio": 0.05}, "valid %", 0.05),
    ({}, "BLEU", synthetic.COSTS.c),
  ):
    (section,) = writing.sections_of(rows, **settings)
    assert section.study.metric == metric
    assert section.clocks[1].cost_ratio == ratio
    assert f"c = {ratio:g}" in writing.markdown([section])


def test_rows_without_latency_or_costs(tmp_path):
  bare = [
    changed(row, latency=None, costs=None, predicted_speedup=None)
    for row in synthetic.rows(temperatures=(1.0,))
  ]
  folder = save(tmp_path / "bare", bare)
  writing.from_folder(folder, progress=False)
  text = (folder / "report" / "report.md").read_text()
  assert "Figure 1: quality against deferral rate" in text
  assert "Figure 2" not in text
  assert "\nNothing was timed. --cost_ratio=0.1, " in text
  text = writing.markdown(writing.sections_of(bare, cost_ratio=0.1))
  assert "Table 2, modelled" in text
  assert "Table 2, measured" not in text


def test_a_temperature_may_lack_a_gamma():
  one_point = {"methods": ["spec_decode"], "replicates": False}
  rows = synthetic.rows(temperatures=(0.0,), gammas=(3,), **one_point)
  rows += synthetic.rows(temperatures=(1.0,), gammas=(5,), **one_point)
  (section,) = writing.sections_of(rows)
  assert {len(plot.panels) for plot in section.plots} == {1}


def test_compressed_rows_of_two_pairs(tmp_path):
  """The same as the plain ones; each pair has files of its own."""
  rows = synthetic.rows(temperatures=(1.0,), methods=NAMES[:2])
  rows += [changed(row, drafter="tiny-7") for row in rows]
  folder = save(tmp_path / "packed", rows)
  plain = folder / results.FILE_NAME
  with gzip.open(f"{plain}.gz", "wb") as file:
    file.write(plain.read_bytes() + b'{"torn')
  plain.unlink()
  assert results.read_rows(files.find(folder / results.FILE_NAME)) == rows
  page = writing.from_folder(folder, progress=False)
  text = (folder / "report" / "report.md").read_text()
  assert text == writing.markdown(writing.sections_of(rows))
  names = {path.name for path in page.parent.iterdir()}
  for name in ("table2_measured.csv", "figure2_measured.svg"):
    assert {f"1_{name}", f"2_{name}"} <= names
  assert "tiny-7 with large-1000" in page.read_text()


def test_the_folder_of_a_decode(tmp_path):
  """One row in metrics.json, its traced records in predictions.jsonl."""
  (row,) = synthetic.rows(temperatures=(1.0,), methods=["spec_decode"])
  text = json.dumps(json.loads(row.to_json()), indent=2)
  (tmp_path / "metrics.json").write_text(text)
  line = json.dumps(test_token_view.record()) + "\n"
  (tmp_path / "predictions.jsonl").write_text(2 * line)
  page = writing.from_folder(tmp_path, progress=False).read_text()
  assert "2 of the 2 traced texts of predictions.jsonl" in page
  assert "spec_decode, gamma 5, T = 1" in page
  (line,) = lines_of(tmp_path / "report" / "rows.csv")
  assert float(line["bleu"]) == row.quality["bleu"]["value"]


def test_examples_by_source_as_many_as_a_page_bears(tmp_path, monkeypatch):
  path = tmp_path / "examples.jsonl"
  bare = record(2)
  del bare["aux"]["trace"]
  records = [record(1), record(0), record(1, "bild"), record(0, "bild"), bare]
  lines = [json.dumps(each) + "\n" for each in records]
  path.write_text("".join(lines) + '{"torn', encoding="utf-8")
  examples = shown_examples.read(path)
  assert [each["aux"]["index"] for each in examples.records] == [0, 0, 1, 1]
  titles = ["spec_decode, gamma 5, T = 1", "bild, gamma 5, T = 1"]
  assert [*map(shown_examples.title, examples.records[:2])] == titles
  monkeypatch.setattr(shown_examples, "MOST_TOKENS", 24)
  examples = shown_examples.read(path)
  assert len(examples.records) == 3
  assert examples.note.startswith("3 of the 4 traced texts")
  assert shown_examples.read(None) == shown_examples.ShownExamples()
