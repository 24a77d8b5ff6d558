"""Writes the table of docs/verdicts.md from the rows of judged samplers.

  python -m benchmarks.verdicts_page

The rows are docs/results/verdicts/*.json, which `benchmarks.judge_peers` keeps
with --out. The text around the table is not touched.
"""

import argparse
import json
import pathlib

from benchmarks.peers.registry import PEERS

PAGE = pathlib.Path("docs/verdicts.md")
ROWS = pathlib.Path("docs/results/verdicts")
_BEGIN = "<!-- the table of benchmarks.verdicts_page -->\n"
_END = "<!-- its end -->\n"
_COLUMNS = "judged", "claimed", "versions", "date", "verdict", "smallest"


def rows(folder: pathlib.Path = ROWS) -> list[dict]:
  """Returns the rows of a folder, in the order of the registry.

  Raises:
    ValueError: a row is of no peer that is known.
  """
  found = {}
  for path in sorted(folder.glob("*.json")):
    if path.stem not in PEERS:
      raise ValueError(f"{path} is of no peer; they are {', '.join(PEERS)}")
    found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
  return [found[name] for name in PEERS if name in found]


def table(judged: list[dict]) -> str:
  """Returns the table of rows."""
  lines = [f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
  for row in judged:
    problems = row["problems"]
    right = sum(problem["passed"] for problem in problems)
    verdict = f"{row['verdict']}: {right} of {len(problems)} problems"
    if problems[0]["num_samples"]:
      verdict += ", sampled"
    versions = ", ".join(f"{x} {y}" for x, y in row["versions"].items())
    shown = (
      *(row["judged"], row["claim"], versions, row["date"], verdict),
      _smallest(row),
    )
    lines.append(f"| {' | '.join(shown)} |")
  return "\n".join(lines) + "\n"


def _smallest(row: dict) -> str:
  """Returns the smallest counterexample: its label, distance and cause."""
  if row["verdict"] == "right":
    return "none"
  line = next(x for x in row["problems"] if x["label"] == row["smallest"])
  if row["verdict"] != "wrong":
    return f"{line['label']}: {line['note']}"
  causes = f"; {'; or '.join(row['causes'])}" if row["causes"] else ""
  return f"{line['label']}: TV {line['tv']:.3f}{causes}"


def with_table(text: str, judged: list[dict]) -> str:
  """Returns the page with a table of these rows.

  Raises:
    ValueError: the page has no place for it.
  """
  before, begin, rest = text.partition(_BEGIN)
  _, end, after = rest.partition(_END)
  if not (begin and end):
    raise ValueError(f"{PAGE} needs the lines {_BEGIN!r} and {_END!r}")
  return before + begin + "\n" + table(judged) + "\n" + end + after


def main(argv: list[str] | None = None) -> int:
  """Writes the table; returns the exit code."""
  argparse.ArgumentParser(
    prog="python -m benchmarks.verdicts_page",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  ).parse_args(argv)
  text = PAGE.read_text(encoding="utf-8")
  PAGE.write_text(with_table(text, rows()), encoding="utf-8")
  return 0


if __name__ == "__main__":
  raise SystemExit(main())
