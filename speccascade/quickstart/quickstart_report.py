"""What the quick start prints and writes: a function of its rows."""

import collections
from collections.abc import Sequence
import pathlib

import numpy as np

from speccascade import files
from speccascade.inference.results import ResultRow
from speccascade.report import figures, tables
from speccascade.report.findings import doubts as doubts_of
from speccascade.report.groups import PointGroup, studies
from speccascade.report.measured import REFERENCE, SMALL, Measured
from speccascade.report.summaries import is_fast

FASTER, SLOWER, UNSURE = "faster than", "slower than", "not told apart from"


def text(rows: Sequence[ResultRow]) -> str:
  """Returns the table and what it shows; first what there is to doubt."""
  (study,) = studies(rows, "bleu")
  doubts = "".join(f"{said}\n\n" for said in doubts_of(study))
  findings_text = "\n".join(f"- {line}" for line in findings(rows))
  return f"{doubts}{tables.markdown(rows)}\n{findings_text}"


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
  """Returns what the rows show, in five sentences.

  Faster or slower than the large model alone are only those whose 95% interval
  leaves its time out.
  """
  (study,) = studies(rows, "bleu")
  scores = [
    f"{panel.first(SMALL).quality.value:.1f} and"
    f" {panel.large.quality.value:.1f} BLEU"
    for panel in study.panels
  ]
  greedy, sampled = (panel.first("spec_decode") for panel in study.panels)
  same = greedy.rows[0].agreement
  large = study.panels[-1].large.quality.value
  as_good = [
    point
    for point in study.panels[-1].points
    if is_fast(point.method)
    and point.method != REFERENCE
    and (point.has_large_law or point.quality.value >= large)
  ]
  best = min(as_good, key=lambda point: point.latency.value)
  return [
    f"the small and the large model: {scores[0]} greedy, {scores[1]} at T = 1",
    f"greedy, spec_decode is {_speed(greedy)}; it wrote that model's tokens in"
    f" {same['identical']} of {same['num_examples']} sentences"
    f" ({same['near_ties']} others part at a tie within 1e-4)",
    f"at T = 1, spec_decode is {_speed(sampled)}",
    "at T = 1, the fastest method as good as the large model (by BLEU or by its"
    f" law) is {best.method}, with {best.quality.value:.1f} BLEU:"
    f" {_speed(best)}",
    _blocks(study),
  ]


def _verdict(point: Measured) -> str:
  """Says how its time compares with the large model's, by its interval."""
  latency = point.latency
  if not latency.has_interval or latency.low <= 1 <= latency.high:
    return UNSURE
  return FASTER if latency.high < 1 else SLOWER


def _speed(point: Measured) -> str:
  speedup = tables.SPEEDUP.text(point.rows[0])
  return f"{_verdict(point)} the large model, {speedup} times its speed"


def _blocks(study: PointGroup) -> str:
  """Counts points with blocks by their speed; says what decides it."""
  points = [p for p in study.points if p.settings.gamma is not None]
  count = collections.Counter(map(_verdict, points))
  tokens = [point.efficiency["mean_acceptance_length"] for point in points]
  widths = [(p.rows[0].costs.v, p.settings.gamma + 1) for p in points]
  v = np.median([v[width] for v, width in widths if width in v])
  return (
    f"of {len(points)} points with blocks {count[FASTER]} are faster than the"
    f" large model by the clock, {count[SLOWER]} slower, {count[UNSURE]} not"
    f" told apart: a block writes {np.median(tokens):.1f} tokens and costs"
    f" v = {v:.2f} of that model's steps, gamma drafter steps of c ="
    f" {study.cost_ratio:.2f} (medians) and the loop around them"
  )
