"""Figures: panels of lines or of shares, next to each other, with a legend."""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import math
import os
import pathlib
import textwrap

import numpy as np

from speccascade.runtime import files
from speccascade.study.report import styles
from speccascade.study.report.frontier import IntervalEstimate

WIDTH, NARROW = 9.0, 4.0  # of a figure, in inches: in a window, on a telephone
_FONT = 8.0  # points
_GREY = "#888888"
_ROOM = 4.0  # pixels around a text that has nothing else
_BACKGROUND = {
  "color": "#b8b8b8",
  "linewidth": 0.7,
  "zorder": 1,
  "marker": ".",
  "markersize": 3,
  "markeredgewidth": 0,
}


@dataclasses.dataclass(frozen=True)
class DrawnLine:
  """The points of a method that a line connects.

  Attributes:
    label: the name in the legend.
    method: what decides colour, marker and dashes; of a baseline with the
      settings that change, as in "verifier, top_p".
    xs: the places along the x axis, with intervals that are drawn as bars.
    ys: the places along the y axis, of the same number.
    marks: texts of the points, such as their alphas, of which the first and
      the last are written; or none.
    is_hollow: whether the points are rings, as those of temperature 0 are.
    words: the text beside the only point of a line without a label.
    scale: how large the points are, and how thick their bars.
  """

  label: str
  method: str
  xs: Sequence[IntervalEstimate]
  ys: Sequence[IntervalEstimate]
  marks: Sequence[str] = ()
  is_hollow: bool = False
  words: str = ""
  scale: float = 1.0

  def draw(self, axis):
    """Draws the line, its points and their intervals on matplotlib's Axes."""
    style = styles.style(self.method)
    xs, ys = (
      [place.value for place in places] for places in (self.xs, self.ys)
    )
    bars = {}
    for name, places in (("xerr", self.xs), ("yerr", self.ys)):
      ends = [(x.value - x.bounds[0], x.bounds[1] - x.value) for x in places]
      # A value may lie outside of the interval of its resamples.
      bars[name] = np.maximum(np.transpose(ends), 0.0)
    axis.errorbar(
      xs,
      ys,
      **bars,
      fmt="none",
      ecolor=style.color,
      alpha=0.25 * self.scale,
      elinewidth=0.9 * self.scale,
    )
    axis.plot(
      xs,
      ys,
      label=self.label,
      color=style.color,
      linestyle=style.linestyle if len(xs) > 1 else "",
      linewidth=1.1,
      marker=style.marker,
      markersize=5.5 * self.scale,
      markeredgewidth=self.scale if self.is_hollow else 0.0,
      markerfacecolor="white" if self.is_hollow else style.color,
      zorder=3,
    )

  def write_marks(self, axis, has_room: Callable[..., bool]):
    """Writes the marks of both ends that have room on one side of the point."""
    for place in (0, -1) if len(self.marks) > 1 else ():
      point = self.xs[place].value, self.ys[place].value
      mark = axis.annotate(
        self.marks[place],
        point,
        (0, 0),
        textcoords="offset points",
        color=styles.style(self.method).color,
        fontsize=_FONT - 1,
        clip_on=True,
      )
      sides = [
        (
          point,
          (x, y),
          "left" if x > 0 else "right",
          "bottom" if y > 0 else "top",
        )
        for x, y in itertools.product((4, -4), (4, -4))
      ]
      if not _place(mark, sides, has_room):
        mark.remove()

  def write_words(self, axis, fits: Callable[..., bool]):
    """Writes the words of the only point on the first side that has room."""
    (x,), (y,) = self.xs, self.ys
    low, high = y.bounds
    words = axis.annotate(
      self.words,
      (x.value, high),
      (0, 0),
      textcoords="offset points",
      color=styles.style(self.method).color,
      fontsize=_FONT + 1,
      weight="bold",
    )
    sides = [
      ((x.value, high), (0, 6), "center", "bottom"),
      ((x.value, low), (0, -6), "center", "top"),
      ((x.value, y.value), (-10, 6), "right", "bottom"),
      ((x.value, y.value), (10, 6), "left", "bottom"),
    ]
    _place(words, sides, fits)


