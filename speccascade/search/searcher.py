"""Measures a pair of models on a few examples, and chooses what pays.

The verifier writes texts, and both models read the texts. That gives the
acceptance of every rule and alpha. With measured costs it gives the best gamma
and the expected speed of each rule and alpha. A few of these points are then
decoded for their quality, and the best of them are timed.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from speccascade.decoding.records.block_records import Decoded
from speccascade.evaluation import efficiency
from speccascade.inference.measuring import measure, scoring
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records
from speccascade.inference.rows.results import ResultRow
from speccascade.search import effort, scatter
from speccascade.search.effort import Budget, Steps
from speccascade.search.offers import DRAFTER, Drafting, Offer, make_monotone
from speccascade.search.wanted import LOSSLESS, Wanted

# How many times as fast as the best point so far a point must promise to be, in
# order to be decoded. Differences below that drown in the noise of a few
# examples.
_MARGIN = 1.03
# The lower end of a speed-up from which on a point pays. Of two equal programs
# the clock has shown one to be 1.05 [1.01, 1.08] times as fast.
LEAST = 1.05
# Hot loops have shown a gamma to be this much too slow, compared with another.
_CLOSE = 1.1
# Steps that are planned for one drafter: its costs, two timings of SpecDecode,
# and its own texts.
_STEPS_PER_DRAFTER = 4
# The search ends with one timing, after the points that are decoded.
_LAST_STEPS = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Advice:
  """What a search found.

  Attributes:
    choice: the offer to use; None where nothing pays.
    lossless: the fastest offer whose outputs have the verifier's distribution;
      it is timed.
    timed: the timed offers: the lossless offer of each drafter, and the offer
      that fits what is wanted and promises more, if there is one.
    offers: all offers in question, each at its best gamma.
    decoded: the offers whose quality is known, in the order of decoding.
    draftings: the drafters and what they cost.
    alone: the row of the verifier alone.
    wanted: what the user asked.
    warnings: why the answer may be wrong and what to do; often empty.
  """

  choice: Offer | None
  lossless: Offer
  timed: Sequence[Offer]
  offers: Sequence[Offer]
  decoded: Sequence[Offer]
  draftings: Sequence[Drafting]
  alone: ResultRow
  wanted: Wanted
  warnings: Sequence[str] = ()


def num_steps(num_drafters: int, wanted: Wanted) -> int:
  """Returns the number of planned steps; a search may need fewer steps."""
  texts_of_verifier = 1
  return (
    texts_of_verifier
    + _STEPS_PER_DRAFTER * num_drafters
    + _num_decoded(wanted)
    + _LAST_STEPS
  )


def _num_decoded(wanted: Wanted) -> int:
  """Returns the largest number of points that are decoded for their quality."""
  return 0 if wanted.max_loss is None else wanted.num_decoded


@dataclasses.dataclass
class Searcher:
  """One run of `advisor.advise`.

  Attributes:
    studies: one study for each drafter alone with the verifier.
    points: the points in question, the lossless point first.
    wanted: what the user asked.
    rounds: the number of rounds in which costs are measured.
    budget: the time that the search may take.
    steps: the steps on the bar.
    decoded: see `Advice`.
    passes: the scatter of the verifier's hot loops, by the name of the pass.
    decodes: the scatter of whole decodes, by the name of the point.
  """

  studies: Sequence[Study]
  points: Sequence[Point]
  wanted: Wanted
  rounds: int
  budget: Budget
  steps: Steps
  decoded: list[Offer] = dataclasses.field(default_factory=list)
  passes: dict[str, float | None] = dataclasses.field(default_factory=dict)
  decodes: dict[str, float | None] = dataclasses.field(default_factory=dict)

  def run(self) -> Advice:
    """Searches; each part ends when its share of the budget is used."""
    points = self.points
    # The verifier writes the texts along which acceptance is computed.
    self.budget.share = effort.ALONE
    texts, alone = self._decode(self.studies[0], measure.reference(points[0]))
    self.steps.end_part(1)
    # Costs of each drafter, its fastest gamma, and its own texts.
    draftings, offers, finals = {}, [], {}
    for number, study in enumerate(self.studies, start=1):
      more = (effort.DRAFTERS - effort.ALONE) * number / len(self.studies)
      self.budget.share = effort.ALONE + more
      drafting, lossless = self._calibrate(study, texts)
      draftings[study.pair.drafter_name] = drafting
      offers += drafting.offers(points, texts)
      finals[lossless.method] = lossless
      self._decode_drafter(drafting)
      self.steps.end_part(_STEPS_PER_DRAFTER)
    lossless = min(finals.values(), key=_by_clock)
    # Points that promise more than the lossless offer are decoded, and the
    # best point that fits is timed.
    if self.wanted.max_loss is not None and alone.quality:
      fitting = [offer for offer in self.decoded if self._fits(offer, alone)]
      best = max([lossless, *fitting], key=_by_promise)
      self.budget.share = effort.SEARCH
      best = self._search(best, offers, draftings, alone)
      self.budget.share = 1.0
      if best is not lossless:
        (finals[best.method],) = self._time([best])
    self.steps.end_part(_num_decoded(self.wanted) + _LAST_STEPS)
    timed = list(finals.values())
    paying = [x for x in timed if 1 / x.measured.relative_high > LEAST]
    return Advice(
      choice=min(paying, key=_by_clock, default=None),
      lossless=lossless,
      timed=timed,
      offers=offers,
      decoded=self.decoded,
      draftings=list(draftings.values()),
      alone=alone,
      wanted=self.wanted,
      warnings=self._warnings(draftings),
    )

  def _warnings(self, draftings: Mapping[str, Drafting]) -> list[str]:
    """Returns why the answer may be wrong."""
    warnings = [
      f"{name}: {drafting.costs.doubt}"
      for name, drafting in draftings.items()
      if drafting.costs.doubt
    ]
    scattered = scatter.warning(self.passes, self.decodes)
    if scattered is not None:
      warnings.append(scattered)
    if self.budget.cut:
      warnings.append(
        f"TIME_LIMIT_S of {self.budget.limit_s:g} s left out"
        f" {', '.join(self.budget.cut)}: what was left out may be faster; give"
        " more time, or an idle machine"
      )
    return warnings

  def _calibrate(self, study: Study, texts: Decoded) -> tuple[Drafting, Offer]:
    """Returns what a drafter costs, and the timed lossless offer with it.

    Args:
      study: the study of the drafter.
      texts: the texts that the verifier wrote.
    """
    drafting = self._measure_costs(study, texts)
    offers = drafting.by_gamma(self.points[0], texts)
    timed = self._time_gammas(drafting.gammas, offers)
    fastest = min(timed.values(), key=_by_clock)
    # With the loop's overhead by the clock, expectations differ.
    drafting = drafting.calibrate(timed.values())
    offer = drafting.by_gamma(self.points[0], texts)[fastest.point.gamma]
    return drafting, dataclasses.replace(offer, measured=fastest.measured)

  def _measure_costs(self, study: Study, texts: Decoded) -> Drafting:
    """Returns what a drafter costs in hot loops, its c checked by decodes."""
    name = study.pair.drafter_name
    self.steps.begin(f"costs of {name}")
    gammas = self.wanted.gammas_for(study.pair)
    # A target that uses the heads' distribution draws from one head more.
    kinds = {point.folds: point for point in self.points}
    points = [
      dataclasses.replace(point, gamma=gamma)
      for gamma in gammas
      for point in kinds.values()
    ]
    loops = measure.cost_loops(
      study, points, self.rounds, is_over=self.budget.is_spent
    )
    for width, number in scatter.scatter_of_loops(loops).items():
      self.passes[f"{width} next to {name}"] = number
    costs = make_monotone(loops.costs)
    if not self.budget.is_spent():
      costs = measure.check_costs(
        study, self.points[0], costs, is_over=self.budget.is_spent
      )
    self.steps.end()
    return Drafting(study, costs, texts, gammas)

  def _time_gammas(
    self, gammas: Sequence[int], offers: Mapping[int, Offer]
  ) -> dict[int, Offer]:
    """Returns timed offers by gamma; the fastest lies between slower ones.

    First the gammas are timed in turns whose passes alone promise nearly as
    much as the best gamma's passes. Then the neighbours of the fastest gamma
    are timed, until the fastest gamma has slower neighbours.

    Args:
      gammas: the gammas in question, ascending.
      offers: the lossless offer at each gamma.
    """
    speedups = {gamma: offer.here.speedup for gamma, offer in offers.items()}
    best = max(speedups.values())
    untimed = {g for g, speedup in speedups.items() if speedup >= best / _CLOSE}
    if len(untimed) > 1 and self.budget.leaves_out("gammas of equal promise"):
      # Each gamma is another program to compile, so one must do.
      untimed = {max(speedups, key=speedups.get)}
    timed = {}
    while untimed:
      for offer in self._time([offers[gamma] for gamma in sorted(untimed)]):
        timed[offer.point.gamma] = offer
      fastest = min(timed.values(), key=_by_clock)
      place = gammas.index(fastest.point.gamma)
      neighbours = gammas[max(0, place - 1) : place + 2]
      untimed = {*neighbours} - timed.keys()
      if untimed and self.budget.leaves_out("gammas next to the fastest"):
        break
    return timed

  def _decode_drafter(self, drafting: Drafting):
    """Decodes the examples with a drafter alone, which is an offer too.

    Draft heads write nothing alone.
    """
    if drafting.study.pair.has_heads:
      return
    point = dataclasses.replace(self.points[0], method=DRAFTER, alpha=None)
    texts, row = self._decode(drafting.study, point)
    offer = drafting.drafter_alone(point, texts)
    self.decoded.append(dataclasses.replace(offer, row=row))

  def _search(
    self,
    best: Offer,
    offers: Sequence[Offer],
    draftings: Mapping[str, Drafting],
    alone: ResultRow,
  ) -> Offer:
    """Returns the fastest offer that fits, of the offers that are decoded.

    Of the points that promise to be faster than the best offer so far, the
    slowest is decoded, because it is the likeliest of its method to fit. If it
    does not fit, the faster points of its method are given up.

    Args:
      best: the fastest offer that is known to fit.
      offers: the offers in question.
      draftings: what each drafter costs, by the drafter's name.
      alone: the row of the verifier alone.
    """
    open_offers = [x for x in offers if x.point.method != LOSSLESS]
    open_offers.sort(key=_by_promise)
    for _ in range(self.wanted.num_decoded):
      least = _MARGIN * max(best.here.speedup, 1)
      open_offers = [x for x in open_offers if x.here.speedup > least]
      if not open_offers:
        break
      if self.budget.leaves_out("points that promise to be faster"):
        break
      # Decode the slowest; its own texts tell its acceptance exactly.
      offer = open_offers.pop(0)
      texts, row = self._decode(offer.study, offer.point)
      drafting = draftings[offer.study.pair.drafter_name]
      exact = drafting.own_offer(offer.point, texts)
      exact = dataclasses.replace(exact, row=row)
      self.decoded.append(exact)
      # Give up the method, or raise what other points must promise.
      if not self._fits(exact, alone):
        open_offers = [x for x in open_offers if x.method != offer.method]
      elif exact.here.speedup > best.here.speedup:
        best = exact
    return best

  def _fits(self, offer: Offer, alone: ResultRow) -> bool:
    """Returns whether an offer loses no more quality than the user allows."""
    return loss(offer.row, alone).value <= self.wanted.max_loss

  def _decode(self, study: Study, point: Point) -> tuple[Decoded, ResultRow]:
    """Returns a point's texts of the first trial, and the row of all trials."""
    self.steps.begin(
      ", ".join([point.spec.label, *study.settings(point).words])
    )
    batches, num_trials = study.batches(point), study.num_trials(point)
    trials = []
    for trial in range(num_trials):
      trials.append(batches.decode_all(study.examples, trial))
      if trial + 1 < num_trials and self.budget.leaves_out("trials"):
        break
    counts = itertools.chain.from_iterable(map(efficiency.row_counts, trials))
    texts = [
      records.text_of(study.vocabulary, tokens[:length])
      for decoded in trials
      for tokens, length in zip(decoded.tokens, decoded.lengths)
    ]
    row = scoring.result_row(
      study,
      point,
      efficiency.total(list(counts)),
      [*study.examples] * len(trials),
      texts,
      trials=len(trials),
    )
    self.steps.end()
    return trials[0], row

  def _time(self, offers: Sequence[Offer]) -> list[Offer]:
    """Returns offers of one drafter with their latency, timed in turns."""
    study, points = offers[0].study, [offer.point for offer in offers]
    gammas = ", ".join(str(point.gamma) for point in points)
    self.steps.begin(f"the clock: {points[0].spec.label}, gamma {gammas}")
    latencies = measure.time_points(study, points, is_over=self.budget.is_spent)
    self.steps.end()
    for point in points:
      name = f"{point.method} with gamma {point.gamma}"
      self.decodes[name] = scatter.scatter(latencies[point].by_repeat_s)
    return [
      dataclasses.replace(offer, measured=latencies[offer.point])
      for offer in offers
    ]


def _by_promise(offer: Offer) -> float:
  return offer.here.speedup


def _by_clock(offer: Offer) -> float:
  return offer.measured.relative_latency


class Loss(NamedTuple):
  """How much less a point has of the first metric than the verifier alone.

  Attributes:
    value: the difference.
    low: the lower end of its 95% interval.
    high: the upper end.
  """

  value: float
  low: float
  high: float


def loss(row: ResultRow, alone: ResultRow) -> Loss:
  """Returns how much less a row has of the first metric than the verifier.

  Args:
    row: the row of a point, with quality.
    alone: the row of the verifier alone on the same examples.
  """
  (mine, *_), (large, *_) = row.quality.values(), alone.quality.values()
  # Replicates of both rows are resampled from the same examples, so they are
  # compared in pairs.
  differences = np.subtract(large["replicates"], mine["replicates"])
  low, high = np.quantile(differences, [0.025, 0.975])
  return Loss(large["value"] - mine["value"], float(low), float(high))
