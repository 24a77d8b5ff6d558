"""Panels of a figure: lines with their labels in the margin, side by side."""

from collections.abc import Callable, Sequence
import dataclasses

from speccascade.report import figures, styles

WIDTH = 4.0  # inches of a panel, labels included
_LEFT = 0.13  # of it, before the axis
_MARGIN = 0.345  # of it, for the labels
_GAP = 9.6  # points between two labels' middles
FONT = 7.5
GREY = "#888888"
_LABEL = 1.05  # where labels begin, in widths of the axis


@dataclasses.dataclass(frozen=True)
class Series:
  """A labelled line of a panel.

  Attributes:
    method: gives its style.
    label: in the margin.
    xs: of its points.
    ys: likewise.
    tips: a text for each point.
    x_bars: (low, high) for each point, or None.
    y_bars: likewise.
  """

  method: str
  label: str
  xs: Sequence[float]
  ys: Sequence[float]
  tips: Sequence[str]
  x_bars: Sequence[tuple[float, float] | None] = ()
  y_bars: Sequence[tuple[float, float] | None] = ()


@dataclasses.dataclass(frozen=True)
class Plot:
  """A figure of one or more panels, side by side.

  Attributes:
    name: of its files, without ending.
    title: heading.
    note: a sentence or two on how to read it.
    panels: for each panel its title and what draws it on an axis; the drawer
      returns the tips of its points, by gid.
    num_labels: most labels of a panel.
    aside: what the figure is shown under, where it is not shown at once.
  """

  name: str
  title: str
  note: str
  panels: Sequence[tuple[str, Callable]]
  num_labels: int
  aside: str = ""

  def draw(self, number: int | None = None):
    """Returns (figure, tips) of all panels, or of one of them."""
    plt = figures.pyplot()
    chosen = self.panels if number is None else [self.panels[number]]
    height = max(3.5, 1.0 + self.num_labels * _GAP / 72)
    size = (WIDTH * len(chosen), height)
    figure, axes = plt.subplots(1, len(chosen), figsize=size, squeeze=False)
    left, right = _LEFT / len(chosen), _MARGIN / len(chosen)
    figure.subplots_adjust(
      left=left,
      right=1 - right,
      bottom=0.45 / height,
      top=1 - 0.32 / height,
      wspace=(_LEFT + _MARGIN) / (1 - _LEFT - _MARGIN),  # in widths of an axis
    )
    tips = {}
    for place, (axis, (title, drawer)) in enumerate(zip(axes[0], chosen)):
      axis.set_title(title, fontsize=9)
      axis.tick_params(labelsize=FONT)
      tips |= drawer(axis, f"p{place}")
    return figure, tips


def draw(axis, prefix: str, series: Sequence[Series]) -> dict[str, str]:
  """Draws lines, points and labels; returns the tips by gid."""
  tips = {}
  for number, one in enumerate(series):
    style = styles.style(one.method)
    known = [i for i, y in enumerate(one.ys) if y is not None]
    xs, ys = [one.xs[i] for i in known], [one.ys[i] for i in known]
    axis.plot(
      xs,
      ys,
      color=style.color,
      linestyle=style.linestyle,
      linewidth=1.1,
      alpha=0.8,
      zorder=2,
    )
    _bars(axis, one, style.color)
    for i in known:
      name = f"{prefix}s{number}p{i}"
      tips[name] = one.tips[i]
      axis.plot(
        [one.xs[i]],
        [one.ys[i]],
        marker=style.marker,
        color=style.color,
        markersize=4.2,
        markeredgewidth=0,
        linestyle="",
        zorder=3,
        gid=name,
      )
  axis.grid(alpha=0.2, linewidth=0.6)
  _label(axis, [one for one in series if any(y is not None for y in one.ys)])
  return tips


def _bars(axis, one: Series, colour: str):
  drawn = {"color": colour, "alpha": 0.22, "linewidth": 0.9, "zorder": 1}
  for bars, places, draw in (
    (one.x_bars, one.ys, axis.hlines),
    (one.y_bars, one.xs, axis.vlines),
  ):
    found = [(place, *bar) for place, bar in zip(places, bars) if bar]
    if found:
      draw(*zip(*found), **drawn)


def _label(axis, series: Sequence[Series]):
  """Writes labels beside the axis, level with the lines' ends, none on another.

  A thin line leads from each label to its line's rightmost point.
  """
  ends = []
  for one in series:
    x, y = max((x, y) for x, y in zip(one.xs, one.ys) if y is not None)
    ends.append((x, y))
  axis.autoscale_view()
  low, high = axis.get_ylim()
  axis.set_ylim(low, high)
  axis.set_xlim(*axis.get_xlim())
  height = axis.get_position().height * axis.figure.get_figheight() * 72
  wanted = [(y - low) / (high - low) * height for _, y in ends]
  places = spread(wanted, _GAP, height)
  for one, end, place in zip(series, ends, places):
    style, level = styles.style(one.method), place / height
    axis.annotate(
      "",
      end,
      xytext=(_LABEL, level),
      textcoords="axes fraction",
      annotation_clip=False,
      arrowprops={
        "arrowstyle": "-",
        "color": style.color,
        "alpha": 0.5,
        "linewidth": 0.6,
        "shrinkA": 0,
        "shrinkB": 3,
      },
    )
    axis.plot(
      [_LABEL],
      [level],
      marker=style.marker,
      color=style.color,
      markersize=4.2,
      markeredgewidth=0,
      transform=axis.transAxes,
      clip_on=False,
    )
    axis.text(
      _LABEL + 0.025,
      level,
      one.label,
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
  pools = []  # (sum, members) of wanted places less the gaps before them
  for rank, i in enumerate(order):
    pools.append((wanted[i] - rank * gap, 1))
    while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
      one, other = pools.pop(), pools.pop()
      pools.append((one[0] + other[0], one[1] + other[1]))
  free = max(0.0, height - (num - 1) * gap)
  placed = [0.0] * num
  means = [_mean(pool) for pool in pools for _ in range(pool[1])]
  for rank, i in enumerate(order):
    placed[i] = min(max(means[rank], 0.0), free) + rank * gap
  return placed


def _mean(pool) -> float:
  return pool[0] / pool[1]
