"""What advice is about, and how many steps a search for it plans."""

from collections.abc import Sequence
import dataclasses

from speccascade.generate.points import advice_files
from speccascade.generate.points.point import Point
from speccascade.study.measuring.study import Study
from speccascade.study.search.draft_vocabularies import DraftVocabularies
from speccascade.study.search.wanted import Wanted

# Settings that a later start may not change.
_FIXED_SETTINGS = (
  "drafter",
  "dtype",
  "max_decode_len",
  "task",
  "split",
  "seed",
)
# Folders of advice that did not know these settings yet continue.
_LATER_SETTINGS = ("draft_vocabularies", "num_counted", "early_exits")
# Steps that are planned for one drafter: its costs, two timings of SpecDecode,
# and its own texts.
_STEPS_PER_DRAFTER = 4
# The search ends with one timing, after the points that are decoded.
_LAST_STEPS = 1


def identity(study: Study, point: Point, wanted: Wanted) -> dict:
  """Returns the settings of advice that a later start may not change."""
  settings, asked = study.settings(point), dataclasses.asdict(wanted)
  asked = {
    name: value
    for name, value in asked.items()
    if value or name not in _LATER_SETTINGS
  }
  return {
    **advice_files.about(point, study.pair),
    **{name: getattr(settings, name) for name in _FIXED_SETTINGS},
    "inputs_sha256": study.sources.fingerprint,
    "wanted": asked,
    **({"limits": settings.limits} if settings.limits else {}),
  }


def num_steps(
  drafters: Sequence[Sequence[Study]],
  wanted: Wanted,
  vocabularies: DraftVocabularies,
) -> int:
  """Returns the number of planned steps; a search may need fewer steps.

  Args:
    drafters: for each drafter its study, or the studies of early exits.
    wanted: what the user asks.
    vocabularies: the draft vocabularies that are tried.
  """
  texts_of_verifier = 1
  of_drafters = [num_of_drafter(each, vocabularies) for each in drafters]
  return (
    texts_of_verifier
    + vocabularies.num_counts
    + sum(of_drafters)
    + num_last(wanted)
  )


def num_of_drafter(
  studies: Sequence[Study], vocabularies: DraftVocabularies
) -> int:
  """Returns the number of planned steps for a drafter and its cuts.

  Args:
    studies: of the drafter; of early exits several, which are all measured, and
      one of which is timed.
    vocabularies: the draft vocabularies that are tried.
  """
  num_more = len(studies) - 1
  num_cuts = vocabularies.num_planned(studies[0])
  # The best cut is timed as its drafter is.
  of_cuts = num_cuts + _STEPS_PER_DRAFTER - 1 if num_cuts else 0
  return _STEPS_PER_DRAFTER + num_more + of_cuts


def num_last(wanted: Wanted) -> int:
  """Returns the number of planned steps after those of drafters."""
  # Points are decoded for their quality.
  num_decoded = 0 if wanted.max_loss is None else wanted.num_decoded
  return num_decoded + _LAST_STEPS
