"""Tables of points: all of them, over gamma, and by position in the block."""

import dataclasses
import functools

from speccascade.report.clocks import Clock
from speccascade.report.measured import Measured, metric_title
from speccascade.report.panels import PairStudy, Panel
from speccascade.report.tables import Column, Table

_POINT = (
  Column("method", "label"),
  Column("name", "method"),
  Column("T", lambda point: f"{point.settings.temperature:g}"),
  Column("alpha", "settings.alpha"),
  Column("gamma", "settings.gamma"),
)
_ACCEPTANCE = Column("acceptance", "efficiency.acceptance_rate", 3)
_TOKENS = Column("tokens/block", "efficiency.mean_acceptance_length", 2)


def _quality(metric: str) -> Column:
  quality = lambda point: point.quality(metric)
  return Column(metric_title(metric), quality, 1, has_interval=True)


def _modelled(model: Clock | None) -> list[Column]:
  if model is None:
    return []
  latency = lambda point: (model.of(point) or (None,))[0]
  return [Column("relative latency (modelled)", latency, 3)]


def gammas(study: PairStudy, metric: str, model: Clock | None) -> Table:
  """Returns each method at one alpha over the gammas."""
  return Table(
    "gamma",
    "Block size",
    "Each method at the one alpha that most gammas were measured at.",
    (
      *(*_POINT, _ACCEPTANCE, _TOKENS),
      Column("relative latency", "latency", 3, has_interval=True),
      *(*_modelled(model), _quality(metric)),
    ),
    [p for panel in study.panels for points in ablated(panel) for p in points],
  )


def ablated(panel: Panel) -> list[list[Measured]]:
  """Returns for each method its points of one alpha, by gamma.

  The alpha measured at most gammas; of equals the middle one. Methods of one
  gamma alone are left out.
  """
  by_gamma = lambda point: point.settings.gamma
  kept = []
  for curve in panel.by_method():
    by_alpha = {}
    for point in curve.points:
      if point.settings.gamma is not None:
        by_alpha.setdefault(point.settings.alpha or 0.0, []).append(point)
    most = max(map(len, by_alpha.values()), default=0)
    if most > 1:
      alphas = sorted(a for a, same in by_alpha.items() if len(same) == most)
      kept.append(sorted(by_alpha[alphas[len(alphas) // 2]], key=by_gamma))
  return kept


def points(study: PairStudy, model: Clock | None) -> Table:
  """Returns every point with all of its numbers."""
  speedup = lambda point: point.latency and 1 / point.latency.value
  predicted = lambda point: point.mean(lambda row: row.predicted_speedup)
  return Table(
    "points",
    "All points",
    "Measured: wall-clock of the whole decode over the large model's, the two"
    " interleaved. Predicted: from the calls and their measured costs c, q2 and"
    " v. Modelled: the same calls where a block costs one verifier step.",
    (
      *(*_POINT, *map(_quality, study.metrics), _ACCEPTANCE),
      Column("expected acceptance", "efficiency.expected_acceptance", 3),
      _TOKENS,
      Column("deferral rate", "efficiency.deferral_rate", 3),
      Column("rule defers", "efficiency.rule_deferral_rate", 3),
      Column("relative latency (measured)", "latency", 3, has_interval=True),
      Column("speed-up (measured)", speedup, 2),
      Column("speed-up (predicted)", predicted, 2),
      *_modelled(model),
      Column("seeds", lambda point: len(point.rows), 0),
    ),
    study.points,
  )


def acceptance(study: PairStudy) -> Table:
  """Returns acceptance by position and the histogram, a line an entry."""
  lines = [
    {"point": point, "position": j, "rate": rate, "share": blocks / num_blocks}
    for point in study.points
    if (num_blocks := point.counts.num_blocks)
    for j, (rate, blocks) in enumerate(
      zip(
        [None, *point.efficiency["acceptance_by_position"]],
        point.counts.accepted_at,
      )
    )
  ]
  return Table(
    "acceptance",
    "Acceptance by position",
    "Accepted over examined drafts at each position of a block, and the share"
    " of blocks in which so many drafts were accepted.",
    (
      *(
        dataclasses.replace(column, value=functools.partial(_of_point, column))
        for column in _POINT
      ),
      Column("position", "position", 0),
      Column("accepted / examined", "rate", 3),
      Column("blocks with so many accepted", "share", 3),
    ),
    lines,
  )


def _of_point(column: Column, line: dict):
  return column.of(line["point"])
