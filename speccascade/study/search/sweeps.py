"""Sweeps methods, alphas, block sizes, temperatures and seeds of a pair.

A sweep leaves in OUTPUT_DIR `rows.jsonl` (a `ResultRow` for each point),
`examples.jsonl` (which model wrote each token of a few examples), `config.gin`
(the resolved configuration) and `run.json` (the settings that a later start is
compared with). A killed sweep continues in its folder.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import math
import pathlib
import threading

import numpy as np

from speccascade.decoding.programs import methods
from speccascade.decoding.records.drafter import block_depth
from speccascade.generate.batches.sources import Source
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import PointSettings
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.runtime import folders, signals
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields
from speccascade.study.measuring import scoring
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.rows.results import ResultRow
from speccascade.study.search import grid, plans
from speccascade.study.search import shown as traced
from speccascade.study.search.candidates import Candidate, run_rounds
from speccascade.study.search.draft_kinds import kind_of
from speccascade.study.search.effort import Budget
from speccascade.study.search.grid import Curve, Grid
from speccascade.study.search.ledger import Ledger
from speccascade.study.search.plans import Plan
from speccascade.study.search.shown import Shown
from speccascade.tasks.inputs import Inputs

TIMED = Measuring(num_timed=100)


@dataclasses.dataclass(frozen=True)
class SweepOutcome:
  """How a sweep ended.

  Attributes:
    folder: OUTPUT_DIR.
    rows: the rows of all points on disk.
    num_shown: the number of points that `examples.jsonl` shows; 0 where the
      file was not written.
    stop: the signal that ended the sweep, or None.
  """

  folder: pathlib.Path
  rows: Sequence[ResultRow]
  num_shown: int
  stop: signals.Stop | None = None


@fields.checked
def sweep(
  *,
  pair: PairSpec,
  inputs: Inputs,
  plan: Plan,
  common: Point,
  run: Run,
  measuring: Measuring = TIMED,
  shown: Shown = Shown(),
  on_start: Callable[[pathlib.Path], object] = lambda folder: None,
) -> SweepOutcome:
  """Measures every point that OUTPUT_DIR lacks, and says how it ended.

  Args:
    pair: the models. Methods that take one drafter get the first drafter. The
      pair's cascade is used by methods with blocks.
    inputs: the examples that are decoded.
    plan: the points.
    common: the settings that all points share and that the plan does not name,
      of a method that uses all of them, such as "spec_decode".
    run: OUTPUT_DIR, and how examples are decoded for quality. OUTPUT_DIR is a
      new folder or the folder of the same sweep, which continues there. The
      second start may add methods, alphas, gammas, temperatures and seeds.
    measuring: what is measured. The timed examples are drawn from all examples
      by a fixed seed.
    shown: the points whose tokens are shown.
    on_start: called with OUTPUT_DIR once the folder exists.

  Raises:
    ValueError: a setting, a model or an input does not fit; nothing is written
      before all points are checked.
    NoDistributionError: a model gave no distribution; the message names the
      example and the step.
  """
  with folders.sole_writer(run.folder), signals.catch() as stop:
    studies, curves = prepare(pair, inputs, plan, common, run, measuring)
    budget = plan.curve_budget
    return measure(studies, curves, budget, shown, stop, on_start)


def measure(
  studies: "Studies",
  curves: Sequence[Curve],
  budget: int,
  shown: Shown,
  stop: signals.Stop,
  on_start: Callable[[pathlib.Path], object] = lambda folder: None,
) -> SweepOutcome:
  """Measures every point of curves that the folder of their run lacks.

  Args:
    studies: the studies of the curves.
    curves: the curves, as `Plan.curves` returns them.
    budget: `Plan.curve_budget`.
    shown: as in `sweep`.
    stop: ends the measuring when it becomes true.
    on_start: as in `sweep`.
  """
  run = studies.study.run
  ledger = Ledger(run.folder, _identity(studies.study))
  ledger.check()
  ledger.open()
  on_start(ledger.folder)
  runner = _Runner(studies, curves, ledger, budget)
  try:
    num_shown = runner.run(shown, run.progress, stop)
  except _Stopped:
    return SweepOutcome(ledger.folder, ledger.rows, 0, stop)
  return SweepOutcome(ledger.folder, ledger.rows, num_shown)


def prepare(
  pair: PairSpec,
  inputs: Inputs,
  plan: Plan,
  common: Point,
  run: Run,
  measuring: Measuring = TIMED,
) -> tuple["Studies", list[Curve]]:
  """Returns the studies and the curves of a sweep, all points checked.

  Reads models and examples, and writes nothing. The arguments are settings of
  `sweep`, which raises the same errors.
  """
  if pair.cascade is not None and len(plan.gammas) > 1:
    raise ValueError(
      f"GAMMAS is {list(plan.gammas)}; the CASCADE says how long its blocks"
      " are: give one number, or leave GAMMAS out"
    )
  sources = inputs.read(pair.vocabulary_path)
  models = pair.load(sources.vocabulary)
  in_order = _put_timed_first(sources.examples, measuring.num_timed)
  fitted = dataclasses.replace(sources.fit_padding(), examples=in_order)
  study = Study(Session(models, fitted, run), measuring)
  composed = None
  if pair.cascade is not None:
    method = methods.find("cascade_drafting")
    composed = models.combine_drafters(
      pair.cascade, method, sources.vocabulary_sha256
    )
    plan = dataclasses.replace(plan, gammas=(block_depth(composed.composed),))
  studies = Studies(study, composed)
  # A plan that names no methods takes all that these drafters can serve.
  names = plan.methods or studies.allowed_methods(
    plans.default_methods(
      len(study.pair.drafters), fitted=common.rule_parameters is not None
    )
  )
  size = models.verifier_lm.vocab_size
  curves = plan.curves(common, size, names, always=kind_of(models).always)
  for curve in curves:
    studies.check(curve)
  return studies, curves


def _identity(study: Study) -> dict:
  """Returns the settings of a sweep that a later start may not change."""
  # NUM_TIMED decides the order of the examples, and is compared itself. In the
  # order of the data, the fingerprint depends on the data alone.
  in_order = sorted(study.examples, key=lambda example: example.index)
  sources = dataclasses.replace(study.sources, examples=in_order)
  return {
    "models": [[model.name, model.source] for model in study.pair.models],
    "revisions": study.pair.revisions or None,
    "task": study.sources.task,
    "split": study.sources.split,
    "inputs_sha256": sources.fingerprint,
    "num_examples": len(study.examples),
    "max_decode_len": study.run.max_decode_len,
    "num_timed": study.measuring.num_timed,
    "repeats": study.measuring.repeats,
    "trials": study.run.trials,
    "batch_size": study.run.batch_size,
    "metrics": scoring.metric_names(study),
    "dtype": study.pair.dtype,
    "limits": study.run.limits_text,
  }


def _put_timed_first(examples: Sequence[Source], num: int) -> list[Source]:
  """Returns all examples, beginning with `num` that a fixed seed draws."""
  # The drawn examples stay in the order of the data, and so do the others.
  permutation = np.random.default_rng(0).permutation(len(examples))
  drawn = set(permutation[:num].tolist())
  order = sorted(range(len(examples)), key=lambda i: (i not in drawn, i))
  return [examples[i] for i in order]


class Studies:
  """One study for each seed and each way in which methods take the pair.

  Args:
    study: the study of the pair as it was read; it is an attribute, too.
    composed: the pair with its drafters combined into one, for methods with
      blocks; None where the drafters are not combined.
  """

  def __init__(self, study: Study, composed: ModelPair | None = None):
    self.study = study
    self._composed = composed
    pair = study.pair
    # A slice, because a cascade of Max-Gram alone has no neural drafter.
    self._first = dataclasses.replace(pair, drafters=pair.drafters[:1])
    self._by_pair_and_seed = {}

  def of(self, curve: Curve) -> Study:
    """Returns the study of a curve.

    Curves of one pair and one seed have one study, so that they share what the
    verifier alone wrote. Methods of one drafter get the largest drafter.
    """
    method, pair = curve.base.spec, self.study.pair
    if self._composed is not None and method.has_blocks:
      pair = self._composed
    elif method.compose is None:
      pair = self._first
    key = (id(pair), curve.seed)
    if key not in self._by_pair_and_seed:
      run = dataclasses.replace(self.study.run, seed=curve.seed)
      study = self.study.with_session(pair=pair, run=run)
      self._by_pair_and_seed[key] = study
    return self._by_pair_and_seed[key]

  def points(self, curve: Curve) -> list[Candidate]:
    """Returns the planned points of a curve."""
    study = self.of(curve)
    return [Candidate(study, point) for point in curve.points]

  def middle(self, curve: Curve) -> Candidate:
    """Returns the point in the middle of a curve's plan."""
    return Candidate(self.of(curve), curve.middle)

  def check(self, curve: Curve):
    """Raises ValueError where the models cannot decode a point of a curve."""
    for point in self.points(curve):
      point.check()

  def allowed_methods(self, names: Sequence[str]) -> list[str]:
    """Returns the methods whose needs the drafters meet.

    Args:
      names: the names of the methods to choose from.
    """
    allowed = []
    for name in names:
      point = Point(name, temperature=0.0)
      # A gamma above the drafts that there are is to be refused, and must not
      # leave all methods out.
      most = self.study.pair.most_drafts
      point = dataclasses.replace(point, gamma=min(point.gamma, most))
      with contextlib.suppress(ValueError):
        self.check(Curve(point, self.study.run.seed, Grid(())))
        allowed.append(name)
    return allowed


