"""The figures of a report: quality against speed, and what explains it.

A figure has panels next to each other, and one legend. To the right is faster:
speed is relative to the large model alone, measured or modelled. Bars are 95%
intervals.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import itertools

from speccascade.study.report import comparisons, findings, styles
from speccascade.study.report.comparisons import fastest, is_fast, speedups
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.groups import (
  MeasuredCurve,
  MeasuredPanel,
  studies,
)
from speccascade.study.report.line_panels import DrawnLine, LinePanel
from speccascade.study.report.measured import (
  MEASURED,
  REFERENCE,
  SMALL,
  Measured,
  measured_clock,
  modelled_clock,
)
from speccascade.study.report.plots import Plot
from speccascade.study.rows.results import ResultRow

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
MODELS = {SMALL: "small model", REFERENCE: "large model"}
# The beginnings of the names of the methods of Figure 1.
FIGURE_1 = ("token_cascade", "oracle_cascade", "spec_decode_lossy", *MODELS)
MAX_LABELS = 14  # methods of a figure that shows all of them
_SHOWN_BY_CLOCK = {
  "measured": "time measured on this machine",
  "modelled": "modelled: a block costs one step",
}


# From a point to its (x, y) places, either of which may be None.
_PlacesOf = Callable[[Measured], Iterable[tuple]]


def make_line(
  label: str,
  points: Sequence[Measured],
  places_of: _PlacesOf,
  *,
  style: str = "",
  marks: Sequence[str] | None = None,
  is_hollow: bool = False,
) -> DrawnLine:
  """Returns the line of some points, with the places that none lacks."""
  if marks is None:
    # Alphas are written only where they distinguish the points.
    alphas = [point.settings.alpha for point in points]
    varies = len(set(alphas)) > 1
    marks = ["" if x is None else f"{x:.2g}" for x in alphas] if varies else ()
  places = [
    (x, y, mark)
    for point, mark in itertools.zip_longest(points, marks)
    for x, y in places_of(point)
    if x is not None and y is not None
  ]
  xs, ys, written = zip(*places) if places else ((), (), ())
  return DrawnLine(
    label,
    style or points[0].method,
    xs,
    ys,
    [mark for mark in written if mark],
    is_hollow=is_hollow,
  )


def _quality_by_speed(point: Measured) -> list[tuple]:
  return [(point.speed, point.quality)]


def _label(shown: MeasuredCurve | Measured) -> str:
  """Returns the label of a line: what one types, and which model it is."""
  model = MODELS.get(shown.settings.method)
  return f"{shown.typed} ({model})" if model else shown.typed


def _baseline_line(curve: MeasuredCurve, panel: MeasuredPanel) -> DrawnLine:
  """Returns the line of the large model at other samplings than a panel's."""
  changes = [panel.sampling_changes(point) for point in curve.points]
  kind = f"{curve.settings.method}, {' '.join(changes[0])}"
  marks = [
    "/".join("-" if x is None else f"{x:g}" for x in each.values())
    for each in changes
  ]
  label = f"{kind} {marks[0]}" if len(marks) == 1 else kind
  return make_line(
    label, curve.points, _quality_by_speed, style=kind, marks=marks
  )


def _drafter_arrow(
  panel: MeasuredPanel,
) -> list[tuple[str, tuple[float, float]]]:
  """Returns the words and the place of the small model alone, if timed."""
  small = panel.first(SMALL)
  if small is None or small.speed is None:
    return []
  quality, speed = small.quality.value, small.speed.value
  text = f"drafter: {quality:.1f} {panel.metric}, {speed:.3g} times"
  return [(text, (speed, quality))]


def latency_panel(
  panel: MeasuredPanel, is_shown: Callable[[str], bool]
) -> LinePanel:
  """Returns quality against speed of the methods that are shown.

  Args:
    is_shown: whether a method has lines; the drafter is an arrow.
  """
  lines = [
    make_line(_label(curve), curve.points, _quality_by_speed)
    for curve in panel.curves
    if is_shown(curve.settings.method) and curve.settings.method != SMALL
  ]
  lines += [_baseline_line(curve, panel) for curve in panel.baseline_curves]
  large = panel.large
  lines = [line for line in lines if line.xs]
  return LinePanel(
    panel.title,
    lines,
    f"{panel.clock.axis}  →",
    panel.metric,
    large=(1.0, large.quality.value) if large else (None, None),
    drafters=_drafter_arrow(panel) if is_shown(SMALL) else (),
    right=_right_end(lines),
  )


