"""A report's figures: which curves each shows, and over what."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import itertools

from speccascade.inference.rows.results import ResultRow
from speccascade.report import styles, tables
from speccascade.report.drawing import Dot, LinePanel, Plot, Series, SharePanel
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.groups import PointGroup, studies
from speccascade.report.measured import (
  MEASURED,
  Clock,
  Measured,
  metric_title,
  modelled,
  short_label,
)
from speccascade.report.point_tables import ablated
from speccascade.report.summaries import fastest, is_fast, speedups

# What the papers compare; where there is more, it crowds a figure.
PAPERS = (
  *("spec_decode", "spec_decode_lossy", "spec_decode_lossy_star", "bild_star"),
  *("spec_cascade_chow", "spec_cascade_diff", "spec_cascade_opt"),
  *("spec_cascade_token_v1", "spec_cascade_token_v2", "spec_cascade_token_v3"),
)
MODELS = ("drafter", "verifier")
_MOST = 14  # labels of the first figure
FIGURE_1 = ("token_cascade", "oracle_cascade", "spec_decode_lossy", *MODELS)
_ALONE = styles.family("verifier")
_LEAST = 20  # examined drafts that make a rate worth drawing


def of_panels(
  panels: Sequence[PointGroup], clocks: Sequence[Clock]
) -> list[Plot]:
  """Returns the figures that have anything to show, a panel for each given."""
  by_clock = (quality_latency, by_family)
  plots = [draw(panels, clock) for clock in clocks for draw in by_clock]
  others = (quality_deferral, acceptance_by_position, acceptance_histogram)
  plots += [draw(panels) for draw in others]
  return [plot for plot in plots if plot.panels]


def _series(
  lines: Iterable[tuple[str, Sequence[Measured]]],
  places: Callable[[Measured], Iterable[tuple]],
  clock: Clock | None = None,
  least: int = 1,
) -> list[Series]:
  """Returns labelled lines through their points.

  Args:
    lines: (label, points) of each.
    places: of a point, (x, y) once or more; numbers or estimates, None where
      there is none to draw.
    clock: whose latency is told of a point, or None.
    least: places that make a line.
  """
  drawn = []
  for label, points in lines:
    varies = len({point.settings.alpha for point in points}) > 1
    dots = [
      Dot(*map(_estimate, place), tip(point, clock), _alpha(point) * varies)
      for point in points
      for place in places(point)
      if None not in place
    ]
    if len(dots) >= least:
      drawn.append(Series(points[0].method, label, dots))
  return drawn


def _alpha(point: Measured) -> str:
  alpha = point.settings.alpha
  return "" if alpha is None else f"{alpha:.2g}"


def _estimate(x) -> IntervalEstimate:
  return x if isinstance(x, IntervalEstimate) else IntervalEstimate(x)


def tip(point: Measured, clock: Clock | None = None) -> str:
  """Returns what pointing at a point shows."""
  alpha, gamma = point.settings.alpha, point.settings.gamma
  rate, latency = point.efficiency["acceptance_rate"], clock and clock.of(point)
  said = [
    point.label,
    "" if alpha is None else f"alpha {alpha:g}",
    "" if gamma is None else f"gamma {gamma}",
    f"{metric_title(point.metric)} {tables.estimated(point.quality, 1)}",
    latency and f"{clock.name} latency {latency.value:.3f}",
    "" if rate is None else f"acceptance {rate:.3f}",
  ]
  return ", ".join(filter(None, said))


def _quality_panel(
  panel: PointGroup,
  is_shown: Callable[[str], bool],
  number: Callable[[Measured], IntervalEstimate | float | None],
  label: str,
  clock: Clock | None = None,
) -> LinePanel:
  """Returns quality against a number of the points of the methods shown."""
  lines = [
    (short_label(c.label), c.points)
    for c in panel.curves
    if is_shown(c.settings.method)
  ]
  series = _series(lines, lambda p: [(number(p), p.quality)], clock)
  dotted = (panel.large.quality.value, 1.0) if panel.large else (None, None)
  return LinePanel(panel.title, series, label, panel.metric, *dotted)


def _of_latency(panel: PointGroup, clock: Clock, is_shown) -> LinePanel:
  label = f"relative latency ({clock.name}; the large model: 1)"
  return _quality_panel(panel, is_shown, clock.of, label, clock)


def quality_latency(panels: Sequence[PointGroup], clock: Clock) -> Plot:
  """Returns Figure 2: quality against latency, a panel for each temperature.

  Of all methods; where they are too many to label, of the papers', the fastest
  at the large model's quality and that model.
  """
  drawn = [_of_latency(panel, clock, is_fast) for panel in panels]
  is_whole = max(panel.num_labels for panel in drawn) <= _MOST
  if not is_whole:
    named = (fastest(speedups(panel, clock)) for panel in panels)
    more = [x["settings"].method for x in named if x and x["speedup"].value]
    is_main = (*PAPERS, *more, "verifier").__contains__
    drawn = [_of_latency(panel, clock, is_main) for panel in panels]
  return Plot(
    f"figure2_{clock.name}",
    f"Figure 2{{}}: quality against latency, {clock.title}",
    f"Each method{'' if is_whole else ' of the papers'} is a line over"
    " alpha, whose values stand at the points. Dotted: the large model's"
    " quality and latency; what beats it in both is in the shaded corner. Bars:"
    " 95% intervals.",
    [panel for panel in drawn if panel.series],
  )


def by_family(panels: Sequence[PointGroup], clock: Clock) -> Plot:
  """Returns quality against latency of all methods, family by family.

  Nothing where `quality_latency` has them all.
  """
  drawn = [_of_latency(panel, clock, is_fast) for panel in panels]
  if max(panel.num_labels for panel in drawn) <= _MOST:
    drawn = []
  is_large = lambda line: line.method == "verifier"
  of = lambda line: styles.family(line.method)
  families = sorted({of(line) for panel in drawn for line in panel.series})
  return Plot(
    f"figure2_{clock.name}_families",
    f"All methods{{}}: quality against latency, {clock.title}",
    "The figure before with every method, a family at a time, the others in"
    " grey. Oracles are in Figure 1 alone: their latency is not that of a"
    " method.",
    [
      dataclasses.replace(
        panel,
        title=f"{panel.title}, {styles.FAMILIES[family].name}",
        series=[x for x in panel.series if of(x) == family or is_large(x)],
        behind=[x for x in panel.series if of(x) not in (_ALONE, family)],
      )
      for family in families
      for panel in drawn
      if family != _ALONE and family in map(of, panel.series)
    ],
    columns=len(panels),
  )


def of_rows(rows: Iterable[ResultRow], metric: str = "bleu") -> Plot:
  """Returns quality against both latencies at the highest temperature.

  Of rows with costs. Oracles are left out; the two models' greedy points are
  there too, relative to the greedy large model's latency.
  """
  drawn = []
  for study in studies(rows, metric):
    *greedy, sampled = study.panels
    curves = [c for c in sampled.curves if is_fast(c.settings.method)]
    lines = [(short_label(curve.label), curve.points) for curve in curves]
    alone = [p for panel in greedy for p in panel.points if p.method in MODELS]
    lines += [(f"{p.label}, greedy", [p]) for p in alone]
    dotted = (sampled.large.quality.value, 1.0)
    for clock in (MEASURED, modelled(study.cost_ratio)):
      series = _series(lines, lambda p, c=clock: [(c.of(p), p.quality)], clock)
      title = f"{sampled.title}, {clock.title.partition(',')[0]}"
      axes = (f"relative latency ({clock.name})", study.metric)
      drawn.append(LinePanel(title, series, *axes, *dotted))
  return Plot("quality_latency", "Quality against latency", "", drawn)


def quality_deferral(panels: Sequence[PointGroup]) -> Plot:
  """Returns Figure 1: token cascades against speculative decoding."""
  is_shown = lambda name: name == "spec_decode" or name.startswith(FIGURE_1)
  rate = lambda point: point.efficiency["deferral_rate"]
  drawn = [_quality_panel(p, is_shown, rate, "deferral rate") for p in panels]
  return Plot(
    "figure1",
    "Figure 1{}: quality against deferral rate",
    "Deferral rate: calls of the large model a token written; a token cascade"
    " calls it where it defers, speculative decoding once a block. The oracles"
    " read the large model's distribution before they decide.",
    [p for p in drawn if any("cascade" in line.method for line in p.series)],
  )


def best_points(panel: PointGroup) -> list[Measured]:
  """Returns one point of each speculative curve: its best quality.

  Of equals the one with the highest acceptance rate.
  """
  rank = lambda point: (
    point.quality.value,
    point.efficiency["acceptance_rate"] or 0.0,
  )
  curves = ([p for p in x.points if p.counts.num_blocks] for x in panel.curves)
  return [max(points, key=rank) for points in curves if points]


def _label(point: Measured) -> str:
  return f"{short_label(point.label)} {_alpha(point)}".rstrip()


def acceptance_by_position(panels: Sequence[PointGroup]) -> Plot:
  """Returns the acceptance at each position, each method at one alpha."""
  axes = ("position in the block", "accepted / examined")
  drawn = []
  for panel in panels:
    points = best_points(panel)
    if len(points) > _MOST:
      points = [point for point in points if point.method in PAPERS]
    series = _series([(_label(p), [p]) for p in points], _positions)
    if series:
      num = max(len(point.counts.examined_by_position) for point in points)
      steps = range(1, num + 1)
      drawn.append(LinePanel(panel.title, series, *axes, steps=steps))
  return Plot(
    "acceptance_by_position",
    "Acceptance by position{}",
    "Accepted over examined drafts at each position of a block, each method at"
    " the alpha of its best quality (behind its name); positions examined"
    f" fewer than {_LEAST} times are left out.",
    drawn,
  )


def _positions(point: Measured) -> Iterable[tuple[int, float | None]]:
  rates = point.efficiency["acceptance_by_position"]
  examined = point.counts.examined_by_position
  for place, (rate, num) in enumerate(zip(rates, examined), start=1):
    yield place, rate if num >= _LEAST else None


def acceptance_histogram(panels: Sequence[PointGroup]) -> Plot:
  """Returns shares of blocks by the number accepted, a line for each method."""
  shares = lambda counts: [
    100 * n / counts.num_blocks for n in counts.accepted_at
  ]
  drawn = []
  for panel in panels:
    rows = [(_label(p), shares(p.counts)) for p in best_points(panel)]
    if rows:
      drawn.append(SharePanel(panel.title, rows, "drafts accepted"))
  return Plot(
    "acceptance_histogram",
    "Acceptance histogram{}",
    "Per cent of the blocks in which so many drafts were accepted, each method"
    " at the alpha of its best quality.",
    drawn,
  )


def gamma_ablation(
  panels: Sequence[PointGroup], clocks: Sequence[Clock]
) -> Plot:
  """Returns latency against gamma, a panel for each temperature and clock."""
  drawn = []
  for panel, clock in itertools.product(panels, clocks):
    lines = [(_label(points[0]), points) for points in ablated(panel)]
    places = lambda p, of=clock.of: [(p.settings.gamma, (of(p) or [None])[0])]
    if series := _series(lines, places, clock, least=2):
      title = f"{panel.title}, {clock.name}"
      axes = ("gamma", f"relative latency ({clock.name})")
      steps = sorted({dot.x.value for line in series for dot in line.dots})
      drawn.append(LinePanel(title, series, *axes, level=1, steps=steps))
  return Plot(
    "gamma",
    "Block size",
    "Relative latency against gamma, each method at the one alpha (behind its"
    " name) that most gammas were measured at.",
    drawn,
  )
