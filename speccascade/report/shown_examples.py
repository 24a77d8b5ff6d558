"""The decoded examples that a report shows token by token."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

from speccascade.inference import results
from speccascade.inference.results import ResultRow
from speccascade.report import curves

FILE_NAME = "examples.jsonl"
MOST_TOKENS = 1500  # on the page: each has a card of some hundred bytes


@dataclasses.dataclass(frozen=True)
class Examples:
  """Records with traces.

  Attributes:
    records: as `records.records` makes them.
    titles: which method and settings wrote each.
    note: what is shown, and what is left out.
  """

  records: Sequence[dict] = ()
  titles: Sequence[str] = ()
  note: str = ""


NONE = Examples()


def read(path: pathlib.Path | None, row: ResultRow | None = None) -> Examples:
  """Returns examples of a file, or none without one.

  Example by example, each by all the methods that wrote it, as many as a page
  bears; records without a trace are left out.

  Args:
    path: JSON lines, plain or .gz, records with "settings" and "label" of
      their rows in front; a torn last line is left out.
    row: the one of all records, which then say neither; or None.

  Raises:
    ValueError: a line is not a record; its number is given.
  """
  if path is None:
    return NONE
  of_row = {}
  if row is not None:
    of_row = {"settings": vars(row.settings), "label": row.label}
  found = []
  for number, line in enumerate(results.read_lines(path), start=1):
    try:
      record = json.loads(line)
      aux, title = record["aux"], _title({**of_row, **record})
      if aux.get("trace") is not None:
        found.append((aux.get("index", 0), len(aux["tokens"]), title, record))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f"{path} line {number} is no decoded example ({error}); remove it"
      ) from error
  found.sort(key=lambda one: one[0])  # stable: methods keep their order
  shown, tokens = [], 0
  for _, length, title, record in found:
    tokens += length
    if not shown or tokens <= MOST_TOKENS:
      shown.append((title, record))
  if not shown:
    return NONE
  return Examples(
    [record for _, record in shown],
    [title for title, _ in shown],
    f"{len(shown)} of the {len(found)} traced texts of {path.name}.",
  )


def _title(record: dict) -> str:
  settings = record.get("settings", {})
  said = [record.get("label", settings.get("method", "example"))]
  for name in ("alpha", "gamma"):
    if settings.get(name) is not None:
      said.append(f"{name} {settings[name]:g}")
  if settings.get("temperature") is not None:
    said.append(curves.temperature_title(settings["temperature"]))
  return ", ".join(said)
