"""Tables as Markdown, CSV and HTML: columns, and the lines that fill them."""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import functools
import io

from speccascade.generate.batches.decode_counts import LEFT_OUT, Counts
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.report import templates
from speccascade.study.report.frontier import IntervalEstimate, inverse
from speccascade.study.report.markdown import cell_text, printable, table
from speccascade.study.report.templates import (
  NOTHING,
  format_estimate,
  format_number,
)
from speccascade.study.rows.results import ResultRow

MOST_POSITIONS = 8  # of a block, in one cell
# Programs for tables run a cell that begins so as a formula.
_FORMULA = ("=", "+", "-", "@")


def format_positions(rates: Sequence[float | None] | None) -> str | None:
  """Returns the rates at the positions of a block, as one cell holds them.

  The positions after the first `MOST_POSITIONS` are left out, and so are those
  at the end that were never examined.

  Args:
    rates: shares by position, None where a position was never examined; or
      None.

  Returns:
    The text, or None where there are no rates.

  >>> format_positions([1.0, 0.925, 0.5, None])
  '1.00 .93 .50'
  >>> format_positions([0.75] * 9)
  '.75 .75 .75 .75 .75 .75 .75 .75 ...'
  """
  rates = list(rates or ())
  while rates and rates[-1] is None:
    rates.pop()
  texts = [
    format_number(rate, 2).removeprefix("0") for rate in rates[:MOST_POSITIONS]
  ]
  if len(rates) > MOST_POSITIONS:
    texts.append("...")
  return " ".join(texts) or None


def lookup(line, *names: str):
  """Returns a value inside nested attributes and dicts.

  Args:
    line: an object, a dict or None.
    *names: names of attributes or keys, from the outside to the inside.

  Returns:
    The value. None where a dict lacks a name, and where a value on the way is
    None.

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
    title: the heading.
    value: a function from a line to the value; or the names that lead to the
      value with dots between them, as in "latency.walltime_s", see `lookup`.
      The value is None where a line has none. An `IntervalEstimate` is printed
      with its interval.
    digits: digits after the point; None prints the value as it is.
    special: texts of values that are not plain numbers, such as {0.0: "never"},
      in a CSV too. Other infinities and NaN are printed as `NOTHING`.
    has_interval: whether values are estimates. A CSV then has two more columns
      with the ends of the intervals.
    only: "csv" or "page" where the column is in one of the two alone.
  """

  title: str
  value: Callable[[object], object] | str
  digits: int | None = None
  special: dict[float, str] = dataclasses.field(default_factory=dict)
  has_interval: bool = False
  only: str = ""

  def value_of(self, line):
    """Returns the value of a line."""
    if callable(self.value):
      return self.value(line)
    return lookup(line, *self.value.split("."))

  def text(self, line) -> str:
    """Returns the cell of a line as Markdown and HTML print it."""
    value = self.value_of(line)
    if isinstance(value, IntervalEstimate):
      return format_estimate(value, self.digits, self.special)
    return format_number(value, self.digits, self.special)

  def csv_titles(self) -> list[str]:
    """Returns the headings of the column in a CSV."""
    if self.has_interval:
      return [self.title, f"{self.title} low", f"{self.title} high"]
    return [self.title]

  def csv_cells(self, line) -> list[str]:
    """Returns the cells of a line in a CSV, one for each of `csv_titles`.

    Numbers are not rounded. A cell is empty where there is no number.
    """
    value = self.value_of(line)
    if isinstance(value, IntervalEstimate):
      numbers = [*value]
    else:
      numbers = [value, None, None]
    if not self.has_interval:
      numbers = numbers[:1]
    texts = (format_number(x, None, self.special) for x in numbers)
    return ["" if text == NOTHING else _csv_text(text) for text in texts]