def _right_end(lines: Sequence[DrawnLine]) -> float | None:
  """Returns where an axis of speed ends, which a line may run out of."""
  # A sequential cascade that never defers is as fast as the drafter.
  sequential = styles.family("token_cascade")
  ends = [
    (
      max(x.bounds[1] for x in line.xs),
      styles.family(line.method) == sequential,
    )
    for line in lines
  ]
  most = max(
    (end for end, is_sequential in ends if not is_sequential), default=0
  )
  return 1.2 * most if most and max(ends)[0] > 1.5 * most else None


def _num_labels(panels: Iterable[LinePanel]) -> int:
  return max((len(panel.lines) for panel in panels), default=0)


def quality_latency(panels: Sequence[MeasuredPanel]) -> Plot:
  """Returns Figure 2: quality against speed, a panel for each temperature.

  The figure shows all methods if they are few. Else it shows the methods of the
  papers, the fastest method at the large model's quality, and the models.
  """
  drawn = [latency_panel(panel, is_fast) for panel in panels]
  is_whole = _num_labels(drawn) <= MAX_LABELS
  if not is_whole:
    main = {*PAPERS, *MODELS}
    for panel in panels:
      best = fastest(speedups(panel))
      if best is not None and best.speedup.value:
        main.add(best.settings.method)
    drawn = [latency_panel(panel, main.__contains__) for panel in panels]
  baselines = (
    " Lines with the name of a setting are the large model's own distribution"
    " at other samplings, relative to the large model alone at the same"
    " sampling."
  )
  clock = panels[0].clock
  leads = findings.leads(panels, [clock])
  lines = findings.lengths(panels) if clock.lengths_differ else []
  on_lengths = "".join(f" {line}" for line in lines)
  return Plot(
    f"figure2_{clock.name}",
    "Figure 2",
    f"quality against speed, {clock.title}",
    f"Each method{'' if is_whole else ' of the papers'} is a line over alpha,"
    " whose first and last alpha are written. The dotted lines are the large"
    " model; points in the shaded corner are better and faster. Bars are 95%"
    f" intervals.{on_lengths}"
    f"{baselines if any(x.baselines for x in panels) else ''}",
    [panel for panel in drawn if panel.lines],
    claim=leads[0].sentence if leads else "",
  )


def by_family(panels: Sequence[MeasuredPanel]) -> Plot:
  """Returns quality against speed of all methods, family by family.

  The figure has no panels where `quality_latency` shows all methods.
  """
  whole = [latency_panel(panel, is_fast) for panel in panels]
  if _num_labels(whole) <= MAX_LABELS:
    whole = []
  models = styles.family(REFERENCE)
  families = {styles.family(x.method) for panel in whole for x in panel.lines}
  drawn = []
  for family, panel in itertools.product(sorted(families - {models}), whole):
    shown, others = [], []
    for line in panel.lines:
      is_model = line.method.startswith(REFERENCE)
      of_family = styles.family(line.method) == family
      (shown if is_model or of_family else others).append(line)
    title = f"{panel.title}, {styles.FAMILIES[family].name}"
    if any(styles.family(line.method) == family for line in shown):
      drawn.append(
        dataclasses.replace(panel, title=title, lines=shown, background=others)
      )
  clock = panels[0].clock
  return Plot(
    f"figure2_{clock.name}_families",
    "All methods",
    f"quality against speed, {clock.title}",
    "The previous figure with all methods, one family at a time; the other"
    " families are grey. Oracles are in Figure 1 alone, as their latency says"
    " nothing about a fast method.",
    drawn,
    has_legends=True,
  )


