"""What a figure is made of: panels side by side, of lines or of shares."""

from collections.abc import Sequence
import dataclasses
import itertools
import math
import operator
import os
from typing import NamedTuple

import numpy as np
from scipy import optimize

from speccascade.report import styles
from speccascade.report.frontier import IntervalEstimate
from speccascade.runtime import files

WIDTH = 4.0  # inches of a panel, labels included
_LEFT = 0.13  # of it, before the axis
_MARGIN = 0.345  # of it, for the labels
_BESIDE = 1.05  # where labels begin, in widths of the axis
GAP = 9.6  # points between two labels' middles
FONT, SMALL = 7.5, 6.8
_DOTTED = {"linestyle": ":", "color": "#888888", "linewidth": 1}
_TINT = {"color": "#888888", "alpha": 0.09, "linewidth": 0, "zorder": 0}
_BEHIND = {
  **{"color": "#b0b0b0", "alpha": 0.6, "linewidth": 0.8, "zorder": 1},
  **{"marker": ".", "markersize": 3, "markeredgewidth": 0},
}


def pyplot():
  """Returns pyplot, drawing to files, the same bytes from the same rows."""
  import matplotlib

  matplotlib.use("Agg")
  matplotlib.rcParams["svg.hashsalt"] = "speccascade"  # ids by content
  from matplotlib import pyplot as plt

  return plt


class Dot(NamedTuple):
  """A point of a line.

  Attributes:
    x: with its interval as a bar.
    y: likewise.
    tip: what pointing at it shows.
    mark: what stands beside it where there is room, as its alpha.
  """

  x: IntervalEstimate
  y: IntervalEstimate
  tip: str
  mark: str = ""


class Series(NamedTuple):
  """A labelled line of a panel: its method gives the style, `dots` in order."""

  method: str
  label: str
  dots: Sequence[Dot]

  @property
  def places(self) -> list[tuple[float, float]]:
    return [(dot.x.value, dot.y.value) for dot in self.dots]


@dataclasses.dataclass(frozen=True)
class LinePanel:
  """Lines over one pair of axes.

  Attributes:
    title: heading.
    series: one or more lines.
    x_label: of the axis.
    y_label: likewise.
    level: a dotted line at this y.
    limit: a dotted line at this x, where the lines reach it.
    steps: the values of x to mark, where it takes a few alone.
    behind: lines in grey without labels, for comparison.
  """

  title: str
  series: Sequence[Series]
  x_label: str
  y_label: str
  level: float | None = None
  limit: float | None = None
  steps: Sequence[int] = ()
  behind: Sequence[Series] = ()

  @property
  def num_labels(self) -> int:
    return len(self.series)

  def draw(self, axis, prefix: str) -> dict[str, str]:
    """Draws on an axis; returns the tips by gid, which `prefix` starts."""
    if self.level is not None:
      axis.axhline(self.level, **_DOTTED)
    tips = {}
    for series in self.behind:
      axis.plot(*zip(*series.places), **_BEHIND)
    for number, series in enumerate(self.series):
      tips |= _draw_series(axis, series, f"{prefix}s{number}")
    axis.grid(alpha=0.2, linewidth=0.6)
    _label_ends(axis, self.series)
    low, high = axis.get_xlim()
    if self.limit is not None and low <= self.limit <= high:
      axis.axvline(self.limit, **_DOTTED)
      if self.level is not None:  # both: what beats the two is up there
        size = (self.limit - low, axis.get_ylim()[1] - self.level)
        corner = pyplot().Rectangle((low, self.level), *size, **_TINT)
        axis.add_patch(corner)
    _write_marks(axis, self.series)
    if self.steps:
      axis.set_xticks(self.steps)
    axis.set_xlabel(self.x_label, fontsize=8)
    axis.set_ylabel(self.y_label, fontsize=8)
    return tips


