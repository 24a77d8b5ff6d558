"""A report's figures: from panels of curves to what draws them."""

from collections.abc import Sequence

import numpy as np

from speccascade.report import curves, drawing, report_tables
from speccascade.report.clocks import Clock
from speccascade.report.curves import Curve, Measured, Panel
from speccascade.report.drawing import FONT, GREY, Plot, Series
from speccascade.report.summary import is_fast

# What the papers compare; the rest crowds a figure.
DETAIL = (
  *("spec_decode", "spec_decode_lossy", "spec_decode_lossy_star", "bild_star"),
  *("spec_cascade_chow", "spec_cascade_diff", "spec_cascade_opt"),
  *("spec_cascade_token_v1", "spec_cascade_token_v2", "spec_cascade_token_v3"),
)


def quality_latency(
  panels: Sequence[Panel],
  clock: Clock,
  metric: str,
  name: str,
  about: str,
  *,
  detail: bool = False,
) -> Plot | None:
  """Returns Figure 2: quality against latency; None if nothing has both.

  Args:
    panels: a panel each.
    clock: which latency.
    metric: which quality.
    name: of the files.
    about: behind the figure's number.
    detail: the speculative methods of the papers alone, closer; None where
      there are fewer than three curves of them.
  """
  made, most = [], 0
  for panel in panels:
    series = [
      _against(curve, clock.of, metric, clock)
      for curve in panel.curves
      if is_fast(curve.method)
      and (not detail or curve.method in DETAIL)
      and clock.timed(curve.points, metric)
    ]
    if len(series) > 2 if detail else series:
      most = max(most, len(series))
      labels = (f"relative latency ({clock.name})", metric)
      made.append((panel.title, _quality_panel(panel, series, *labels)))
  if not made:
    return None
  note = (
    "Each method is a line over alpha. Dotted: the large model's quality, and"
    " its latency, 1. Bars: 95% intervals. Oracles are in Figure 1 alone: their"
    " latency is not that of a method."
  )
  if detail:
    note = "The figure before, drawn closer: the papers' speculative methods."
    about += ", detail"
  return Plot(
    name,
    f"Figure 2{about}: quality against latency, {clock.title}",
    note,
    made,
    most,
  )


def _quality_panel(panel, series, x_label, metric):
  def drawer(axis, prefix):
    large = panel.large
    is_known = large is not None and large.quality(metric) is not None
    dotted = {"linestyle": ":", "color": GREY, "linewidth": 1}
    if is_known:
      axis.axhline(large.quality(metric).value, **dotted)
    tips = drawing.draw(axis, prefix, series)
    low, high = axis.get_xlim()
    if is_known and low <= 1 <= high:
      axis.axvline(1, **dotted)
    axis.set_xlabel(x_label, fontsize=8)
    axis.set_ylabel(curves.metric_title(metric), fontsize=8)
    return tips

  return drawer


def _against(
  curve: Curve, axis_of, metric: str, clock: Clock | None = None
) -> Series:
  """Returns quality against a number of each point that has both."""
  has_both = lambda p: axis_of(p) is not None and p.quality(metric) is not None
  points = [point for point in curve.points if has_both(point)]
  is_timed = clock is not None and clock.cost_ratio is None
  quality = [point.quality_estimate(metric) for point in points]
  return Series(
    curve.method,
    curve.short_label,
    [axis_of(point).value for point in points],
    [one.value for one in quality],
    [tip(point, metric, clock) for point in points],
    [_bar(p.latency_estimate) for p in points] if is_timed else (),
    [_bar(one) for one in quality],
  )


def _bar(estimate):
  return (estimate.low, estimate.high) if estimate.has_interval else None


def tip(point: Measured, metric: str, clock: Clock | None = None) -> str:
  """Returns what pointing at a point shows."""
  own = point.settings
  said = [point.label]
  if own.alpha is not None:
    said.append(f"alpha {own.alpha:g}")
  if own.gamma is not None:
    said.append(f"gamma {own.gamma}")
  quality = point.quality_estimate(metric)
  if quality is not None:
    text = f"{curves.metric_title(metric)} {quality.value:.1f}"
    if quality.has_interval:
      text += f" [{quality.low:.1f}, {quality.high:.1f}]"
    said.append(text)
  sample = clock and clock.of(point)
  if sample:
    said.append(f"{clock.name} latency {sample.value:.3f}")
  rate = point.efficiency["acceptance_rate"]
  if rate is not None:
    said.append(f"acceptance {rate:.3f}")
  return ", ".join(said)


FIGURE_1 = (
  *("token_cascade", "oracle_cascade", "spec_decode_lossy"),
  *("drafter", "verifier"),
)


def quality_deferral(
  panels: Sequence[Panel], metric: str, name: str, about: str
) -> Plot | None:
  """Returns Figure 1: token cascades against speculative decoding."""
  made, most = [], 0
  for panel in panels:
    series = [
      _against(curve, _deferral_rate, metric)
      for curve in panel.curves
      if curve.method == "spec_decode" or curve.method.startswith(FIGURE_1)
    ]
    series = [one for one in series if one.xs]
    if any("cascade" in one.method for one in series):
      most = max(most, len(series))
      drawer = _quality_panel(panel, series, "deferral rate", metric)
      made.append((panel.title, drawer))
  if not made:
    return None
  return Plot(
    name,
    f"Figure 1{about}: quality against deferral rate",
    "Deferral rate: calls of the large model a token written; a token cascade"
    " calls it where it defers, speculative decoding once a block. The oracles"
    " read the large model's distribution before they decide.",
    made,
    most,
  )


