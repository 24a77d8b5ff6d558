"""The figures of quality: which lines each of them shows, and over what."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import itertools

from speccascade.inference.rows.results import ResultRow
from speccascade.report import claims, styles
from speccascade.report.drawing import LinePanel, Plot
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.groups import PointGroup, studies
from speccascade.report.lines import (
  LabelledPoints,
  PlacesOf,
  Series,
  make_series,
)
from speccascade.report.measured import (
  MEASURED,
  Clock,
  Measured,
  modelled_clock,
)
from speccascade.report.summaries import fastest, is_fast, speedups

# The methods that the papers compare. A figure of all methods is crowded.
PAPERS = (
  "spec_decode",
  "spec_decode_lossy",
  "spec_decode_lossy_star",
  "bild_star",
  "spec_cascade_chow",
  "spec_cascade_diff",
  "spec_cascade_opt",
  "spec_cascade_token_v1",
  "spec_cascade_token_v2",
  "spec_cascade_token_v3",
)
# The methods of one model, and what the figures call the models.
MODELS = {"drafter": "small model", "verifier": "large model"}
# The beginnings of the names of the methods of Figure 1.
FIGURE_1 = ("token_cascade", "oracle_cascade", "spec_decode_lossy", *MODELS)
# What a panel of the quick start's figure is, by the name of its clock.
_WHAT_IS_SHOWN = {
  "measured": "time measured on this machine",
  "modelled": (
    "the same decodes, if a block\ncost one step of the large model (modelled)"
  ),
}
_BASELINES = (
  " Lines with the name of a setting are the large model's own distribution at"
  " other samplings, whose latency is relative to the large model alone at the"
  " same sampling."
)
MAX_LABELS = 14  # of a panel that shows all methods
_MODEL_FAMILY = styles.family("verifier")

# A number of a point, an estimate or a plain number; None where it has none.
_NumberOf = Callable[[Measured], IntervalEstimate | float | None]


def _quality_against(number_of: _NumberOf) -> PlacesOf:
  """Returns the function from a point to (number, quality)."""

  def places_of(point: Measured) -> list[tuple]:
    return [(number_of(point), point.quality)]

  return places_of


def _label(curve: PointGroup) -> str:
  """Returns the label of a line: what one types, and which model it is."""
  model = MODELS.get(curve.settings.method)
  return f"{curve.typed} ({model})" if model else curve.typed


def _baseline_line(curve: PointGroup, panel: PointGroup) -> LabelledPoints:
  """Returns the line of the large model at other samplings than a panel's."""
  changes = [panel.sampling_changes(point) for point in curve.points]
  kind = f"{curve.settings.method}, {' '.join(changes[0])}"
  marks = [
    "/".join("-" if x is None else f"{x:g}" for x in each.values())
    for each in changes
  ]
  if len(marks) > 1:
    return LabelledPoints(kind, curve.points, kind, marks)
  return LabelledPoints(f"{kind} {marks[0]}", curve.points, kind, [""])


def _quality_panel(
  panel: PointGroup,
  is_shown: Callable[[str], bool],
  number_of: _NumberOf,
  x_label: str,
  clock: Clock | None = None,
) -> LinePanel:
  """Returns quality against a number of the points.

  Args:
    panel: the points of one temperature.
    is_shown: whether a method has lines.
    number_of: the number of a point.
    x_label: what the number is.
    clock: the clock whose latency the tips show, or None.
  """
  lines = [
    LabelledPoints(_label(curve), curve.points)
    for curve in panel.curves
    if is_shown(curve.settings.method)
  ]
  if clock is not None:
    lines += map(_baseline_line, panel.baseline_curves, itertools.repeat(panel))
  has_large = panel.large is not None
  return LinePanel(
    panel.title,
    make_series(lines, _quality_against(number_of), clock),
    x_label,
    panel.metric,
    level=panel.large.quality.value if has_large else None,
    limit=1.0 if has_large else None,
  )


def latency_panel(
  panel: PointGroup, clock: Clock, is_shown: Callable[[str], bool]
) -> LinePanel:
  """Returns quality against latency of the methods that are shown."""
  x_label = f"relative latency ({clock.name}; the large model: 1)"
  return _quality_panel(panel, is_shown, clock.latency_of, x_label, clock)


def quality_latency(panels: Sequence[PointGroup], clock: Clock) -> Plot:
  """Returns Figure 2: quality against latency, a panel for each temperature.

  The figure shows all methods if there is room for their labels. Else it shows
  the methods of the papers, the fastest method at the large model's quality,
  and the large model.

  Args:
    panels: the points of each temperature.
    clock: the definition of latency.
  """
  drawn = [latency_panel(panel, clock, is_fast) for panel in panels]
  is_whole = max(panel.num_labels for panel in drawn) <= MAX_LABELS
  if not is_whole:
    main = {*PAPERS, "verifier"}
    for panel in panels:
      best = fastest(speedups(panel, clock))
      if best is not None and best.speedup.value:
        main.add(best.settings.method)

    def is_main(method: str) -> bool:
      return method in main

    drawn = [latency_panel(panel, clock, is_main) for panel in panels]
  return Plot(
    f"figure2_{clock.name}",
    "Figure 2",
    f"quality against latency, {clock.title}",
    f"Each method{'' if is_whole else ' of the papers'} is a line over alpha,"
    " and the values of alpha are written next to the points. The dotted lines"
    " are the large model's quality and latency; points in the shaded corner"
    " are better in both. The bars are 95% intervals."
    f"{_BASELINES if any(panel.baselines for panel in panels) else ''}",
    [panel for panel in drawn if panel.series],
    claim=claims.claim(panels, clock),
  )


