"""How a search measures points: in turns with the verifier alone."""

from collections.abc import Sequence

from speccascade.inference.measuring import measure
from speccascade.inference.rows.results import ResultRow
from speccascade.search.grid import StudyPoint
from speccascade.search.ledger import Ledger


def measure_points(
  points: Sequence[StudyPoint],
  ledger: Ledger,
  *,
  tick: measure.Tick | None = None,
) -> list[ResultRow]:
  """Measures the points that the ledger lacks; returns the rows of all points.

  Points of one study are timed in turns with each other and with the verifier
  alone; see `measure.measure`.

  Args:
    points: what to measure.
    ledger: where rows are appended, and where rows of earlier starts stand.
    tick: called, from several threads, with the number of examples decoded
      since the last call; None shows a bar where the study's run does. What it
      raises ends the run.
  """
  by_study = {}  # a study is equal to itself alone
  for point in points:
    by_study.setdefault(point.study, []).append(point)
  rows = {}
  for study, members in by_study.items():
    measured = measure.measure(
      study, [member.point for member in members], ledger.file, tick=tick
    )
    rows |= zip(members, measured)
  return [rows[point] for point in points]
