"""Writes a report: from a folder of rows to a folder of tables and figures."""

import base64
from collections.abc import Callable, Sequence
import itertools
import os
import pathlib
from typing import NamedTuple

from speccascade.inference.rows import results
from speccascade.inference.rows.results import ResultRow
from speccascade.report import (
  content,
  plots,
  shown_examples,
  styles,
  tables,
  templates,
  token_view,
)
from speccascade.report.content import Section
from speccascade.report.plots import Plot
from speccascade.report.shown_examples import ShownExamples
from speccascade.report.tables import Table
from speccascade.runtime import files, folders
from speccascade.runtime.progress import ProgressBar

_LONG = 200  # lines; Markdown has a longer table in its CSV alone
# On the page a table with more lines or columns starts closed, and scrolls.
_MAX_LINES, _MAX_COLUMNS = 60, 14


class _Sources(NamedTuple):
  """The files that a report is made from.

  Attributes:
    rows: the file of the rows, or of the one row of a decode.
    examples: the file of the decoded examples; None where there is none.
  """

  rows: pathlib.Path
  examples: pathlib.Path | None


def from_folder(
  results_dir: pathlib.Path,
  output_dir: pathlib.Path | None = None,
  *,
  metric: str | None = None,
  cost_ratio: float | None = None,
  progress: bool = True,
) -> pathlib.Path:
  """Writes the report of a folder of results.

  Args:
    results_dir: the folder of a sweep or of the quick start, with rows.jsonl
      and perhaps examples.jsonl; or the folder of a decode, with metrics.json
      and predictions.jsonl. Each file may be compressed, with the ending .gz.
    output_dir: where the report goes; None takes `results_dir`/report.
    metric: as in `content.sections`.
    cost_ratio: as in `content.sections`.
    progress: whether to show a bar.

  Returns:
    The path of the page.

  Raises:
    ValueError: the folder has no rows, or the rows cannot be reported.
  """
  sources = _find_sources(results_dir)
  rows, examples = read(sources.rows, sources.examples)
  folder = results_dir / "report" if output_dir is None else output_dir
  folders.check_files(folder, f"the report's folder {folder}")
  sections = content.sections(rows, metric=metric, cost_ratio=cost_ratio)
  for name, text in texts(rows, sections).items():
    files.write_whole(folder / name, text)
  num_plots = sum(len(section.plots) for section in sections)
  # Each figure is drawn three times: to its own files, and for wide and narrow
  # windows into the page.
  with ProgressBar(
    total=2 * num_plots,
    desc="draw",
    unit="figure",
    disable=not progress,
    delay=1,
  ) as bar:
    for section in sections:
      for plot in section.plots:
        plot.save(folder / f"{section.prefix}{plot.name}")
        bar.update()
    # Relative links still work after the folder was moved or uploaded.
    links = [os.path.relpath(path, folder) for path in sources if path]
    html = page(sections, examples, links, tick=bar.update)
  # The page is written last: where it is, everything that it links to is, too.
  files.write_whole(folder / "index.html", html)
  return folder / "index.html"


def _find_sources(results_dir: pathlib.Path) -> _Sources:
  """Returns the files of a folder of results."""
  for rows_name, examples_name in (
    (results.FILE_NAME, shown_examples.FILE_NAME),  # of a sweep
    (results.METRICS, results.PREDICTIONS),  # of a decode
  ):
    if rows := files.find(results_dir / rows_name):
      return _Sources(rows, files.find(results_dir / examples_name))
  raise ValueError(
    f"{results_dir} has no {results.FILE_NAME} and no {results.METRICS}; give"
    " the folder that a sweep, a decode or the quick start wrote to"
  )


def read(
  rows: pathlib.Path, examples: pathlib.Path | None
) -> tuple[list[ResultRow], ShownExamples]:
  """Returns the rows of a file, and the traced examples.

  Args:
    rows: rows.jsonl, or metrics.json, which has one row.
    examples: examples.jsonl or predictions.jsonl, or None.

  Raises:
    ValueError: a file is damaged, or has no row.
  """
  if rows.name.startswith(results.METRICS):
    row = results.read_row(rows)
    return [row], shown_examples.read(examples, row)
  if several := results.read_rows(rows):
    return several, shown_examples.read(examples)
  raise ValueError(f"{rows} holds no row")


def texts(
  rows: Sequence[ResultRow], sections: Sequence[Section]
) -> dict[str, str]:
  """Returns the tables and report.md, by the names of their files."""
  by_name = {
    f"{section.prefix}{table.name}.csv": tables.to_csv(
      table.lines, table.columns
    )
    for section in sections
    for table in section.tables
  }
  by_name["rows.csv"] = tables.to_csv(rows, tables.row_columns(rows))
  by_name["report.md"] = markdown(sections)
  return by_name


def markdown(sections: Sequence[Section]) -> str:
  """Returns report.md."""
  text = templates.load("report.md").render(
    sections=sections, longest=_LONG, to_markdown=tables.markdown
  )
  return text.rstrip() + "\n"


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

  def images(plot: Plot) -> list[str]:
    """Returns addresses of the figure for wide and for narrow windows."""
    addresses = [_image(plot, width) for width in (plots.WIDTH, plots.NARROW)]
    tick()
    return addresses

  return templates.load("page.html").render(
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


def _image(plot: Plot, width: float) -> str:
  """Returns a figure as the address of an image, which holds the image."""
  figure = plot.draw(width, has_title=False)
  content = base64.b64encode(styles.file_bytes(figure, "svg", dpi="figure"))
  styles.pyplot().close(figure)
  return f"data:image/svg+xml;base64,{content.decode()}"


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
