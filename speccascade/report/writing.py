"""Writes a report: from a folder of rows to a folder of tables and figures."""

from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple

from speccascade.inference.rows import results
from speccascade.inference.rows.results import ResultRow
from speccascade.report import content, page, shown_examples, tables
from speccascade.report.content import Section
from speccascade.report.point_tables import row_columns
from speccascade.report.shown_examples import ShownExamples
from speccascade.runtime import files, folders
from speccascade.runtime.progress import ProgressBar

_LONG = 200  # lines; a longer table is in its CSV alone


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
    html = page.page(sections, examples, links, tick=bar.update)
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
  by_name["rows.csv"] = tables.to_csv(rows, row_columns(rows))
  by_name["report.md"] = markdown(sections)
  return by_name


def markdown(sections: Sequence[Section]) -> str:
  """Returns report.md."""
  text = tables.markdown_text
  lines = ["# Speculative cascades: quality against speed", ""]
  for section in sections:
    lines += [f"## {text(section.study.pair)}", ""]
    for lead in section.leads:
      settings = f" `{lead.lead.settings}`" if lead.lead.settings else ""
      lines += [f"{text(str(lead))}{settings}", ""]
    for paragraph in (section.untimed, *section.doubts, section.about):
      if paragraph:
        lines += [text(paragraph), ""]
    lines += _finding_lines(section)
    for plot in section.plots:
      name = f"{section.prefix}{plot.name}.png"
      lines += [f"### {text(plot.title)}", "", text(plot.note), ""]
      lines += [f"![{text(plot.title)}]({name})", ""]
    for table in section.tables:
      lines += [f"### {text(table.title)}", "", text(table.note), ""]
      # Readers of Markdown show a table whole, and nobody scrolls past this.
      if len(table.lines) > _LONG:
        lines += [f"In {section.prefix}{table.name}.csv.", ""]
      else:
        lines.append(tables.markdown(table.lines, table.columns))
    if section.versions:
      lines += [text(section.versions), ""]
  return "\n".join(lines)


def _finding_lines(section: Section) -> list[str]:
  """Returns the lines of the findings and of the notices."""
  lines = []
  for finding in section.findings:
    lines += [f"### Findings, {tables.markdown_text(finding.title)}", ""]
    lines += _list_lines(finding.sentences)
  if section.notices:
    lines += ["### Where speculation loses", ""]
    lines += _list_lines(section.notices)
  return lines


def _list_lines(sentences: Sequence[str]) -> list[str]:
  """Returns the lines of a Markdown list."""
  return [
    *(f"- {tables.markdown_text(sentence)}" for sentence in sentences),
    "",
  ]
