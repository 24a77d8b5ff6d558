"""What the quick start prints and writes: a function of its rows."""

from collections.abc import Sequence
import pathlib

from speccascade.inference import results
from speccascade.inference.results import ResultRow
from speccascade.report import figures, tables


def text(rows: Sequence[ResultRow]) -> str:
  """Returns the table and what it shows."""
  lines = [tables.markdown(rows)]
  lines += [f"- {line}" for line in findings(rows)]
  return "\n".join(lines)


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
  results.write_whole(folder / "table.md", head + text(rows) + "\n")
  results.write_whole(folder / "table.csv", tables.to_csv(rows))
  figure = figures.quality_latency(
    rows, title="Quality against latency, built-in task"
  )
  figures.save(figure, folder / "quality_latency")


def findings(rows: Sequence[ResultRow]) -> list[str]:
  """Returns what the rows show, a sentence each."""
  found = {(row.settings.method, row.settings.temperature): row for row in rows}
  small, large = found[("drafter", 0.0)], found[("verifier", 0.0)]
  lines = [
    f"greedy, the small model has {_bleu(small):.1f} BLEU and the large one"
    f" {_bleu(large):.1f}; sampled at T = 1 the large one has"
    f" {_bleu(found[('verifier', 1.0)]):.1f}"
  ]
  for temperature, name in ((0.0, "greedy"), (1.0, "T = 1")):
    row = found.get(("spec_decode", temperature))
    if row is not None:
      lines.append(_speed(row, name))
  row = found.get(("spec_decode", 0.0))
  if row is not None and row.agreement:
    same = row.agreement
    lines.append(
      f"greedy, spec_decode wrote the large model's tokens in"
      f" {same['identical']} of {same['num_examples']} sentences"
      f" ({same['near_ties']} others part at a tie within 1e-4)"
    )
  lines += [_loses(row) for row in rows if _is_slow(row)]
  return lines


def _bleu(row: ResultRow) -> float:
  return row.quality["bleu"]["value"]


def _speed(row: ResultRow, name: str) -> str:
  latency = row.latency
  low, high = 1 / latency.relative_high, 1 / latency.relative_low
  predicted = (
    ""
    if row.predicted_speedup is None
    else f", {row.predicted_speedup:.2f} predicted for the decoder alone"
  )
  return (
    f"{name}, spec_decode is {row.measured_speedup:.2f}x as fast as the large"
    f" model [{low:.2f}, {high:.2f}]{predicted}"
  )


def _is_slow(row: ResultRow) -> bool:
  """Whether speculation is surely slower than the large model alone."""
  has_blocks = row.settings.gamma is not None
  return has_blocks and row.latency.relative_low > 1


def _loses(row: ResultRow) -> str:
  """Says that speculation loses, and why."""
  settings, costs = row.settings, row.costs
  rate = row.efficiency["acceptance_rate"]
  why = f"{rate:.2f} of the drafts examined were accepted"
  if costs is not None:
    v = costs.v.get(settings.gamma + 1)
    why += f", a drafter step costs {costs.c:.2f} of a verifier step"
    why += f" and a verifier block {v:.2f}" if v else ""
  return (
    f"{settings.method} at T = {settings.temperature:g} loses:"
    f" {row.latency.relative_latency:.2f} of the large model's time; {why}"
  )
