"""Rows to tables, in Markdown, CSV and HTML; no model code."""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import html
import io
import math

from speccascade.inference.results import ResultRow
from speccascade.report.frontier import Estimate

NOTHING = "-"


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table.

  Attributes:
    title: as printed.
    value: of a row; None where it has none. An `Estimate` is printed with its
      interval behind it.
    digits: behind the point; None prints the value as it is.
    special: texts of values that are no plain number, as {0.0: "never"}; NaN
      and infinities that are not in it are printed as `NOTHING`.
    has_interval: whether values are estimates: a CSV has columns for the ends.
  """

  title: str
  value: Callable[[object], object]
  digits: int | None = None
  special: dict[float, str] = dataclasses.field(default_factory=dict)
  has_interval: bool = False

  def text(self, row) -> str:
    """Returns the cell."""
    value = self.value(row)
    if not isinstance(value, Estimate):
      return self._one(value)
    text = self._one(value.value)
    if value.has_interval and math.isfinite(value.value):
      text += f" [{self._one(value.low)}, {self._one(value.high)}]"
    return text

  def _one(self, value) -> str:
    if value is None:
      return NOTHING
    if isinstance(value, float):
      if value in self.special:
        return self.special[value]
      if not math.isfinite(value):
        return NOTHING
    return str(value) if self.digits is None else f"{value:.{self.digits}f}"


def score(name: str) -> Callable[[ResultRow], float | None]:
  """Returns the value of a quality metric, where a row has it."""
  return lambda row: row.quality.get(name, {}).get("value")


def number(name: str) -> Callable[[ResultRow], float | None]:
  """Returns a number of `efficiency.summary`."""
  return lambda row: row.efficiency.get(name)


TRADE_OFF = (
  Column("method", lambda row: row.settings.method),
  Column("T", lambda row: f"{row.settings.temperature:g}"),
  Column("alpha", lambda row: row.settings.alpha),
  Column("BLEU", score("bleu"), 1),
  Column("valid %", score("valid"), 1),
  Column("acceptance", number("acceptance_rate"), 3),
  Column("tokens/block", number("mean_acceptance_length"), 2),
  Column("deferral", number("deferral_rate"), 3),
  Column(
    "relative latency",
    lambda row: row.latency and row.latency.relative_latency,
    3,
  ),
  Column("speed-up", lambda row: row.measured_speedup, 2),
  Column("predicted", lambda row: row.predicted_speedup, 2),
)


def markdown(rows: Sequence, columns=TRADE_OFF) -> str:
  """Returns a Markdown table, its columns aligned for a terminal."""
  cells = [[column.title for column in columns]]
  cells += [[column.text(row) for column in columns] for row in rows]
  widths = [max(map(len, column)) for column in zip(*cells)]
  numeric = [column.digits is not None for column in columns]

  def line(texts):
    padded = (
      text.rjust(width) if is_number else text.ljust(width)
      for text, width, is_number in zip(texts, widths, numeric)
    )
    return "| " + " | ".join(padded) + " |"

  rule = (
    "-" * (width - 1) + (":" if is_number else "-")
    for width, is_number in zip(widths, numeric)
  )
  lines = [line(cells[0]), "| " + " | ".join(rule) + " |"]
  lines += [line(texts) for texts in cells[1:]]
  return "\n".join(lines) + "\n"


def to_csv(rows: Sequence, columns=TRADE_OFF) -> str:
  """Returns the table as CSV, numbers unrounded, empty where there is none."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  titles = []
  for column in columns:
    ends = ("", " low", " high") if column.has_interval else ("",)
    titles += [column.title + end for end in ends]
  writer.writerow(titles)
  for row in rows:
    writer.writerow(
      "" if value is None else value
      for column in columns
      for value in _csv_values(column, row)
    )
  return file.getvalue()


def _csv_values(column: Column, row) -> list:
  value = column.value(row)
  if not column.has_interval:
    return [value]
  if not isinstance(value, Estimate):
    value = Estimate(value)
  return [
    None if isinstance(one, float) and math.isnan(one) else one for one in value
  ]


def to_html(rows: Sequence, columns=TRADE_OFF) -> str:
  """Returns a table element; the first column heads its rows."""

  def cell(column, text, tag):
    numeric = ' class="number"' if column.digits is not None else ""
    scope = {"th": ' scope="row"', "td": ""}[tag]
    return f"<{tag}{scope}{numeric}>{html.escape(text)}</{tag}>"

  head = "".join(
    f'<th scope="col">{html.escape(column.title)}</th>' for column in columns
  )
  lines = []
  for row in rows:
    cells = (
      cell(column, column.text(row), "td" if number else "th")
      for number, column in enumerate(columns)
    )
    lines.append(f"<tr>{''.join(cells)}</tr>")
  body = "\n".join(lines)
  return (
    f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
    "</table>"
  )
