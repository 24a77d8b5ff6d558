"""Figures: panels of lines or of shares, next to each other, with a legend."""

from collections.abc import Sequence
import dataclasses
import itertools
import math
import os
import pathlib
import textwrap

import numpy as np

from speccascade.runtime import files
from speccascade.study.report import styles
from speccascade.study.report.line_panels import FONT, LinePanel

WIDTH, NARROW = 9.0, 4.0  # of a figure, in inches: in a window, on a telephone


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
          fontsize=FONT - 1,
          horizontalalignment="center",
          verticalalignment="center",
        )
    axis.set_xticks(range(shares.shape[1]))
    axis.set_xlabel(self.x_label, fontsize=FONT)
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
      axis.set_title(panel.title, fontsize=FONT + 1, loc="left")
      axis.tick_params(labelsize=FONT - 0.5)
      panel.draw(axis)
      if self.has_legends:
        axis.legend(
          loc="upper left",
          bbox_to_anchor=(1.0, 1.02),
          fontsize=FONT - 1,
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
        fontsize=FONT,
        frameon=False,
      )
    if has_title and self.claim:
      lines = [
        line
        for claim in self.claim.splitlines()
        for line in textwrap.wrap(claim, int(13.5 * width))
      ]
      figure.suptitle(
        "\n".join(lines), x=0.01, horizontalalignment="left", fontsize=FONT + 2
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
    return max(1, int(72 * width / (0.58 * FONT * longest + 36)))

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