def _draw_series(axis, series: Series, name: str) -> dict[str, str]:
  style = styles.style(series.method)
  xs, ys, tips, _ = zip(*series.dots)
  line = {"linestyle": style.linestyle, "linewidth": 1.1, "alpha": 0.8}
  axis.plot(*zip(*series.places), color=style.color, zorder=2, **line)
  bar = {"color": style.color, "alpha": 0.18, "linewidth": 0.8, "zorder": 1}
  for draw, across, along in ((axis.hlines, ys, xs), (axis.vlines, xs, ys)):
    pairs = zip(across, along)
    bars = [(at.value, b.low, b.high) for at, b in pairs if b.has_interval]
    if bars:
      draw(*zip(*bars), **bar)
  by_gid = {f"{name}p{i}": tip for i, tip in enumerate(tips)}
  for gid, (x, y) in zip(by_gid, series.places):
    axis.plot([x], [y], zorder=3, gid=gid, **style.mark)
  return by_gid


def _write_marks(axis, lines: Sequence[Series]):
  """Writes the marks that find room beside their points, a line's ends first.

  No mark touches another, a point, or a line.

  Args:
    axis: with its limits as they stay.
    lines: all that it shows.
  """
  scale = 72 / axis.figure.dpi
  at = lambda place: scale * axis.transData.transform(place)
  (left, below), (right, above) = scale * axis.bbox.get_points()
  # Boxes as (left, bottom, right, top); outside the axis there is no room.
  taken = [(-9e9, -9e9, left, 9e9), (right, -9e9, 9e9, 9e9)]
  taken += [(-9e9, -9e9, 9e9, below), (-9e9, above, 9e9, 9e9)]
  for line in lines:
    places = at(line.places)
    taken += [(*(x - 2.5), *(x + 2.5)) for x in places]
    along = np.linspace(places[:-1], places[1:], 16).reshape(-1, 2)
    taken += [(*(x - 1), *(x + 1)) for x in along]
  taken = np.array(taken)
  ranked = [
    (min(place, len(line.dots) - 1 - place), line, dot.mark, line.places[place])
    for line in lines
    for place, dot in enumerate(line.dots)
    if dot.mark
  ]
  for _, line, mark, point in sorted(ranked, key=operator.itemgetter(0)):
    size = np.array([0.58 * SMALL * len(mark), SMALL])
    for across, up in itertools.product((1, -1, 0), (0, 1, -1)):
      # From the point to the text's lower left corner.
      step = np.array([across, up]) * (size / 2 + 3.5) - size / 2
      low, high = at(point) + step, at(point) + step + size
      if not ((low < taken[:, 2:]) & (taken[:, :2] < high)).all(axis=1).any():
        taken = np.vstack([taken, [*low, *high]])
        text = axis.annotate(mark, point, step, textcoords="offset points")
        text.set(fontsize=SMALL, color=styles.style(line.method).color)
        break


def _label_ends(axis, lines: Sequence[Series]):
  """Writes labels in the margin, a thin line from each to its line's end.

  Args:
    axis: with all of its lines drawn.
    lines: those with labels.
  """
  axis.autoscale_view()
  low, high = axis.get_ylim()
  axis.set_ylim(low, high)
  axis.set_xlim(*axis.get_xlim())
  height = axis.get_position().height * axis.figure.get_figheight() * 72
  ends = [max(line.places) for line in lines]
  wanted = [(y - low) / (high - low) * height for _, y in ends]
  for line, end, place in zip(lines, ends, spread(wanted, GAP, height)):
    style, level = styles.style(line.method), place / height
    thin = {"color": style.color, "alpha": 0.5, "linewidth": 0.6}
    axis.annotate(
      *("", end, (_BESIDE, level)),
      textcoords="axes fraction",
      annotation_clip=False,
      arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 3, **thin},
    )
    beside = {"transform": axis.transAxes, "clip_on": False}
    axis.plot([_BESIDE], [level], **style.mark, **beside)
    text = {"fontsize": FONT, "verticalalignment": "center_baseline"}
    axis.text(_BESIDE + 0.025, level, line.label, **text, **beside)


