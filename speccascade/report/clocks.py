"""What a method's latency is: measured, or modelled from its counts."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from speccascade.analysis import swi
from speccascade.report import frontier
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.measured import REFERENCE, Measured


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

  def of(self, point: Measured) -> IntervalEstimate | None:
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
      return IntervalEstimate(1.0)
    if not counts.num_tokens or len(counts.calls_by_model) > 1:
      return None
    calls = {"small": counts.drafter_calls, "large": counts.verifier_extends}
    costs = {"small": self.cost_ratio, "large": 1.0}
    return IntervalEstimate(1 / swi.swi(counts.num_tokens, calls, costs))

  def timed(self, members: Sequence[Measured]) -> list[Measured]:
    """Returns those that have both a latency and a quality."""
    return [p for p in members if self.of(p) and p.quality]

  def points(self, members: Sequence[Measured]) -> list[Points]:
    """Returns those that have both, `resampled`; nothing if none has."""
    members = self.timed(members)
    quality = [point.quality_sample for point in members]
    if self.cost_ratio is None:
      latency = [point.latency_sample for point in members]
    else:
      latency = [
        np.full_like(scores, self.of(point).value)
        for scores, point in zip(quality, members)
      ]
    return frontier.resampled(latency, quality) if members else []


MEASURED = Clock("measured", "measured wall-clock")


def modelled(cost_ratio: float) -> Clock:
  """Returns the clock of a machine where a block costs one verifier step."""
  title = f"modelled: a block costs one step, c = {cost_ratio:.3g}"
  return Clock("modelled", title, cost_ratio)
