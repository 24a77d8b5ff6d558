"""Rows to tables, in Markdown and CSV; no model code."""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import io

from speccascade.experiments.results import ResultRow

NOTHING = "-"


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table.

  Attributes:
    title: as printed.
    value: of a row; None where it has none.
    digits: behind the point; None prints the value as it is.
  """

  title: str
  value: Callable[[ResultRow], object]
  digits: int | None = None

  def text(self, row: ResultRow) -> str:
    """Returns the cell."""
    value = self.value(row)
    if value is None:
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


def markdown(rows: Sequence[ResultRow], columns=TRADE_OFF) -> str:
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


def to_csv(rows: Sequence[ResultRow], columns=TRADE_OFF) -> str:
  """Returns the table as CSV, numbers unrounded, empty where there is none."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(column.title for column in columns)
  for row in rows:
    values = (column.value(row) for column in columns)
    writer.writerow("" if value is None else value for value in values)
  return file.getvalue()
