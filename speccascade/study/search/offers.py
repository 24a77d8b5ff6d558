"""What the points of a drafter promise: offers, by acceptance and costs.

An offer is a candidate with a predicted speed-up. Acceptance along
texts gives the blocks that a point needs, and costs give what each block takes.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses

import numpy as np
from scipy.optimize import isotonic_regression

from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.decode_settings import block_width
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.study.evaluation import walltime
from speccascade.study.evaluation.timing import CostLoops
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Study
from speccascade.study.papers.blocks import ExpectedBlocks, blocks, chain
from speccascade.study.search.acceptance import rates_along
from speccascade.study.search.candidates import Candidate, Expected
from speccascade.study.search.draft_kinds import DraftKind, kind_of
from speccascade.study.search.effort import Steps, TimeIsUp


@dataclasses.dataclass(frozen=True, eq=False)
class Drafting:
  """What one drafter with the verifier costs.

  Attributes:
    study: the study of the drafter alone with the verifier.
    costs: the costs of the pair.
    alone: the texts that the verifier alone wrote.
    gammas: the block sizes in question.
    overhead: by gamma, what the loop takes around a block, in steps of the
      verifier. Between the gammas that are there it is interpolated.
  """

  study: Study
  costs: Costs
  alone: Decoded
  gammas: Sequence[int]
  overhead: Mapping[int, float] = dataclasses.field(default_factory=dict)

  @property
  def _kind(self) -> DraftKind:
    return kind_of(self.study.pair)

  def offers(
    self,
    points: Sequence[Point],
    texts: Decoded,
    is_over: Callable[[], bool] = lambda: False,
  ) -> list[Candidate]:
    """Returns each point at its best gamma, by the acceptance along texts.

    Args:
      points: methods with a target, at any gamma.
      texts: the texts that the verifier wrote.
      is_over: True leaves points out whose targets are not compiled yet.
    """
    rates = self._rates(points, texts, is_over)
    known = np.flatnonzero(~np.isnan(rates).any(axis=(0, 1, 2, 4, 5)))
    return self._offers_by_rates(
      [points[place] for place in known], rates[:, :, :, known], texts
    )

  def own_offer(self, point: Point, texts: Decoded) -> Candidate:
    """Returns the offer of a point by the texts that the point itself wrote.

    The gamma is the best one where a model drafts. Draft heads keep the point's
    gamma, because another gamma would write other texts: their acceptance is
    that of the blocks which the decode took.

    Args:
      point: a method with a target.
      texts: the texts that the point's chain wrote.
    """
    if not self._kind.has_depths:
      rates = rates_along(self.study, [point], texts, is_own=True)
      return self._offers_by_rates([point], rates, texts)[0]
    stats = texts.stats
    counted = ExpectedBlocks(
      num=np.asarray(stats.num_blocks, float),
      examined=np.asarray(stats.examined_by_position, float),
      accepted=np.asarray(stats.accepted_by_position, float),
    )
    return self._offer(point, np.asarray(texts.lengths), {point.gamma: counted})

  def _rates(self, points, texts, is_over=lambda: False) -> np.ndarray:
    """Returns `rates_along` texts of the verifier."""
    return rates_along(
      self.study,
      points,
      texts,
      is_own=False,
      max_depth=max(self.gammas),
      is_over=is_over,
    )

  def by_gamma(self, point: Point, texts: Decoded) -> dict[int, Candidate]:
    """Returns the point's offer at each gamma in question; see `offers`."""
    lengths = np.asarray(texts.lengths)
    found = self._blocks(self._rates([point], texts), lengths)
    by_gamma = {gamma: of_points.at(0) for gamma, of_points in found.items()}
    one_step = self._offer(point, lengths, by_gamma).one_step
    offers = {}
    for gamma, of_point in by_gamma.items():
      offer = self._offer(point, lengths, {gamma: of_point})
      offers[gamma] = dataclasses.replace(offer, one_step=one_step)
    return offers

  def _offers_by_rates(
    self, points: Sequence[Point], rates: np.ndarray, texts: Decoded
  ) -> list[Candidate]:
    """Returns each of A points at its best gamma, by rates [..., A, N, T]."""
    lengths = np.asarray(texts.lengths)
    blocks_by_gamma = self._blocks(rates, lengths)
    offers = []
    for place, point in enumerate(points):
      of_point = {gamma: x.at(place) for gamma, x in blocks_by_gamma.items()}
      offers.append(self._offer(point, lengths, of_point))
    return offers

  def _blocks(
    self, rates: np.ndarray, lengths: np.ndarray
  ) -> dict[int, ExpectedBlocks]:
    """Returns the blocks that rates [..., A, N, T] promise, by gamma."""
    return {
      gamma: blocks(
        rates,
        lengths,
        chain(gamma),
        first_drafts=self.study.pair.first_block_drafts,
      )
      for gamma in self.gammas
    }

  def _offer(
    self,
    point: Point,
    lengths: np.ndarray,
    by_gamma: Mapping[int, ExpectedBlocks],
  ) -> Candidate:
    """Returns a point at its best gamma; see `_expected`."""
    here = self._expected(point, lengths, by_gamma)
    one_step = self._one_step._expected(point, lengths, by_gamma)
    point = dataclasses.replace(point, gamma=here.gamma)
    return Candidate(self.study, point, here, one_step)

  def _expected(
    self,
    point: Point,
    lengths: np.ndarray,
    by_gamma: Mapping[int, ExpectedBlocks],
  ) -> Expected:
    """Returns what is expected at the gamma whose blocks take fewest steps."""
    steps_per_block = {
      gamma: self._block_steps(point, gamma) for gamma in by_gamma
    }

    def total_steps(gamma: int) -> float:
      return by_gamma[gamma].num.sum() * steps_per_block[gamma]

    gamma = min(by_gamma, key=total_steps)
    costs, best, steps = self.costs, by_gamma[gamma], steps_per_block[gamma]
    prefills = costs.drafter_prefill + costs.verifier_prefill
    latency = self._latency(prefills + best.num * steps)
    return Expected.of(gamma, best, lengths, steps, latency)

  def _block_steps(self, point: Point, gamma: int) -> float:
    """Returns the cost of a block, in steps of the verifier."""
    here = dataclasses.replace(point, gamma=gamma)
    steps = self._kind.chain_steps(self.costs, here)
    steps += self.costs.v[block_width(gamma)]
    return steps + self.overhead_of(gamma)

  def drafter_alone(self, point: Point, texts: Decoded) -> Candidate:
    """Returns the offer to use the drafter alone.

    Args:
      point: the drafter alone.
      texts: the texts that the drafter alone wrote.
    """
    costs, lengths = self.costs, np.asarray(texts.lengths)
    latency = self._latency(costs.drafter_prefill + lengths * costs.c)
    expected = Expected(0, 1.0, costs.c, (), latency)
    return Candidate(self.study, point, expected, expected)

  def _latency(self, steps: np.ndarray) -> Latency:
    """Returns the latency of examples that take `steps` [N] verifier steps."""
    alone, step_s = self._alone_steps, self.costs.verifier_step_s
    return walltime.latency(step_s * steps[None], step_s * alone[None])

  @property
  def _alone_steps(self) -> np.ndarray:
    """[N] steps that the verifier alone takes for each example."""
    return self.costs.verifier_prefill + np.asarray(self.alone.lengths)

  @property
  def _one_step(self) -> "Drafting":
    """The drafting on a machine where a pass of any width costs one step."""
    costs = self.costs
    flat = dataclasses.replace(costs, v=dict.fromkeys(costs.v, 1.0), q2=costs.c)
    return dataclasses.replace(self, costs=flat, overhead={})

  def overhead_of(self, gamma: int) -> float:
    """Returns the steps that the loop takes around a block of `gamma` drafts.

    Between the gammas that were timed it is interpolated, and beyond them it is
    the nearest one's. It is 0 where nothing was timed.
    """
    if not self.overhead:
      return 0.0
    gammas = sorted(self.overhead)
    steps = [self.overhead[known] for known in gammas]
    return float(np.interp(gamma, gammas, steps))

  def calibrate(self, offers: Sequence[Candidate]) -> "Drafting":
    """Returns the drafting with the loop's overhead as the clock found it.

    The time that a decode took beyond its passes is spread over its blocks.

    Args:
      offers: timed offers of a lossless method, at different gammas.
    """
    overhead, steps = {}, self._alone_steps.sum()
    for offer in offers:
      expected = offer.here.latency.relative_latency
      more = (offer.measured.relative_latency - expected) * steps
      num = np.asarray(self.alone.lengths).sum() / offer.here.tokens
      overhead[offer.point.gamma] = max(0.0, float(more / num))
    return dataclasses.replace(self, overhead=overhead)

  def least_rate(self, least_speedup: float) -> float | None:
    """Returns the acceptance rate from which on `spec_decode` is fast enough.

    Args:
      least_speedup: the speed-up over the verifier alone that is wanted.

    Returns:
      A rate that is equal at every token, a multiple of 0.01. None where not
      even the rate 1 gives the speed-up.
    """
    rates = np.linspace(0, 1, 101)
    along = np.multiply.outer(rates, np.ones(self.alone.tokens.shape))
    points = [Point("spec_decode")] * len(rates)
    offers = self._offers_by_rates(points, along[None, None, None], self.alone)
    for rate, offer in zip(rates, offers):
      if offer.here.speedup > least_speedup:
        return rate
    return None


