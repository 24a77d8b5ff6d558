"""Rows in, a folder out: figures, tables, report.md and index.html."""

from collections.abc import Sequence
import os
import pathlib

from speccascade.inference.rows import results
from speccascade.inference.rows.results import ResultRow
from speccascade.report import content, page, shown_examples, tables
from speccascade.report.content import Section
from speccascade.report.point_tables import row_columns
from speccascade.report.shown_examples import ShownExamples
from speccascade.runtime import files
from speccascade.runtime.progress import ProgressBar

_LONG = 200  # lines that Markdown leaves to the CSV


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
  paths = _sources(results_dir)
  rows, examples = read(*paths)
  folder = results_dir / "report" if output_dir is None else output_dir
  sections = content.sections(rows, metric=metric, cost_ratio=cost_ratio)
  for name, text in texts(rows, sections).items():
    files.write_whole(folder / name, text)
  num = sum(len(section.plots) for section in sections)
  with ProgressBar(
    total=2 * num, desc="draw", unit="figure", disable=not progress, delay=1
  ) as bar:
    for section in sections:
      for plot in section.plots:
        plot.save(folder / f"{section.prefix}{plot.name}")
        bar.update()
    sources = [os.path.relpath(path, folder) for path in paths if path]
    whole = page.page(sections, examples, sources, tick=bar.update)
  files.write_whole(folder / "index.html", whole)
  return folder / "index.html"


def _sources(results_dir: pathlib.Path) -> list[pathlib.Path | None]:
  """Returns where the rows of a folder are, and its examples."""
  names = {results.FILE_NAME: shown_examples.FILE_NAME}
  for rows, examples in {**names, results.METRICS: results.PREDICTIONS}.items():
    if path := files.find(results_dir / rows):
      return [path, files.find(results_dir / examples)]
  raise ValueError(
    f"{results_dir} has no {results.FILE_NAME} and no {results.METRICS}; give"
    " the folder that a sweep, a decode or the quick start wrote to"
  )


def read(
  rows: pathlib.Path, examples: pathlib.Path | None
) -> tuple[list[ResultRow], ShownExamples]:
  """Returns the rows of a file, or the one of a decode, and traced examples."""
  if rows.name.startswith(results.METRICS):
    row = results.read_row(rows)
    return [row], shown_examples.read(examples, row)
  if many := results.read_rows(rows):
    return many, shown_examples.read(examples)
  raise ValueError(f"{rows} holds no row")


def texts(
  rows: Sequence[ResultRow], sections: Sequence[Section]
) -> dict[str, str]:
  """Returns the tables and report.md by the names of their files."""
  csvs = {
    f"{section.prefix}{table.name}.csv": (table.lines, table.columns)
    for section in sections
    for table in section.tables
  }
  csvs["rows.csv"] = (rows, row_columns(rows))
  texts = {name: tables.to_csv(*lines) for name, lines in csvs.items()}
  return {**texts, "report.md": markdown(sections)}


def markdown(sections: Sequence[Section]) -> str:
  """Returns report.md."""
  lines = ["# Quality against latency of speculative cascades", ""]
  for section in sections:
    lines += [f"## {section.study.pair}", ""]
    for said in (*section.doubts, section.headline, section.about):
      lines += [said, ""] if said else []
    for finding in section.findings:
      lines += [f"### Findings, {finding.title}", ""]
      lines += _listed(finding.models)
      for title, said in finding.by_clock:
        lines += [f"{title}:", "", *_listed(said)]
    if section.notices:
      lines += ["### Where speculation loses", "", *_listed(section.notices)]
    for plot in section.plots:
      name = f"{section.prefix}{plot.name}.png"
      lines += [f"### {plot.title}", "", plot.note, ""]
      lines += [f"![{plot.title}]({name})", ""]
    for table in section.tables:
      lines += [f"### {table.title}", "", table.note, ""]
      if len(table.lines) > _LONG:
        lines += [f"In {section.prefix}{table.name}.csv.", ""]
      else:
        lines.append(tables.markdown(table.lines, table.columns))
    lines += [section.versions, ""] if section.versions else []
  return "\n".join(lines)


def _listed(sentences: Sequence[str]) -> list[str]:
  return [*(f"- {sentence}" for sentence in sentences), ""]
