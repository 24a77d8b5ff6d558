"""Measures the curves of a sweep until no point lacks its row."""

from collections.abc import Sequence
import contextlib
import dataclasses
import threading

from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import Point
from speccascade.inference.rows.results import ResultRow
from speccascade.runtime.progress import ProgressBar
from speccascade.search import alpha_grids, clock, grid
from speccascade.search.alpha_grids import Grid
from speccascade.search.grid import Curve, StudyPoint
from speccascade.search.ledger import Ledger
from speccascade.sweep import shown
from speccascade.sweep.shown import Shown


class Stopped(Exception):
  """A signal came."""


class Studies:
  """One study for each seed and each way in which methods take the pair.

  Args:
    study: with the pair as it was read.
    composed: the pair with its drafters combined, for methods with blocks; or
      None.
  """

  def __init__(self, study: Study, composed: ModelPair | None = None):
    self._study = study
    self._composed = composed
    pair = study.pair
    self._first = dataclasses.replace(pair, drafters=pair.drafters[:1])
    self._known = {}

  def of(self, curve: Curve) -> Study:
    """Returns the study of a curve; those of one pair and seed are the same.

    Methods of one drafter get the largest.
    """
    method, pair = curve.base.spec, self._study.pair
    if self._composed is not None and method.has_blocks:
      pair = self._composed
    elif method.compose is None:
      pair = self._first
    key = (id(pair), curve.seed)
    if key not in self._known:
      run = dataclasses.replace(self._study.run, seed=curve.seed)
      self._known[key] = dataclasses.replace(self._study, pair=pair, run=run)
    return self._known[key]

  def points(self, curve: Curve) -> list[StudyPoint]:
    """Returns the planned points of a curve."""
    study = self.of(curve)
    return [StudyPoint(study, point) for point in curve.points]

  def middle(self, curve: Curve) -> StudyPoint:
    """Returns the point in the middle of a curve's plan."""
    return StudyPoint(self.of(curve), curve.middle)

  def check(self, curve: Curve):
    """Raises ValueError where a point cannot be decoded by these models."""
    for point in self.points(curve):
      point.check()

  def allowed(self, names: Sequence[str]) -> list[str]:
    """Returns the methods whose needs the drafters meet."""
    kept = []
    for name in names:
      point = Point(name, temperature=0.0)
      with contextlib.suppress(ValueError):
        self.check(Curve(point, self._study.run.seed, Grid(())))
        kept.append(name)
    return kept


@dataclasses.dataclass(frozen=True)
class Runner:
  """Measures the curves of a sweep into one ledger.

  Attributes:
    studies: the study of each point.
    ledger: where rows are stored.
    budget: points of a curve, 0 for the planned ones alone.
    shown: whose tokens are shown.
  """

  studies: Studies
  ledger: Ledger
  budget: int
  shown: Shown

  def _missing(self, curves: Sequence[Curve]) -> list[StudyPoint]:
    """Returns the planned points without a row; neighbours differ in curve."""
    planned = grid.in_turns(self.studies.points(curve) for curve in curves)
    return [point for point in planned if point not in self.ledger]

  def run(self, curves: Sequence[Curve], progress: bool, stop) -> int:
    """Measures and shows; returns how many points are shown.

    Raises:
      Stopped: a signal came, and `stop` is true.
    """
    lock = threading.Lock()
    chosen = [self.studies.middle(x) for x in self.shown.chosen(curves)]
    num = self.shown.num_shown * len(chosen)
    total = self._num_decodes(curves) + num
    how = {"unit": "decode", "desc": "sweep", "smoothing": 0.02}
    with ProgressBar(total=total, disable=not progress, **how) as bar:

      def tick(num: int):
        if stop:
          raise Stopped
        with lock:
          bar.update(num)

      while todo := self._todo(curves):
        clock.measure_points(todo, self.ledger, tick=tick)
      tick(0)
      path = self.ledger.folder / shown.FILE_NAME
      shown.write(path, chosen, self.shown.num_shown, tick)
      bar.total = bar.n  # an adaptive sweep may have needed less
    return len(chosen)

  def _num_decodes(self, curves: Sequence[Curve]) -> int:
    total = 0
    for curve, rows in zip(curves, self._rows(curves)):
      num = len(self._missing([curve]))
      if curve.grid.alphas:
        num = max(num, self.budget - len(rows))
      total += num * self.studies.of(curve).num_decodes(curve.base)
    return total

  def _rows(self, curves) -> list[dict[float, ResultRow]]:
    """Returns the rows on disk of each curve, by alpha."""
    bare = lambda settings: dataclasses.replace(settings, alpha=None)
    by_curve = {}
    for row in self.ledger.rows:
      rows = by_curve.setdefault(bare(row.settings), {})
      rows[row.settings.alpha] = row
    bases = (self.studies.of(curve).settings(curve.base) for curve in curves)
    return [by_curve.get(bare(base), {}) for base in bases]

  def _todo(self, curves: Sequence[Curve]) -> list[StudyPoint]:
    """Returns the planned points that lack a row; then one more a curve.

    What comes next depends on the rows on disk alone, and on those of its own
    curve: a sweep that was killed chooses as an unbroken one would.
    """
    todo = self._missing(curves)
    if not todo:
      todo = [
        StudyPoint(self.studies.of(curve), curve.at(alpha))
        for curve, rows in zip(curves, self._rows(curves))
        if curve.grid.alphas and len(rows) < self.budget
        if (alpha := alpha_grids.next_alpha(rows, curve.grid.scale)) is not None
      ]
    return todo