def _family_of(series: Series) -> int:
  return styles.family(series.method)


def _family_panel(panel: LinePanel, family: int) -> LinePanel | None:
  """Returns a panel with one family of methods, the others in grey.

  Args:
    panel: the lines of all methods.
    family: the index of a family.

  Returns:
    The panel, in which the large model has a label too; None where the family
    has no line.
  """
  if family not in map(_family_of, panel.series):
    return None
  return dataclasses.replace(
    panel,
    title=f"{panel.title}, {styles.FAMILIES[family].name}",
    series=[
      line
      for line in panel.series
      if _family_of(line) == family or line.method.startswith("verifier")
    ],
    background=[
      line
      for line in panel.series
      if _family_of(line) not in (_MODEL_FAMILY, family)
    ],
  )


def by_family(panels: Sequence[PointGroup], clock: Clock) -> Plot:
  """Returns quality against latency of all methods, family by family.

  The figure has no panels where `quality_latency` shows all methods.

  Args:
    panels: the points of each temperature.
    clock: the definition of latency.
  """
  whole = [latency_panel(panel, clock, is_fast) for panel in panels]
  if max(panel.num_labels for panel in whole) <= MAX_LABELS:
    whole = []
  families = {_family_of(line) for panel in whole for line in panel.series}
  drawn = [
    _family_panel(panel, family)
    for family in sorted(families - {_MODEL_FAMILY})
    for panel in whole
  ]
  return Plot(
    f"figure2_{clock.name}_families",
    "All methods",
    f"quality against latency, {clock.title}",
    "The previous figure with all methods, one family at a time; the other"
    " families are grey. Oracles are in Figure 1 alone, as their latency says"
    " nothing about a fast method.",
    [panel for panel in drawn if panel is not None],
    columns=len(panels),
  )


def of_rows(rows: Iterable[ResultRow], metric: str = "bleu") -> Plot:
  """Returns quality against both latencies at the highest temperature.

  Oracles are left out. Of the greedy points the two models are shown too, and
  the point that the title names. Each latency is relative to the large model's
  at the same temperature.

  Args:
    rows: rows with costs.
    metric: the name of the quality.
  """
  drawn, titles = [], []
  for study in studies(rows, metric):
    *greedy, sampled = study.panels
    titles.append(claims.claim([sampled, *greedy], MEASURED))
    lines = [
      LabelledPoints(_label(curve), curve.points)
      for curve in sampled.curves
      if is_fast(curve.settings.method)
    ]
    for panel in greedy:
      lines += _greedy_lines(panel)
    for clock in (MEASURED, modelled_clock(study.cost_ratio)):
      panel = LinePanel(
        f"{sampled.title}: {_WHAT_IS_SHOWN[clock.name]}",
        make_series(lines, _quality_against(clock.latency_of), clock),
        "time over the large model's time",
        study.metric,
        level=sampled.large.quality.value,
        limit=1.0,
      )
      drawn.append(panel)
  return Plot(
    "quality_latency",
    "Quality against latency",
    "",
    "",
    drawn,
    claim="\n".join(filter(None, titles)),
  )


def _greedy_lines(panel: PointGroup) -> list[LabelledPoints]:
  """Returns the greedy points of the models, and the point of the headline."""
  shown = [point for point in panel.points if point.method in MODELS]
  best = claims.headline_candidate(panel, MEASURED)
  if best is not None:
    shown.append(best.point)
  return [
    LabelledPoints(f"{_label(PointGroup([point]))}, T = 0", [point])
    for point in shown
  ]


def _is_in_figure_1(method: str) -> bool:
  return method == "spec_decode" or method.startswith(FIGURE_1)


def _deferral_rate(point: Measured) -> float | None:
  return point.efficiency["deferral_rate"]


def quality_deferral(panels: Sequence[PointGroup]) -> Plot:
  """Returns Figure 1: token cascades compared with speculative decoding.

  Args:
    panels: the points of each temperature. A panel without a cascade is not
      shown.
  """
  drawn = [
    _quality_panel(panel, _is_in_figure_1, _deferral_rate, "deferral rate")
    for panel in panels
  ]
  return Plot(
    "figure1",
    "Figure 1",
    "quality against deferral rate",
    "The deferral rate is the number of calls of the large model per written"
    " token. A token cascade calls the large model where it defers, and"
    " speculative decoding calls it once for each block. The oracles read the"
    " large model's distribution before they decide.",
    [
      panel
      for panel in drawn
      if any("cascade" in line.method for line in panel.series)
    ],
  )
