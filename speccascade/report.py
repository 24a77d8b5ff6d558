"""Writes tables, figures and a page of the rows of a sweep or of a decode.

  python -m speccascade.report --results_dir=out/quickstart

Reads rows.jsonl, and examples.jsonl where it is, or a decode's metrics.json and
predictions.jsonl; no model is loaded. Writes index.html, report.md, tables as
CSV and figures as PNG and SVG. The same rows give the same files.
"""

import sys

from speccascade import cli
from speccascade.study import report as _library

# Python finds `speccascade.report.headline` and the like here.
__path__ = _library.__path__


def main(argv: list[str] | None = None) -> int:
  """Writes the report; returns the exit code."""
  parser = cli.Parser("report", __doc__)
  parser.add_argument(
    "--results_dir", type=cli.path, required=True, help="the folder of rows"
  )
  parser.add_argument(
    "--output_dir",
    type=cli.path,
    help="where the report goes (RESULTS_DIR/report)",
  )
  parser.add_argument(
    "--metric", help="of figures and summaries (the first that all rows have)"
  )
  parser.add_argument(
    "--cost_ratio",
    type=float,
    help="c of the modelled latency: a drafter step over a verifier step, such"
    " as the ratio of their parameters (the measured one)",
  )
  parser.add_argument(
    "--exact_dir",
    type=cli.path,
    help="a folder with the large model alone at the same sampling, for the"
    " length of answers (RESULTS_DIR)",
  )
  return parser.run(write, argv)


def write(**flags):
  """Writes the report; prints what it begins with, and the page's path."""
  from speccascade.study.report import writing

  page = writing.from_folder(**flags, say=print)
  print(f"report: {page.absolute()}")


if __name__ == "__main__":
  sys.exit(main())
