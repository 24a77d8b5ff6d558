"""Every number of a result row as a column: what rows.csv holds."""

from collections.abc import Sequence
import dataclasses
import functools

from speccascade.evaluation.efficiency import Counts
from speccascade.inference.results import ResultRow, Settings
from speccascade.report import tables
from speccascade.report.tables import Column

_TITLES = {"latency.num_examples": "num_timed"}
_TIMES = (
  *("walltime_s", "relative_latency", "relative_low", "relative_high"),
  *("num_examples", "repeats"),
)


def of_rows(rows: Sequence[ResultRow]) -> list[Column]:
  """Returns the columns that the rows fill between them."""
  metrics = dict.fromkeys(name for row in rows for name in row.quality)
  rates = dict.fromkeys(name for row in rows for name in row.efficiency)
  settings = [field.name for field in dataclasses.fields(Settings)]
  counts = [field.name for field in dataclasses.fields(Counts)]
  counts.remove("num_examples")
  columns = [
    *_part("settings", settings),
    Column("label", "label"),
    *(
      Column(
        metric if end == "value" else f"{metric} {end}",
        functools.partial(_score, metric, end),
      )
      for metric in metrics
      for end in ("value", "low", "high")
    ),
    *_part("latency", _TIMES),
    Column("measured_speedup", "measured_speedup"),
    Column("predicted_speedup", "predicted_speedup"),
    *_part("costs", ("c", "q2")),
    Column("v", _block_cost),
    *_part("costs", ("verifier_step_s",)),
    *_part("efficiency", rates),
    *_part("counts", counts),
    *_part("agreement", ("identical", "near_ties")),
    Column("num_truncated", "num_truncated"),
    *_part("environment", ("device", "git_commit")),
  ]
  taken = set()
  for place, column in enumerate(columns):
    if column.title in taken:
      columns[place] = dataclasses.replace(
        column, title=f"{column.title} (sum)"
      )
    taken.add(column.title)
  return columns


def _part(part: str, names) -> list[Column]:
  """Returns columns of what a part of the row holds."""
  paths = [f"{part}.{name}" for name in names]
  return [Column(_TITLES.get(p, p.removeprefix(f"{part}.")), p) for p in paths]


def _score(metric: str, end: str, row: ResultRow):
  return tables.lookup(row.quality, metric, end)


def _block_cost(row: ResultRow):
  """v of the row's block."""
  if row.costs is None or row.settings.gamma is None:
    return None
  return row.costs.v.get(row.settings.gamma + 1)
