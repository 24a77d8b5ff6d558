"""Sweeps methods, alphas, block sizes, temperatures and seeds; resumable.

Leaves in OUTPUT_DIR: `rows.jsonl` (a `ResultRow` for each point),
`examples.jsonl` (who wrote each token of a few examples), `config.gin` (the
resolved configuration) and `run.json` (what a later start compares itself
with).
"""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib

import numpy as np

from speccascade.decoding.programs import methods
from speccascade.inference.batches.inputs import Inputs, Source
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.inference.rows.results import ResultRow
from speccascade.runtime import folders, signals
from speccascade.search.grid import Curve
from speccascade.search.ledger import Ledger
from speccascade.settings import fields
from speccascade.sweep import plans
from speccascade.sweep.plans import Plan
from speccascade.sweep.runner import Runner, Stopped, Studies
from speccascade.sweep.shown import Shown

TIMED = Measuring(num_timed=100)


@dataclasses.dataclass(frozen=True)
class SweepOutcome:
  """How a sweep ended.

  Attributes:
    folder: OUTPUT_DIR.
    rows: of all points on disk.
    num_shown: points that `examples.jsonl` shows; 0 where it was not written.
    stop: the signal that ended it, or None.
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
    pair: the models. Methods that take one drafter get the first; a cascade is
      for methods with blocks.
    inputs: what is decoded.
    plan: the points.
    common: what all of them share but what the plan says; of a method that
      uses it all, such as "spec_decode".
    run: OUTPUT_DIR, a new folder, or that of the same sweep, which is taken up,
      be it with more methods, alphas, gammas, temperatures or seeds; and how
      quality is decoded.
    measuring: what is measured; the timed examples are drawn from all by a
      fixed seed.
    shown: whose tokens are shown.
    on_start: called with OUTPUT_DIR once it exists.

  Raises:
    ValueError: a setting, a model or an input does not fit; nothing is written
      before all points are checked.
    NoDistributionError: a model gave none; example and step are named.
  """
  with folders.sole_writer(run.folder), signals.caught() as stop:
    study, studies, curves = planned(pair, inputs, plan, common, run, measuring)
    ledger = Ledger(run.folder, _identity(study))
    ledger.check()
    runner = Runner(studies, ledger, plan.most, shown)
    ledger.open()
    on_start(ledger.folder)
    try:
      num_shown = runner.run(curves, run.progress, stop)
    except Stopped:
      return SweepOutcome(ledger.folder, ledger.rows, 0, stop)
    return SweepOutcome(ledger.folder, ledger.rows, num_shown)


def planned(
  pair: PairSpec,
  inputs: Inputs,
  plan: Plan,
  common: Point,
  run: Run,
  measuring: Measuring = TIMED,
) -> tuple[Study, Studies, list[Curve]]:
  """Reads models and examples, and returns what is to be measured, checked.

  Settings are those of `sweep`, and refused as there.
  """
  if pair.cascade is not None and len(plan.gammas) > 1:
    raise ValueError(
      f"GAMMAS is {list(plan.gammas)}; the CASCADE says how long its blocks"
      " are: give one number, or leave GAMMAS out"
    )
  sources = inputs.read(pair.brought)
  models = pair.load(sources.vocabulary)
  in_order = _timed_first(sources.examples, measuring.num_timed)
  fitted = dataclasses.replace(sources.fitted(), examples=in_order)
  study = Study(models, fitted, run, measuring)
  composed = None
  if pair.cascade is not None:
    method = methods.find("cascade_drafting")
    composed = models.combined(pair.cascade, method, sources.vocabulary_sha256)
    plan = dataclasses.replace(plan, gammas=(composed.composed.width,))
  studies = Studies(study, composed)
  names = plan.methods or studies.allowed(
    plans.default_methods(len(study.pair.drafters))
  )
  size = study.pair.verifier.lm.vocab_size
  curves = plan.curves(common, size, names)
  for curve in curves:
    studies.check(curve)
  return study, studies, curves


def _identity(study: Study) -> dict:
  """What makes two starts one sweep: all that its points have in common."""
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
    "metrics": list(study.metrics),
    "dtype": study.pair.dtype,
  }


def _timed_first(examples: Sequence[Source], num: int) -> list[Source]:
  """Returns the examples with `num` drawn from all of them in front."""
  order = np.random.default_rng(0).permutation(len(examples))
  drawn = set(order[:num].tolist())
  first = sorted(range(len(examples)), key=lambda i: (i not in drawn, i))
  return [examples[i] for i in first]
