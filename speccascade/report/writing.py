"""Rows in, a folder out: figures, tables, report.md and index.html."""

from collections.abc import Sequence
import pathlib

from tqdm import tqdm

from speccascade.inference import results
from speccascade.inference.results import ResultRow
from speccascade.report import (
  content,
  figures,
  page,
  row_columns,
  shown_examples,
  tables,
)
from speccascade.report.content import Section
from speccascade.report.shown_examples import Examples


def from_folder(
  results_dir: pathlib.Path,
  output_dir: pathlib.Path | None = None,
  *,
  metric: str | None = None,
  cost_ratio: float | None = None,
  progress: bool = True,
) -> pathlib.Path:
  """Reports on a folder of results; returns the page's path.

  Args:
    results_dir: of a sweep or the quick start, with rows.jsonl and perhaps
      examples.jsonl; or of a decode, with metrics.json and predictions.jsonl.
      All may be .gz.
    output_dir: None takes `results_dir`/report.
    metric: see `content.sections`.
    cost_ratio: likewise.
    progress: show a bar.

  Raises:
    ValueError: no rows there, or rows that cannot be reported.
  """
  rows, traced = read(results_dir)
  folder = results_dir / "report" if output_dir is None else output_dir
  sections = content.sections(rows, metric=metric, cost_ratio=cost_ratio)
  write(folder, rows, sections, traced, progress=progress)
  return folder / "index.html"


def read(results_dir: pathlib.Path) -> tuple[list[ResultRow], Examples]:
  """Returns the rows of a folder and its traced examples."""

  def find(name):
    return results.find(results_dir, name)

  if (path := find(results.FILE_NAME)) is not None:
    traced = shown_examples.read(find(shown_examples.FILE_NAME))
    return results.read_rows(path), traced
  if (path := find(results.METRICS)) is not None:
    row = results.read_row(path)
    return [row], shown_examples.read(find(results.PREDICTIONS), row)
  raise ValueError(
    f"{results_dir} has no {results.FILE_NAME} and no {results.METRICS}; give"
    " the folder that a sweep, a decode or the quick start wrote to"
  )


def write(
  folder: pathlib.Path,
  rows: Sequence[ResultRow],
  sections: Sequence[Section],
  traced: Examples = shown_examples.NONE,
  *,
  progress: bool = False,
):
  """Writes every file, each whole or not at all.

  Args:
    folder: made if need be.
    rows: all of them, for rows.csv.
    sections: of the rows.
    traced: examples for the page.
    progress: show a bar.
  """
  columns = row_columns.columns(rows)
  results.write_whole(folder / "rows.csv", tables.to_csv(rows, columns))
  for section in sections:
    for table in section.tables:
      path = folder / f"{section.prefix}{table.name}.csv"
      results.write_whole(path, table.csv())
  results.write_whole(folder / "report.md", markdown(sections))
  num = sum(len(section.plots) for section in sections)
  with tqdm(
    total=2 * num, desc="draw", unit="figure", disable=not progress, delay=1
  ) as bar:
    for section in sections:
      for plot in section.plots:
        drawn, _ = plot.draw()
        figures.save(drawn, folder / f"{section.prefix}{plot.name}")
        bar.update()
    text = page.page(sections, traced, tick=bar.update)
  results.write_whole(folder / "index.html", text)


def markdown(sections: Sequence[Section]) -> str:
  """Returns report.md."""
  lines = ["# Quality against latency of speculative cascades", ""]
  for section in sections:
    lines += [f"## {section.study.title}", "", section.about, ""]
    for finding in section.findings:
      lines += [f"### Findings, {finding.title}", ""]
      lines += [*(f"- {one}" for one in finding.models), ""]
      for title, said in finding.by_clock:
        lines += [f"{title}:", "", *(f"- {one}" for one in said), ""]
    if section.notices:
      lines += ["### Where speculation loses", ""]
      lines += [*(f"- {one}" for one in section.notices), ""]
    for plot in section.plots:
      name = f"{section.prefix}{plot.name}.png"
      lines += [f"### {plot.title}", "", plot.note, ""]
      lines += [f"![{plot.title}]({name})", ""]
    for table in section.tables:
      lines += [f"### {table.title}", "", table.note, ""]
      if len(table.lines) > _LONG:
        lines += [f"In {section.prefix}{table.name}.csv.", ""]
      else:
        lines += [table.markdown()]
  return "\n".join(lines)


_LONG = 200  # lines that Markdown leaves to the CSV
