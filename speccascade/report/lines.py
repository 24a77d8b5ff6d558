"""The lines of a figure: a method's points, with intervals and tips."""

from collections.abc import Sequence
from typing import NamedTuple

from speccascade.report import styles
from speccascade.report.frontier import IntervalEstimate


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
    method: the name of the method, which decides colour, marker and dashes.
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
