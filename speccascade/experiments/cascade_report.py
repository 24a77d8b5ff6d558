"""The report of a search for cascades: a table, a CSV and the best as gin."""

from collections.abc import Sequence
import csv
import io
import pathlib

from speccascade.experiments import results
from speccascade.experiments.cascade_study import Scored, Study

_COLUMNS = (
  "K",
  "lenience",
  "examples",
  "SWI",
  "speed-up",
  "tokens/block",
  "verifier calls/token",
  "drafter calls/token",
)


def _line(one: Scored) -> list[str]:
  counts, speedup = one.row.counts, one.row.measured_speedup
  per_token = [f"{n / counts.num_tokens:.3f}" for n in one.calls]
  rows = "; ".join(" ".join(map(str, row)) for row in one.cascade.k)
  return [
    rows,
    f"{one.cascade.lenience:g}",
    str(one.row.settings.num_examples),
    f"{one.swi:.3f}",
    "" if speedup is None else f"{speedup:.3f}",
    f"{counts.num_tokens / counts.num_blocks:.3f}",
    f"{counts.verifier_calls / counts.num_tokens:.3f}",
    " / ".join(per_token),
  ]


def write(folder: pathlib.Path, study: Study, ranking: Sequence[Scored]):
  """Writes report.md, report.csv and best.gin."""
  lines = [_line(one) for one in ranking]
  text = io.StringIO()
  csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *lines])
  results.write_whole(folder / "report.csv", text.getvalue())
  costs = ", ".join(
    f"{model.name} {cost:.4g}"
    for model, cost in zip(study.pair.drafters, study.weights)
  )
  table = [_COLUMNS, ["---"] * len(_COLUMNS), *lines]
  what = f"{study.task} {study.split}".strip()
  results.write_whole(
    folder / "report.md",
    "\n".join(
      [
        f"# Cascades for {study.pair.verifier_name} on {what}",
        "",
        f"Ranked by {study.objective}; those that went further stand higher."
        f" SWI weighs calls: verifier 1, {costs or 'nothing else'}; Max-Gram"
        " costs nothing. K is in tokens added (increments), a row for each"
        " level, Max-Gram last; a first row with one entry is plain"
        " speculative decoding. Temperature"
        f" {float(study.point.temperature):g}, seed {study.seed}.",
        "",
        *("| " + " | ".join(row) + " |" for row in table),
        "",
      ]
    ),
  )
  best = ranking[0].cascade
  results.write_whole(
    folder / "best.gin",
    "# Include after configs/runs/cascade.gin.\n"
    f"CASCADE_K = {[list(row) for row in best.k]}\n"
    f'CASCADE_K_MEANING = "{best.meaning}"\n'
    f"LENIENCE = {best.lenience}\n"
    + (f'BIGRAMS = "{best.bigrams}"\n' if best.bigrams else ""),
  )


def describe(ranking: Sequence[Scored]) -> str:
  """Returns the best candidates in a few lines."""
  lines = ["best first (all of them: report.md):"]
  for one in ranking[:3]:
    line = f"  {one.cascade.label}: SWI {one.swi:.3f}"
    if one.row.measured_speedup:
      line += f", speed-up {one.row.measured_speedup:.3f}"
    lines.append(line)
  return "\n".join(lines)
