"""The studies of a sweep: the pair as each method takes it, and the seeds."""

from collections.abc import Sequence
import dataclasses

from speccascade.inference.pair import ModelPair
from speccascade.inference.point import Point
from speccascade.inference.study import Study


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

  def _pair_of(self, point: Point) -> ModelPair:
    """Returns what decodes a point: methods of one drafter get the largest."""
    if self._composed is not None and point.spec.has_blocks:
      return self._composed
    return self._study.pair if point.spec.compose is not None else self._first

  def of(self, point: Point, seed: int) -> Study:
    """Returns the study of a point; those of one pair and seed are the same."""
    pair = self._pair_of(point)
    key = (id(pair), seed)
    if key not in self._known:
      self._known[key] = dataclasses.replace(
        self._study,
        pair=pair,
        run=dataclasses.replace(self._study.run, seed=seed),
      )
    return self._known[key]

  def check(self, points: Sequence[Point]):
    """Raises ValueError where a point cannot be decoded by these models."""
    for point in points:
      self.of(point, self._study.run.seed).batches(point).check()

  def allowed(self, names: Sequence[str], draft_length="fixed") -> list[str]:
    """Returns the methods whose needs the drafters and `draft_length` meet."""
    kept = []
    for name in names:
      try:
        self.check([Point(name, temperature=0.0, draft_length=draft_length)])
      except ValueError:
        continue
      kept.append(name)
    return kept