def measure_costs(
  study: Study,
  points: Sequence[Point],
  rounds: int,
  steps: Steps,
  name: str,
  *,
  is_needed: bool = False,
) -> tuple[Costs, CostLoops]:
  """Returns what passes cost, and the hot loops that measured it.

  Whole decodes of both models alone correct the c of hot loops, unless the
  search is out of time for that.

  Args:
    study: a pair of one drafter, and the examples.
    points: the points of one sampling whose passes are timed.
    rounds: how often each loop is timed.
    steps: the steps of the search, of which the loops are one.
    name: the name of the step.
    is_needed: whether whole decodes are to correct c until the time is over;
      else until the share of this part is.

  Raises:
    TimeIsUp: the time was over before all loops were compiled.
    ValueError: the pair's drafter is a cascade, which has no single cost.
  """
  budget = steps.budget
  with steps.step(name):
    loops = point_timing.cost_loops(
      study,
      points,
      rounds,
      tick=budget.tick_of(name),
      is_over=budget.is_spent,
    )
  if loops is None:
    raise ValueError(
      f"the drafter is {study.pair.drafter_name}, a cascade, whose steps have"
      " no single cost: search with one drafter"
    )
  costs = make_monotone(loops.costs)
  by_decodes = f"{name} by whole decodes"
  if not budget.leaves_out(by_decodes, is_needed=is_needed):
    # The budget knows what was left out.
    with contextlib.suppress(TimeIsUp), steps.uncounted(by_decodes):
      costs = point_timing.check_costs(
        study,
        points[0],
        costs,
        tick=budget.tick_of(by_decodes),
        is_over=budget.is_spent,
      )
  return costs, loops


def make_monotone(costs: Costs) -> Costs:
  """Returns costs in which no pass is cheaper than a narrower pass.

  A wider pass does more work, and so do more draft heads. Where one was
  measured to take less time, the measurement was disturbed, and would favour
  that width's gamma. The measured numbers are replaced by the nearest rising
  ones, of which the first is the new unit.
  """
  widths = sorted(costs.v)
  rising = isotonic_regression([costs.v[width] for width in widths]).x
  unit = float(rising[0])
  nums = sorted(costs.heads)
  heads = {}
  if nums:
    drawing = isotonic_regression([costs.heads[num] for num in nums]).x
    heads = dict(zip(nums, (drawing / unit).tolist()))
  return Costs(
    verifier_step_s=costs.verifier_step_s * unit,
    c=costs.c / unit,
    q2=max(costs.c, costs.q2) / unit,
    v=dict(zip(widths, (rising / unit).tolist())),
    drafter_prefill=costs.drafter_prefill / unit,
    verifier_prefill=costs.verifier_prefill / unit,
    heads=heads,
  )
