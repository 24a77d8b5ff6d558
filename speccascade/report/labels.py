"""Text in a panel: marks next to points, and labels in the margin."""

from collections.abc import Sequence
import itertools
import textwrap
from typing import NamedTuple

import numpy as np
from scipy import optimize

from speccascade.report import styles
from speccascade.report.lines import Series

GAP = 9.6  # points between the middles of two labels
FONT = 7.5  # points
TITLE_FONT = 10.0  # points
EDGE = 0.12  # inches, from the edge of the figure to its title
_MARK_FONT = 6.8  # points
_BESIDE = 1.05  # where labels begin, in widths of the axis
# The width of most letters and digits, in sizes of the font; names have wide
# letters and no blanks.
_LETTER, _LETTER_OF_TITLE = 0.58, 0.53
_FAR = 9e9  # points; farther than any text reaches


def margin(texts: Sequence[str]) -> float:
  """Returns how many inches the longest of some labels takes, with its marker.

  >>> round(margin(["spec_cascade_token_v3 0.3"]), 2)
  1.79
  """
  longest = max((len(text) for text in texts), default=0)
  return 0.28 + _LETTER * FONT * longest / 72


def wrap(text: str, width: float) -> list[str]:
  """Returns the lines of a figure's title; none of an empty text.

  Args:
    text: the lines, which are broken where they are too long.
    width: the width of the figure in inches.
  """
  num_letters = int(72 * (width - 2 * EDGE) / (_LETTER_OF_TITLE * TITLE_FONT))
  return [
    part
    for line in text.split("\n")
    for part in textwrap.wrap(line, num_letters)
  ]


class _Mark(NamedTuple):
  """A text that may be written next to a point.

  Attributes:
    rank: how many points away the nearer end of the line is.
    text: what is written.
    place: (x, y) of the point, in data coordinates.
    color: the colour of the line.
  """

  rank: int
  text: str
  place: tuple[float, float]
  color: str


def write_marks(axis, lines: Sequence[Series]):
  """Writes the marks that find room next to their points.

  No mark touches another mark, a point or a line. The ends of a line come
  first, as they say most.

  Args:
    axis: matplotlib's Axes, with its final limits.
    lines: all lines that the axis shows.
  """
  scale = 72 / axis.figure.dpi

  def to_points(places):
    """Turns data coordinates, [..., 2], into points of the figure."""
    return scale * axis.transData.transform(places)

  taken = _boxes_of_axis(scale * axis.bbox.get_points())
  for line in lines:
    taken += _boxes_of_line(to_points(line.places))
  taken = np.array(taken)
  for mark in sorted(_marks(lines), key=lambda mark: mark.rank):
    size = np.array([_LETTER * _MARK_FONT * len(mark.text), _MARK_FONT])
    # Right, left and middle; level with the point, above it and below it.
    for across, up in itertools.product((1, -1, 0), (0, 1, -1)):
      # From the point to the text's lower left corner.
      step = np.array([across, up]) * (size / 2 + 3.5) - size / 2
      low = to_points(mark.place) + step
      high = low + size
      if not _overlaps(low, high, taken):
        taken = np.vstack([taken, [*low, *high]])
        text = axis.annotate(
          mark.text, mark.place, step, textcoords="offset points"
        )
        text.set(fontsize=_MARK_FONT, color=mark.color)
        break


def _marks(lines: Sequence[Series]) -> list[_Mark]:
  """Returns the marks of all dots that have one, line by line."""
  marks = []
  for line in lines:
    color = styles.style(line.method).color
    last = len(line.dots) - 1
    for number, (dot, place) in enumerate(zip(line.dots, line.places)):
      if dot.mark:
        rank = min(number, last - number)
        marks.append(_Mark(rank, dot.mark, place, color))
  return marks


def _boxes_of_axis(corners: np.ndarray) -> list[tuple]:
  """Returns the space around an axis as (left, bottom, right, top) boxes.

  Args:
    corners: [2, 2] lower left and upper right corner of the axis, in points.
  """
  (left, bottom), (right, top) = corners
  return [
    (-_FAR, -_FAR, left, _FAR),
    (right, -_FAR, _FAR, _FAR),
    (-_FAR, -_FAR, _FAR, bottom),
    (-_FAR, top, _FAR, _FAR),
  ]


def _boxes_of_line(places: np.ndarray) -> list[tuple]:
  """Returns the space that a line takes as (left, bottom, right, top) boxes.

  Args:
    places: [N, 2] the points of the line, in points of the figure.
  """
  boxes = [(*(place - 2.5), *(place + 2.5)) for place in places]
  # Sixteen places along each straight piece stand for the piece: [16, N-1, 2].
  along = np.linspace(places[:-1], places[1:], 16).reshape(-1, 2)
  boxes += [(*(place - 1), *(place + 1)) for place in along]
  return boxes


def _overlaps(low: np.ndarray, high: np.ndarray, boxes: np.ndarray) -> bool:
  """Returns whether the box from `low` to `high`, [2] each, meets a box."""
  meets = (low < boxes[:, 2:]) & (boxes[:, :2] < high)
  return bool(meets.all(axis=1).any())


def label_ends(axis, lines: Sequence[Series]):
  """Writes labels in the margin, each joined to the end of its line.

  Args:
    axis: matplotlib's Axes, with all of its lines drawn.
    lines: the lines that have labels.
  """
  # The limits are fixed, as labels would change them.
  axis.autoscale_view()
  low, high = axis.get_ylim()
  axis.set_ylim(low, high)
  axis.set_xlim(*axis.get_xlim())
  height = axis.get_position().height * axis.figure.get_figheight() * 72
  ends = [max(line.places) for line in lines]
  wanted = [(y - low) / (high - low) * height for _, y in ends]
  for line, end, place in zip(lines, ends, spread(wanted, GAP, height)):
    style, level = styles.style(line.method), place / height
    axis.annotate(
      "",
      end,
      (_BESIDE, level),
      textcoords="axes fraction",
      annotation_clip=False,
      arrowprops={
        "arrowstyle": "-",
        "shrinkA": 0,
        "shrinkB": 3,
        "color": style.color,
        "alpha": 0.5,
        "linewidth": 0.6,
      },
    )
    beside = {"transform": axis.transAxes, "clip_on": False}
    axis.plot([_BESIDE], [level], **style.mark, **beside)
    font = {"fontsize": FONT, "verticalalignment": "center_baseline"}
    axis.text(_BESIDE + 0.025, level, line.label, **font, **beside)


def spread(wanted: Sequence[float], gap: float, height: float) -> list[float]:
  """Returns places near the wanted places, at least `gap` apart.

  The result is the least squares solution: neighbours that would touch move
  together. All places are in [0, height] where there is room for all of them;
  else they are spaced evenly.

  Args:
    wanted: places in any order.
    gap: the least distance of two places.
    height: the greatest place.

  >>> spread([5.0, 5.0, 50.0], 10.0, 100.0)
  [0.0, 10.0, 50.0]
  """
  gap = min(gap, height / max(1, len(wanted) - 1))
  order = np.argsort(wanted, kind="stable")
  # Take the gaps below each place away, and "at least a gap apart" becomes "not
  # falling", which isotonic regression fits. Places 5, 5, 50 with gap 10 become
  # 5, -5, 30; the fit is 0, 0, 30; with the gaps added again: 0, 10, 50.
  below = gap * np.arange(len(wanted))
  pooled = optimize.isotonic_regression(np.take(wanted, order) - below).x
  places = np.empty(len(wanted))
  places[order] = np.clip(pooled, 0.0, max(0.0, height - below[-1])) + below
  return places.tolist()
