"""Tables of points: all of them, over gamma, by position; and of all rows."""

from collections.abc import Sequence
import dataclasses
import functools

from speccascade.evaluation.efficiency import Counts
from speccascade.inference.rows.results import ResultRow, Settings
from speccascade.report.groups import PointGroup, grouped
from speccascade.report.measured import Clock, Measured, metric_title
from speccascade.report.tables import METHOD, TEMPERATURE, Column, Table, lookup

_POINT = (
  METHOD,
  Column("name", "settings.method"),
  TEMPERATURE,
  Column("alpha", "settings.alpha"),
  Column("gamma", "settings.gamma"),
)
_ACCEPTANCE = Column("acceptance", "efficiency.acceptance_rate", 3)
_TOKENS = Column("tokens/block", "efficiency.mean_acceptance_length", 2)
PER_TOKEN = Column("latency per token", "per_token", 3, has_interval=True)
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


def _quality(metric: str) -> Column:
  score = lambda point: point.score(metric)
  return Column(metric_title(metric), score, 1, has_interval=True)


def _modelled(model: Clock | None) -> list[Column]:
  latency = lambda point: (model.of(point) or (None,))[0]
  return [Column("relative latency (modelled)", latency, 3)] * bool(model)


def gammas(study: PointGroup, model: Clock | None) -> Table:
  """Returns each method at one alpha over the gammas."""
  return Table(
    "gamma",
    "Block size",
    "Each method at the one alpha that most gammas were measured at.",
    (
      *(*_POINT, _ACCEPTANCE, _TOKENS),
      Column("relative latency", "latency", 3, has_interval=True),
      PER_TOKEN,
      *(*_modelled(model), _quality(study.points[0].metric)),
    ),
    [p for panel in study.panels for same in ablated(panel) for p in same],
  )


def ablated(panel: PointGroup) -> list[list[Measured]]:
  """Returns for each method its points of one alpha, by gamma.

  The alpha measured at most gammas; of equals the middle one. Methods of one
  gamma alone are left out.
  """
  by_gamma = lambda point: point.settings.gamma
  kept = []
  for curve in panel.methods:
    blocks = [point for point in curve.points if by_gamma(point) is not None]
    by_alpha = grouped(blocks, lambda point: point.settings.alpha or 0.0)
    most = max(map(len, by_alpha.values()), default=0)
    alphas = sorted(a for a, same in by_alpha.items() if len(same) == most)
    if most > 1:
      kept.append(sorted(by_alpha[alphas[len(alphas) // 2]], key=by_gamma))
  return kept


def points(study: PointGroup, model: Clock | None) -> Table:
  """Returns every point with all of its numbers."""
  speedup = lambda point: point.latency and 1 / point.latency.value
  predicted = lambda point: point.mean("predicted_speedup")
  log_p = lambda point: point.mean("log_probs", "p1")
  has_log_p = any(log_p(point) is not None for point in study.points)
  return Table(
    "points",
    "All points",
    "Measured: wall-clock of the whole decode over the large model's, the two"
    " interleaved; per token, the same over the tokens written: a longer text"
    " takes longer. Predicted: from the calls and their measured costs c, q2"
    " and v. Modelled: the same calls where a block costs one verifier step.",
    (
      *(*_POINT, *map(_quality, study.metrics)),
      *[Column("verifier's log p a token", log_p, 3)] * has_log_p,
      _ACCEPTANCE,
      Column("expected acceptance", "efficiency.expected_acceptance", 3),
      _TOKENS,
      Column("deferral rate", "efficiency.deferral_rate", 3),
      Column("rule defers", "efficiency.rule_deferral_rate", 3),
      Column("relative latency (measured)", "latency", 3, has_interval=True),
      PER_TOKEN,
      Column("ms a text", lambda p: (p.milliseconds or [None])[0], 1),
      Column("speed-up (measured)", speedup, 2),
      Column("speed-up (predicted)", predicted, 2),
      *_modelled(model),
      Column("seeds", lambda point: len(point.rows), 0),
    ),
    study.points,
  )


def acceptance(study: PointGroup) -> Table:
  """Returns acceptance by position and the histogram, a line an entry."""
  lines = []
  for point in study.points:
    about = {"label": point.label, "settings": point.settings}
    num_blocks, accepted = point.counts.num_blocks, point.counts.accepted_at
    rates = [None, *point.efficiency["acceptance_by_position"]]
    lines += [
      {**about, "position": place, "rate": rate, "share": blocks / num_blocks}
      for place, (rate, blocks) in enumerate(zip(rates, accepted))
      if num_blocks
    ]
  return Table(
    "acceptance",
    "Acceptance by position",
    "Accepted over examined drafts at each position of a block, and the share"
    " of blocks in which so many drafts were accepted.",
    (
      *_POINT,
      Column("position", "position", 0),
      Column("accepted / examined", "rate", 3),
      Column("blocks with so many accepted", "share", 3),
    ),
    lines,
  )


def row_columns(rows: Sequence[ResultRow]) -> list[Column]:
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
  cell = lookup(row, *path)
  if isinstance(cell, dict):
    gamma = row.settings.gamma
    return gamma and cell.get(gamma + 1)
  if isinstance(cell, (list, tuple)):
    return " ".join("" if item is None else str(item) for item in cell)
  return cell
