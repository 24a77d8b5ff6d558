"""What a method's latency is: measured, or modelled from its counts."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from speccascade.analysis import swi
from speccascade.report.curves import REFERENCE, Measured
from speccascade.report.frontier import Points, Sample


@dataclasses.dataclass(frozen=True)
class Clock:
  """A meaning of relative latency.

  Attributes:
    name: "measured" or "modelled".
    title: a few words for headings and axes.
    cost_ratio: c of the modelled one; None where it is measured.
  """

  name: str
  title: str
  cost_ratio: float | None = None

  def of(self, point: Measured) -> Sample | None:
    """Returns a point's latency, None where it has none.

    The modelled one is 1 / SWI with these costs: a drafter call costs c, a
    verifier pass 1 however many tokens it feeds, all else nothing. It is a
    function of the counts, which have no replicates; so its interval shows the
    quality's spread alone.
    """
    if self.cost_ratio is None:
      return point.latency
    counts = point.counts
    if point.method == REFERENCE:
      return Sample(1.0)
    if not counts.num_tokens or len(counts.calls_by_model) > 1:
      return None
    calls = {"small": counts.drafter_calls, "large": counts.verifier_extends}
    costs = {"small": self.cost_ratio, "large": 1.0}
    return Sample(1 / swi.swi(counts.num_tokens, calls, costs))

  def points(self, members: Sequence[Measured], metric: str) -> Points | None:
    """Returns latency and quality of those that have both; None if none has."""
    found = self.timed(members, metric)
    if not found:
      return None
    quality = [point.quality(metric) for point in found]
    latency = [self.of(point) for point in found]
    if self.cost_ratio is not None:
      latency = [
        Sample(fixed.value, _repeat(fixed.value, score.replicates))
        for fixed, score in zip(latency, quality)
      ]
    return Points.of(latency, quality)

  def timed(self, members: Sequence[Measured], metric: str) -> list[Measured]:
    """Returns those that have both a latency and the metric."""
    return [
      point
      for point in members
      if self.of(point) is not None and point.quality(metric) is not None
    ]


def _repeat(value: float, replicates) -> np.ndarray | None:
  return None if replicates is None else np.full(len(replicates), value)


MEASURED = Clock("measured", "measured wall-clock")


def modelled(cost_ratio: float) -> Clock:
  """Returns the clock of a machine where a block costs one verifier step."""
  title = f"modelled: a block costs one step, c = {cost_ratio:.3g}"
  return Clock("modelled", title, cost_ratio)
