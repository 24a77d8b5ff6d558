"""Tables are functions of their lines: text, CSV and HTML."""

import csv
import dataclasses
import html
import io
import math
import re

import pytest

from speccascade.generate.batches import decode_counts
from speccascade.study.report import groups, markdown, point_tables, tables
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.tables import Column
from tests.study.report import synthetic
from tests.tools.examples.test_quickstart import rows

NUMBER = Column("x", lambda line: line, 2, {0.0: "never"}, has_interval=True)


def test_markdown_and_csv():
  lines = tables.markdown(rows()).splitlines()
  assert len(lines) == 2 + 6
  assert len({len(line) for line in lines}) == 1
  cells = [cell.strip() for cell in lines[4].split("|")[1:-1]]
  assert cells == [
    "spec_decode",
    "0",
    "78.0",
    "30.0",
    "0.857",
    "0.625",
    "0.0100",
    "1.60 [1.38, 1.90]",
    "1.90",
  ]  # a column that nothing fills is left out
  lines = list(csv.DictReader(io.StringIO(tables.to_csv(rows()))))
  assert len(lines) == 6
  assert (lines[3]["BLEU"], lines[3]["alpha"]) == ("53.0", "")
  assert lines[0]["speed-up"] == "4.0"


def test_acceptance_by_position_is_one_cell():
  [row] = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  assert "| .65 .65 .65 .65 .65 |" in tables.markdown([row])
  bare = synthetic.changed(row, efficiency={"acceptance_rate": 0.5})
  assert "by position" not in tables.markdown([bare])
  assert tables.format_positions([None, 0.0, None]) == "- .00"
  assert tables.format_positions([None]) is None


@pytest.mark.parametrize(
  ("value", "text", "cells"),
  [
    (IntervalEstimate(1.234, 1.0, 1.5), "1.23 [1.00, 1.50]", "1.234,1.0,1.5"),
    (
      IntervalEstimate(1.234, 0.0, 1.5),
      "1.23 [never, 1.50]",
      "1.234,never,1.5",
    ),
    (IntervalEstimate(0.0, 0.0, 1.5), "never [never, 1.50]", "never,never,1.5"),
    (IntervalEstimate(-math.inf, -math.inf, 2.0), "- [-, 2.00]", ",,2.0"),
    (IntervalEstimate(1.234), "1.23", "1.234,,"),
    (IntervalEstimate(1.0, 1.0, 1.0), "1.00", "1.0,1.0,1.0"),
    (IntervalEstimate(0.0), "never", "never,,"),
    (IntervalEstimate(math.nan), "-", ",,"),
    (None, "-", ",,"),
  ],
)
def test_estimates_are_printed_with_their_intervals(value, text, cells):
  assert NUMBER.text(value) == text
  assert tables.to_csv([value], [NUMBER]) == f"x,x low,x high\n{cells}\n"


def test_any_text_stays_text():
  """Markup, line breaks, control characters and formulas in a label."""
  columns = [tables.Column("label", "label"), tables.Column("x", "x", 1)]
  label = "a|b\n<script>\x1b[2J\u202e [OPT] 1 < 2"
  lines = [{"label": label, "x": -1.5}, {"label": "=1+2", "x": 2.0}]
  cell = r"a\|b\n&lt;script>\x1b[2J\u202e [OPT] 1 < 2"
  table = tables.markdown(lines, columns).splitlines()
  assert len(table) == 4
  assert table[2].startswith(f"| {cell} | ")
  plain = cell.replace(r"\|", "|").replace("&lt;", "<")
  assert tables.to_csv(lines, columns).splitlines() == [
    "label,x",
    f"{plain},-1.5",
    "'=1+2,2.0",
  ]
  # The address of a link, however it is written, is text.
  for text in ("[a](b)", "![a](b)", "[a][b]", "[b]: c", r"[a\](b)"):
    shown = markdown.markdown_text(text)
    assert not re.search(r"\][(:\[]", shown)
    assert html.unescape(shown) == text
  # Labels as they are.
  for text in ("SpecCascade [OPT]", "Lossy*", "-", "-inf", "é", "2 [1, 3]"):
    assert markdown.markdown_text(text) == text


def test_html_is_escaped():
  columns = (Column("a < b", lambda line: f"<{line}>"),)
  text = tables.to_html(["x"], columns)
  for part in ("<table", '"col">a &lt; b</th>', '"row">&lt;x&gt;</th>'):
    assert part in text
  assert "<x>" not in text


def test_points_say_how_likely_the_verifier_found_them():
  """Where rows know it."""
  for probs, texts in (({"p1": -1.5}, {"-1.500"}), (None, set())):
    rows = [synthetic.changed(x, log_probs=probs) for x in synthetic.rows()]
    [study] = groups.studies(rows)
    table = point_tables.points(study, None)
    columns = [column for column in table.columns if "log p" in column.title]
    assert {x.text(line) for x in columns for line in table.lines} == texts


def test_trees_have_a_table_of_ranks():
  chain = synthetic.rows(methods=["spec_decode"], gammas=(2,))[0]
  counts = dataclasses.replace(
    chain.counts,
    examined_by_position=(10, 5),
    accepted_by_rank=((4, 1, 0), (0, 2, 0)),
    accepted_by_position=(5, 2),
    optimal_acceptance=8.0,
  )
  tree = synthetic.changed(
    chain,
    counts=counts,
    efficiency=decode_counts.summary(counts),
    tree=(2, 1),
    drawing="iid",
  )
  [study] = groups.studies([chain, tree])
  table = point_tables.ranks(study)
  # The chain has no line.
  lines = list(
    csv.DictReader(io.StringIO(tables.to_csv(table.lines, table.columns)))
  )
  assert [line["depth"] for line in lines] == ["1", "2"]
  assert [line["tree"] for line in lines] == ["(2, 1)"] * 2
  assert [line["rank 1"] for line in lines] == ["0.4", "0.0"]
  assert [line["rank 2"] for line in lines] == ["0.1", "0.4"]
  assert "rank 3" not in lines[0]
  assert [line["share of the optimum"] for line in lines] == ["0.625", ""]
  cells = tables.to_csv([tree], tables.row_columns([tree]))
  assert "4 1 0; 0 2 0" in cells
  assert "0.4 0.1; 0.0 0.4" in cells


def test_a_line_is_written_as_soon_as_its_cells_are_known():
  """The costs of a slice take a minute, so none waits for the next."""
  written = []

  def rows():
    yield ["a", "1"]
    assert written == ["| x | n |", "| --- | ---: |", "| a | 1 |"]
    yield [markdown.cell_text("b|c"), "20"]

  for line in markdown.table_lines(["x", "n"], rows(), "lr"):
    written.append(line)
  assert written[-1] == r"| b\|c | 20 |"


def test_a_row_of_another_length_is_refused():
  with pytest.raises(ValueError, match="zip"):
    markdown.table(["x", "n"], [["a"]])
