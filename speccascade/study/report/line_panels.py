"""A panel of lines: the points of methods with intervals, and their texts."""

from collections.abc import Callable, Sequence
import dataclasses
import itertools

import numpy as np

from speccascade.study.report import styles
from speccascade.study.report.frontier import IntervalEstimate

FONT = 8.0  # points
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
        fontsize=FONT - 1,
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
      fontsize=FONT + 1,
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
    drafters: (text, (x, y)) of small models alone. They stretch no axis: an
      arrow ends at the point, or at the edge of the axis that it lies beyond.
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
  drafters: Sequence[tuple[str, tuple[float, float]]] = ()
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
    axis.set_xlabel(self.x_label, fontsize=FONT)
    axis.set_ylabel(self.y_label, fontsize=FONT)
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
            fontsize=FONT - 0.5,
          ).set_in_layout(False)
    axis.set_xlim(*limits[0])
    axis.set_ylim(*limits[1])

  def write_texts(self, axis):
    """Writes drafters, words, and the alphas of the ends of lines."""
    taken = []
    lines = (*self.lines, *self.background)
    places = [(x.value, y.value) for z in lines for x, y in zip(z.xs, z.ys)]
    places += [place for _, place in self.drafters]
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

    for text, place in self.drafters:
      _write_drafter(axis, text, place, fits)
    for line in self.lines:
      if line.words:
        line.write_words(axis, fits)
      line.write_marks(axis, has_room)


def _write_drafter(
  axis, text: str, place: tuple[float, float], fits: Callable[..., bool]
):
  """Draws an arrow to a point, or to the edge; its words hide no point."""
  x, y = axis.transAxes.inverted().transform(axis.transData.transform(place))
  if is_inside := 0 <= x <= 1 and 0 <= y <= 1:
    axis.plot(*place, "o", color="black", markersize=3, zorder=3)
  # Beyond a side the arrow is level, and not in a corner.
  across = 0.0 <= x <= 1.0
  least, most = (0.0, 1.0) if across else (0.05, 0.95)
  head = min(max(x, 0.0), 1.0), min(max(y, least), most)
  arrow = axis.annotate(
    text,
    head,
    (0, 0),
    xycoords="axes fraction",
    textcoords="offset points",
    fontsize=FONT - 1,
    arrowprops={
      "arrowstyle": "-|>",
      "color": "black",
      "shrinkB": 3 if is_inside else 0,
    },
  )
  # The words are on the side that has more room, as near as they fit.
  sign, side = (-1, "right") if x > 0.5 else (1, "left")
  shifts = range(-60, 61, 6)
  if across and not is_inside:  # The arrow points up or down.
    shifts = range(22, 83, 6) if y < 0 else range(-82, -21, 6)
  sides = [
    (head, (sign * 22, shift), side, "center")
    for shift in sorted(shifts, key=abs)
  ]
  if not _place(arrow, sides, fits):
    _place(arrow, sides[:1], lambda words: True)


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
