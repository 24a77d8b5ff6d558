"""The decoded examples that a report shows token by token."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

from speccascade.experiments.report import curves
from speccascade.experiments.results import ResultRow

FILE_NAME = "examples.jsonl"
MOST_TOKENS = 1500  # on the page: each has a card of some hundred bytes


@dataclasses.dataclass(frozen=True)
class Examples:
  """Records with traces.

  Attributes:
    records: as `records.records` makes them.
    titles: which method and settings wrote each, and which example.
    note: what is shown, and what is left out.
  """

  records: Sequence[dict] = ()
  titles: Sequence[str] = ()
  note: str = ""


NONE = Examples()


def read(path: pathlib.Path, rows: Sequence[ResultRow]) -> Examples:
  """Returns the first examples of a file, or none if it is not there.

  A record names its row by "key", or tells its "settings"; either at its top or
  under "aux". Those without a trace are left out.

  Args:
    path: JSON lines; a torn last line is left out.
    rows: of the report.

  Raises:
    ValueError: a line is not a record; its number is given.
  """
  if not path.exists():
    return NONE
  by_key = {row.key: row for row in rows}
  titles, records, num, tokens = [], [], 0, 0
  lines = path.read_bytes().split(b"\n")[:-1]
  for number, line in enumerate(lines, start=1):
    try:
      record = json.loads(line)
      aux = record["aux"]
      length = len(aux["tokens"])
      trace = aux.get("trace")
      title = _title(record, by_key)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f"{path} line {number} is no decoded example ({error}); remove it"
      ) from error
    if trace is None:
      continue
    num += 1
    if records and tokens + length > MOST_TOKENS:
      continue
    tokens += length
    records.append(record)
    titles.append(title)
  note = f"{len(records)} of {num} traced examples in {path.name}."
  return Examples(records, titles, note) if records else NONE


def _title(record: dict, by_key: dict[str, ResultRow]) -> str:
  aux = record["aux"]
  key = record.get("key", aux.get("key"))
  settings = record.get("settings", aux.get("settings"))
  label = None
  if key in by_key:
    row = by_key[key]
    settings, label = dataclasses.asdict(row.settings), row.label
  said = []
  if settings:
    said.append(label or settings["method"])
    for name in ("alpha", "gamma"):
      if settings.get(name) is not None:
        said.append(f"{name} {settings[name]:g}")
    if settings.get("temperature") is not None:
      said.append(curves.temperature_title(settings["temperature"]))
  if "index" in aux:
    said.append(f"example {aux['index']}")
  return ", ".join(said) or "example"
