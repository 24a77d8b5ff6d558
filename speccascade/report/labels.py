"""Labels beside an axis, level with the ends of their lines, none touching."""

from collections.abc import Sequence

from speccascade.report import styles

GAP = 9.6  # points between two labels' middles
FONT = 7.5
MARKER = {"markersize": 4.2, "markeredgewidth": 0}
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
      "",
      end,
      xytext=(_LEFT, level),
      textcoords="axes fraction",
      annotation_clip=False,
      arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 3, **line},
    )
    axis.plot(
      *([_LEFT], [level]),
      marker=style.marker,
      color=style.color,
      transform=axis.transAxes,
      clip_on=False,
      **MARKER,
    )
    axis.text(
      *(_LEFT + 0.025, level, label),
      transform=axis.transAxes,
      fontsize=FONT,
      verticalalignment="center_baseline",
    )


def spread(wanted: Sequence[float], gap: float, height: float) -> list[float]:
  """Returns places near the wanted ones, at least `gap` apart.

  The least squares solution: neighbours that would touch move together. All
  lie in [0, height] where they fit, else they are spaced evenly.

  >>> spread([5.0, 5.0, 50.0], 10.0, 100.0)
  [0.0, 10.0, 50.0]
  """
  num = len(wanted)
  if num > 1 and gap * (num - 1) > height:
    gap = height / (num - 1)
  order = sorted(range(num), key=lambda i: (wanted[i], i))
  mean = lambda pool: pool[0] / pool[1]
  pools = []  # (sum, members) of wanted places less the gaps before them
  for rank, i in enumerate(order):
    pools.append((wanted[i] - rank * gap, 1))
    while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
      last, other = pools.pop(), pools.pop()
      pools.append((last[0] + other[0], last[1] + other[1]))
  free = max(0.0, height - (num - 1) * gap)
  means = [mean(pool) for pool in pools for _ in range(pool[1])]
  places = [0.0] * num
  for rank, i in enumerate(order):
    places[i] = min(max(means[rank], 0.0), free) + rank * gap
  return places
