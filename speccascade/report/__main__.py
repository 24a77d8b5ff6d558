"""Tables, figures and a page from the rows that a sweep or decode left.

  python -m speccascade.report --results_dir=out/quickstart

Reads rows.jsonl, and examples.jsonl where it is; no model is loaded. Writes
index.html, report.md, tables as CSV and figures as PNG and SVG. The same rows
give the same files.
"""

import argparse
import pathlib
import sys


def main(argv: list[str] | None = None) -> int:
  """Writes the report; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m speccascade.report",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    "--results_dir",
    type=pathlib.Path,
    required=True,
    help="the folder with rows.jsonl",
  )
  add(
    "--output_dir",
    type=pathlib.Path,
    help="where the report goes (RESULTS_DIR/report)",
  )
  add(
    "--metric", help="of figures and summaries (the first that all rows have)"
  )
  add(
    "--cost_ratio",
    type=float,
    help="c of the modelled latency: a drafter step over a verifier step, such"
    " as the ratio of their parameters (the measured one)",
  )
  args = parser.parse_args(argv)
  try:
    from speccascade.report import writing

    path = writing.from_folder(
      args.results_dir,
      args.output_dir,
      metric=args.metric,
      cost_ratio=args.cost_ratio,
    )
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("error: interrupted", file=sys.stderr)
    return 130
  print(f"report: {path.absolute()}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
