"""The tables under docs/results are what their rows give."""

import pathlib

import pytest

from speccascade.study.report import writing
from speccascade.study.rows import results

RESULTS = pathlib.Path(__file__).parents[3] / "docs" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/rows.jsonl.gz"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_tables_are_functions_of_the_committed_rows(folder):
  rows = results.read_rows(folder / "rows.jsonl.gz")
  texts = writing.texts(rows, writing.sections_of(rows))
  committed = {path.name for path in folder.glob("*.csv")} | {"report.md"}
  assert set(texts) == committed
  for name, text in texts.items():
    assert (folder / name).read_text(encoding="utf-8") == text


def test_there_are_results():
  assert FOLDERS
