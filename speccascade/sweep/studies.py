"""The studies of a sweep: the pair as each method takes it, and the seeds."""

from collections.abc import Sequence
import dataclasses

from speccascade.inference.pair import ModelPair
from speccascade.inference.point import Point
from speccascade.inference.study import Study
from speccascade.sweep.grids import Grid
from speccascade.sweep.plan import Curve


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

  def allowed(self, names: Sequence[str], draft_length="fixed") -> list[str]:
    """Returns the methods whose needs the drafters and `draft_length` meet."""
    kept = []
    for name in names:
      point = Point(name, temperature=0.0, draft_length=draft_length)
      try:
        self.check(Curve(point, self._study.run.seed, Grid(())))
      except ValueError:
        continue
      kept.append(name)
    return kept
