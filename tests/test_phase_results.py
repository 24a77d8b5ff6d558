"""The tables of phases on SmolLM2's page are those of its rows."""

import dataclasses
import pathlib

import pytest

from benchmarks import phases
from speccascade.study.rows import results

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "results" / "smollm2"


@pytest.fixture(scope="module")
def rows():
  return results.read_rows(FOLDER / "phases.jsonl.gz")


def test_the_page_has_the_tables_of_the_rows(rows):
  page = (FOLDER / "tables.md").read_text(encoding="utf-8")
  for temperature in {row.settings.temperature for row in rows}:
    assert phases.table(rows, temperature) in page


def test_seeds_are_one_line_and_every_place_is_told_from_the_others(rows):
  (temperature, *_) = sorted({row.settings.temperature for row in rows})
  mine = [row for row in rows if row.settings.temperature == temperature]
  once = phases.lines(mine, temperature)
  assert {line.place for line in once} == {*phases.PLACES}
  again = [
    dataclasses.replace(row, settings=dataclasses.replace(row.settings, seed=1))
    for row in mine
  ]
  twice = phases.lines(mine + again, temperature)
  assert [line.name for line in twice] == [line.name for line in once]
  for one, two in zip(once, twice):
    assert two.counts.num_tokens == 2 * one.counts.num_tokens
    assert two.passes == one.passes
    assert two.quality == pytest.approx(one.quality)
    for name in ("value", "low", "high"):
      assert two.relative_length[name] == one.relative_length[name]


def test_a_figure_is_drawn(rows, tmp_path):
  phases.draw(rows, tmp_path / "phases.png")
  assert (tmp_path / "phases.png").stat().st_size > 10_000