class _Stopped(Exception):
  """A signal asked the sweep to end."""


@dataclasses.dataclass(frozen=True)
class _Runner:
  """Measures the curves of a sweep into one ledger."""

  studies: Studies
  curves: Sequence[Curve]
  ledger: Ledger
  budget: int  # `Plan.curve_budget`

  def run(self, shown: Shown, progress: bool, stop: signals.Stop) -> int:
    """Measures all points, writes what is shown, and returns how many are."""
    lock = threading.Lock()
    examples = [self.studies.middle(x) for x in shown.select(self.curves)]
    num_shown = shown.num_shown * len(examples)
    with ProgressBar(
      total=self._num_decodes() + num_shown,
      unit="decode",
      desc="sweep",
      smoothing=0.02,
      disable=not progress,
    ) as bar:

      def tick(num: int):
        # Called from several threads, and often: a signal ends the sweep at
        # the next call, wherever it is.
        if stop:
          raise _Stopped
        with lock:
          bar.update(num)

      # An adaptive sweep has new points whenever the last ones have rows.
      run_rounds(
        lambda measured: self._propose(),
        lambda candidates: self.ledger.measure(candidates, tick=tick),
        Budget(math.inf),
        "points",
      )
      tick(0)
      path = self.ledger.folder / traced.FILE_NAME
      traced.write(path, examples, shown.num_shown, tick)
      bar.total = bar.n  # an adaptive sweep may have needed less
    return len(examples)

  def _missing(self, curves: Sequence[Curve]) -> list[Candidate]:
    """Returns the planned points without a row; neighbours differ in curve."""
    planned = grid.in_turns(self.studies.points(curve) for curve in curves)
    return [point for point in planned if point not in self.ledger]

  def _num_decodes(self) -> int:
    """Returns how many examples are decoded, if all budgets are used up."""
    total = 0
    for curve, rows in zip(self.curves, self._rows()):
      num = len(self._missing([curve]))
      if curve.grid.alphas:
        num = max(num, self.budget - len(rows))
      total += num * self.studies.of(curve).num_decodes(curve.base)
    return total

  def _rows(self) -> list[dict[float, ResultRow]]:
    """Returns the rows on disk of each curve, by alpha."""
    by_curve = {}
    for row in self.ledger.rows:
      rows = by_curve.setdefault(_without_alpha(row.settings), {})
      rows[row.settings.alpha] = row
    return [
      by_curve.get(
        _without_alpha(self.studies.of(curve).settings(curve.base)), {}
      )
      for curve in self.curves
    ]

  def _propose(self) -> list[Candidate]:
    """Returns the planned points that lack a row; then one more a curve."""
    # The next alpha of a curve depends on the curve's own rows on disk alone,
    # so a sweep that was killed chooses the alphas that an unbroken one does.
    if planned := self._missing(self.curves):
      return planned
    more = []
    for curve, rows in zip(self.curves, self._rows()):
      if not curve.grid.alphas or len(rows) >= self.budget:
        continue
      alpha = grid.next_alpha(rows, curve.grid.scale)
      if alpha is not None:
        more.append(Candidate(self.studies.of(curve), curve.at(alpha)))
    return more


def _without_alpha(settings: PointSettings) -> PointSettings:
  """Returns the settings that all rows of one curve have in common."""
  return dataclasses.replace(settings, alpha=None)
