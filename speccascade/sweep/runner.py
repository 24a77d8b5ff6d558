"""Measures the curves of a sweep until no point lacks its row."""

from collections.abc import Sequence
import contextlib
import dataclasses
import threading

from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import Point
from speccascade.inference.rows.results import ResultFile, ResultRow
from speccascade.runtime.progress import ProgressBar
from speccascade.search import alpha_grids
from speccascade.search.alpha_grids import Grid
from speccascade.sweep import plans, shown
from speccascade.sweep.plans import Curve
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

  def check(self, curve: Curve):
    """Raises ValueError where a point cannot be decoded by these models."""
    for point in curve.points:
      self.of(curve).batches(point).check()

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
  """Measures the curves of a sweep into one file.

  Attributes:
    studies: the study of each point.
    file: where rows are kept.
    budget: points of a curve, 0 for the planned ones alone.
    shown: whose tokens are shown.
  """

  studies: Studies
  file: ResultFile
  budget: int
  shown: Shown

  def _lacks(self, curve: Curve, point: Point) -> bool:
    return self.studies.of(curve).settings(point) not in self.file

  def run(self, curves: Sequence[Curve], progress: bool, stop) -> int:
    """Measures and shows; returns how many points are shown.

    Raises:
      Stopped: a signal came, and `stop` is true.
    """
    lock, chosen = threading.Lock(), self.shown.chosen(curves)
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
        for study, points in todo:
          measure.measure(study, points, self.file, tick=tick)
      tick(0)
      path = self.file.path.with_name(shown.FILE_NAME)
      points = [(self.studies.of(curve), point) for curve, point in chosen]
      shown.write(path, points, self.shown.num_shown, tick)
      bar.total = bar.n  # an adaptive sweep may have needed less
    return len(chosen)

  def _num_decodes(self, curves: Sequence[Curve]) -> int:
    total = 0
    for curve, rows in zip(curves, self._rows(curves)):
      num = sum(self._lacks(curve, point) for point in curve.points)
      if curve.grid.alphas:
        num = max(num, self.budget - len(rows))
      total += num * self.studies.of(curve).num_decodes(curve.base)
    return total

  def _rows(self, curves) -> list[dict[float, ResultRow]]:
    """Returns the rows on disk of each curve, by alpha."""
    bare = lambda settings: dataclasses.replace(settings, alpha=None)
    by_curve = {}
    for row in self.file.rows:
      rows = by_curve.setdefault(bare(row.settings), {})
      rows[row.settings.alpha] = row
    bases = (self.studies.of(curve).settings(curve.base) for curve in curves)
    return [by_curve.get(bare(base), {}) for base in bases]

  def _todo(self, curves: Sequence[Curve]) -> list[tuple[Study, list[Point]]]:
    """Returns the planned points that lack a row; then one more a curve.

    What comes next depends on the rows on disk alone, and on those of its own
    curve: a sweep that was killed chooses as an unbroken one would.
    """
    todo = [pair for pair in plans.in_turns(curves) if self._lacks(*pair)]
    if not todo:
      todo = [
        (curve, curve.at(alpha))
        for curve, rows in zip(curves, self._rows(curves))
        if curve.grid.alphas and len(rows) < self.budget
        if (alpha := alpha_grids.next_alpha(rows, curve.grid.scale)) is not None
      ]
    by_study = {}  # a study is equal to itself alone
    for curve, point in todo:
      by_study.setdefault(self.studies.of(curve), []).append(point)
    return list(by_study.items())
