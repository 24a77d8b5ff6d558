"""Methods at their best gamma, and what they are expected to take."""

from collections.abc import Sequence
import dataclasses

import numpy as np
from scipy.optimize import isotonic_regression

from speccascade.advise.acceptance import rates_along
from speccascade.analysis import blocks, speedup
from speccascade.decoding.types import Decoded
from speccascade.evaluation import efficiency, timing
from speccascade.evaluation.efficiency import Costs
from speccascade.evaluation.timing import Latency
from speccascade.inference.point import Point
from speccascade.inference.results import ResultRow
from speccascade.inference.study import Study

DRAFTER = "drafter"


@dataclasses.dataclass(frozen=True)
class Expected:
  """What blocks of one size give, by acceptance and costs.

  Attributes:
    gamma: drafted tokens; 0 for a model alone.
    tokens: a block writes.
    steps: a block costs, in those of the verifier.
    by_position: how likely the 1st, 2nd, ... draft is accepted if examined.
    latency: of whole decodes, encoders included, against the verifier alone.
  """

  gamma: int
  tokens: float
  steps: float
  by_position: Sequence[float | None]
  latency: Latency

  @property
  def speedup(self) -> float:
    return 1 / self.latency.relative_latency


@dataclasses.dataclass(frozen=True, eq=False)
class Offer:
  """A method at the gamma that is best for it.

  Attributes:
    study: of the drafter.
    point: method, alpha and gamma.
    here: what is expected of it on this machine.
    one_step: where a block costs one step, at the gamma that is best there.
    row: quality and counts, once it was decoded.
    measured: by the clock, once it was timed.
  """

  study: Study
  point: Point
  here: Expected
  one_step: Expected
  row: ResultRow | None = None
  measured: Latency | None = None

  @property
  def method(self) -> tuple[str, str]:
    """The drafter's name and the method's."""
    return self.study.pair.drafter_name, self.point.method


@dataclasses.dataclass(frozen=True, eq=False)
class Drafting:
  """One drafter beside the verifier.

  Attributes:
    study: the pair with this drafter alone.
    costs: of the pair.
    alone: what the verifier wrote.
    gammas: the block sizes in question.
    overhead: steps of the verifier that the loop takes around a block; see
      `calibrated`.
  """

  study: Study
  costs: Costs
  alone: Decoded
  gammas: Sequence[int]
  overhead: float = 0.0

  def offers(
    self, points: Sequence[Point], texts: Decoded, *, own: bool = False
  ) -> list[Offer]:
    """Returns each point at its best gamma, with what texts tell of it.

    Args:
      points: methods with a target, at any gamma.
      texts: see `rates_along`, like `own`.
      own: likewise.
    """
    rates = rates_along(self.study, points, texts, own=own)
    lengths = np.asarray(texts.lengths)
    by_gamma = {
      g: blocks.blocks_of_texts(rates, lengths, g) for g in self.gammas
    }
    found = []
    for place, point in enumerate(points):
      here, one_step = (
        max(
          (
            drafting._expected(point, gamma, lengths, whole, place)
            for gamma, whole in by_gamma.items()
          ),
          key=lambda expected: expected.speedup,
        )
        for drafting in (self, self._one_step)
      )
      point = dataclasses.replace(point, gamma=here.gamma)
      found.append(Offer(self.study, point, here, one_step))
    return found

  def _expected(self, point, gamma, lengths, whole, place) -> Expected:
    costs, num = self.costs, whole.num[place]
    sums = (x[place].sum(axis=0) for x in (whole.accepted, whole.examined))
    steps = speedup.block_cost(
      gamma,
      costs.c,
      v=costs.v[gamma + 1],
      q2=costs.q2 if point.folds else None,
      bonus_law=not point.folds,
    )
    steps += self.overhead
    return Expected(
      gamma=gamma,
      tokens=float(lengths.sum() / num.sum()),
      steps=float(steps),
      by_position=tuple(efficiency.ratio(*map(float, x)) for x in zip(*sums)),
      latency=self._latency(
        costs.drafter_prefill + costs.verifier_prefill + num * steps
      ),
    )

  def drafter_alone(self, point: Point, texts: Decoded) -> Offer:
    """Returns the offer to use the drafter alone."""
    costs, lengths = self.costs, np.asarray(texts.lengths)
    taken = self._latency(costs.drafter_prefill + lengths * costs.c)
    expected = Expected(0, 1.0, costs.c, (), taken)
    return Offer(self.study, point, expected, expected)

  def _latency(self, steps: np.ndarray) -> Latency:
    """Returns the latency of examples that take so many verifier steps."""
    alone, unit = self._alone_steps, self.costs.verifier_step_s
    return timing.latency(unit * steps[None], unit * alone[None])

  @property
  def _alone_steps(self) -> np.ndarray:
    """[N] steps of the verifier alone."""
    return self.costs.verifier_prefill + np.asarray(self.alone.lengths)

  @property
  def _one_step(self) -> "Drafting":
    """The same where a pass costs one step, whatever its width."""
    costs = self.costs
    same = dataclasses.replace(costs, v=dict.fromkeys(costs.v, 1.0), q2=costs.c)
    return dataclasses.replace(self, costs=same, overhead=0.0)

  def calibrated(self, offer: Offer) -> "Drafting":
    """Returns the same with the loop around a block as the clock has it.

    What a timed decode took beyond its passes is spread over its blocks.

    Args:
      offer: of this drafting, with the verifier's own law, and timed.
    """
    expected = offer.here.latency.relative_latency
    steps = self._alone_steps.sum()
    more = (offer.measured.relative_latency - expected) * steps
    num = np.asarray(self.alone.lengths).sum() / offer.here.tokens
    overhead = max(0.0, self.overhead + float(more / num))
    return dataclasses.replace(self, overhead=overhead)


def monotone(costs: Costs) -> Costs:
  """Returns costs in which no pass is cheaper than a narrower one.

  A wider pass does more; where the clock says otherwise it was disturbed, and
  the gamma that it flatters would be chosen. The nearest rising numbers stand
  for the measured ones, and the unit is their first.
  """
  widths = sorted(costs.v)
  rising = isotonic_regression([costs.v[width] for width in widths]).x
  unit = float(rising[0])
  return Costs(
    verifier_step_s=costs.verifier_step_s * unit,
    c=costs.c / unit,
    q2=max(costs.c, costs.q2) / unit,
    v=dict(zip(widths, (rising / unit).tolist())),
    drafter_prefill=costs.drafter_prefill / unit,
    verifier_prefill=costs.verifier_prefill / unit,
  )
