"""The decoded examples that a report shows token by token."""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import pathlib
from typing import Annotated, Any, NotRequired, TypedDict

from speccascade.decoding.records.block_records import SOURCES
from speccascade.generate import token_view
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points.alpha_phases import PhaseSettings
from speccascade.settings import fields
from speccascade.settings.fields import names_of
from speccascade.study.report.measured import temperature_title
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow

FILE_NAME = "examples.jsonl"
MOST_TOKENS = 1500  # on the page: each has a card of some hundred bytes


def _is_source(name: str):
  fields.one_of(SOURCES, source=name)


class _Trace(TypedDict):
  """Columns of a trace, with an entry for each token."""

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


class _Tree(TypedDict):
  """The drafts of a block: columns with an entry for each draft."""

  tokens: list[int]
  parents: list[int]
  accepted: list[fields.Count]
  piece: list[str]


class _Aux(TypedDict):
  """The member "aux" of a record."""

  tokens: list[int]
  counts: Counts
  index: NotRequired[int]
  trace: NotRequired[_Trace | None]
  trees: NotRequired[list[_Tree]]


class _Record(TypedDict):
  """A record, with the settings and the label of its row."""

  inputs: str
  aux: _Aux
  targets: NotRequired[list[str]]
  label: NotRequired[str]
  settings: NotRequired[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ShownExamples:
  """Records with traces.

  Attributes:
    records: records as `records.records` returns them.
    note: which part of a file is shown.
  """

  records: Sequence[dict] = ()
  note: str = ""


def read(
  path: pathlib.Path | None, row: ResultRow | None = None
) -> ShownExamples:
  """Returns the traced records of a file, as many as a page can show.

  The records of one example, by all methods, are together. Records without a
  trace are left out.

  Args:
    path: JSON lines, plain or .gz. Each record has "settings" and "label" of
      its row. A torn last line is left out. None returns no records.
    row: the row of all records, which then hold no settings and no label; or
      None.

  Raises:
    ValueError: a line is not a record; the message has the line's number.
  """
  shared = {}
  if row is not None:
    shared = {"settings": vars(row.settings), "label": row.label}
  traced = [] if path is None else list(_traced_records(path, shared))
  if not traced:
    return ShownExamples()
  # Sorting is stable: the methods of an example keep their order.
  traced.sort(key=lambda record: record["aux"].get("index", 0))
  # Whole texts are shown, and at least one, however long it is.
  totals = itertools.accumulate(len(x["aux"]["tokens"]) for x in traced)
  num = max(1, sum(total <= MOST_TOKENS for total in totals))
  note = f"{num} of the {len(traced)} traced texts of {path.name}."
  return ShownExamples(traced[:num], note)


def _traced_records(path: pathlib.Path, shared: dict) -> Iterator[dict]:
  """Yields the record of each text that has a trace."""
  for number, line in enumerate(results.read_lines(path), start=1):
    try:
      record = {**shared, **fields.of_json(line)}
      fields.fit("record", record, _Record, builds=True)
      title(record)  # Its settings have types of their own.
      aux = record["aux"]
      trace, num = aux.get("trace"), len(aux["tokens"])
      if trace is not None and {*map(len, trace.values())} != {num}:
        raise ValueError("its trace has not one entry for each token")
      for tree in aux.get("trees", []):
        token_view.check_tree(tree)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f"{path} line {number} is not a decoded example ({error}); remove it"
      ) from error
    if trace is not None:
      yield record


def title(record: dict) -> str:
  """Returns the method as one types it, and the settings of a record."""
  settings = record.get("settings", {})
  parts = [settings.get("method", record.get("label", "example"))]
  for name in ("alpha", "gamma"):
    if settings.get(name) is not None:
      parts.append(f"{name} {settings[name]:g}")
    if name == "alpha" and settings.get("marker"):
      values = {name: settings[name] for name in names_of(PhaseSettings)}
      parts.append(PhaseSettings(**values).other_phase_in_words)
  if settings.get("temperature") is not None:
    parts.append(temperature_title(settings["temperature"]))
  return ", ".join(parts)
