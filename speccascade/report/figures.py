"""A report's figures: which curves each shows, and over what."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from speccascade.inference.results import ResultRow
from speccascade.report.clocks import MEASURED, Clock
from speccascade.report.drawing import Dot, LinePanel, Plot, Series, SharePanel
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.measured import Measured, metric_title, short_label
from speccascade.report.panels import MeasuredCurve, Panel, studies
from speccascade.report.point_tables import ablated
from speccascade.report.speedups import is_fast

# What the papers compare; the rest crowds a figure.
DETAIL = (
  *("spec_decode", "spec_decode_lossy", "spec_decode_lossy_star", "bild_star"),
  *("spec_cascade_chow", "spec_cascade_diff", "spec_cascade_opt"),
  *("spec_cascade_token_v1", "spec_cascade_token_v2", "spec_cascade_token_v3"),
)
FIGURE_1 = (
  *("token_cascade", "oracle_cascade", "spec_decode_lossy"),
  *("drafter", "verifier"),
)
_LEAST = 20  # examined drafts that make a rate worth drawing


def of_panels(
  panels: Sequence[Panel], clocks: Sequence[Clock], metric: str
) -> list[Plot]:
  """Returns the figures that have anything to show, a panel for each given."""
  plots = [
    *(
      quality_latency(panels, clock, metric, detail=detail)
      for clock in clocks
      for detail in (False, True)
    ),
    quality_deferral(panels, metric),
    acceptance_by_position(panels, metric),
    acceptance_histogram(panels, metric),
  ]
  return [plot for plot in plots if plot.panels]


def quality_latency(
  panels: Sequence[Panel], clock: Clock, metric: str, *, detail: bool = False
) -> Plot:
  """Returns Figure 2: quality against latency.

  Args:
    panels: those without both are left out.
    clock: which latency.
    metric: which quality.
    detail: the speculative methods of the papers alone, closer; panels with
      fewer than three curves of them are left out.
  """
  name, subject = f"figure2_{clock.name}", "quality against latency"
  is_shown = DETAIL.__contains__ if detail else is_fast
  return Plot(
    f"{name}_detail" if detail else name,
    f"Figure 2{{}}{', detail' * detail}: {subject}, {clock.title}",
    "The figure before, drawn closer: the papers' speculative methods."
    if detail
    else "Each method is a line over alpha. Dotted: the large model's quality,"
    " and its latency, 1. Bars: 95% intervals. Oracles are in Figure 1 alone:"
    " their latency is not that of a method.",
    [*_latency_panels(panels, clock, metric, is_shown, 3 if detail else 1)],
  )


def of_rows(rows: Iterable[ResultRow], metric: str = "bleu") -> Plot:
  """Returns quality against measured latency of all methods, oracles too.

  Raises:
    ValueError: no row has both.
  """
  panels = [panel for study in studies(rows) for panel in study.panels]
  drawn = [*_latency_panels(panels, MEASURED, metric, lambda _: True, 1)]
  if not drawn:
    raise ValueError(f"no row has both a latency and {metric}")
  return Plot("quality_latency", "Quality against latency", "", drawn)


def _latency_panels(panels, clock, metric, is_shown, least):
  for panel in panels:
    curves = [curve for curve in panel.curves if is_shown(curve.method)]
    series = _quality_series(curves, clock.of, metric, clock)
    if len(series) >= least:
      label = f"relative latency ({clock.name})"
      yield _quality_panel(panel, series, label, metric)


def _quality_series(
  curves: Iterable[MeasuredCurve],
  number: Callable[[Measured], IntervalEstimate | None],
  metric: str,
  clock: Clock | None = None,
) -> list[Series]:
  """Returns quality against a number, where there are points with both."""
  drawn = []
  for curve in curves:
    pairs = [(number(p), p.quality(metric), p) for p in curve.points]
    dots = [Dot(x, y, tip(p, metric, clock)) for x, y, p in pairs if x and y]
    if dots:
      drawn.append(Series(curve.method, curve.short_label, dots))
  return drawn


def _quality_panel(panel: Panel, series, label: str, metric: str) -> LinePanel:
  large = panel.large and panel.large.quality(metric)
  dotted = (large.value, 1.0) if large else (None, None)
  return LinePanel(panel.title, series, label, metric_title(metric), *dotted)


def tip(point: Measured, metric: str, clock: Clock | None = None) -> str:
  """Returns what pointing at a point shows."""
  said, settings = [point.label], point.settings
  if settings.alpha is not None:
    said.append(f"alpha {settings.alpha:g}")
  if settings.gamma is not None:
    said.append(f"gamma {settings.gamma}")
  if quality := point.quality(metric):
    text = f"{metric_title(metric)} {quality.value:.1f}"
    if quality.has_interval:
      text += f" [{quality.low:.1f}, {quality.high:.1f}]"
    said.append(text)
  if latency := clock and clock.of(point):
    said.append(f"{clock.name} latency {latency.value:.3f}")
  rate = point.efficiency["acceptance_rate"]
  if rate is not None:
    said.append(f"acceptance {rate:.3f}")
  return ", ".join(said)


def quality_deferral(panels: Sequence[Panel], metric: str) -> Plot:
  """Returns Figure 1: token cascades against speculative decoding."""
  is_shown = lambda name: name == "spec_decode" or name.startswith(FIGURE_1)
  drawn = []
  for panel in panels:
    curves = [curve for curve in panel.curves if is_shown(curve.method)]
    series = _quality_series(curves, _deferral_rate, metric)
    if any("cascade" in line.method for line in series):
      drawn.append(_quality_panel(panel, series, "deferral rate", metric))
  return Plot(
    "figure1",
    "Figure 1{}: quality against deferral rate",
    "Deferral rate: calls of the large model a token written; a token cascade"
    " calls it where it defers, speculative decoding once a block. The oracles"
    " read the large model's distribution before they decide.",
    drawn,
  )


def _deferral_rate(point: Measured) -> IntervalEstimate | None:
  rate = point.efficiency["deferral_rate"]
  return None if rate is None else IntervalEstimate(rate)


def best_points(panel: Panel, metric: str) -> list[Measured]:
  """Returns one point of each speculative curve: its best quality.

  Of equals the one with the highest acceptance rate.
  """
  rank = lambda point: (
    point.quality(metric).value,
    point.efficiency["acceptance_rate"] or 0.0,
  )
  scored = [
    [p for p in curve.points if p.counts.num_blocks and p.quality(metric)]
    for curve in panel.curves
  ]
  return [max(points, key=rank) for points in scored if points]


def _label(point: Measured) -> str:
  alpha = point.settings.alpha
  label = short_label(point.label)
  return label if alpha is None else f"{label} {alpha:.2g}"


def acceptance_by_position(panels: Sequence[Panel], metric: str) -> Plot:
  """Returns the acceptance at each position, each method at one alpha."""
  return Plot(
    "acceptance_by_position",
    "Acceptance by position{}",
    "Accepted over examined drafts at each position of a block, each method at"
    " the alpha of its best quality (behind its name); positions examined"
    f" fewer than {_LEAST} times are left out.",
    [
      LinePanel(
        panel.title,
        series,
        "position in the block",
        "accepted / examined",
        steps=range(1, max(map(_num_positions, points)) + 1),
      )
      for panel in panels
      if (points := best_points(panel, metric))
      and (series := [*_position_series(points, metric)])
    ],
  )


def _num_positions(point: Measured) -> int:
  return len(point.counts.examined_by_position)


def _position_series(points: Iterable[Measured], metric) -> Iterator[Series]:
  for point in points:
    rates = point.efficiency["acceptance_by_position"]
    examined = point.counts.examined_by_position
    dots = [
      Dot(IntervalEstimate(i), IntervalEstimate(rate), tip(point, metric))
      for i, (rate, num) in enumerate(zip(rates, examined), start=1)
      if num >= _LEAST and rate is not None
    ]
    if dots:
      yield Series(point.method, _label(point), dots)


def acceptance_histogram(panels: Sequence[Panel], metric: str) -> Plot:
  """Returns shares of blocks by the number accepted, a line for each method."""
  drawn = []
  for panel in panels:
    points = best_points(panel, metric)
    width = max((len(point.counts.accepted_at) for point in points), default=0)
    shares = np.full((len(points), width), np.nan)
    for line, point in zip(shares, points):
      blocks = np.asarray(point.counts.accepted_at, np.float64)
      line[: len(blocks)] = 100 * blocks / point.counts.num_blocks
    if points:
      labels = [_label(point) for point in points]
      drawn.append(SharePanel(panel.title, labels, shares, "drafts accepted"))
  return Plot(
    "acceptance_histogram",
    "Acceptance histogram{}",
    "Per cent of the blocks in which so many drafts were accepted, each method"
    " at the alpha of its best quality.",
    drawn,
  )


def gamma_ablation(
  panels: Sequence[Panel], metric: str, clocks: Sequence[Clock]
) -> Plot:
  """Returns latency against gamma, a panel for each temperature and clock."""
  drawn = []
  for panel, clock in ((p, clock) for p in panels for clock in clocks):
    series = []
    for points in ablated(panel):
      dots = [
        Dot(
          IntervalEstimate(point.settings.gamma),
          IntervalEstimate(clock.of(point).value),
          tip(point, metric, clock),
        )
        for point in points
        if clock.of(point) is not None
      ]
      if len(dots) > 1:
        series.append(Series(points[0].method, _label(points[0]), dots))
    if series:
      title = f"{panel.title}, {clock.name}"
      labels = ("gamma", f"relative latency ({clock.name})")
      steps = sorted({dot.x.value for line in series for dot in line.dots})
      drawn.append(LinePanel(title, series, *labels, level=1, steps=steps))
  return Plot(
    "gamma",
    "Block size",
    "Relative latency against gamma, each method at the one alpha (behind its"
    " name) that most gammas were measured at.",
    drawn,
  )
