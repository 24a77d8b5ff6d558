"""The lines of a figure, from a method's points to what is drawn."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from speccascade.report import styles, tables
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.measured import Clock, Measured, metric_title

# The (x, y) places of a point, which may be several; None where one is missing.
PlacesOf = Callable[[Measured], Iterable[tuple]]


class Dot(NamedTuple):
  """A point of a line.

  Attributes:
    x: place along the x axis, with an interval that is drawn as a bar.
    y: place along the y axis, with an interval that is drawn as a bar.
    tip: text that a reader sees who points at the dot.
    mark: text next to the dot where there is room for it, such as its alpha.
  """

  x: IntervalEstimate
  y: IntervalEstimate
  tip: str
  mark: str = ""


class Series(NamedTuple):
  """A labelled line.

  Attributes:
    method: the name of the method, which decides colour, marker and dashes; of
      a baseline with the settings that change, as in "verifier, top_p".
    label: the text in the margin.
    dots: the points in the order in which the line connects them.
  """

  method: str
  label: str
  dots: Sequence[Dot]

  @property
  def places(self) -> list[tuple[float, float]]:
    """(x, y) of each dot."""
    return [(dot.x.value, dot.y.value) for dot in self.dots]


class LabelledPoints(NamedTuple):
  """The points of a line, and its label.

  Attributes:
    label: the text in the margin.
    points: the points in the order in which the line connects them.
    style: what the line is drawn as; None takes the method of its points.
    marks: the text next to each point; None writes the alphas where they tell
      the points apart.
  """

  label: str
  points: Sequence[Measured]
  style: str | None = None
  marks: Sequence[str] | None = None


def make_series(
  lines: Iterable[LabelledPoints],
  places_of: PlacesOf,
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
  for label, points, style, marks in lines:
    # Alphas are written at the dots only where they tell the dots apart.
    varies = len({point.settings.alpha for point in points}) > 1
    if marks is None:
      marks = [alpha_text(point) if varies else "" for point in points]
    dots = []
    for point, mark in zip(points, marks):
      for x, y in places_of(point):
        if x is not None and y is not None:
          dots.append(Dot(_estimate(x), _estimate(y), tip(point, clock), mark))
    if len(dots) >= min_dots:
      drawn.append(Series(style or points[0].method, label, dots))
  return drawn


def alpha_text(point: Measured) -> str:
  """Returns a point's alpha as a figure writes it; nothing without alpha."""
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
  parts = [point.method]
  if settings.alpha is not None:
    parts.append(f"alpha {settings.alpha:g}")
  if settings.gamma is not None:
    parts.append(f"gamma {settings.gamma}")
  for name in ("top_k", "top_p", "min_p"):
    if getattr(settings, name) is not None:
      parts.append(f"{name} {getattr(settings, name):g}")
  quality = tables.format_estimate(point.quality, 1)
  parts.append(f"{metric_title(point.metric)} {quality}")
  latency = clock.latency_of(point) if clock else None
  if latency:
    parts.append(f"{clock.name} latency {latency.value:.3f}")
  rate = point.efficiency["acceptance_rate"]
  if rate is not None:
    parts.append(f"acceptance {rate:.3f}")
  return ", ".join(parts)


def draw_series(axis, series: Series, name: str) -> dict[str, str]:
  """Draws a line, its dots, and the bars of their intervals.

  Args:
    axis: matplotlib's Axes.
    series: the line.
    name: the beginning of the dots' gids.

  Returns:
    The dots' tips by gid. A gid becomes the id of the dot in an SVG.
  """
  style = styles.style(series.method)
  # The zorder puts bars (1) under the line (2), and the line under dots (3).
  xs, ys = zip(*series.places)
  line = {"linestyle": style.linestyle, "linewidth": 1.1, "alpha": 0.8}
  axis.plot(xs, ys, color=style.color, zorder=2, **line)
  bar = {"color": style.color, "alpha": 0.18, "linewidth": 0.8, "zorder": 1}
  horizontal = [dot for dot in series.dots if dot.x.has_interval]
  if horizontal:
    ends = [(dot.y.value, dot.x.low, dot.x.high) for dot in horizontal]
    axis.hlines(*zip(*ends), **bar)
  vertical = [dot for dot in series.dots if dot.y.has_interval]
  if vertical:
    ends = [(dot.x.value, dot.y.low, dot.y.high) for dot in vertical]
    axis.vlines(*zip(*ends), **bar)
  tips = {}
  for number, dot in enumerate(series.dots):
    gid = f"{name}p{number}"
    tips[gid] = dot.tip
    axis.plot([dot.x.value], [dot.y.value], zorder=3, gid=gid, **style.mark)
  return tips