@dataclasses.dataclass(frozen=True)
class LinePanel:
  """Lines over one pair of axes.

  Attributes:
    title: the heading.
    lines: one or more lines.
    x_label: the label of the x axis.
    y_label: the label of the y axis.
    large: the place of the large model, through which dotted lines go: (x, y),
      either of which may be None. What is better in both is shaded.
    corner: words in the corner that is shaded.
    drafters: (text, y) of what is too fast for the axis: an arrow at its edge.
    background: lines in grey without labels, to compare with.
    ticks: the ticks of the x axis; none lets matplotlib choose.
    right: where the x axis ends, beyond which points are not drawn; None takes
      all of them.
    margins: the room around the points, in shares of what they span along x and
      y; None takes matplotlib's.
  """

  title: str
  lines: Sequence[DrawnLine]
  x_label: str
  y_label: str
  large: tuple[float | None, float | None] = (None, None)
  corner: str = ""
  drafters: Sequence[tuple[str, float]] = ()
  background: Sequence[DrawnLine] = ()
  ticks: Sequence[int] = ()
  right: float | None = None
  margins: tuple[float, float] | None = None

  def draw(self, axis):
    """Draws the panel on matplotlib's Axes."""
    for line in self.background:
      places = ([place.value for place in ps] for ps in (line.xs, line.ys))
      axis.plot(*places, **_BACKGROUND)
    for line in self.lines:
      line.draw(axis)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.set_xlabel(self.x_label, fontsize=_FONT)
    axis.set_ylabel(self.y_label, fontsize=_FONT)
    if self.ticks:
      axis.set_xticks(self.ticks)
    if self.margins is not None:
      axis.margins(*self.margins)
    axis.autoscale_view()
    if self.right is not None:
      axis.set_xlim(right=self.right)
    self._draw_large(axis)

  def _draw_large(self, axis):
    """Draws the dotted lines of the large model, and shades what is better."""
    limits = axis.get_xlim(), axis.get_ylim()
    x, y = self.large
    dotted = {"linestyle": ":", "color": _GREY, "linewidth": 1, "zorder": 0}
    if y is not None:
      axis.axhline(y, **dotted)
    if x is not None and limits[0][0] <= x <= limits[0][1]:
      axis.axvline(x, **dotted)
      if y is not None:
        size = (limits[0][1] - x, limits[1][1] - y)
        shade = {"color": "#009e73", "alpha": 0.07, "linewidth": 0}
        axis.add_patch(
          styles.pyplot().Rectangle((x, y), *size, zorder=0, **shade)
        )
        if self.corner:
          axis.annotate(
            self.corner,
            (x, y),
            xytext=(10, 4),
            textcoords="offset points",
            color="#555555",
            fontsize=_FONT - 0.5,
          ).set_in_layout(False)
    axis.set_xlim(*limits[0])
    axis.set_ylim(*limits[1])

  def write_texts(self, axis):
    """Writes drafters, words, and the alphas of the ends of lines."""
    taken = []
    lines = (*self.lines, *self.background)
    places = [(x.value, y.value) for z in lines for x, y in zip(z.xs, z.ys)]
    points = axis.transData.transform(places)

    def has_room(text) -> bool:
      box = _box(text).padded(_ROOM)
      if box.count_contains(points) or any(box.overlaps(x) for x in taken):
        return False
      taken.append(box)
      return True

    def fits(text) -> bool:
      box = _box(text)
      is_inside = axis.bbox.y0 < box.y0 and box.y1 < axis.bbox.y1
      return is_inside and has_room(text)

    for text, y in self.drafters:
      self._write_drafter(axis, text, y, fits)
    for line in self.lines:
      if line.words:
        line.write_words(axis, fits)
      line.write_marks(axis, has_room)

  def _write_drafter(
    self, axis, text: str, y: float, fits: Callable[..., bool]
  ):
    """Draws an arrow at the edge of the axis, with words that hide no point."""
    bottom, top = axis.get_ylim()
    # Inside the axis where the quality is below or above it.
    place = min(max((y - bottom) / (top - bottom), 0.05), 0.95)
    arrow = axis.annotate(
      text,
      (1.0, place),
      (-22, 0),
      xycoords="axes fraction",
      textcoords="offset points",
      fontsize=_FONT - 1,
      arrowprops={"arrowstyle": "-|>", "color": "black", "shrinkB": 0},
    )
    # The words move up and down from the arrow's head.
    sides = [
      ((1.0, place), (-22, shift), "right", "center")
      for shift in sorted(range(-60, 61, 6), key=abs)
    ]
    if not _place(arrow, sides, fits):
      arrow.set_position((-22, 0))


def _place(annotation, sides: Sequence[tuple], fits: Callable) -> bool:
  """Moves words to the first side where they fit; returns whether one does."""
  # A side is a point, the words' offset from it, and how they are aligned.
  for point, offset, across, along in sides:
    annotation.xy = point
    annotation.set(
      position=offset, horizontalalignment=across, verticalalignment=along
    )
    if fits(annotation):
      return True
  return False


def _box(annotation):
  """Returns the place of the words of an annotation, without its arrow."""
  from matplotlib.text import Text

  annotation.update_positions(annotation.figure.canvas.get_renderer())
  return Text.get_window_extent(annotation)


@dataclasses.dataclass(frozen=True, eq=False)
class SharePanel:
  """Shares in per cent as shaded cells, a row of cells for each label.

  Attributes:
    title: the heading.
    rows: (label, shares in per cent) of each row. Rows may differ in length.
    x_label: the label of the columns, which are numbered from 0.
  """

  title: str
  rows: Sequence[tuple[str, Sequence[float]]]
  x_label: str

  def draw(self, axis):
    """Draws the panel on matplotlib's Axes."""
    labels, shares = zip(*self.rows)
    # Short rows are filled up with NaN, which is drawn as nothing.
    columns = itertools.zip_longest(*shares, fillvalue=math.nan)
    shares = np.transpose(list(columns))
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
      if not np.isnan(share):
        axis.text(
          column,
          row,
          f"{share:.0f}",
          color="#ffffff" if share > 55 else "#0a0a0a",
          fontsize=_FONT - 1,
          horizontalalignment="center",
          verticalalignment="center",
        )
    axis.set_xticks(range(shares.shape[1]))
    axis.set_xlabel(self.x_label, fontsize=_FONT)
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", length=0)


