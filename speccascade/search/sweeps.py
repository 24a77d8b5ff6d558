"""Sweeps methods, alphas, block sizes, temperatures and seeds of a pair.

A sweep leaves in OUTPUT_DIR `rows.jsonl` (a `ResultRow` for each point),
`examples.jsonl` (which model wrote each token of a few examples), `config.gin`
(the resolved configuration) and `run.json` (the settings that a later start is
compared with). The same sweep goes on in a folder where it was killed.
"""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib

import numpy as np

from speccascade.decoding.programs import methods
from speccascade.decoding.records.drafter import block_depth
from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring import scoring
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.inference.rows.results import ResultRow
from speccascade.runtime import folders, signals
from speccascade.search import plans
from speccascade.search.draft_kinds import kind_of
from speccascade.search.grid import Curve
from speccascade.search.ledger import Ledger
from speccascade.search.plans import Plan
from speccascade.search.runner import Runner, Stopped, Studies
from speccascade.search.shown import Shown
from speccascade.settings import fields

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


@dataclasses.dataclass(frozen=True)
class PlannedSweep:
  """A sweep whose points are checked.

  Attributes:
    study: the study of the pair as it was read.
    studies: the study of each curve.
    curves: the curves.
  """

  study: Study
  studies: Studies
  curves: Sequence[Curve]


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
      new folder or the folder of the same sweep, which goes on there. The
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
    planned = prepare(pair, inputs, plan, common, run, measuring)
    ledger = Ledger(run.folder, _identity(planned.study))
    ledger.check()
    runner = Runner(planned.studies, ledger, plan.curve_budget, shown)
    ledger.open()
    on_start(ledger.folder)
    try:
      num_shown = runner.run(planned.curves, run.progress, stop)
    except Stopped:
      return SweepOutcome(ledger.folder, ledger.rows, 0, stop)
    return SweepOutcome(ledger.folder, ledger.rows, num_shown)


def prepare(
  pair: PairSpec,
  inputs: Inputs,
  plan: Plan,
  common: Point,
  run: Run,
  measuring: Measuring = TIMED,
) -> PlannedSweep:
  """Reads models and examples, and checks all points; writes nothing.

  The arguments are settings of `sweep`, which raises the same errors.
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
  study = Study(models, fitted, run, measuring)
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
  return PlannedSweep(study, studies, curves)


def _identity(study: Study) -> dict:
  """Returns the settings of a sweep that a later start may not change."""
  # NUM_TIMED decides the order of the examples, and is compared itself. In the
  # order of the data, the fingerprint depends on the data alone.
  in_order = sorted(study.examples, key=lambda example: example.index)
  sources = dataclasses.replace(study.sources, examples=in_order)
  return {
    "models": [[model.name, model.path] for model in study.pair.models],
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
  }


def _put_timed_first(examples: Sequence[Source], num: int) -> list[Source]:
  """Returns all examples, beginning with `num` that a fixed seed draws.

  The drawn examples stay in the order of the data, and so do the others.
  """
  permutation = np.random.default_rng(0).permutation(len(examples))
  drawn = set(permutation[:num].tolist())
  order = sorted(range(len(examples)), key=lambda i: (i not in drawn, i))
  return [examples[i] for i in order]