def truncated(panels: Sequence[MeasuredPanel]) -> Plot:
  """Returns lossy methods beside the truncated large model, by family.

  The large model alone is left out: the axis shows what speculation reaches.
  """
  lossless = styles.family("spec_decode")
  drawn = []
  for panel in panels:
    if not comparisons.truncations(panel):
      continue
    whole = latency_panel(panel, is_fast)
    by_number = {}
    for line in whole.lines:
      by_number.setdefault(styles.family(line.method), []).append(line)
    by_number.pop(styles.family(REFERENCE), None)
    baselines = by_number.pop(lossless)
    drawn += [
      dataclasses.replace(
        whole,
        title=f"{whole.title}, {styles.FAMILIES[family].name}",
        lines=[*by_number[family], *baselines],
        large=(None, whole.large[1]),
        drafters=(),
      )
      for family in sorted(by_number)
    ]
  clock = panels[0].clock
  return Plot(
    f"truncation_{clock.name}",
    "Lossy methods and truncation",
    f"quality against speed, {clock.title}",
    "Lines with the name of a setting are lossless speculation with the large"
    " model at other samplings. A lossy method that lies on them gains what"
    " truncation gains. The dotted line is the large model's quality.",
    drawn,
    has_legends=True,
  )


def of_rows(rows: Iterable[ResultRow], metric: str = "bleu") -> Plot:
  """Returns quality against both speeds at the highest temperature.

  Oracles are left out. Of the greedy points, which are hollow, the large model
  is shown too, lossless speculation, and the point that is named first. Each
  speed is relative to the large model's at the same temperature.

  Args:
    rows: rows with costs.
    metric: the name of the quality.
  """
  drawn, claims = [], []
  for study in studies(rows, metric):
    *greedy, sampled = study.panels
    claims += [x.sentence for x in findings.leads(study.panels, [MEASURED])[:1]]
    differ = study.lengths_differ
    clocks = measured_clock(differ), modelled_clock(study.cost_ratio, differ)
    for clock in clocks:
      panel = latency_panel(sampled.by(clock), is_fast)
      lines = [
        make_line(
          f"{_label(point)}, T = 0",
          [point.by(clock)],
          _quality_by_speed,
          is_hollow=True,
        )
        for other in greedy
        for point in _greedy_points(other)
      ]
      title = f"{sampled.title}: {_SHOWN_BY_CLOCK[clock.name]}"
      drawn.append(
        dataclasses.replace(panel, title=title, lines=[*panel.lines, *lines])
      )
  return Plot(
    "quality_latency",
    "Quality against speed",
    "",
    "",
    drawn,
    claim=" ".join(claims),
  )


def _greedy_points(panel: MeasuredPanel) -> list[Measured]:
  """Returns the greedy points of the large model and of lossless speculation.

  The point that is named follows, where it is another one.
  """
  lead = findings.lead_of(panel)
  plain = panel.first(comparisons.PLAIN)
  points = [panel.large, plain if plain and plain.is_timed else None]
  if lead and lead.named and lead.named.method != comparisons.PLAIN:
    points.append(lead.named)
  return [point for point in points if point is not None]


def quality_deferral(panels: Sequence[MeasuredPanel]) -> Plot:
  """Returns Figure 1: token cascades compared with speculative decoding.

  Args:
    panels: the points of each temperature. A panel without a cascade is not
      shown.
  """

  def quality_by_rate(point: Measured) -> list[tuple]:
    rate = point.efficiency["deferral_rate"]
    return [] if rate is None else [(IntervalEstimate(rate), point.quality)]

  drawn = []
  for panel in panels:
    lines = [
      make_line(_label(curve), curve.points, quality_by_rate)
      for curve in panel.curves
      if curve.settings.method == "spec_decode"
      or curve.settings.method.startswith(FIGURE_1)
    ]
    if any(line.xs and "cascade" in line.method for line in lines):
      large = (None, panel.large.quality.value if panel.large else None)
      drawn.append(
        LinePanel(
          panel.title,
          [line for line in lines if line.xs],
          "deferral rate",
          panel.metric,
          large=large,
        )
      )
  return Plot(
    "figure1",
    "Figure 1",
    "quality against deferral rate",
    "The deferral rate is the number of calls of the large model per written"
    " token. A token cascade calls the large model where it defers, and"
    " speculative decoding calls it once for each block. The oracles read the"
    " large model's distribution before they decide.",
    drawn,
  )
