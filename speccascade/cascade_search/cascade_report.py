"""The report of a search for cascades: a table, a CSV and the best as gin."""

from collections.abc import Sequence
import csv
import io
import pathlib

from speccascade.cascade_search.candidates import Scored, Study
from speccascade.inference import results
from speccascade.inference.cascades import Cascade

_COLUMNS = (
  "cascade",
  "examples",
  "SWI",
  "speed-up",
  "tokens/s",
  "tokens/block",
  "verifier calls/token",
  "drafter calls/token",
)


def _line(one: Scored) -> list[str]:
  counts, latency = one.row.counts, one.row.latency
  per_token = [f"{n / counts.num_tokens:.3f}" for n in one.calls]
  speedup = rate = ""
  if latency is not None:
    low, high = 1 / latency.relative_high, 1 / latency.relative_low
    speedup = f"{1 / latency.relative_latency:.2f} [{low:.2f}, {high:.2f}]"
    rate = f"{_tokens_per_s(one):.0f}"
  return [
    one.cascade.label,
    str(one.row.settings.num_examples),
    f"{one.swi:.3f}",
    speedup,
    rate,
    f"{counts.num_tokens / counts.num_blocks:.3f}",
    f"{counts.verifier_calls / counts.num_tokens:.3f}",
    " / ".join(per_token),
  ]


def _tokens_per_s(one: Scored) -> float:
  latency = one.row.latency
  seconds = latency.walltime_s * latency.num_examples
  return one.row.counts.num_tokens / seconds


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
        " costs nothing. The verifier alone has an SWI and a speed-up of 1"
        f"{_alone(ranking)}. K is in tokens added (increments), a row for each"
        " level, Max-Gram last; a first row with one entry is plain"
        " speculative decoding; l is lenience. Temperature"
        f" {float(study.point.temperature):g}, seed {study.seed}. Speed-ups"
        " have their 95% intervals, over examples.",
        "",
        *("| " + " | ".join(row) + " |" for row in table),
        "",
      ]
    ),
  )
  results.write_whole(folder / "best.gin", _gin(ranking[0].cascade))


def _gin(cascade: Cascade) -> str:
  """Returns the macros of configs/runs/cascade.gin that make a cascade."""
  lines = [
    "# Include after configs/runs/cascade.gin.",
    f"CASCADE_K = {[list(row) for row in cascade.k]}",
    f'CASCADE_K_MEANING = "{cascade.meaning}"',
    f"LENIENCE = {cascade.lenience}",
  ]
  if not cascade.max_gram:
    lines.append("MAX_GRAM = False")
  for name, path in (("BIGRAMS", cascade.bigrams), ("NGRAMS", cascade.ngrams)):
    if path is not None:
      lines.append(f'{name} = "{path}"')
  if cascade.verification != "token":
    lines.append(f'INNER_VERIFICATION = "{cascade.verification}"')
  return "\n".join(lines) + "\n"


def _alone(ranking: Sequence[Scored]) -> str:
  """Says how fast the verifier was, over the runs beside it."""
  rates = [
    _tokens_per_s(one) * one.row.latency.relative_latency
    for one in ranking
    if one.row.latency is not None
  ]
  if not rates:
    return ""
  return f", {min(rates):.0f} to {max(rates):.0f} tokens/s beside the others"


def describe(ranking: Sequence[Scored]) -> str:
  """Returns the best candidates in a few lines."""
  lines = ["best first (all of them: report.md):"]
  for one in ranking[:3]:
    line = f"  {one.cascade.label}: SWI {one.swi:.3f}"
    if one.row.measured_speedup:
      line += f", speed-up {one.row.measured_speedup:.3f}"
    lines.append(line)
  return "\n".join(lines)
