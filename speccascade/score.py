"""Scores a folder of results by a task card with a gate of quality.

  python -m speccascade.score --card=multi30k --results_dir=out/entry

Reads the rows of a sweep that has the verifier alone among its methods; or the
metrics.json and the predictions.jsonl of a decode, with the folder of the
verifier's own decode as --exact_dir. Of the points whose quality passes the
gate, the score is how many times as fast as the verifier's their answers surely
are. docs/task_cards.md has the cards.
"""

import pathlib
import sys

from speccascade import cli
from speccascade.study import task_cards


def main(argv: list[str] | None = None) -> int:
  """Scores the folder; returns the exit code."""
  parser = cli.Parser("score", __doc__)
  parser.add_argument(
    "--card", choices=[*task_cards.CARDS], required=True, help="the task card"
  )
  parser.add_argument(
    "--results_dir",
    type=cli.path,
    required=True,
    help="the folder of a sweep or of a decode",
  )
  parser.add_argument(
    "--exact_dir",
    type=cli.path,
    help="a folder with the verifier alone (RESULTS_DIR)",
  )
  parser.add_argument(
    "--output_file", type=cli.path, help="a JSON file of the score, if any"
  )
  return parser.run(run, argv)


def run(
  card: str,
  results_dir: pathlib.Path,
  exact_dir: pathlib.Path | None,
  output_file: pathlib.Path | None,
):
  """Prints the score and the points, and writes them."""
  from speccascade.study.report import task_score

  scored = task_score.score(
    card, task_cards.CARDS[card], results_dir, exact_dir
  )
  print(scored.text)
  if output_file is not None:
    task_score.write(output_file, scored)
    print(f"wrote {output_file}")


if __name__ == "__main__":
  sys.exit(main())