def _deferral_rate(point: Measured):
  rate = point.efficiency["deferral_rate"]
  return None if rate is None else curves.Sample(rate)


def chosen(panel: Panel, metric: str) -> list[Measured]:
  """Returns one point of each speculative curve: its best quality.

  Of equals the one with the highest acceptance rate.
  """
  made = []
  for curve in panel.curves:
    points = [p for p in curve.points if p.counts.num_blocks]
    points = [p for p in points if p.quality(metric) is not None]
    if points:
      best = lambda p: (
        p.quality(metric).value,
        p.efficiency["acceptance_rate"] or 0.0,
      )
      made.append(max(points, key=best))
  return made


def _short(point: Measured) -> str:
  alpha = point.settings.alpha
  label = curves.short_label(point.label)
  return label if alpha is None else f"{label} {alpha:.2g}"


_LEAST = 20  # examined drafts that make a rate worth drawing


def acceptance_by_position(
  panels: Sequence[Panel], metric: str, name: str, about: str
) -> Plot | None:
  """Returns the acceptance at each position, each method at one alpha."""
  made, most = [], 0
  for panel in panels:
    series = []
    for point in chosen(panel, metric):
      rates = [
        rate if num >= _LEAST else None
        for rate, num in zip(
          point.efficiency["acceptance_by_position"],
          point.counts.examined_by_position,
        )
      ]
      xs = list(range(1, len(rates) + 1))
      tips = [tip(point, metric)] * len(rates)
      if any(rate is not None for rate in rates):
        series.append(Series(point.method, _short(point), xs, rates, tips))
    if series:
      most = max(most, len(series))
      made.append((panel.title, _position_panel(series)))
  if not made:
    return None
  return Plot(
    name,
    f"Acceptance by position{about}",
    "Accepted over examined drafts at each position of a block, each method at"
    " the alpha of its best quality (behind its name); positions examined"
    f" fewer than {_LEAST} times are left out.",
    made,
    most,
  )


def _position_panel(series):
  def drawer(axis, prefix):
    tips = drawing.draw(axis, prefix, series)
    axis.set_xticks(sorted({x for one in series for x in one.xs}))
    axis.set_xlabel("position in the block", fontsize=8)
    axis.set_ylabel("accepted / examined", fontsize=8)
    return tips

  return drawer


def acceptance_histogram(
  panels: Sequence[Panel], metric: str, name: str, about: str
) -> Plot | None:
  """Returns shares of blocks by the number accepted, a line for each method."""
  made, most = [], 0
  for panel in panels:
    points = chosen(panel, metric)
    if points:
      most = max(most, len(points) * 1.6)
      made.append((panel.title, _histogram_panel(points)))
  if not made:
    return None
  return Plot(
    name,
    f"Acceptance histogram{about}",
    "Per cent of the blocks in which so many drafts were accepted, each method"
    " at the alpha of its best quality.",
    made,
    int(most),
  )


def _histogram_panel(points):
  width = max(len(point.counts.accepted_at) for point in points)
  shares = np.full((len(points), width), np.nan)
  for line, point in enumerate(points):
    blocks = np.asarray(point.counts.accepted_at, np.float64)
    shares[line, : len(blocks)] = 100 * blocks / point.counts.num_blocks

  def drawer(axis, prefix):
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for (line, column), share in np.ndenumerate(shares):
      if not np.isnan(share):
        axis.text(
          column,
          line,
          f"{share:.0f}",
          ha="center",
          va="center",
          fontsize=FONT,
          color="#ffffff" if share > 55 else "#0a0a0a",
        )
    axis.set_xticks(range(width))
    axis.set_xlabel("drafts accepted", fontsize=8)
    axis.yaxis.tick_right()
    axis.set_yticks(range(len(points)), [_short(point) for point in points])
    axis.tick_params(axis="y", length=0)
    return {}

  return drawer


def gamma_ablation(
  panels: Sequence[Panel], metric: str, clocks: Sequence[Clock], name: str
) -> Plot | None:
  """Returns latency against gamma, a panel for each temperature and clock."""
  made, most = [], 0
  for panel in panels:
    for clock in clocks:
      series = []
      for points in report_tables.ablated(panel):
        timed = [p for p in points if clock.of(p) is not None]
        if len(timed) < 2:
          continue
        series.append(
          Series(
            timed[0].method,
            _short(timed[0]),
            [p.settings.gamma for p in timed],
            [clock.of(p).value for p in timed],
            [tip(p, metric, clock) for p in timed],
          )
        )
      if series:
        most = max(most, len(series))
        title = f"{panel.title}, {clock.name}"
        made.append((title, _gamma_panel(series, clock)))
  if not made:
    return None
  return Plot(
    name,
    "Block size",
    "Relative latency against gamma, each method at the one alpha (behind its"
    " name) that most gammas were measured at.",
    made,
    most,
  )


def _gamma_panel(series, clock):
  def drawer(axis, prefix):
    axis.axhline(1, linestyle=":", color=GREY, linewidth=1)
    tips = drawing.draw(axis, prefix, series)
    axis.set_xticks(sorted({x for one in series for x in one.xs}))
    axis.set_xlabel("gamma", fontsize=8)
    axis.set_ylabel(f"relative latency ({clock.name})", fontsize=8)
    return tips

  return drawer