@dataclasses.dataclass(frozen=True)
class Plot:
  """A figure of one or more panels.

  Attributes:
    stem: the beginning of the names of the figure's files.
    heading: the beginning of the title.
    subject: the rest of the title, or nothing.
    note: a sentence or two on how to read the figure.
    panels: the panels in order.
    gamma: the gamma of the curves, where there is a figure for each of several
      gammas; else None.
    aside: the heading under which the page hides the figure; nothing shows the
      figure at once.
    claim: what the figure shows, in a line: its title in a file. A page says it
      before the figure.
    has_legends: whether each panel has a legend of its own.
  """

  stem: str
  heading: str
  subject: str
  note: str
  panels: Sequence[LinePanel | SharePanel]
  gamma: int | None = None
  aside: str = ""
  claim: str = ""
  has_legends: bool = False

  @property
  def name(self) -> str:
    """The name of the figure's files, without their ending."""
    return self.stem if self.gamma is None else f"{self.stem}_gamma{self.gamma}"

  @property
  def title(self) -> str:
    """The title, such as "Figure 1, gamma 5: quality against deferral"."""
    gamma = "" if self.gamma is None else f", gamma {self.gamma}"
    subject = f": {self.subject}" if self.subject else ""
    return f"{self.heading}{gamma}{subject}"

  def draw(self, width: float = WIDTH, *, has_title: bool = True):
    """Returns matplotlib's Figure.

    Args:
      width: in inches. Panels of a narrow figure are stacked.
      has_title: whether the claim is above the panels.
    """
    columns = min(2 if width > NARROW else 1, len(self.panels))
    rows = math.ceil(len(self.panels) / columns)
    legend = self._legend_rows(width)
    height = rows * self._panel_height(width) + 0.17 * legend
    figure, axes = styles.pyplot().subplots(
      rows,
      columns,
      figsize=(width, height),
      squeeze=False,
      layout="constrained",
    )
    for axis, panel in itertools.zip_longest(axes.flat, self.panels):
      # The last row may have more axes than there are panels.
      if panel is None:
        axis.set_axis_off()
        continue
      axis.set_title(panel.title, fontsize=_FONT + 1, loc="left")
      axis.tick_params(labelsize=_FONT - 0.5)
      panel.draw(axis)
      if self.has_legends:
        axis.legend(
          loc="upper left",
          bbox_to_anchor=(1.0, 1.02),
          fontsize=_FONT - 1,
          frameon=False,
        )
    if legend:
      handles = {}
      for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels()):
          handles.setdefault(label, handle)
      figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower left",
        ncols=self._legend_columns(width),
        fontsize=_FONT,
        frameon=False,
      )
    if has_title and self.claim:
      lines = [
        line
        for claim in self.claim.splitlines()
        for line in textwrap.wrap(claim, int(13.5 * width))
      ]
      figure.suptitle(
        "\n".join(lines), x=0.01, horizontalalignment="left", fontsize=_FONT + 2
      )
    # Marks have their room once the axes have their places.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis, panel in zip(axes.flat, self.panels):
      if isinstance(panel, LinePanel):
        panel.write_texts(axis)
    return figure

  def _panel_height(self, width: float) -> float:
    """Returns the height of a row of panels in inches."""
    rows = [len(p.rows) for p in self.panels if isinstance(p, SharePanel)]
    if rows:
      return 0.8 + 0.2 * max(rows)
    return 3.7 if len(self.panels) <= 2 and width > NARROW else 3.0

  def _labels(self) -> list[str]:
    """Returns the labels of the legend below all panels."""
    lines = [
      line.label
      for panel in self.panels
      if isinstance(panel, LinePanel) and not self.has_legends
      for line in panel.lines
      if line.label
    ]
    return list(dict.fromkeys(lines))

  def _legend_columns(self, width: float) -> int:
    """Returns how many labels are side by side."""
    longest = max(map(len, self._labels()))
    return max(1, int(72 * width / (0.58 * _FONT * longest + 36)))

  def _legend_rows(self, width: float) -> int:
    """Returns how many rows of labels there are."""
    labels = self._labels()
    if not labels:
      return 0
    return math.ceil(len(labels) / self._legend_columns(width))

  def _repr_png_(self) -> bytes:
    """Returns the figure as a notebook shows it."""
    figure = self.draw()
    content = styles.file_bytes(figure, "png")
    styles.pyplot().close(figure)
    return content

  def save(self, path: str | os.PathLike):
    """Writes `path`.png and `path`.svg, each whole or not at all.

    The folder is made where there is none.
    """
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure = self.draw()
    for kind in ("png", "svg"):
      content = styles.file_bytes(figure, kind)
      files.write_whole(f"{os.fspath(path)}.{kind}", content)
    styles.pyplot().close(figure)
