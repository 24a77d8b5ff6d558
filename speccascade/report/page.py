"""The report as one HTML file that loads nothing else."""

import base64
from collections.abc import Callable, Sequence
import io
import itertools

from speccascade.report import plots, styles, tables, token_view
from speccascade.report.content import Section
from speccascade.report.plots import Plot
from speccascade.report.shown_examples import ShownExamples
from speccascade.report.tables import Table

# A table with more lines or columns starts closed, in a box that scrolls.
_MAX_LINES, _MAX_COLUMNS = 60, 14


def page(
  sections: Sequence[Section],
  examples: ShownExamples,
  sources: Sequence[str] = (),
  *,
  tick: Callable[[], None] = lambda: None,
) -> str:
  """Returns the whole HTML file.

  Args:
    sections: one section or more.
    examples: records with traces, or no records.
    sources: paths from the page to the files that it is made from.
    tick: a function that is called after each figure.
  """

  def images(plot: Plot) -> tuple[str, str]:
    """Returns addresses of the figure for wide and for narrow windows."""
    wide, narrow = map(_image, itertools.repeat(plot), _WIDTHS)
    tick()
    return wide, narrow

  return tables.load_template("page.html").render(
    sections=sections,
    examples=examples,
    files=[*sources, "rows.csv", "report.md"],
    images=images,
    scrolls=_scrolls,
    by_aside=_by_aside,
    by_source=_by_source(examples),
    kinds=token_view.kinds(examples.records),
    tokens=token_view,
    to_html=tables.to_html,
  )


_WIDTHS = (plots.WIDTH, plots.NARROW)


def _image(plot: Plot, width: float) -> str:
  """Returns a figure as the address of an image, which holds the image."""
  figure, file = plot.draw(width, has_title=False), io.BytesIO()
  figure.savefig(file, format="svg", metadata={"Date": None})
  styles.pyplot().close(figure)
  return (
    f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
  )


def _scrolls(table: Table, is_first: bool) -> bool:
  """Returns whether a table starts closed, in a box that scrolls."""
  if len(table.columns) > _MAX_COLUMNS:
    return True
  return len(table.lines) > _MAX_LINES and not is_first


def _by_aside(plots: Sequence[Plot]) -> list[tuple[str, list[Plot]]]:
  """Returns (heading, figures under that heading), in order."""
  groups = itertools.groupby(plots, lambda plot: plot.aside)
  return [(aside, list(group)) for aside, group in groups]


def _by_source(
  examples: ShownExamples,
) -> list[tuple[str, list[tuple[str, dict]]]]:
  """Returns (source, (title, record) of each text written from it)."""
  shown = zip(examples.titles, examples.records)
  groups = itertools.groupby(shown, lambda text: text[1]["inputs"])
  return [(source, list(group)) for source, group in groups]
