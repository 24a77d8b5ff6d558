"""Methods at their best gamma, and what they are expected to take."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np
from scipy.optimize import isotonic_regression

from speccascade.advise.acceptance import rates_along
from speccascade.analysis import speedup
from speccascade.analysis.speedup import ExpectedBlocks
from speccascade.decoding.types import Decoded
from speccascade.evaluation import efficiency, timing
from speccascade.evaluation.efficiency import Costs
from speccascade.evaluation.timing import Latency
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows.results import ResultRow

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
    overhead: steps of the verifier that the loop takes around a block, by
      gamma; between those that are known it is interpolated.
  """

  study: Study
  costs: Costs
  alone: Decoded
  gammas: Sequence[int]
  overhead: Mapping[int, float] = dataclasses.field(default_factory=dict)

  def offers(
    self, points: Sequence[Point], texts: Decoded, *, is_own: bool = False
  ) -> list[Offer]:
    """Returns each point at its best gamma, with what texts tell of it.

    Args:
      points: methods with a target, at any gamma.
      texts: see `rates_along`, like `is_own`.
      is_own: likewise.
    """
    rates = rates_along(self.study, points, texts, is_own=is_own)
    return self._best(points, rates, texts)

  def by_gamma(self, point: Point, texts: Decoded) -> dict[int, Offer]:
    """Returns the point at each gamma; see `offers`."""
    rates = rates_along(self.study, [point], texts, is_own=False)
    one_step = self._best([point], rates, texts)[0].one_step
    found = {}
    for gamma in self.gammas:
      alone = dataclasses.replace(self, gammas=(gamma,))
      (offer,) = alone._best([point], rates, texts)
      found[gamma] = dataclasses.replace(offer, one_step=one_step)
    return found

  def _best(self, points, rates: np.ndarray, texts: Decoded) -> list[Offer]:
    """Returns each point at its best gamma by the rates [A, N, T]."""
    lengths, blocks = np.asarray(texts.lengths), speedup.blocks_of_texts
    of_all = {gamma: blocks(rates, lengths, gamma) for gamma in self.gammas}
    offers = []
    for place, point in enumerate(points):
      by_gamma = {gamma: blocks.at(place) for gamma, blocks in of_all.items()}
      here = self._expected(point, lengths, by_gamma)
      one_step = self._one_step._expected(point, lengths, by_gamma)
      point = dataclasses.replace(point, gamma=here.gamma)
      offers.append(Offer(self.study, point, here, one_step))
    return offers

  def _expected(
    self, point: Point, lengths, by_gamma: Mapping[int, ExpectedBlocks]
  ) -> Expected:
    """Returns what the gamma gives that takes the fewest steps."""
    per_block = {gamma: self._block_steps(point, gamma) for gamma in by_gamma}
    total = lambda gamma: by_gamma[gamma].num.sum() * per_block[gamma]
    gamma = min(by_gamma, key=total)
    costs, (num, examined, accepted) = self.costs, by_gamma[gamma]
    rates = zip(accepted.sum(axis=0), examined.sum(axis=0))
    prefills = costs.drafter_prefill + costs.verifier_prefill
    return Expected(
      gamma=gamma,
      tokens=float(lengths.sum() / num.sum()),
      steps=per_block[gamma],
      by_position=tuple(efficiency.ratio(*map(float, x)) for x in rates),
      latency=self._latency(prefills + num * per_block[gamma]),
    )

  def _block_steps(self, point: Point, gamma: int) -> float:
    """Returns the cost of a block, in verifier steps."""
    costs = self.costs
    steps = speedup.block_cost(
      gamma,
      costs.c,
      v=costs.v[gamma + 1],
      q2=costs.q2 if point.folds else None,
      bonus_law=not point.folds,
    )
    return float(steps) + self.overhead_of(gamma)

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
    return dataclasses.replace(self, costs=same, overhead={})

  def overhead_of(self, gamma: int) -> float:
    """Returns the steps that the loop takes around a block of `gamma`."""
    known = sorted(self.overhead.items()) or [(0, 0.0)]
    return float(np.interp(gamma, *zip(*known)))

  def calibrated(self, offers: Sequence[Offer]) -> "Drafting":
    """Returns the same with the loop around blocks as the clock has it.

    What a timed decode took beyond its passes is spread over its blocks.

    Args:
      offers: of this drafting, with the verifier's own law, and timed.
    """
    overhead, steps = {}, self._alone_steps.sum()
    for offer in offers:
      expected = offer.here.latency.relative_latency
      more = (offer.measured.relative_latency - expected) * steps
      num = np.asarray(self.alone.lengths).sum() / offer.here.tokens
      overhead[offer.point.gamma] = max(0.0, float(more / num))
    return dataclasses.replace(self, overhead=overhead)

  def needed(self, least: float) -> float | None:
    """Returns the rate of acceptance from which on `spec_decode` pays.

    Args:
      least: the speed-up that is wanted. None is returned where no rate, the
        same at every token, gives it.
    """
    rates = np.linspace(0, 1, 101)
    along = np.ones(self.alone.tokens.shape) * rates[:, None, None]
    offers = self._best([Point("spec_decode")] * len(rates), along, self.alone)
    pays = (rate for rate, o in zip(rates, offers) if o.here.speedup > least)
    return next(pays, None)


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
