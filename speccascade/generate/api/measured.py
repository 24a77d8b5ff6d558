"""What a pair is measured by, in a program: `Pair.compare`, `Pair.sweep`.

Measuring belongs to the lab, which this module may not import: the package
does, when the name is first used.
"""

from collections.abc import Mapping, Sequence
import os
from typing import Any

import speccascade
from speccascade.constraints.limits import TextLimits
from speccascade.generate.api import generation
from speccascade.generate.api.argument_names import names_arguments
from speccascade.generate.api.foreign_names import translate
from speccascade.generate.api.text_settings import TextSettings
from speccascade.generate.batches.sources import split_references
from speccascade.generate.points import point_checks
from speccascade.generate.points.alpha_phases import ByPhase
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.settings.fields import fit
from speccascade.settings.signatures import select, takes

LOSSLESS = "spec_decode"  # a method that uses every setting but alpha
COMPARED = (
  "verifier",
  "drafter",
  "spec_decode",
  "token_cascade_chow",
  "spec_cascade_token_v3",
)
# The settings of a point that a sweep plans.
_PLANNED = ("method", "alpha", "gamma", "temperature", "tree", "drafts")
SWEPT = ("spec_decode", "spec_decode_lossy", "spec_cascade_token_v3")
_OF_BLOCKS = ("verifier", "spec_decode", "spec_cascade_token_v3")


@names_arguments
@takes(
  Point,
  TextLimits,
  TextSettings,
  without=("method", "alpha"),
  translate=translate,
)
def compare(
  self,
  texts: str | Sequence,
  methods: str | Sequence[str | tuple[str, float | ByPhase]] = COMPARED,
  *,
  max_decode_len: int = 128,
  seed: int | None = 0,
  repeats: int = 3,
  **settings: Any,
) -> "speccascade.Comparison":
  """Returns methods next to each other: time at batch 1, calls, texts.

  A setting that some of the methods do not use is for the methods that do.

  Args:
    texts: as in `generate`.
    methods: names, or (name, alpha), with alpha as in `generate`; the verifier
      alone is always the first.
    max_decode_len: the most tokens of an output, EOS counted.
    seed: as in `generate`; all methods have the same one.
    repeats: how often each method is timed.
    **settings: the fields of `Point`, `TextLimits` and `TextSettings`.

  Raises:
    ValueError: as in `generate`.
  """
  if isinstance(methods, str):
    methods = [methods]
  elif methods is COMPARED and self.models.composed is not None:
    # What only copies does not write a text alone.
    methods = [name for name in COMPARED if name in _OF_BLOCKS]
  kind = Sequence[str | tuple[str, float | ByPhase | None]]
  method_alphas = [("verifier", None)]
  for method in fit("methods", methods, kind):
    method_alphas.append((method, None) if isinstance(method, str) else method)
  common = Point(LOSSLESS, alpha=None, **point_settings(settings))
  point_checks.check_shared(common, [name for name, _ in method_alphas])
  points = [
    self._resolve(common.of(name, alpha=alpha), alpha)
    for name, alpha in method_alphas
  ]
  sources = self._sources(texts, settings)
  run = Run(
    max_decode_len=max_decode_len,
    batch_size=1,
    seed=generation.drawn(seed),
    **select(settings, Run),
  )
  session = Session(
    self.models,
    sources,
    run,
    self.programs,
    tuple(point.spec for point in points),
  )
  points = [self._priced(session, point) for point in points]
  return speccascade.Comparison.of(session, points, repeats=repeats)


@names_arguments
@takes(Point, TextLimits, TextSettings, without=_PLANNED, translate=translate)
def sweep(
  self,
  examples: Sequence[tuple[str, str | Sequence[str]]],
  methods: str | Sequence[str] = SWEPT,
  *,
  alphas: str | Sequence[float] | Mapping[str, Sequence[float]] = "default",
  gammas: Sequence[int] = (5,),
  temperatures: Sequence[float] = (1.0,),
  metrics: str | Sequence[str] = "bleu",
  num_timed: int | None = None,
  repeats: int = 2,
  max_decode_len: int = 128,
  seed: int = 0,
  output_dir: str | os.PathLike | None = None,
  **settings: Any,
) -> "speccascade.Sweep":
  """Returns quality and speed of methods over alpha: rows and a figure.

  The drafter alone and the verifier alone are always measured, too.

  Args:
    examples: (text, reference) of each example; a reference is a text, or a
      list of texts. Texts are as in `generate`.
    methods: names in `METHODS`.
    alphas: "default" takes each method's own grid, "one" its default, and
      "adaptive" looks for alphas between measured ones; a list is for all
      methods that use alpha; {method: list} names alphas.
    gammas: block sizes.
    temperatures: 0 is greedy. Each has its own points.
    metrics: names in `quality.METRICS`, or functions as MODULE:FUNCTION. The
      first one is the figure's.
    num_timed: the number of examples that are timed at batch 1; None times
      all of them.
    repeats: how often each example is timed.
    max_decode_len: the most tokens of an output, EOS counted.
    seed: the seed of the keys.
    output_dir: a folder for the rows, where an interrupted sweep continues,
      and from which python -m speccascade.report makes pages; None keeps
      nothing on disk.
    **settings: the fields of `Point`, `TextLimits` and `TextSettings`.

  Raises:
    ValueError: as in `generate`, or an example is not such a pair.
    ModuleNotFoundError: the extra `lab` is not installed.
  """
  lab_sweep = speccascade.Sweep  # before anything is read
  common = Point(LOSSLESS, alpha=None, gamma="auto", **select(settings, Point))
  texts, references = split_references(examples)
  sources = self._sources(texts, settings).with_references(references)
  run = Run(
    output_dir=output_dir,
    max_decode_len=max_decode_len,
    batch_size=1,
    seed=generation.drawn(seed),
    **select(settings, Run),
  )
  session = Session(self.models, sources.fit_padding(), run, self.programs)
  return lab_sweep.of(
    session,
    common,
    methods=[methods] if isinstance(methods, str) else methods,
    alphas=alphas,
    gammas=gammas,
    temperatures=temperatures,
    seeds=(run.seed,),
    metrics=[metrics] if isinstance(metrics, str) else metrics,
    num_timed=num_timed,
    repeats=repeats,
  )


def point_settings(settings: dict) -> dict[str, Any]:
  """Returns the fields of `Point`; the depth of a tree is its gamma."""
  values = select(settings, Point)
  if values.get("tree") is not None and "gamma" not in values:
    # The tree is checked while gamma is not a number.
    shape = Point(LOSSLESS, gamma="auto", tree=values["tree"]).draft_tree
    values["gamma"] = shape.depth
  return values
