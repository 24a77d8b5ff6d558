"""What the quick start prints and writes: a function of its rows."""

from collections.abc import Sequence
import pathlib

from speccascade import files
from speccascade.inference.results import ResultRow
from speccascade.report import figures, tables


def text(rows: Sequence[ResultRow]) -> str:
  """Returns the table and what it shows."""
  findings_text = "\n".join(f"- {line}" for line in findings(rows))
  return f"{tables.markdown(rows)}\n{findings_text}"


def write(folder: pathlib.Path, rows: Sequence[ResultRow]):
  """Writes table.md, table.csv and quality_latency.{png,svg}."""
  environment = rows[0].environment
  versions = ", ".join(
    f"{name} {version}"
    for name, version in environment["versions"].items()
    if version
  )
  head = (
    "# Quick start\n\n"
    f"{rows[0].settings.num_examples} test sentences of the built-in task,"
    f" {rows[0].latency.num_examples} of them timed at batch 1 on"
    f" {environment['device']}; {versions}.\n\n"
  )
  files.write_whole(folder / "table.md", head + text(rows) + "\n")
  files.write_whole(folder / "table.csv", tables.to_csv(rows))
  figures.of_rows(rows).save(folder / "quality_latency")


def findings(rows: Sequence[ResultRow]) -> list[str]:
  """Returns what the rows show, a sentence each."""
  by_point = {
    (row.settings.method, row.settings.temperature): row for row in rows
  }
  small, large, sampled = (
    by_point[point].quality["bleu"]["value"]
    for point in (("drafter", 0.0), ("verifier", 0.0), ("verifier", 1.0))
  )
  lines = [
    f"greedy, the small model has {small:.1f} BLEU and the large one"
    f" {large:.1f}; sampled at T = 1 the large one has {sampled:.1f}"
  ]
  for temperature, name in ((0.0, "greedy"), (1.0, "T = 1")):
    if row := by_point.get(("spec_decode", temperature)):
      lines.append(_speed(row, name))
  row = by_point.get(("spec_decode", 0.0))
  if row and row.agreement:
    same = row.agreement
    lines.append(
      f"greedy, spec_decode wrote the large model's tokens in"
      f" {same['identical']} of {same['num_examples']} sentences"
      f" ({same['near_ties']} others part at a tie within 1e-4)"
    )
  # Those with blocks that are surely slower than the large model alone.
  return lines + [
    _loses(row)
    for row in rows
    if row.settings.gamma is not None and row.latency.relative_low > 1
  ]


def _speed(row: ResultRow, name: str) -> str:
  low, high = 1 / row.latency.relative_high, 1 / row.latency.relative_low
  text = (
    f"{name}, spec_decode is {row.measured_speedup:.2f}x as fast as the large"
    f" model [{low:.2f}, {high:.2f}]"
  )
  if row.predicted_speedup is not None:
    text += f", {row.predicted_speedup:.2f} predicted for the decoder alone"
  return text


def _loses(row: ResultRow) -> str:
  """Says that speculation loses, and why."""
  settings, costs = row.settings, row.costs
  text = (
    f"{settings.method} at T = {settings.temperature:g} loses:"
    f" {row.latency.relative_latency:.2f} of the large model's time;"
    f" {row.efficiency['acceptance_rate']:.2f} of the drafts examined were"
    " accepted"
  )
  if costs is not None:
    text += f", a drafter step costs {costs.c:.2f} of a verifier step"
    if v := costs.v.get(settings.gamma + 1):
      text += f" and a verifier block {v:.2f}"
  return text
