"""Tables in Markdown, CSV and HTML: columns, and the lines that fill them."""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import html
import io
import math

from speccascade.report.frontier import IntervalEstimate

NOTHING = "-"


def lookup(line, *names: str):
  """Returns an attribute, or value of a dict, of an attribute and so on.

  None where one of them is missing from a dict, or None.

  >>> lookup({"bleu": {"value": 30.0}}, "bleu", "value")
  30.0
  >>> lookup({"bleu": None}, "bleu", "value"), lookup({}, "bleu")
  (None, None)
  """
  for name in names:
    if isinstance(line, dict):
      line = line.get(name)
    elif line is not None:
      line = getattr(line, name)
  return line


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table.

  Attributes:
    title: as printed.
    value: of a line, or the names that lead to it with dots between, as in
      "latency.walltime_s", see `lookup`; None where a line has none. An
      `IntervalEstimate` is printed with its interval after it.
    digits: after the point; None prints the value as it is.
    special: texts of values that are no plain number, as {0.0: "never"}; NaN
      and infinities that are not in it are printed as `NOTHING`.
    has_interval: whether values are estimates: a CSV has columns for the ends.
  """

  title: str
  value: Callable[[object], object] | str
  digits: int | None = None
  special: dict[float, str] = dataclasses.field(default_factory=dict)
  has_interval: bool = False

  def of(self, line):
    """Returns the value of a line."""
    if callable(self.value):
      return self.value(line)
    return lookup(line, *self.value.split("."))

  def text(self, line) -> str:
    """Returns the cell."""
    value = self.of(line)
    if not isinstance(value, IntervalEstimate):
      return self._number(value)
    text = self._number(value.value)
    if value.has_interval and math.isfinite(value.value):
      text += f" [{self._number(value.low)}, {self._number(value.high)}]"
    return text

  def _number(self, value) -> str:
    if value is None:
      return NOTHING
    if isinstance(value, float):
      if value in self.special:
        return self.special[value]
      if not math.isfinite(value):
        return NOTHING
    return str(value) if self.digits is None else f"{value:.{self.digits}f}"

  def csv_cells(self, line) -> list:
    """Returns the value, unrounded, and the ends where there are intervals."""
    value = self.of(line)
    if not self.has_interval:
      cells = [_joined(value)]
    elif isinstance(value, IntervalEstimate):
      cells = value
    else:
      cells = [value, None, None]
    return ["" if _is_missing(cell) else cell for cell in cells]


def _joined(value):
  """Returns a cell: lists are written with blanks between."""
  if not isinstance(value, (list, tuple)):
    return value
  return " ".join("" if item is None else str(item) for item in value)


def _is_missing(value) -> bool:
  return value is None or (isinstance(value, float) and math.isnan(value))


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the report.

  Attributes:
    name: of its CSV file, without ending.
    title: heading.
    note: a sentence or two on how to read it.
    columns: in order.
    lines: what the columns take their values from.
  """

  name: str
  title: str
  note: str
  columns: Sequence[Column]
  lines: Sequence


def number(name: str) -> Callable[[object], float | None]:
  """Returns a number of `efficiency.summary`, of a row or a point."""
  return lambda row: row.efficiency.get(name)


TRADE_OFF = (
  Column("method", "settings.method"),
  Column("T", lambda row: f"{row.settings.temperature:g}"),
  Column("alpha", "settings.alpha"),
  Column("BLEU", "quality.bleu.value", 1),
  Column("valid %", "quality.valid.value", 1),
  Column("acceptance", "efficiency.acceptance_rate", 3),
  Column("tokens/block", "efficiency.mean_acceptance_length", 2),
  Column("deferral", "efficiency.deferral_rate", 3),
  Column("relative latency", "latency.relative_latency", 3),
  Column("speed-up", "measured_speedup", 2),
  Column("predicted", "predicted_speedup", 2),
)


def markdown(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a Markdown table, its columns aligned for a terminal."""
  table = []
  for column in columns:
    cells = [column.title, *map(column.text, lines)]
    width, is_number = max(map(len, cells)), column.digits is not None
    pad = str.rjust if is_number else str.ljust
    cells.insert(1, "-" * (width - 1) + (":" if is_number else "-"))
    table.append([pad(cell, width) for cell in cells])
  return "".join(f"| {' | '.join(row)} |\n" for row in zip(*table))


def to_csv(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns the table as CSV, numbers unrounded, empty where there is none."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  ends = ("", " low", " high")
  writer.writerow(
    c.title + end for c in columns for end in ends[: 3 if c.has_interval else 1]
  )
  for line in lines:
    writer.writerow(x for column in columns for x in column.csv_cells(line))
  return file.getvalue()


def to_html(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a table element; the first column heads its rows."""
  head = "".join(
    f'<th scope="col">{html.escape(column.title)}</th>' for column in columns
  )
  body = ""
  for line in lines:
    tag, scope, cells = "th", ' scope="row"', ""
    for column in columns:
      numeric = "" if column.digits is None else ' class="number"'
      text = html.escape(column.text(line))
      cells += f"<{tag}{scope}{numeric}>{text}</{tag}>"
      tag, scope = "td", ""
    body += f"<tr>{cells}</tr>\n"
  head = f"<thead><tr>{head}</tr></thead>"
  return f"<table>\n{head}\n<tbody>\n{body}</tbody>\n</table>"
