"""Tables, figures and a page from the rows that a sweep or decode left.

  python -m speccascade.report --results_dir=out/quickstart

Reads rows.jsonl, and examples.jsonl where it is, or a decode's metrics.json and
predictions.jsonl; no model is loaded. Writes index.html, report.md, tables as
CSV and figures as PNG and SVG. The same rows give the same files.
"""

import sys

from speccascade import cli


def main(argv: list[str] | None = None) -> int:
  """Writes the report; returns the exit code."""
  parser = cli.Parser("report", __doc__)
  path = {"type": cli.path}
  for flag, how, text in (
    ("results_dir", {**path, "required": True}, "the folder of rows"),
    ("output_dir", path, "where the report goes (RESULTS_DIR/report)"),
    ("metric", {}, "of figures and summaries (the first that all rows have)"),
    (
      *("cost_ratio", {"type": float}),
      "c of the modelled latency: a drafter step over a verifier step, such as"
      " the ratio of their parameters (the measured one)",
    ),
  ):
    parser.add_argument(f"--{flag}", help=text, **how)
  return parser.run(write, argv)


def write(**asked):
  """Writes the report, and says where."""
  from speccascade.report import writing

  print(f"report: {writing.from_folder(**asked).absolute()}")


if __name__ == "__main__":
  sys.exit(main())
