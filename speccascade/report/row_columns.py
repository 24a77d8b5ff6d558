"""Every number of a result row as a column: what rows.csv holds."""

from collections.abc import Sequence
import dataclasses
import functools

from speccascade.evaluation.efficiency import Counts
from speccascade.inference.results import ResultRow, Settings
from speccascade.report import tables
from speccascade.report.tables import Column

_TIMES = (
  *("walltime_s", "relative_latency", "relative_low", "relative_high"),
  *("num_examples", "repeats", "num_tokens", "per_token"),
)
_TITLES = {
  ("latency", "num_examples"): "num_timed",
  ("latency", "num_tokens"): "num_timed_tokens",
  ("latency", "per_token"): "latency_per_token",
  ("num_parameters", "drafter"): "drafter_parameters",
  ("num_parameters", "verifier"): "verifier_parameters",
  ("counts", "expected_acceptance"): "expected_acceptance (sum)",
}


def of_rows(rows: Sequence[ResultRow]) -> list[Column]:
  """Returns the columns that the rows fill between them."""
  metrics = dict.fromkeys(name for row in rows for name in row.quality)
  rates = dict.fromkeys(name for row in rows for name in row.efficiency)
  counts = [field.name for field in dataclasses.fields(Counts)]
  settings = [field.name for field in dataclasses.fields(Settings)]
  ends = ("value", "low", "high")
  paths = [
    *(("settings", name) for name in settings),
    ("label",),
    *(("quality", metric, end) for metric in metrics for end in ends),
    *(("latency", name) for name in _TIMES),
    *(("measured_speedup",), ("predicted_speedup",)),
    *(("costs", name) for name in ("c", "q2", "v", "verifier_step_s")),
    *(("efficiency", name) for name in rates),
    *(("counts", name) for name in counts if name != "num_examples"),
    *(("agreement", "identical"), ("agreement", "near_ties")),
    ("num_truncated",),
    *(("num_parameters", role) for role in ("drafter", "verifier")),
    *(("environment", "device"), ("environment", "git_commit")),
  ]
  return [Column(_title(p), functools.partial(_cell, p)) for p in paths]


def _title(path: tuple[str, ...]) -> str:
  if path[0] == "quality":
    return " ".join(path[1:]).removesuffix(" value")
  return _TITLES.get(path, path[-1])


def _cell(path: tuple[str, ...], row: ResultRow):
  """Returns a number; of v that of the row's block; lists with blanks."""
  cell = tables.lookup(row, *path)
  if isinstance(cell, dict):
    gamma = row.settings.gamma
    return gamma and cell.get(gamma + 1)
  if isinstance(cell, (list, tuple)):
    return " ".join("" if item is None else str(item) for item in cell)
  return cell
