"""The decoded examples that a report shows token by token."""

from collections.abc import Sequence
import dataclasses
import itertools
import operator
import pathlib
from typing import Annotated, Any, NotRequired, TypedDict

from speccascade.decoding.types import SOURCES
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.rows import results
from speccascade.inference.rows.results import ResultRow
from speccascade.report.measured import temperature_title
from speccascade.settings import fields

FILE_NAME = "examples.jsonl"
MOST_TOKENS = 1500  # on the page: each has a card of some hundred bytes


def _is_source(name: str):
  fields.one_of(SOURCES, source=name)


class _Trace(TypedDict):
  source: list[Annotated[str, _is_source]]
  writer: NotRequired[list[int]]
  deferred: list[bool]
  left: list[float | None]
  right: list[float | None]
  tv: list[float | None]
  block: list[int]
  piece: list[str]
  q_top_piece: list[list[str]]
  q_prob: list[list[float | None]]
  p_top_piece: list[list[str]]
  p_prob: list[list[float | None]]


class _Aux(TypedDict):
  tokens: list[int]
  counts: Counts
  index: NotRequired[int]
  trace: NotRequired[_Trace | None]


class _Record(TypedDict):
  inputs: str
  aux: _Aux
  targets: NotRequired[list[str]]
  label: NotRequired[str]
  settings: NotRequired[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ShownExamples:
  """Records with traces.

  Attributes:
    records: as `records.records` makes them.
    titles: which method and settings wrote each.
    note: what is shown, and what is left out.
  """

  records: Sequence[dict] = ()
  titles: Sequence[str] = ()
  note: str = ""


def read(
  path: pathlib.Path | None, row: ResultRow | None = None
) -> ShownExamples:
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
  shared = {"settings": vars(row.settings), "label": row.label} if row else {}
  traced = []
  lines = [] if path is None else results.read_lines(path)
  for number, line in enumerate(lines, start=1):
    try:
      record = {**shared, **fields.of_json(line)}
      fields.fit("record", record, _Record, builds=True)
      aux, title = record["aux"], _title(record)
      if aux.get("trace") is not None:
        if {*map(len, aux["trace"].values())} != {len(aux["tokens"])}:
          raise ValueError("its trace has not one entry for each token")
        traced.append((aux.get("index", 0), len(aux["tokens"]), title, record))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f"{path} line {number} is no decoded example ({error}); remove it"
      ) from error
  if not traced:
    return ShownExamples()
  traced.sort(key=operator.itemgetter(0))  # stable: methods keep their order
  totals = itertools.accumulate(length for _, length, *_ in traced)
  num = max(1, sum(total <= MOST_TOKENS for total in totals))
  *_, titles, records = zip(*traced[:num])
  note = f"{num} of the {len(traced)} traced texts of {path.name}."
  return ShownExamples(records, titles, note)


def _title(record: dict) -> str:
  settings = record.get("settings", {})
  said = [record.get("label", settings.get("method", "example"))]
  for name in ("alpha", "gamma"):
    if settings.get(name) is not None:
      said.append(f"{name} {settings[name]:g}")
  if settings.get("temperature") is not None:
    said.append(temperature_title(settings["temperature"]))
  return ", ".join(said)
