"""Measures the curves of a sweep until no point lacks its row."""

from collections.abc import Sequence
import contextlib
import dataclasses
import threading

from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import Point
from speccascade.inference.rows.results import ResultRow, Settings
from speccascade.runtime.progress import ProgressBar
from speccascade.search import alpha_grids, grid, shown
from speccascade.search.alpha_grids import Grid
from speccascade.search.grid import Curve, StudyPoint
from speccascade.search.ledger import Ledger, measure_points
from speccascade.search.shown import Shown


class Stopped(Exception):
  """A signal asked the sweep to end."""


class Studies:
  """One study for each seed and each way in which methods take the pair.

  Args:
    study: a study of the pair as it was read.
    composed: the pair with its drafters combined into one, for methods with
      blocks; None where the drafters are not combined.
  """

  def __init__(self, study: Study, composed: ModelPair | None = None):
    self._study = study
    self._composed = composed
    pair = study.pair
    # A slice, because a cascade of Max-Gram alone has no neural drafter.
    self._first = dataclasses.replace(pair, drafters=pair.drafters[:1])
    self._by_pair_and_seed = {}

  def of(self, curve: Curve) -> Study:
    """Returns the study of a curve.

    Curves of one pair and one seed have one study, so that they share what the
    verifier alone wrote. Methods of one drafter get the largest drafter.
    """
    method, pair = curve.base.spec, self._study.pair
    if self._composed is not None and method.has_blocks:
      pair = self._composed
    elif method.compose is None:
      pair = self._first
    key = (id(pair), curve.seed)
    if key not in self._by_pair_and_seed:
      run = dataclasses.replace(self._study.run, seed=curve.seed)
      study = dataclasses.replace(self._study, pair=pair, run=run)
      self._by_pair_and_seed[key] = study
    return self._by_pair_and_seed[key]

  def points(self, curve: Curve) -> list[StudyPoint]:
    """Returns the planned points of a curve."""
    study = self.of(curve)
    return [StudyPoint(study, point) for point in curve.points]

  def middle(self, curve: Curve) -> StudyPoint:
    """Returns the point in the middle of a curve's plan."""
    return StudyPoint(self.of(curve), curve.middle)

  def check(self, curve: Curve):
    """Raises ValueError where the models cannot decode a point of a curve."""
    for point in self.points(curve):
      point.check()

  def allowed_methods(self, names: Sequence[str]) -> list[str]:
    """Returns the methods whose needs the drafters meet.

    Args:
      names: the names of the methods to choose from.
    """
    allowed = []
    for name in names:
      point = Point(name, temperature=0.0)
      # A gamma above the drafts that there are is to be refused, and must not
      # leave all methods out.
      most = self._study.pair.most_drafts
      point = dataclasses.replace(point, gamma=min(point.gamma, most))
      with contextlib.suppress(ValueError):
        self.check(Curve(point, self._study.run.seed, Grid(())))
        allowed.append(name)
    return allowed


@dataclasses.dataclass(frozen=True)
class Runner:
  """Measures the curves of a sweep into one ledger.

  Attributes:
    studies: the study of each curve.
    ledger: where rows are stored.
    budget: the number of points of a curve in an adaptive sweep; 0 where the
      planned points are all.
    shown: the points whose tokens are shown.
  """

  studies: Studies
  ledger: Ledger
  budget: int
  shown: Shown

  def run(self, curves: Sequence[Curve], progress: bool, stop) -> int:
    """Measures all points, and writes the tokens that are shown.

    Args:
      curves: the curves of the sweep.
      progress: whether to show a bar.
      stop: a `signals.Stop`, which is true once a signal has come.

    Returns:
      The number of points whose tokens are shown.

    Raises:
      Stopped: a signal came.
    """
    lock = threading.Lock()
    examples = [self.studies.middle(x) for x in self.shown.select(curves)]
    num_shown = self.shown.num_shown * len(examples)
    with ProgressBar(
      total=self._num_decodes(curves) + num_shown,
      unit="decode",
      desc="sweep",
      smoothing=0.02,
      disable=not progress,
    ) as bar:

      def tick(num: int):
        # Called from several threads, and often: a signal ends the sweep at
        # the next call, wherever it is.
        if stop:
          raise Stopped
        with lock:
          bar.update(num)

      # An adaptive sweep has new points whenever the last ones have rows.
      while points := self._next_points(curves):
        measure_points(points, self.ledger, tick=tick)
      tick(0)
      path = self.ledger.folder / shown.FILE_NAME
      shown.write(path, examples, self.shown.num_shown, tick)
      bar.total = bar.n  # an adaptive sweep may have needed less
    return len(examples)

  def _missing(self, curves: Sequence[Curve]) -> list[StudyPoint]:
    """Returns the planned points without a row; neighbours differ in curve."""
    planned = grid.in_turns(self.studies.points(curve) for curve in curves)
    return [point for point in planned if point not in self.ledger]

  def _num_decodes(self, curves: Sequence[Curve]) -> int:
    """Returns how many examples are decoded, if all budgets are used up."""
    total = 0
    for curve, rows in zip(curves, self._rows(curves)):
      num = len(self._missing([curve]))
      if curve.grid.alphas:
        num = max(num, self.budget - len(rows))
      total += num * self.studies.of(curve).num_decodes(curve.base)
    return total

  def _rows(self, curves: Sequence[Curve]) -> list[dict[float, ResultRow]]:
    """Returns the rows on disk of each curve, by alpha."""
    by_curve = {}
    for row in self.ledger.rows:
      rows = by_curve.setdefault(_without_alpha(row.settings), {})
      rows[row.settings.alpha] = row
    return [
      by_curve.get(
        _without_alpha(self.studies.of(curve).settings(curve.base)), {}
      )
      for curve in curves
    ]

  def _next_points(self, curves: Sequence[Curve]) -> list[StudyPoint]:
    """Returns the planned points that lack a row; then one more for each curve.

    The next alpha of a curve depends on the curve's own rows on disk alone, so
    a sweep that was killed chooses the alphas that an unbroken sweep chooses.
    """
    if points := self._missing(curves):
      return points
    points = []
    for curve, rows in zip(curves, self._rows(curves)):
      if not curve.grid.alphas or len(rows) >= self.budget:
        continue
      alpha = alpha_grids.next_alpha(rows, curve.grid.scale)
      if alpha is not None:
        points.append(StudyPoint(self.studies.of(curve), curve.at(alpha)))
    return points


def _without_alpha(settings: Settings) -> Settings:
  """Returns the settings that all rows of one curve have in common."""
  return dataclasses.replace(settings, alpha=None)
