"""Measures a pair on a few examples, and chooses what pays.

What the verifier writes is decoded, and both models read it: that gives the
acceptance of every rule and alpha, and with measured costs the gamma and the
speed to expect of each. Few of them are then decoded for their quality, and
those that are left are timed.
"""

from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from speccascade.advise import effort as efforts
from speccascade.advise import scatter
from speccascade.advise.effort import Budget, Steps
from speccascade.advise.offers import DRAFTER, Drafting, Offer, monotone
from speccascade.advise.wanted import LOSSLESS, Wanted
from speccascade.decoding.types import Decoded
from speccascade.evaluation import efficiency
from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records
from speccascade.inference.rows.results import ResultRow

# What a point must promise over the best so far to be decoded. Differences
# below it drown in the noise of a few examples.
_MARGIN = 1.03
# The lower end of a speed-up from which on it pays: of two equal programs the
# clock has told one 1.05 [1.01, 1.08] times as fast.
LEAST = 1.05
# Hot loops have told a gamma this much too slow against another.
_CLOSE = 1.1
# Steps that are planned for one drafter: its costs, two timings of SpecDecode,
# its own texts; and at the end, beside the points that are decoded, one timing.
_OF_DRAFTER, _LAST = 4, 1


@dataclasses.dataclass(frozen=True, eq=False)
class Advice:
  """What was found.

  Attributes:
    choice: what to use; None where nothing pays.
    lossless: the best with the verifier's own law, timed.
    timed: that of each drafter, and what fits and promises more.
    offers: all that were asked about, at their best gamma.
    decoded: those whose quality is known, in the order of being decoded.
    draftings: the drafters, and what they cost.
    alone: the verifier's row.
    wanted: what was asked.
    warnings: why the answer may be wrong, and what to do; often none.
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
  """Returns the steps that are planned; a search may end with fewer."""
  return 1 + _OF_DRAFTER * num_drafters + _num_searched(wanted) + _LAST


def _num_searched(wanted: Wanted) -> int:
  return 0 if wanted.max_loss is None else wanted.num_decoded


@dataclasses.dataclass
class Searcher:
  """One run of `advisor.advise`.

  Attributes:
    studies: one for each drafter.
    points: in question, the lossless one first.
    wanted: what is asked.
    rounds: in which costs are measured.
    budget: of time.
    steps: of the bar.
    decoded: see `Advice`.
    passes: scatter of the verifier's hot loops.
    decodes: scatter of whole decodes.
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
    points = self.points
    self.budget.share = efforts.ALONE
    texts, alone = self._decode(self.studies[0], measure.reference(points[0]))
    self.steps.end_part(1)
    draftings, offers, finals = {}, [], {}
    for number, study in enumerate(self.studies, start=1):
      more = (efforts.DRAFTERS - efforts.ALONE) * number / len(self.studies)
      self.budget.share = efforts.ALONE + more
      drafting, lossless = self._drafting(study, texts)
      draftings[study.pair.drafter_name] = drafting
      offers += drafting.offers(points, texts)
      finals[lossless.method] = lossless
      small = dataclasses.replace(points[0], method=DRAFTER, alpha=None)
      written, row = self._decode(study, small)
      offer = drafting.drafter_alone(small, written)
      self.decoded.append(dataclasses.replace(offer, row=row))
      self.steps.end_part(_OF_DRAFTER)
    lossless = min(finals.values(), key=_by_clock)
    if self.wanted.max_loss is not None and alone.quality:
      fits = [offer for offer in self.decoded if self._fits(offer, alone)]
      best = max([lossless, *fits], key=_by_promise)
      self.budget.share = efforts.SEARCH
      best = self._search(best, offers, draftings, alone)
      self.budget.share = 1.0
      if best is not lossless:
        (finals[best.method],) = self._timed([best])
    self.steps.end_part(_num_searched(self.wanted) + _LAST)
    timed = list(finals.values())
    pays = [o for o in timed if 1 / o.measured.relative_high > LEAST]
    return Advice(
      choice=min(pays, key=_by_clock, default=None),
      lossless=lossless,
      timed=timed,
      offers=offers,
      decoded=self.decoded,
      draftings=list(draftings.values()),
      alone=alone,
      wanted=self.wanted,
      warnings=self._warnings(),
    )

  def _warnings(self) -> list[str]:
    warnings = [scatter.warning(self.passes, self.decodes)]
    if self.budget.cut:
      warnings.append(
        f"TIME_LIMIT_S of {self.budget.limit_s:g} s left out"
        f" {', '.join(self.budget.cut)}: what was left out may be faster; give"
        " more time, or an idle machine"
      )
    return [x for x in warnings if x]

  def _drafting(self, study: Study, texts: Decoded) -> tuple[Drafting, Offer]:
    """Returns what a drafter costs, and the lossless method with it, timed.

    Gammas that passes alone promise little less of than of the best are timed
    in turns, and then what is beside the fastest, until that lies between
    slower ones.
    """
    self.steps.begin(f"costs of {study.pair.drafter_name}")
    gammas, lossless = sorted({*self.wanted.gammas}), self.points[0]
    widths = [dataclasses.replace(lossless, gamma=g) for g in gammas]
    loops = measure.cost_loops(
      study, widths, self.rounds, is_over=self.budget.is_spent
    )
    for name, number in scatter.of_loops(loops).items():
      self.passes[f"{name} beside {study.pair.drafter_name}"] = number
    self.steps.end()
    drafting = Drafting(study, monotone(loops.costs), texts, gammas)
    offers = drafting.by_gamma(lossless, texts)
    least = max(offer.here.speedup for offer in offers.values()) / _CLOSE
    beside = {g for g, offer in offers.items() if offer.here.speedup >= least}
    if len(beside) > 1 and self.budget.leaves_out("gammas of equal promise"):
      # Each is a program to compile.
      beside = {max(offers, key=lambda gamma: offers[gamma].here.speedup)}
    timed = {}
    while beside:
      for offer in self._timed([offers[gamma] for gamma in sorted(beside)]):
        timed[offer.point.gamma] = offer
      fastest = min(timed.values(), key=_by_clock)
      place = gammas.index(fastest.point.gamma)
      beside = {*gammas[max(0, place - 1) : place + 2]} - timed.keys()
      if beside and self.budget.leaves_out("gammas beside the fastest"):
        break
    drafting = drafting.calibrated(timed.values())
    again = drafting.by_gamma(lossless, texts)[fastest.point.gamma]
    return drafting, dataclasses.replace(again, measured=fastest.measured)

  def _search(self, best, offers, draftings, alone) -> Offer:
    """Returns the fastest that fits, of those that were decoded.

    Always the slowest that promises to be faster than the best so far is
    decoded: of its method the likeliest to fit. Where it does not, those of the
    method that are faster still are given up.
    """
    going = [offer for offer in offers if offer.point.method != LOSSLESS]
    going.sort(key=_by_promise)
    for _ in range(self.wanted.num_decoded):
      least = _MARGIN * max(best.here.speedup, 1)
      going = [offer for offer in going if offer.here.speedup > least]
      if not going or self.budget.leaves_out(
        "points that promise to be faster"
      ):
        break
      offer = going.pop(0)
      texts, row = self._decode(offer.study, offer.point)
      drafting = draftings[offer.study.pair.drafter_name]
      (exact,) = drafting.offers([offer.point], texts, is_own=True)
      exact = dataclasses.replace(exact, row=row)
      self.decoded.append(exact)
      if not self._fits(exact, alone):
        going = [other for other in going if other.method != offer.method]
      elif exact.here.speedup > best.here.speedup:
        best = exact
    return best

  def _fits(self, offer: Offer, alone: ResultRow) -> bool:
    return loss(offer.row, alone)[0] <= self.wanted.max_loss

  def _decode(self, study: Study, point: Point) -> tuple[Decoded, ResultRow]:
    """Returns what a point writes in the first trial, and the row of all."""
    self.steps.begin(
      ", ".join([point.spec.label, *study.settings(point).words])
    )
    batches, num_trials = study.batches(point), study.num_trials(point)
    parts = []
    for trial in range(num_trials):
      parts.append(batches.decode_all(study.examples, trial))
      if trial + 1 < num_trials and self.budget.leaves_out("trials"):
        break
    counts = list(itertools.chain(*map(efficiency.row_counts, parts)))
    written = [
      records.text_of(study.vocabulary, tokens[:length])
      for part in parts
      for tokens, length in zip(part.tokens, part.lengths)
    ]
    examples = [*study.examples] * len(parts)
    total = efficiency.total(counts)
    row = measure.result_row(
      study, point, total, examples, written, trials=len(parts)
    )
    self.steps.end()
    return parts[0], row

  def _timed(self, offers: Sequence[Offer]) -> list[Offer]:
    """Returns offers of one drafter with what the clock says, in turns."""
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


def loss(row: ResultRow, alone: ResultRow) -> tuple[float, float, float]:
  """Returns what a row loses of the first metric, and a 95% interval of it."""
  (mine, *_), (large, *_) = row.quality.values(), alone.quality.values()
  differences = np.subtract(large["replicates"], mine["replicates"])
  low, high = np.quantile(differences, [0.025, 0.975])
  return large["value"] - mine["value"], float(low), float(high)