def _csv_text(text: str) -> str:
  """Returns a cell of a CSV: numbers, or a string that is not a formula."""
  text = printable(text)
  if not text.startswith(_FORMULA):
    return text
  try:
    for word in text.split(" "):
      float(word)
  except ValueError:
    return f"'{text}"
  return text


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the report.

  Attributes:
    name: the name of the table's CSV file, without its ending.
    title: the heading.
    note: a sentence or two on how to read the table.
    columns: the columns in order.
    lines: the objects that the columns take their values from.
  """

  name: str
  title: str
  note: str
  columns: Sequence[Column]
  lines: Sequence


def speedup(latency: Latency | None) -> IntervalEstimate | None:
  """Returns how many times as fast as the reference a latency is.

  Args:
    latency: relative to the reference, or None where nothing was timed.

  Returns:
    1 / relative latency with its interval, or None where nothing was timed.
  """
  if latency is None:
    return None
  return inverse(
    IntervalEstimate(
      latency.relative_latency, latency.relative_low, latency.relative_high
    )
  )


def _row_speedup(row) -> IntervalEstimate | None:
  return speedup(row.latency)


def _latency_per_token(row) -> float | None:
  per_token = lookup(row, "latency", "per_token")
  return per_token[0] if per_token else None


def _acceptance_by_position(line) -> str | None:
  return format_positions(lookup(line, "efficiency", "acceptance_by_position"))


def _temperature(line) -> str:
  return f"{lookup(line, 'settings', 'temperature'):g}"


def seconds_per_answer(row: ResultRow) -> float | None:
  """Returns the mean seconds of an answer; None where nothing was timed."""
  # Rows of older versions have them as a latency alone.
  if row.seconds_per_answer is None and row.latency is not None:
    return row.latency.walltime_s
  return row.seconds_per_answer


def relative_length(row: ResultRow) -> IntervalEstimate | None:
  """Returns the relative length that a row states, with its interval."""
  if (ratio := row.relative_length) is None:
    return None
  return IntervalEstimate(ratio["value"], ratio["low"], ratio["high"])


TEMPERATURE = Column("T", _temperature)
SPEEDUP = Column("speed-up", _row_speedup, 2, has_interval=True)
BY_POSITION = Column("by position", _acceptance_by_position)
PER_TOKEN = Column("latency per token", _latency_per_token, 3)
# What a user waits for: the time of an answer, and how long the answer is.
SECONDS = Column("seconds an answer", seconds_per_answer, 4)
LENGTH = Column("relative length", relative_length, 2, has_interval=True)
# The columns of a table of rows.
TRADE_OFF = (
  Column("method", "settings.method"),
  TEMPERATURE,
  Column("alpha", "settings.alpha"),
  Column("BLEU", "quality.bleu.value", 1),
  Column("valid %", "quality.valid.value", 1),
  Column("acceptance", "efficiency.acceptance_rate", 3),
  BY_POSITION,
  Column("tokens/block", "efficiency.mean_acceptance_length", 2),
  Column("deferral", "efficiency.deferral_rate", 3),
  Column("relative latency", "latency.relative_latency", 3),
  PER_TOKEN,
  SECONDS,
  LENGTH,
  SPEEDUP,
  Column("predicted", "predicted_speedup", 2),
)
# The fields of a row's latency that rows.csv has.
_LATENCY = (
  "walltime_s",
  "relative_latency",
  "relative_low",
  "relative_high",
  "num_examples",
  "repeats",
  "num_tokens",
  "per_token",
)
# Titles of rows.csv for fields whose own names would be taken for others.
_TITLES = {
  ("latency", "num_examples"): "num_timed",
  ("latency", "num_tokens"): "num_timed_tokens",
  ("latency", "per_token"): "latency_per_token",
  ("num_parameters", "drafter"): "drafter_parameters",
  ("num_parameters", "verifier"): "verifier_parameters",
  ("counts", "expected_acceptance"): "expected_acceptance (sum)",
}


def row_columns(rows: Sequence[ResultRow]) -> list[Column]:
  """Returns the columns of a table that has all numbers of some rows.

  Settings, metrics, rates, and counts that not all methods have, such as forced
  tokens, have a column if at least one of the rows holds them.
  """
  settings = dict.fromkeys(
    name for row in rows for name in row.settings.to_dict()
  )
  metrics = dict.fromkeys(name for row in rows for name in row.quality)
  rates = dict.fromkeys(name for row in rows for name in row.efficiency)
  paths = [("settings", name) for name in settings]
  paths += [("label",), ("cell",)]
  for metric in metrics:
    paths += [("quality", metric, end) for end in ("value", "low", "high")]
  paths += [("latency", name) for name in _LATENCY]
  if any(row.relative_length for row in rows):
    ends = ("value", "low", "high")
    paths += [("relative_length", end) for end in ends]
  paths += [("measured_speedup",), ("predicted_speedup",)]
  paths += [("costs", name) for name in ("c", "q2", "v", "verifier_step_s")]
  paths += [("efficiency", name) for name in rates]
  # The settings have the number of examples already.
  counts = [field.name for field in dataclasses.fields(Counts)]
  of_some = {"accepted_by_rank", "optimal_acceptance", *LEFT_OUT}
  paths += [
    ("counts", name)
    for name in counts
    if name != "num_examples"
    and (name not in of_some or any(getattr(x.counts, name) for x in rows))
  ]
  paths += [("agreement", "identical"), ("agreement", "near_ties")]
  paths.append(("num_truncated",))
  paths += [("num_parameters", role) for role in ("drafter", "verifier")]
  paths += [("environment", "device"), ("environment", "git_commit")]
  columns = [
    Column(_title(path), functools.partial(_row_cell, path)) for path in paths
  ]
  place = paths.index(("measured_speedup",))
  seconds = Column("seconds_per_answer", seconds_per_answer)
  return [*columns[:place], seconds, *columns[place:]]


def _title(path: tuple[str, ...]) -> str:
  """Returns the heading of a column of rows.csv."""
  if path[0] in ("quality", "relative_length"):
    words = path[1:] if path[0] == "quality" else path
    return " ".join(words).removesuffix(" value")
  return _TITLES.get(path, path[-1])


def _row_cell(path: tuple[str, ...], row: ResultRow):
  """Returns what stands in a row at a path, in a form that fits in a cell."""
  cell = lookup(row, *path)
  if isinstance(cell, dict):
    width = row.settings.block_width
    return None if width is None else cell.get(width)
  if isinstance(cell, (list, tuple)):
    if cell and all(isinstance(part, (list, tuple)) for part in cell):
      return "; ".join(map(_joined, cell))
    return _joined(cell)
  return cell


def _joined(items: Sequence) -> str:
  """Returns items with blanks between them; nothing for None."""
  return " ".join("" if item is None else str(item) for item in items)


def _select_filled(lines: Sequence, columns: Sequence[Column]) -> list[Column]:
  """Returns the columns of a page that have something to show."""
  shown = [column for column in columns if column.only != "csv"]
  return [c for c in shown if any(c.text(x) != NOTHING for x in lines)]


def markdown(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a Markdown table, its columns aligned for a terminal.

  Args:
    lines: objects that the columns take their values from.
    columns: in order. A column without any value is left out.
  """
  shown = _select_filled(lines, columns)
  return table(
    [cell_text(column.title) for column in shown],
    [[cell_text(column.text(line)) for column in shown] for line in lines],
    # Numbers are aligned to the right, which Markdown marks with a colon.
    "".join("l" if column.digits is None else "r" for column in shown),
    is_padded=True,
  )


def to_csv(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a table as CSV, see `Column.csv_cells`.

  Args:
    lines: objects that the columns take their values from.
    columns: in order; none is left out.
  """
  columns = [column for column in columns if column.only != "page"]
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(title for column in columns for title in column.csv_titles())
  for line in lines:
    writer.writerow(x for column in columns for x in column.csv_cells(line))
  return file.getvalue()


def to_html(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a table element; the cells of the first column are headings.

  Args:
    lines: objects that the columns take their values from.
    columns: in order. A column without any value is left out.
  """
  template = templates.load("study/report/table.html")
  return template.render(lines=lines, columns=_select_filled(lines, columns))
