"""Labels beside an axis, level with the ends of their lines, none touching."""

from collections.abc import Sequence

import numpy as np
from scipy import optimize

from speccascade.report import styles

GAP = 9.6  # points between two labels' middles
FONT = 7.5
_LEFT = 1.05  # where labels begin, in widths of the axis


def label_ends(axis, labelled: Sequence[tuple[str, str, tuple[float, float]]]):
  """Writes labels in the margin, a thin line from each to its line's end.

  Args:
    axis: with all of its lines drawn.
    labelled: (method, label, rightmost point of its line).
  """
  axis.autoscale_view()
  low, high = axis.get_ylim()
  axis.set_ylim(low, high)
  axis.set_xlim(*axis.get_xlim())
  height = axis.get_position().height * axis.figure.get_figheight() * 72
  wanted = [(y - low) / (high - low) * height for _, _, (_, y) in labelled]
  places = spread(wanted, GAP, height)
  for (method, label, end), place in zip(labelled, places):
    style, level = styles.style(method), place / height
    line = {"color": style.color, "alpha": 0.5, "linewidth": 0.6}
    axis.annotate(
      *("", end, (_LEFT, level)),
      textcoords="axes fraction",
      annotation_clip=False,
      arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 3, **line},
    )
    beside = {"transform": axis.transAxes, "clip_on": False}
    axis.plot([_LEFT], [level], **style.mark, **beside)
    text = {"fontsize": FONT, "verticalalignment": "center_baseline"}
    axis.text(_LEFT + 0.025, level, label, **text, **beside)


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
