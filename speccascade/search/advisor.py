"""Reads a pair of models and a few examples, and searches for what pays."""

from collections.abc import Callable
import dataclasses
import pathlib

from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points import advice_files
from speccascade.inference.points.point import Point
from speccascade.inference.rows.run_folder import RunFolder
from speccascade.inference.run import Measuring, Run
from speccascade.runtime import folders
from speccascade.search import searcher
from speccascade.search.candidates import Candidate, each_drafter, read_study
from speccascade.search.effort import Effort
from speccascade.search.searcher import Advice, Searcher
from speccascade.search.wanted import Wanted

# Settings that a later start may not change.
_FIXED_SETTINGS = (
  "drafter",
  "dtype",
  "max_decode_len",
  "task",
  "split",
  "seed",
)


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
      the verifier with its draft heads.
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
      f" acceptance two distributions tell; got {point.verification!r} and"
      f" {point.draft_length!r}"
    )
  if point.is_tree:
    raise ValueError(
      "advice is of chains of drafts, whose acceptance two distributions tell;"
      " leave TREE and DRAFTS out"
    )
  with folders.sole_writer(run.folder):
    study = read_study(pair, inputs, run, measuring)
    gammas = wanted.gammas_for(study.pair)
    point = dataclasses.replace(point, gamma=max(gammas))
    points = wanted.points(point, study.pair.verifier_lm.vocab_size)
    studies = each_drafter(study)
    for drafter_study in studies:
      Candidate(drafter_study, points[0]).check()
    identity = _identity(study, points[0], wanted)
    folder = RunFolder(run.folder, identity, advice_files.FILE_NAME)
    folder.check()
    folder.open()
    on_start(run.folder)
    num = searcher.num_steps(len(studies), wanted)
    with effort.begin("advise", num, run.progress) as steps:
      return Searcher(studies, points, wanted, effort.rounds, steps).run()


def _identity(study: Study, point: Point, wanted: Wanted) -> dict:
  """Returns the settings of advice that a later start may not change."""
  settings = study.settings(point)
  return {
    **advice_files.about(point, study.pair),
    **{name: getattr(settings, name) for name in _FIXED_SETTINGS},
    "inputs_sha256": study.sources.fingerprint,
    "wanted": dataclasses.asdict(wanted),
    **({"limits": settings.limits} if settings.limits else {}),
  }
