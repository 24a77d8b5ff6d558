"""The report of a search for cascades: a table, a CSV and the best as gin."""

from collections.abc import Sequence
import csv
import io
import pathlib

from speccascade import files
from speccascade.cascade_search.candidates import Contest, Scored
from speccascade.inference.cascades import Cascade


def _line(scored: Scored) -> dict[str, str]:
  """Returns the cells of a candidate by their titles."""
  counts, latency = scored.row.counts, scored.row.latency
  speedup = rate = ""
  if latency is not None:
    low, high = 1 / latency.relative_high, 1 / latency.relative_low
    speedup = f"{1 / latency.relative_latency:.2f} [{low:.2f}, {high:.2f}]"
    rate = f"{_tokens_per_s(scored):.0f}"
  by_token = [num / counts.num_tokens for num in scored.calls]
  return {
    "cascade": scored.cascade.label,
    "examples": str(scored.row.settings.num_examples),
    "SWI": f"{scored.swi:.3f}",
    "speed-up": speedup,
    "tokens/s": rate,
    "tokens/block": f"{counts.num_tokens / counts.num_blocks:.3f}",
    "verifier calls/token": f"{counts.verifier_calls / counts.num_tokens:.3f}",
    "drafter calls/token": " / ".join(f"{num:.3f}" for num in by_token),
  }


def _tokens_per_s(scored: Scored) -> float:
  latency = scored.row.latency
  seconds = latency.walltime_s * latency.num_examples
  return scored.row.counts.num_tokens / seconds


def write(folder: pathlib.Path, contest: Contest, ranking: Sequence[Scored]):
  """Writes report.md, report.csv and best.gin."""
  study = contest.study
  lines = [_line(scored) for scored in ranking]
  cells = [[*lines[0]], *([*line.values()] for line in lines)]
  text = io.StringIO()
  csv.writer(text, lineterminator="\n").writerows(cells)
  files.write_whole(folder / "report.csv", text.getvalue())
  cells.insert(1, ["---"] * len(lines[0]))
  table = "".join(f"| {' | '.join(row)} |\n" for row in cells)
  costs = ", ".join(
    f"{model.name} {cost:.4g}"
    for model, cost in zip(study.pair.drafters, contest.weights)
  )
  what = f"{study.sources.task} {study.sources.split}".strip()
  files.write_whole(
    folder / "report.md",
    f"# Cascades for {study.pair.verifier_name} on {what}\n\n"
    f"Ranked by {contest.criterion.name}; those that went further stand"
    " higher. SWI weighs calls: verifier 1,"
    f" {costs or 'nothing else'}; Max-Gram costs nothing. The verifier"
    " alone has an SWI and a speed-up of 1"
    f"{_alone(ranking)}. K is in tokens added (increments), a row for each"
    " level, Max-Gram last; a first row with one entry is plain"
    " speculative decoding; l is lenience. Temperature"
    f" {contest.point.temperature:g}, seed {study.run.seed}. Speed-ups"
    f" have their 95% intervals, over examples.\n\n{table}",
  )
  files.write_whole(folder / "best.gin", _gin(ranking[0].cascade))


def _gin(cascade: Cascade) -> str:
  """Returns the macros of configs/runs/cascade.gin that make a cascade."""
  macros = {
    "CASCADE_K": [list(row) for row in cascade.k],
    "CASCADE_K_MEANING": cascade.meaning,
    "LENIENCE": cascade.lenience,
  }
  if not cascade.max_gram:
    macros["MAX_GRAM"] = False
  for name, path in (("BIGRAMS", cascade.bigrams), ("NGRAMS", cascade.ngrams)):
    if path is not None:
      macros[name] = str(path)
  if cascade.verification != "token":
    macros["INNER_VERIFICATION"] = cascade.verification
  quoted = lambda value: f'"{value}"' if isinstance(value, str) else value
  lines = [f"{name} = {quoted(value)}\n" for name, value in macros.items()]
  return "# Include after configs/runs/cascade.gin.\n" + "".join(lines)


def _alone(ranking: Sequence[Scored]) -> str:
  """Says how fast the verifier was, over the runs beside it."""
  rates = [
    _tokens_per_s(scored) * scored.row.latency.relative_latency
    for scored in ranking
    if scored.row.latency is not None
  ]
  if not rates:
    return ""
  return f", {min(rates):.0f} to {max(rates):.0f} tokens/s beside the others"


def describe(ranking: Sequence[Scored]) -> str:
  """Returns the best candidates in a few lines."""
  lines = ["best first (all of them: report.md):"]
  for scored in ranking[:3]:
    line = f"  {scored.cascade.label}: SWI {scored.swi:.3f}"
    if scored.row.measured_speedup:
      line += f", speed-up {scored.row.measured_speedup:.3f}"
    lines.append(line)
  return "\n".join(lines)
