"""The figures of a report: which lines each of them shows, and over what."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import itertools
from typing import NamedTuple

from speccascade.inference.rows.results import ResultRow
from speccascade.report import styles, tables
from speccascade.report.drawing import LinePanel, Plot, SharePanel
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.groups import PointGroup, studies
from speccascade.report.lines import Dot, Series
from speccascade.report.measured import (
  MEASURED,
  Clock,
  Measured,
  metric_title,
  modelled_clock,
  short_label,
)
from speccascade.report.point_tables import points_over_gamma
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
MODELS = ("drafter", "verifier")
# The beginnings of the names of the methods of Figure 1.
FIGURE_1 = ("token_cascade", "oracle_cascade", "spec_decode_lossy", *MODELS)
_MAX_LABELS = 14  # of a panel that shows all methods
_MIN_EXAMINED = 20  # examined drafts that make a rate worth drawing
_MODEL_FAMILY = styles.family("verifier")

# A number of a point, an estimate or a plain number; None where it has none.
_NumberOf = Callable[[Measured], IntervalEstimate | float | None]
# The (x, y) places of a point, which may be several; None where one is missing.
_PlacesOf = Callable[[Measured], Iterable[tuple]]


class _Line(NamedTuple):
  """What a line is drawn from.

  Attributes:
    label: the text in the margin.
    points: the points in the order in which the line connects them.
  """

  label: str
  points: Sequence[Measured]


def of_panels(
  panels: Sequence[PointGroup], clocks: Sequence[Clock]
) -> list[Plot]:
  """Returns the figures of a study that have something to show.

  Args:
    panels: the points of each temperature.
    clocks: the definitions of latency; each has figures of its own.
  """
  plots = []
  for clock in clocks:
    plots += [quality_latency(panels, clock), by_family(panels, clock)]
  plots.append(quality_deferral(panels))
  plots.append(acceptance_by_position(panels))
  plots.append(acceptance_histogram(panels))
  return [plot for plot in plots if plot.panels]


def _make_series(
  lines: Iterable[_Line],
  places_of: _PlacesOf,
  clock: Clock | None = None,
  min_dots: int = 1,
) -> list[Series]:
  """Returns the lines that have enough dots.

  Args:
    lines: labels and points.
    places_of: the places of a point. A place with None in it has no dot.
    clock: the clock whose latency the tips show, or None.
    min_dots: how many dots a line needs.
  """
  drawn = []
  for label, points in lines:
    # Alphas are written at the dots only where they tell the dots apart.
    varies = len({point.settings.alpha for point in points}) > 1
    dots = []
    for point in points:
      mark = _alpha_text(point) if varies else ""
      for x, y in places_of(point):
        if x is not None and y is not None:
          dots.append(Dot(_estimate(x), _estimate(y), tip(point, clock), mark))
    if len(dots) >= min_dots:
      drawn.append(Series(points[0].method, label, dots))
  return drawn


def _alpha_text(point: Measured) -> str:
  alpha = point.settings.alpha
  return "" if alpha is None else f"{alpha:.2g}"


def _estimate(number: IntervalEstimate | float) -> IntervalEstimate:
  if isinstance(number, IntervalEstimate):
    return number
  return IntervalEstimate(number)


def tip(point: Measured, clock: Clock | None = None) -> str:
  """Returns what a reader sees who points at a point.

  Args:
    point: the point.
    clock: the clock whose latency the tip shows, or None.
  """
  settings = point.settings
  parts = [point.label]
  if settings.alpha is not None:
    parts.append(f"alpha {settings.alpha:g}")
  if settings.gamma is not None:
    parts.append(f"gamma {settings.gamma}")
  quality = tables.format_estimate(point.quality, 1)
  parts.append(f"{metric_title(point.metric)} {quality}")
  latency = clock.latency_of(point) if clock else None
  if latency:
    parts.append(f"{clock.name} latency {latency.value:.3f}")
  rate = point.efficiency["acceptance_rate"]
  if rate is not None:
    parts.append(f"acceptance {rate:.3f}")
  return ", ".join(parts)


def _quality_against(number_of: _NumberOf) -> _PlacesOf:
  """Returns the function from a point to (number, quality)."""

  def places_of(point: Measured) -> list[tuple]:
    return [(number_of(point), point.quality)]

  return places_of


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
    _Line(short_label(curve.label), curve.points)
    for curve in panel.curves
    if is_shown(curve.settings.method)
  ]
  has_large = panel.large is not None
  return LinePanel(
    panel.title,
    _make_series(lines, _quality_against(number_of), clock),
    x_label,
    panel.metric,
    level=panel.large.quality.value if has_large else None,
    limit=1.0 if has_large else None,
  )


def _latency_panel(
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
  drawn = [_latency_panel(panel, clock, is_fast) for panel in panels]
  is_whole = max(panel.num_labels for panel in drawn) <= _MAX_LABELS
  if not is_whole:
    main = {*PAPERS, "verifier"}
    for panel in panels:
      best = fastest(speedups(panel, clock))
      if best is not None and best.speedup.value:
        main.add(best.settings.method)

    def is_main(method: str) -> bool:
      return method in main

    drawn = [_latency_panel(panel, clock, is_main) for panel in panels]
  return Plot(
    f"figure2_{clock.name}",
    "Figure 2",
    f"quality against latency, {clock.title}",
    f"Each method{'' if is_whole else ' of the papers'} is a line over"
    " alpha, whose values stand at the points. Dotted: the large model's"
    " quality and latency; what beats it in both is in the shaded corner. Bars:"
    " 95% intervals.",
    [panel for panel in drawn if panel.series],
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
      if _family_of(line) == family or line.method == "verifier"
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
  whole = [_latency_panel(panel, clock, is_fast) for panel in panels]
  if max(panel.num_labels for panel in whole) <= _MAX_LABELS:
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
    "The figure before with every method, a family at a time, the others in"
    " grey. Oracles are in Figure 1 alone: their latency is not that of a"
    " method.",
    [panel for panel in drawn if panel is not None],
    columns=len(panels),
  )


def of_rows(rows: Iterable[ResultRow], metric: str = "bleu") -> Plot:
  """Returns quality against both latencies at the highest temperature.

  Oracles are left out. The greedy points of the two models are shown too, with
  latencies relative to the greedy large model's.

  Args:
    rows: rows with costs.
    metric: the name of the quality.
  """
  drawn = []
  for study in studies(rows, metric):
    *greedy, sampled = study.panels
    lines = [
      _Line(short_label(curve.label), curve.points)
      for curve in sampled.curves
      if is_fast(curve.settings.method)
    ]
    lines += [
      _Line(f"{point.label}, greedy", [point])
      for panel in greedy
      for point in panel.points
      if point.method in MODELS
    ]
    for clock in (MEASURED, modelled_clock(study.cost_ratio)):
      title = f"{sampled.title}, {clock.title.partition(',')[0]}"
      panel = LinePanel(
        title,
        _make_series(lines, _quality_against(clock.latency_of), clock),
        f"relative latency ({clock.name})",
        study.metric,
        level=sampled.large.quality.value,
        limit=1.0,
      )
      drawn.append(panel)
  return Plot("quality_latency", "Quality against latency", "", "", drawn)


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
    "Deferral rate: calls of the large model a token written; a token cascade"
    " calls it where it defers, speculative decoding once a block. The oracles"
    " read the large model's distribution before they decide.",
    [
      panel
      for panel in drawn
      if any("cascade" in line.method for line in panel.series)
    ],
  )


def best_points(panel: PointGroup) -> list[Measured]:
  """Returns the point with the best quality of each speculative curve.

  Of equally good points the one with the highest acceptance rate is returned.
  """

  def rank(point: Measured) -> tuple[float, float]:
    return point.quality.value, point.efficiency["acceptance_rate"] or 0.0

  best = []
  for curve in panel.curves:
    points = [point for point in curve.points if point.counts.num_blocks]
    if points:
      best.append(max(points, key=rank))
  return best


def _label_with_alpha(point: Measured) -> str:
  return f"{short_label(point.label)} {_alpha_text(point)}".rstrip()


def acceptance_by_position(panels: Sequence[PointGroup]) -> Plot:
  """Returns acceptance at each position of a block, each method at one alpha.

  Args:
    panels: the points of each temperature.
  """
  drawn = []
  for panel in panels:
    points = best_points(panel)
    if len(points) > _MAX_LABELS:
      points = [point for point in points if point.method in PAPERS]
    lines = [_Line(_label_with_alpha(point), [point]) for point in points]
    series = _make_series(lines, _acceptance_places)
    if series:
      num = max(len(point.counts.examined_by_position) for point in points)
      drawn.append(
        LinePanel(
          panel.title,
          series,
          "position in the block",
          "accepted / examined",
          steps=range(1, num + 1),
        )
      )
  return Plot(
    "acceptance_by_position",
    "Acceptance by position",
    "",
    "Accepted over examined drafts at each position of a block, each method at"
    " the alpha of its best quality (behind its name); positions examined"
    f" fewer than {_MIN_EXAMINED} times are left out.",
    drawn,
  )


def _acceptance_places(point: Measured) -> Iterable[tuple[int, float | None]]:
  """Yields (position, acceptance rate); None for too few examined drafts."""
  rates = point.efficiency["acceptance_by_position"]
  examined = point.counts.examined_by_position
  for position, (rate, num) in enumerate(zip(rates, examined), start=1):
    yield position, rate if num >= _MIN_EXAMINED else None


def acceptance_histogram(panels: Sequence[PointGroup]) -> Plot:
  """Returns shares of blocks by the number of accepted drafts.

  Args:
    panels: the points of each temperature.
  """
  drawn = []
  for panel in panels:
    rows = [
      (_label_with_alpha(point), _accepted_shares(point))
      for point in best_points(panel)
    ]
    if rows:
      drawn.append(SharePanel(panel.title, rows, "drafts accepted"))
  return Plot(
    "acceptance_histogram",
    "Acceptance histogram",
    "",
    "Per cent of the blocks in which so many drafts were accepted, each method"
    " at the alpha of its best quality.",
    drawn,
  )


def _accepted_shares(point: Measured) -> list[float]:
  """Returns shares of blocks in per cent, by the number of accepted drafts."""
  counts = point.counts
  return [100 * num / counts.num_blocks for num in counts.accepted_at]


def gamma_ablation(
  panels: Sequence[PointGroup], clocks: Sequence[Clock]
) -> Plot:
  """Returns latency against gamma, a panel for each temperature and clock.

  Args:
    panels: the points of each temperature.
    clocks: the definitions of latency.
  """
  drawn = []
  for panel, clock in itertools.product(panels, clocks):
    lines = [
      _Line(_label_with_alpha(points[0]), points)
      for points in points_over_gamma(panel)
    ]
    series = _make_series(lines, _latency_over_gamma(clock), clock, min_dots=2)
    if series:
      gammas = {dot.x.value for line in series for dot in line.dots}
      drawn.append(
        LinePanel(
          f"{panel.title}, {clock.name}",
          series,
          "gamma",
          f"relative latency ({clock.name})",
          level=1,
          steps=sorted(gammas),
        )
      )
  return Plot(
    "gamma",
    "Block size",
    "",
    "Relative latency against gamma, each method at the one alpha (behind its"
    " name) that most gammas were measured at.",
    drawn,
  )


def _latency_over_gamma(clock: Clock) -> _PlacesOf:
  """Returns the function from a point to (gamma, latency without interval)."""

  def places_of(point: Measured) -> list[tuple]:
    latency = clock.latency_of(point)
    return [(point.settings.gamma, latency.value if latency else None)]

  return places_of
