"""Reads the rows and the examples of a folder that a report is of."""

from collections.abc import Sequence
import pathlib

from speccascade.runtime import files
from speccascade.study.report import relative_lengths, shown_examples
from speccascade.study.report.measured import REFERENCE
from speccascade.study.report.shown_examples import ShownExamples
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow


def find(results_dir: pathlib.Path) -> list[pathlib.Path]:
  """Returns the file of the rows, and that of the examples where it is."""
  for names in (
    (results.FILE_NAME, shown_examples.FILE_NAME),  # of a sweep
    (results.METRICS, results.PREDICTIONS),  # of a decode
  ):
    rows, examples = (files.find(results_dir / name) for name in names)
    if rows:
      return [rows, examples] if examples else [rows]
  raise ValueError(
    f"{results_dir} has no {results.FILE_NAME} and no {results.METRICS}; give"
    " the folder that a sweep, a decode or the quick start wrote to"
  )


def read(
  path: pathlib.Path, examples: pathlib.Path | None = None
) -> tuple[list[ResultRow], ShownExamples]:
  """Returns the rows of a file, and the traced examples."""
  # The records of a decode do not say which row is theirs.
  if path.name.startswith(results.METRICS):
    row = relative_lengths.with_lengths(results.read_row(path), examples)
    return [row], shown_examples.read(examples, row)
  if rows := results.read_rows(path):
    return rows, shown_examples.read(examples)
  raise ValueError(f"{path} holds no row")


def read_exact(
  folder: pathlib.Path, rows: Sequence[ResultRow]
) -> list[ResultRow]:
  """Returns the rows of the verifier alone that a folder holds.

  Raises:
    ValueError: it has none of the verifier and the task of `rows`.
  """
  path, *others = find(folder)
  found, _ = read(path, *others)
  wanted = {(x.settings.verifier, x.settings.task) for x in rows}
  fitting = [
    row
    for row in found
    if row.settings.method == REFERENCE
    and (row.settings.verifier, row.settings.task) in wanted
  ]
  if not fitting:
    [(verifier, task), *_] = sorted(wanted)
    raise ValueError(
      f"--exact_dir {folder} has no row of METHOD {REFERENCE!r} with the"
      f" verifier {verifier} on {task}: decode with it into another OUTPUT_DIR"
    )
  return fitting
