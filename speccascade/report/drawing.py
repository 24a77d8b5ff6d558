"""Figures: panels of lines or of shares, next to each other."""

from collections.abc import Sequence
import dataclasses
import itertools
import math
import os

import numpy as np

from speccascade.report import labels, lines
from speccascade.report.labels import FONT, GAP
from speccascade.report.lines import Series
from speccascade.runtime import files

# In inches. A page shows a panel on a telephone, so its width is fixed there;
# in a file a panel is as wide as its labels need.
WIDTH = 4.0  # of a panel on a page, labels included
_AXIS = 2.1  # the width of an axis in a file
_LEFT = 0.52  # before an axis
_BELOW = 0.45  # below an axis
_TITLE_LINE = 0.16  # a line of a panel's title
_CLAIM_LINE = 0.17  # a line of the figure's title
_DOTTED = {"linestyle": ":", "color": "#888888", "linewidth": 1}
_TINT = {"color": "#888888", "alpha": 0.09, "linewidth": 0, "zorder": 0}
_BACKGROUND = {
  "color": "#b0b0b0",
  "alpha": 0.6,
  "linewidth": 0.8,
  "zorder": 1,
  "marker": ".",
  "markersize": 3,
  "markeredgewidth": 0,
}


def pyplot():
  """Returns pyplot, set to draw files; equal rows give equal bytes."""
  import matplotlib

  matplotlib.use("Agg")
  # The ids in an SVG depend on its content alone.
  matplotlib.rcParams["svg.hashsalt"] = "speccascade"
  from matplotlib import pyplot as plt

  return plt


