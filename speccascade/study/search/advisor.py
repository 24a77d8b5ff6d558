"""Measures a pair of models on a few examples, and chooses what pays.

The verifier writes texts, and both models read the texts. That gives the
acceptance of every rule and alpha. With measured costs it gives the best gamma
and the expected speed of each rule and alpha. A few of these points are then
decoded for their quality, and the best of them are timed.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import pathlib

from speccascade.decoding.records.block_records import Decoded
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points import advice_files
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.run import Run
from speccascade.runtime import folders
from speccascade.study.measuring import point_timing, scoring
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.rows.results import ResultRow
from speccascade.study.rows.run_folder import RunFolder
from speccascade.study.search import (
  advice_plan,
  certified,
  early_exits,
  scatter,
)
from speccascade.study.search.advice import Advice, TriedCut, TriedExit
from speccascade.study.search.candidates import (
  DRAFTER,
  Candidate,
  by_clock,
  by_promise,
  each_drafter,
  loss,
  read_study,
  run_rounds,
  time_in_turns,
)
from speccascade.study.search.draft_kinds import kind_of
from speccascade.study.search.draft_vocabularies import DraftVocabularies
from speccascade.study.search.effort import Budget, Effort, Steps, TimeIsUp
from speccascade.study.search.offers import Drafting, measure_costs
from speccascade.study.search.wanted import LOSSLESS, Wanted
from speccascade.tasks.inputs import Inputs

# How many times as fast as the best point so far a point must promise to be, in
# order to be decoded. Smaller differences are within the noise of a few
# examples.
_MARGIN = 1.03
# Hot loops have shown a gamma to be this much too slow, compared with another.
_CLOSE = 1.1
# Shares of the time by which a part of the search ends. The last timing has the
# rest.
_ALONE_SHARE = 0.15  # the verifier writes its texts
_DRAFTERS_SHARE = 0.6  # costs of the drafters, and SpecDecode with each drafter
_SEARCH_SHARE = 0.9  # points that are decoded for their quality


def advise(
  *,
  pair: PairSpec,
  inputs: Inputs,
  point: Point,
  run: Run,
  measuring: Measuring = Measuring(),
  wanted: Wanted = Wanted(),
  effort: Effort = Effort(),
  on_start: Callable[[pathlib.Path], object] = lambda folder: None,
) -> Advice:
  """Measures a pair on a few examples, and returns what pays.

  `advice_page.write` writes the files of the advice.

  Args:
    pair: the verifier, and one drafter or several drafters to choose from; or
      the verifier with its draft heads, or alone.
    inputs: a few dozen examples; with references, their quality is known.
    point: sampling and bonus; its method and gamma are not used.
    run: OUTPUT_DIR, and how examples are decoded.
    measuring: metrics and repeats; all examples are timed.
    wanted: what is asked of a method.
    effort: the number of rounds, and the time that the search may take.
    on_start: called with OUTPUT_DIR once all settings are checked.

  Raises:
    ValueError: a setting, a model or an input does not fit.
  """
  if point.verification != "token" or point.policy.policy != "fixed":
    raise ValueError(
      "advice is of VERIFICATION 'token' and DRAFT_LENGTH 'fixed', whose"
      f" acceptance follows from two distributions; got"
      f" {point.verification!r} and"
      f" {point.draft_length!r}"
    )
  if point.marker is not None:
    raise ValueError(
      "advice is of one alpha for the whole of a text; leave MARKER out, and"
      " sweep with it"
    )
  if point.is_tree:
    raise ValueError(
      "advice is of chains of drafts, whose acceptance follows from two"
      " distributions; leave TREE and DRAFTS out"
    )
  with folders.sole_writer(run.folder):
    readable = early_exits.with_a_drafter(pair, wanted)
    study = read_study(readable, inputs, run, measuring)
    gammas = wanted.gammas_for(study.pair)
    point = dataclasses.replace(point, gamma=max(gammas))
    points = wanted.points(point, study.pair.verifier_lm.vocab_size)
    exits = early_exits.EarlyExits.of(pair, wanted, study)
    drafters = []
    if readable is pair:  # else its early exit stands for those of `exits`
      drafters = [[each] for each in each_drafter(study)]
    if exits.studies:
      drafters.append([*exits.studies])
    vocabularies = DraftVocabularies.of(pair, inputs, wanted, study)
    for studies in drafters:
      for each in studies:
        Candidate(each, points[0]).check()
      if vocabularies.others is None:
        vocabularies.cuts_of(studies[0])  # raises where there are no counts
    first = drafters[0][0]
    identity = advice_plan.identity(study, points[0], wanted)
    folder = RunFolder(run.folder, identity, advice_files.FILE_NAME)
    folder.check()
    folder.open()
    on_start(run.folder)
    num = advice_plan.num_steps(drafters, wanted, vocabularies)
    with effort.begin("advise", num, run.progress) as steps:
      num_drafters = sum(map(len, drafters))
      advice = Advice(first, points[0], wanted, num_drafters, exits)
      return Searcher(
        drafters, points, effort.rounds, steps, advice, vocabularies
      ).run()


@dataclasses.dataclass
class Searcher:
  """One run of `advise`.

  Attributes:
    drafters: for each drafter its study alone with the verifier; early exits
      count as one drafter of several studies, of which one is chosen.
    points: the points in question, the lossless point first.
    rounds: the number of rounds in which costs are measured.
    steps: the steps on the bar, and the time that the search may take.
    advice: what the search finds.
    vocabularies: the draft vocabularies that are tried.
    passes: the scatter of the verifier's hot loops, by the name of the pass.
    decodes: the scatter of whole decodes, by the name of the point.
  """

  drafters: Sequence[Sequence[Study]]
  points: Sequence[Point]
  rounds: int
  steps: Steps
  advice: Advice
  vocabularies: DraftVocabularies
  passes: dict[str, float | None] = dataclasses.field(default_factory=dict)
  decodes: dict[str, float | None] = dataclasses.field(default_factory=dict)

  @property
  def budget(self) -> Budget:
    """The time that the search may take."""
    return self.steps.budget

  def run(self) -> Advice:
    """Searches; each part ends when its share of the budget is used.

    Where the time is over, the answer is what was found until then.
    """
    advice = self.advice
    # The budget knows what was left out.
    with contextlib.suppress(TimeIsUp):
      self._search_all()
    if not self.budget.is_over():
      with self.steps.uncounted("certified positions"):
        advice.certified = certified.shares(advice)
    advice.warnings += [
      f"{drafting.study.pair.drafter_name}: {drafting.costs.doubt}"
      for drafting in advice.draftings
      if drafting.costs.doubt
    ]
    scattered = scatter.warning(self.passes, self.decodes)
    advice.warnings += filter(None, [scattered, self.budget.warning()])
    return advice

  def _search_all(self):
    """Fills the advice in, as far as the time goes."""
    advice, wanted = self.advice, self.advice.wanted
    # The verifier writes the texts along which acceptance is computed.
    self.budget.share = _ALONE_SHARE
    alone = point_timing.reference(self.points[0])
    texts, advice.alone = self._decode(advice.study, alone)
    if self.vocabularies.num_counts:
      with self.steps.step("texts to count"):
        self.vocabularies.count(
          lambda study: study.batches(alone).decode_all(study.examples)
        )
    self.steps.end_part(1 + self.vocabularies.num_counts)
    # Costs of each drafter, its fastest gamma, and its own texts.
    for number, studies in enumerate(self.drafters, start=1):
      more = (_DRAFTERS_SHARE - _ALONE_SHARE) * number / len(self.drafters)
      self.budget.share = _ALONE_SHARE + more
      self._add_drafter(studies, texts)
      self.steps.end_part(
        advice_plan.num_of_drafter(studies, self.vocabularies)
      )
    # Points that promise more than the lossless candidate are decoded, and the
    # best point that fits is timed.
    if wanted.max_loss is not None and advice.alone.quality:
      self.budget.share = _SEARCH_SHARE
      self._decode_promising()
      self.budget.share = 1.0
      best = self._best_fitting()
      if best is not advice.lossless:
        advice.timed += self._time([best])
    self.steps.end_part(advice_plan.num_last(wanted))

  def _add_drafter(self, studies: Sequence[Study], texts: Decoded):
    """Adds a drafter, and the best of its draft vocabularies if one is better.

    Of early exits the one that promises the most is the drafter.

    A draft vocabulary is tried by the costs of its passes and its acceptance
    along the texts. The clock then decides between the best of them and all
    tokens.
    """
    drafting, by_gamma = self._most_promising(studies, texts)
    study, whole = drafting.study, max(by_gamma.values(), key=by_promise)
    self._add_drafting(drafting, by_gamma, texts)
    tried = []
    for cut in self.vocabularies.cuts_of(study):
      if self.budget.leaves_out(f"draft vocabularies of {whole.method[0]}"):
        break
      cut_drafting, cut_by_gamma = self._promised(cut.study, texts, drafting)
      best = max(cut_by_gamma.values(), key=by_promise)
      c = cut_drafting.costs.c
      self.advice.tried.append(TriedCut(cut, c, drafting.costs.c, best, whole))
      tried.append((by_promise(best), cut_drafting, cut_by_gamma))
    if tried:
      promise, drafting, by_gamma = max(tried, key=lambda each: each[0])
      if promise > by_promise(whole):
        self._add_drafting(drafting, by_gamma, texts)

  def _most_promising(
    self, studies: Sequence[Study], texts: Decoded
  ) -> tuple[Drafting, dict[int, Candidate]]:
    """Returns what the best of several drafters costs, and its offers."""
    promised = []
    for study in studies:
      exits = f"early exits of {study.pair.verifier_name}"
      if promised and self.budget.leaves_out(exits):
        break
      drafting, by_gamma = self._promised(study, texts)
      best = max(by_gamma.values(), key=by_promise)
      if self.advice.exits.bindings(study):
        self.advice.tried_exits.append(TriedExit(drafting.costs.c, best))
      promised.append((by_promise(best), drafting, by_gamma))
    _, *chosen = max(promised, key=lambda each: each[0])
    return tuple(chosen)

  def _promised(
    self, study: Study, texts: Decoded, whole: Drafting | None = None
  ) -> tuple[Drafting, dict[int, Candidate]]:
    """Returns what a drafter costs, and its lossless offer by gamma.

    With a cut head it costs at most what it does `whole`.
    """
    drafting = self._measure_costs(study, texts)
    if whole is not None:
      costs = drafting.costs.at_most(whole.costs)
      drafting = dataclasses.replace(drafting, costs=costs)
    with self.steps.uncounted("acceptance along the texts"):
      return drafting, drafting.by_gamma(self.points[0], texts)

  def _add_drafting(
    self, drafting: Drafting, by_gamma: dict[int, Candidate], texts: Decoded
  ):
    """Adds a drafter's candidates, and its lossless one timed."""
    advice, lossless, study = self.advice, self.points[0], drafting.study
    advice.draftings.append(drafting)
    # Keep the predicted offer until it has been timed.
    advice.offers.append(max(by_gamma.values(), key=by_promise))
    timed = self._time_gammas(drafting.gammas, by_gamma)
    if timed:
      fastest = min(timed, key=by_clock)
      # With the measured overhead of the loop, predictions differ.
      drafting = advice.draftings[-1] = drafting.calibrate(timed)
      offer = drafting.by_gamma(lossless, texts)[fastest.point.gamma]
      advice.timed.append(dataclasses.replace(offer, measured=fastest.measured))
    self.budget.begin("the acceptance of other methods")
    advice.offers[-1:] = drafting.offers(self.points, texts, self._is_over)
    if DRAFTER in kind_of(study.pair).always:
      point = dataclasses.replace(lossless, method=DRAFTER, alpha=None)
      own_texts, row = self._decode(study, point)
      offer = drafting.drafter_alone(point, own_texts)
      advice.decoded.append(dataclasses.replace(offer, row=row))

  def _is_over(self) -> bool:
    """Returns whether the time is over, and if so notes what is left out."""
    return self.budget.leaves_out(
      "the acceptance of some methods", is_needed=True
    )

  def _measure_costs(self, study: Study, texts: Decoded) -> Drafting:
    """Returns what a drafter costs."""
    name = study.pair.drafter_name
    gammas = self.advice.wanted.gammas_for(study.pair)
    # A target that uses the heads' distribution draws from one head more.
    kinds = {point.folds: point for point in self.points}
    points = [
      dataclasses.replace(point, gamma=gamma)
      for gamma in gammas
      for point in kinds.values()
    ]
    step = f"costs of {name}"
    costs, loops = measure_costs(study, points, self.rounds, self.steps, step)
    for width, number in scatter.scatter_of_loops(loops).items():
      self.passes[f"{width} with {name}"] = number
    return Drafting(study, costs, texts, gammas)

  def _time_gammas(
    self, gammas: Sequence[int], by_gamma: dict[int, Candidate]
  ) -> list[Candidate]:
    """Returns timed candidates; the fastest lies between slower gammas."""

    # First the gammas are timed in turns whose passes alone promise nearly as
    # much as the best gamma's passes. Then the neighbours of the fastest gamma
    # are timed, until the fastest gamma has slower neighbours.
    def propose(timed: Sequence[Candidate]) -> list[Candidate]:
      if not timed:
        speedups = {gamma: x.here.speedup for gamma, x in by_gamma.items()}
        best = max(speedups.values())
        close = {gamma for gamma in gammas if speedups[gamma] >= best / _CLOSE}
        # Each gamma is another program to compile, so one must do.
        if len(close) > 1 and self.budget.leaves_out("gammas of equal promise"):
          close = {max(speedups, key=speedups.get)}
      else:
        fastest = min(timed, key=by_clock)
        place = gammas.index(fastest.point.gamma)
        close = {*gammas[max(0, place - 1) : place + 2]}
        close -= {candidate.point.gamma for candidate in timed}
      return [by_gamma[gamma] for gamma in sorted(close)]

    return run_rounds(
      propose,
      self._time,
      self.budget,
      "gammas next to the fastest",
      needs_one=True,
    )

  def _decode_promising(self):
    """Adds decoded candidates, which had promised to be faster."""
    advice = self.advice
    lossy = [x for x in advice.offers if x.point.method != LOSSLESS]
    lossy.sort(key=by_promise)

    # Of the points that promise to be faster than the best candidate so far,
    # the slowest is decoded, because it is the likeliest of its method to fit.
    # If it does not fit, the faster points of its method are given up.
    def propose(decoded: Sequence[Candidate]) -> list[Candidate]:
      if len(decoded) == advice.wanted.num_decoded:
        return []
      least = _MARGIN * max(self._best_fitting().here.speedup, 1)
      given_up = {x.method for x in decoded if not self._fits(x)}
      done = {x.key for x in decoded}
      promising = [
        x
        for x in lossy
        if x.here.speedup > least
        and x.method not in given_up
        and x.key not in done
      ]
      return promising[:1]

    def decode(candidates: Sequence[Candidate]) -> list[Candidate]:
      (offer,) = candidates
      texts, row = self._decode(offer.study, offer.point)
      if not self.budget.is_over():
        # Its own texts give its acceptance exactly, and their lengths.
        offer = advice.drafting_of(offer).own_offer(offer.point, texts)
      elif row.relative_length is not None:
        # What is promised is of the verifier's texts, and is of its own then.
        here = offer.here.stretched(row.relative_length["value"])
        offer = dataclasses.replace(offer, here=here)
      advice.decoded.append(dataclasses.replace(offer, row=row))
      return advice.decoded[-1:]

    run_rounds(propose, decode, self.budget, "points that promise to be faster")

  def _best_fitting(self) -> Candidate:
    """Returns the most promising candidate that is known to fit."""
    fitting = [offer for offer in self.advice.decoded if self._fits(offer)]
    return max([self.advice.lossless, *fitting], key=by_promise)

  def _fits(self, offer: Candidate) -> bool:
    """Returns whether an offer loses no more quality than the user allows."""
    lost = loss(offer.row, self.advice.alone).value
    return lost <= self.advice.wanted.max_loss

  def _decode(self, study: Study, point: Point) -> tuple[Decoded, ResultRow]:
    """Returns a point's texts of the first trial, and the row of all trials."""
    name = ", ".join([point.spec.label, *study.settings(point).words])
    with self.steps.step(name):
      trials = self._decode_trials(study, point)
    outputs = Outputs()
    for trial, decoded in enumerate(trials):
      outputs.add(decoded, study.examples, trial)
    alone, exact = self.advice.alone, None
    if alone is not None and alone.lengths:
      indices = sorted(example.index for example in study.examples)
      exact = dict(zip(indices, alone.lengths))
    return trials[0], scoring.result_row(study, point, outputs, exact=exact)

  def _decode_trials(self, study: Study, point: Point) -> list[Decoded]:
    """Returns the outputs of as many trials as there is time for."""
    batches, num_trials = study.batches(point), study.session.num_trials(point)
    trials = []
    for trial in range(num_trials):
      trials.append(batches.decode_all(study.examples, trial))
      if trial + 1 < num_trials and self.budget.leaves_out("trials"):
        break
    return trials

  def _time(self, offers: Sequence[Candidate]) -> list[Candidate]:
    """Returns offers of one drafter with their latency, timed in turns."""
    gammas = ", ".join(str(offer.point.gamma) for offer in offers)
    name = f"timing of {offers[0].point.spec.label}, gamma {gammas}"
    timed = time_in_turns(offers, self.steps, name)
    for offer in timed:
      name = f"{offer.point.method} with gamma {offer.point.gamma}"
      self.decodes[name] = scatter.scatter(offer.measured.by_repeat_s)
    return timed
