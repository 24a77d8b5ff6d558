"""Every number of a result row as a column: what rows.csv holds."""

from collections.abc import Sequence
import dataclasses

from speccascade.evaluation.efficiency import Counts
from speccascade.inference.results import ResultRow, Settings
from speccascade.report.tables import Column


def columns(rows: Sequence[ResultRow]) -> list[Column]:
  """Returns the columns that the rows fill between them."""
  made = [
    Column(field.name, _of("settings", field.name))
    for field in dataclasses.fields(Settings)
  ]
  made.append(Column("label", lambda row: row.label))
  metrics = dict.fromkeys(name for row in rows for name in row.quality)
  for metric in metrics:
    made += [
      Column(f"{metric} {end}".replace(" value", ""), _score(metric, end))
      for end in ("value", "low", "high")
    ]
  made += [
    Column(name, _of("latency", name))
    for name in (
      *("walltime_s", "relative_latency", "relative_low", "relative_high"),
      *("num_examples", "repeats"),
    )
  ]
  made[-2] = dataclasses.replace(made[-2], title="num_timed")
  made += [
    Column("measured_speedup", lambda row: row.measured_speedup),
    Column("predicted_speedup", lambda row: row.predicted_speedup),
    *(Column(name, _of("costs", name)) for name in ("c", "q2")),
    Column("v", _block_cost),
    Column("verifier_step_s", _of("costs", "verifier_step_s")),
  ]
  summary = dict.fromkeys(name for row in rows for name in row.efficiency)
  made += [Column(name, _efficiency(name)) for name in summary]
  made += [
    Column(field.name, _of("counts", field.name))
    for field in dataclasses.fields(Counts)
    if field.name != "num_examples"
  ]
  made += [
    Column("identical", _agreement("identical")),
    Column("near_ties", _agreement("near_ties")),
    Column("num_truncated", lambda row: row.num_truncated),
    Column("device", lambda row: row.environment.get("device")),
    Column("git_commit", lambda row: row.environment.get("git_commit")),
  ]
  taken = set()
  for place, column in enumerate(made):
    if column.title in taken:
      made[place] = dataclasses.replace(column, title=f"{column.title} (sum)")
    taken.add(column.title)
  return made


def _of(part: str, name: str):
  def value(row: ResultRow):
    whole = getattr(row, part)
    return None if whole is None else _flat(getattr(whole, name))

  return value


def _flat(value):
  """Returns a cell: lists are written with blanks between."""
  if isinstance(value, (list, tuple)):
    return " ".join("" if one is None else str(one) for one in value)
  return value


def _score(metric: str, end: str):
  return lambda row: row.quality.get(metric, {}).get(end)


def _efficiency(name: str):
  return lambda row: _flat(row.efficiency.get(name))


def _agreement(name: str):
  return lambda row: row.agreement and row.agreement[name]


def _block_cost(row: ResultRow):
  """v of the row's own block."""
  if row.costs is None or row.settings.gamma is None:
    return None
  return row.costs.v.get(row.settings.gamma + 1)
