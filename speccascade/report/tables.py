"""Tables in Markdown, CSV and HTML: columns, and the lines that fill them."""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import io
import math

import jinja2

from speccascade.report.frontier import IntervalEstimate

NOTHING = "-"
template = jinja2.Environment(
  autoescape=True,
  trim_blocks=True,
  lstrip_blocks=True,
  undefined=jinja2.StrictUndefined,
).from_string


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
    number, *ends = map(self._number, value)
    if value.has_interval and math.isfinite(value.value):
      return f"{number} [{', '.join(ends)}]"
    return number

  def _number(self, value) -> str:
    if isinstance(value, float) and value in self.special:
      return self.special[value]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
      return NOTHING
    return str(value) if self.digits is None else f"{value:.{self.digits}f}"

  def csv_cells(self, line) -> list:
    """Returns the value, unrounded, and the ends where there are intervals."""
    value = self.of(line)
    cells = [value]
    if self.has_interval:
      is_estimate = isinstance(value, IntervalEstimate)
      cells = value if is_estimate else [value, None, None]
    return ["" if cell is None or cell != cell else cell for cell in cells]


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


def _speedup(row) -> IntervalEstimate | None:
  timed = row.latency
  return timed and IntervalEstimate(
    1 / timed.relative_latency, 1 / timed.relative_high, 1 / timed.relative_low
  )


SPEEDUP = Column("speed-up", _speedup, 2, has_interval=True)
METHOD = Column("method", "label")
_T = ("settings", "temperature")
TEMPERATURE = Column("T", lambda line: f"{lookup(line, *_T):g}")
TRADE_OFF = (
  Column("method", "settings.method"),
  TEMPERATURE,
  Column("alpha", "settings.alpha"),
  Column("BLEU", "quality.bleu.value", 1),
  Column("valid %", "quality.valid.value", 1),
  Column("acceptance", "efficiency.acceptance_rate", 3),
  Column("tokens/block", "efficiency.mean_acceptance_length", 2),
  Column("deferral", "efficiency.deferral_rate", 3),
  Column("relative latency", "latency.relative_latency", 3),
  SPEEDUP,
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


_HTML = template("""\
<table>
<thead><tr>
{% for column in columns %}<th scope="col">{{ column.title }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for line in lines %}<tr>{% for column in columns %}{% if loop.first %}
<th scope="row">{{ column.text(line) }}</th>{% else %}
<td{% if column.digits is not none %} class="number"{% endif %}>
{{- column.text(line) }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody>
</table>""")


def to_html(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a table element; the first column heads its rows."""
  return _HTML.render(lines=lines, columns=columns)