@dataclasses.dataclass(frozen=True)
class LinePanel:
  """Lines over one pair of axes.

  Attributes:
    title: the heading.
    series: one or more lines.
    x_label: the label of the x axis.
    y_label: the label of the y axis.
    level: the y of a dotted line; None draws no line.
    limit: the x of a dotted line, which is drawn where the axis reaches it;
      None draws no line.
    steps: the ticks of the x axis; none lets matplotlib choose.
    background: lines in grey without labels, to compare with.
  """

  title: str
  series: Sequence[Series]
  x_label: str
  y_label: str
  level: float | None = None
  limit: float | None = None
  steps: Sequence[int] = ()
  background: Sequence[Series] = ()

  @property
  def num_labels(self) -> int:
    """How many labels the margin has."""
    return len(self.series)

  @property
  def margin(self) -> float:
    """The inches that the labels need next to the axis."""
    return labels.margin([line.label for line in self.series])

  def draw(self, axis, prefix: str) -> dict[str, str]:
    """Draws the panel on an axis.

    Args:
      axis: matplotlib's Axes.
      prefix: the beginning of the gids.

    Returns:
      Tips by gid, see `lines.draw_series`.
    """
    if self.level is not None:
      axis.axhline(self.level, **_DOTTED)
    tips = {}
    for series in self.background:
      axis.plot(*zip(*series.places), **_BACKGROUND)
    for number, series in enumerate(self.series):
      tips |= lines.draw_series(axis, series, f"{prefix}s{number}")
    axis.grid(alpha=0.2, linewidth=0.6)
    labels.label_ends(axis, self.series)
    # The limit comes after the labels, which fix the limits of the axis: it
    # must not widen them.
    self._draw_limit(axis)
    labels.write_marks(axis, self.series)
    if self.steps:
      axis.set_xticks(self.steps)
    axis.set_xlabel(self.x_label, fontsize=8)
    axis.set_ylabel(self.y_label, fontsize=8)
    return tips

  def _draw_limit(self, axis):
    """Draws the dotted line at `limit`, and shades what is better than both."""
    left, right = axis.get_xlim()
    if self.limit is None or not left <= self.limit <= right:
      return
    axis.axvline(self.limit, **_DOTTED)
    if self.level is not None:
      _, top = axis.get_ylim()
      corner = pyplot().Rectangle(
        (left, self.level), self.limit - left, top - self.level, **_TINT
      )
      axis.add_patch(corner)


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

  @property
  def num_labels(self) -> int:
    """How many labels would take as much room as the rows."""
    return int(1.6 * len(self.rows))

  @property
  def margin(self) -> float:
    """The inches that the labels need next to the axis."""
    return labels.margin([label for label, _ in self.rows])

  def draw(self, axis, prefix: str) -> dict[str, str]:
    """Draws the panel on an axis; there are no tips.

    Args:
      axis: matplotlib's Axes.
      prefix: not used.
    """
    row_labels, shares = zip(*self.rows)
    # Short rows are filled up with NaN, which is drawn as nothing.
    columns = itertools.zip_longest(*shares, fillvalue=math.nan)
    shares = np.transpose(list(columns))
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    middle = {"ha": "center", "va": "center", "fontsize": FONT}
    for (row, column), share in np.ndenumerate(shares):
      if not np.isnan(share):
        colour = "#ffffff" if share > 55 else "#0a0a0a"
        axis.text(column, row, f"{share:.0f}", color=colour, **middle)
    axis.set_xticks(range(shares.shape[1]))
    axis.set_xlabel(self.x_label, fontsize=8)
    axis.yaxis.tick_right()
    axis.set_yticks(range(len(row_labels)), row_labels)
    axis.tick_params(axis="y", length=0)
    return {}


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
    columns: the most panels next to each other in a file.
    claim: what the figure shows, in a line or more: its title in a file. A page
      says it before the figure.
  """

  stem: str
  heading: str
  subject: str
  note: str
  panels: Sequence[LinePanel | SharePanel]
  gamma: int | None = None
  aside: str = ""
  columns: int = 4
  claim: str = ""

  @property
  def name(self) -> str:
    """The name of the figure's files, without their ending."""
    return self.stem if self.gamma is None else f"{self.stem}_gamma{self.gamma}"

  @property
  def title(self) -> str:
    """The title, such as "Figure 1, gamma 5: quality against latency"."""
    gamma = "" if self.gamma is None else f", gamma {self.gamma}"
    subject = f": {self.subject}" if self.subject else ""
    return f"{self.heading}{gamma}{subject}"

  def draw(self, number: int | None = None):
    """Draws all panels, or one of them.

    Args:
      number: the index of the panel; None draws all panels.

    Returns:
      (figure, tips): matplotlib's Figure, and the dots' tips by gid.
    """
    panels = self.panels if number is None else [self.panels[number]]
    columns = min(self.columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    # A panel is as large as the labels of any panel of the figure need.
    num_labels = max(panel.num_labels for panel in self.panels)
    margin = max(panel.margin for panel in self.panels)
    height = max(3.5, 1.0 + num_labels * GAP / 72)
    width = WIDTH
    if number is None:
      width = max(WIDTH, _LEFT + _AXIS + margin)
    margin = min(margin, 0.5 * width)
    num_lines = max(panel.title.count("\n") for panel in panels) + 1
    above = 0.16 + _TITLE_LINE * num_lines
    across = width * columns
    title = [] if number is not None else labels.wrap(self.claim, across)
    top = 0.12 + _CLAIM_LINE * len(title) if title else 0.0
    up = height * rows + top
    figure, axes = pyplot().subplots(
      rows, columns, figsize=(across, up), squeeze=False
    )
    inner = (width - _LEFT - margin, height - _BELOW - above)
    figure.subplots_adjust(
      left=_LEFT / across,
      right=1 - margin / across,
      bottom=_BELOW / up,
      top=1 - (above + top) / up,
      # Between axes, in widths and heights of an axis.
      wspace=(_LEFT + margin) / inner[0],
      hspace=(_BELOW + above) / inner[1],
    )
    if title:
      figure.suptitle(
        "\n".join(title),
        x=labels.EDGE / across,
        y=1 - 0.1 / up,
        horizontalalignment="left",
        verticalalignment="top",
        fontsize=labels.TITLE_FONT,
      )
    tips = {}
    for place, axis in enumerate(axes.flat):
      # The last row may have more axes than there are panels.
      if place >= len(panels):
        axis.set_axis_off()
        continue
      axis.set_title(panels[place].title, fontsize=9, loc="left")
      axis.tick_params(labelsize=FONT)
      tips |= panels[place].draw(axis, f"p{place}")
    return figure, tips

  def save(self, path: str | os.PathLike):
    """Writes `path`.png and `path`.svg, each whole or not at all."""
    figure, _ = self.draw()
    # Without a date, equal rows give equal files.
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
      with files.open_whole(f"{os.fspath(path)}.{kind}", "wb") as file:
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
    pyplot().close(figure)
