"""Tables in Markdown, CSV and HTML: columns, and the lines that fill them."""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import io
import math

import jinja2

from speccascade.evaluation.timing import Latency
from speccascade.report.frontier import IntervalEstimate

NOTHING = "-"
NEVER = {math.inf: "never", -math.inf: "never"}
template = jinja2.Environment(
  autoescape=True,
  trim_blocks=True,
  lstrip_blocks=True,
  undefined=jinja2.StrictUndefined,
).from_string


def number(value, digits=None, special=(), sign="") -> str:
  """Returns a number as it is printed, or `NOTHING`; see `Column`.

  >>> number(1.25, 1), number(2.0, 1, sign="+"), number(None)
  ('1.2', '+2.0', '-')
  >>> number(-math.inf, 1), number(-math.inf, 1, NEVER)
  ('-', 'never')
  """
  if isinstance(value, float) and value in special:
    return special[value]
  if value is None or (isinstance(value, float) and not math.isfinite(value)):
    return NOTHING
  return str(value) if digits is None else f"{value:{sign}.{digits}f}"


def estimated(estimate: IntervalEstimate, *how, **more) -> str:
  """Returns an estimate as `number` has it, its interval after it.

  >>> estimated(IntervalEstimate(0.0, 0.0, 1.5), 2, {0.0: "never"})
  'never [never, 1.50]'
  """
  value, low, high = (number(each, *how, **more) for each in estimate)
  has_ends = estimate.has_interval and not math.isnan(estimate.value)
  return f"{value} [{low}, {high}]" if has_ends else value


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
    special: texts of values that are no plain number, as {0.0: "never"}, in a
      CSV too; other infinities and NaN are printed as `NOTHING`.
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
    printed = estimated if isinstance(value, IntervalEstimate) else number
    return printed(value, self.digits, self.special)

  def csv_cells(self, line) -> list[str]:
    """Returns the value, unrounded, and the ends where there are intervals."""
    value = self.of(line)
    cells = (
      value if isinstance(value, IntervalEstimate) else (value, None, None)
    )
    cells = cells if self.has_interval else cells[:1]
    texts = (number(cell, None, self.special) for cell in cells)
    return ["" if text == NOTHING else text for text in texts]


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


def speedup(latency: Latency | None) -> IntervalEstimate | None:
  """Returns how many times as fast it is, None where nothing was timed."""
  names = ("relative_latency", "relative_high", "relative_low")
  return latency and IntervalEstimate(*(1 / getattr(latency, x) for x in names))


SPEEDUP = Column("speed-up", lambda x: speedup(x.latency), 2, has_interval=True)
_TOKEN = ("latency", "per_token")
PER_TOKEN = Column(
  "latency per token", lambda x: (lookup(x, *_TOKEN) or [None])[0], 3
)
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
  PER_TOKEN,
  SPEEDUP,
  Column("predicted", "predicted_speedup", 2),
)


def _filled(lines: Sequence, columns: Sequence[Column]) -> list[Column]:
  """Returns the columns that have something to show."""
  return [c for c in columns if any(c.text(x) != NOTHING for x in lines)]


def markdown(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a Markdown table, its columns aligned for a terminal."""
  table = []
  for column in _filled(lines, columns):
    cells = [column.title, *map(column.text, lines)]
    width, plain = max(map(len, cells)), column.digits is None
    pad, end = (str.ljust, "-") if plain else (str.rjust, ":")
    cells.insert(1, "-" * (width - 1) + end)
    table.append([pad(cell, width) for cell in cells])
  return "".join(f"| {' | '.join(row)} |\n" for row in zip(*table))


def to_csv(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns the table as CSV, numbers unrounded, empty where there is none."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  ends = {True: ("", " low", " high"), False: ("",)}
  writer.writerow(
    c.title + end for c in columns for end in ends[c.has_interval]
  )
  for line in lines:
    writer.writerow(x for column in columns for x in column.csv_cells(line))
  return file.getvalue()


_HTML = template("""\
<table>
<thead><tr>
{% for column in columns %}<th scope="col"{% if column.digits is not none %}
 class="number"{% endif %}>{{ column.title }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for line in lines %}<tr>{% for column in columns %}{% if loop.first %}
<th scope="row">{{ column.text(line) }}</th>{% else %}
<td data-title="{{ column.title }}"
{%- if column.digits is none %}>{{ column.text(line) }}</td>{% else %}
{% set value, space, ends = column.text(line).partition(" ") %}
 class="number">{{ value }}{{ space }}
{%- if ends %}<small>{{ ends }}</small>{% endif %}</td>
{%- endif %}{% endif %}{% endfor %}</tr>
{% endfor %}</tbody>
</table>""")


def to_html(lines: Sequence, columns: Sequence[Column] = TRADE_OFF) -> str:
  """Returns a table element; the first column heads its rows."""
  return _HTML.render(lines=lines, columns=_filled(lines, columns))
