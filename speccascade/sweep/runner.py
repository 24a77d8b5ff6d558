"""Measures the curves of a sweep until no point lacks its row."""

from collections.abc import Sequence
import dataclasses
import threading

from tqdm import tqdm

from speccascade.inference import measure
from speccascade.inference.point import Point
from speccascade.inference.results import ResultFile, ResultRow
from speccascade.inference.study import Study
from speccascade.sweep import grids, shown
from speccascade.sweep import plan as plans
from speccascade.sweep.plan import Curve
from speccascade.sweep.shown import Shown
from speccascade.sweep.studies import Studies


class Stopped(Exception):
  """A signal came."""


class Runner:
  """Measures the curves of a sweep into one file.

  Args:
    studies: the study of each point.
    file: where rows are kept.
    budget: points of a curve, 0 for the planned ones alone.
    shown: whose tokens are shown.
  """

  def __init__(
    self, studies: Studies, file: ResultFile, budget: int, shown: Shown
  ):
    self.file = file
    self._studies = studies
    self._budget = budget
    self._shown = shown

  def study(self, curve: Curve) -> Study:
    """Returns the study of a curve; those of one pair and seed are the same."""
    return self._studies.of(curve.base, curve.seed)

  def run(self, curves: Sequence[Curve], progress: bool, stop) -> int:
    """Measures and shows; returns how many points are shown.

    Raises:
      Stopped: a signal came, and `stop` is true.
    """
    lock, chosen = threading.Lock(), self._shown.chosen(curves)
    num = self._shown.num_shown * len(chosen)
    with tqdm(
      total=self._num_decodes(curves) + num,
      unit="decode",
      desc="sweep",
      smoothing=0.02,
      disable=not progress,
    ) as bar:

      def tick(num: int):
        if stop:
          raise Stopped
        with lock:
          bar.update(num)

      while todo := self._todo(curves):
        for study, points in todo:
          measure.measure(study, points, self.file, tick=tick)
      tick(0)
      shown.write(
        self.file.path.parent / shown.FILE_NAME,
        [(self.study(curve), point) for curve, point in chosen],
        self._shown.num_shown,
        tick,
      )
      bar.total = bar.n  # an adaptive sweep may have needed less
    return len(chosen)

  def _num_decodes(self, curves: Sequence[Curve]) -> int:
    total = 0
    for curve, rows in zip(curves, self._rows(curves)):
      study = self.study(curve)
      missing = [p for p in curve.points if study.settings(p) not in self.file]
      num = len(missing)
      if curve.grid.alphas:
        num = max(num, self._budget - len(rows))
      total += num * study.num_decodes(curve.base)
    return total

  def _rows(self, curves) -> list[dict[float, ResultRow]]:
    """Returns the rows on disk of each curve, by alpha."""
    by_curve = {}
    for row in self.file.rows:
      bare = dataclasses.replace(row.settings, alpha=None)
      by_curve.setdefault(bare.key, {})[row.settings.alpha] = row
    bases = [self.study(curve).settings(curve.base) for curve in curves]
    return [
      by_curve.get(dataclasses.replace(base, alpha=None).key, {})
      for base in bases
    ]

  def _todo(self, curves: Sequence[Curve]) -> list[tuple[Study, list[Point]]]:
    """Returns the planned points that lack a row; then one more a curve.

    What comes next depends on the rows on disk alone, and on those of its own
    curve: a sweep that was killed chooses as an unbroken one would.
    """
    todo = [
      (curve, point)
      for curve, point in plans.in_turns(curves)
      if self.study(curve).settings(point) not in self.file
    ]
    if not todo:
      for curve, rows in zip(curves, self._rows(curves)):
        if curve.grid.alphas and len(rows) < self._budget:
          alpha = grids.next_alpha(rows, curve.grid.scale)
          if alpha is not None:
            todo.append((curve, curve.at(alpha)))
    by_study = {}
    for curve, point in todo:
      study = self.study(curve)
      by_study.setdefault(id(study), (study, []))[1].append(point)
    return list(by_study.values())