def spread(wanted: Sequence[float], gap: float, height: float) -> list[float]:
  """Returns places near the wanted ones, at least `gap` apart.

  The least squares solution: neighbours that would touch move together. All
  lie in [0, height] where they fit, else they are spaced evenly.

  >>> spread([5.0, 5.0, 50.0], 10.0, 100.0)
  [0.0, 10.0, 50.0]
  """
  gap = min(gap, height / max(1, len(wanted) - 1))
  order = np.argsort(wanted, kind="stable")
  below = gap * np.arange(len(wanted))  # the gaps that must lie below each
  pooled = optimize.isotonic_regression(np.take(wanted, order) - below).x
  places = np.empty(len(wanted))
  places[order] = np.clip(pooled, 0.0, max(0.0, height - below[-1])) + below
  return places.tolist()


@dataclasses.dataclass(frozen=True, eq=False)
class SharePanel:
  """Shares in per cent as shaded cells, a row for each label.

  Attributes:
    title: heading.
    rows: (label, shares in per cent), which may differ in length.
    x_label: of the columns, which are numbered from 0.
  """

  title: str
  rows: Sequence[tuple[str, Sequence[float]]]
  x_label: str

  @property
  def num_labels(self) -> int:
    return int(1.6 * len(self.rows))  # its rows are higher than a label

  def draw(self, axis, prefix: str) -> dict[str, str]:
    """Draws on an axis; there are no tips."""
    labels, shares = zip(*self.rows)
    columns = itertools.zip_longest(*shares, fillvalue=math.nan)
    shares = np.transpose(list(columns))
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    middle = {"ha": "center", "va": "center", "fontsize": FONT}
    for (line, column), share in np.ndenumerate(shares):
      if not np.isnan(share):
        colour = "#ffffff" if share > 55 else "#0a0a0a"
        axis.text(column, line, f"{share:.0f}", color=colour, **middle)
    axis.set_xticks(range(shares.shape[1]))
    axis.set_xlabel(self.x_label, fontsize=8)
    axis.yaxis.tick_right()
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", length=0)
    return {}


@dataclasses.dataclass(frozen=True)
class Plot:
  """A figure of one or more panels, side by side.

  Attributes:
    stem: names its files, the gamma after it.
    heading: its title, {} for the gamma.
    note: a sentence or two on how to read it.
    panels: in order.
    gamma: of its curves, where there are figures of several.
    aside: what the figure is shown under, where it is not shown at once.
    columns: most panels beside each other in a file.
  """

  stem: str
  heading: str
  note: str
  panels: Sequence[LinePanel | SharePanel]
  gamma: int | None = None
  aside: str = ""
  columns: int = 4

  @property
  def name(self) -> str:
    return self.stem if self.gamma is None else f"{self.stem}_gamma{self.gamma}"

  @property
  def title(self) -> str:
    gamma = "" if self.gamma is None else f", gamma {self.gamma}"
    return self.heading.format(gamma)

  def draw(self, number: int | None = None):
    """Returns (figure, tips) of all panels, or of one of them."""
    shown = self.panels if number is None else [self.panels[number]]
    columns = min(self.columns, len(shown))
    rows = -(-len(shown) // columns)
    num_labels = max(panel.num_labels for panel in self.panels)
    height = max(3.5, 1.0 + num_labels * GAP / 72)
    size = (WIDTH * columns, height * rows)
    how = {"figsize": size, "squeeze": False}
    figure, axes = pyplot().subplots(rows, columns, **how)
    below, above = 0.45 / height, 0.32 / height
    figure.subplots_adjust(
      left=_LEFT / columns,
      right=1 - _MARGIN / columns,
      bottom=below / rows,
      top=1 - above / rows,
      # In widths and heights of an axis.
      wspace=(_LEFT + _MARGIN) / (1 - _LEFT - _MARGIN),
      hspace=(below + above) / (1 - below - above),
    )
    tips = {}
    for place, axis in enumerate(axes.flat):
      if place == len(shown):
        axis.set_axis_off()
        break
      axis.set_title(shown[place].title, fontsize=9)
      axis.tick_params(labelsize=FONT)
      tips |= shown[place].draw(axis, f"p{place}")
    return figure, tips

  def save(self, path: str | os.PathLike):
    """Writes `path`.png and `path`.svg, each whole or not at all."""
    figure, _ = self.draw()
    # No date: the same rows give the same file.
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
      with files.open_whole(f"{os.fspath(path)}.{kind}", "wb") as file:
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
    pyplot().close(figure)
