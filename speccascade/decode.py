"""Decodes a task's split, or a file, by one method.

  python -m speccascade.decode \\
    --gin_file=configs/experiments/wmt_ende/decode.gin \\
    --gin.DRAFTER_CHECKPOINT='"out/wmt/small"' \\
    --gin.VERIFIER_CHECKPOINT='"out/wmt/large"' \\
    --gin.METHOD='"spec_cascade_opt"' --gin.ALPHA=0.3 \\
    --gin.OUTPUT_DIR='"/tmp/out"'

Writes predictions.jsonl, metrics.json and the resolved config.gin to
OUTPUT_DIR. With --gin.TRACE=True it also writes tokens.html, a page that shows
which model wrote each token of the first NUM_SHOWN examples. After a kill, the
same command continues the run.
"""

import os

from speccascade import cli


def main():
  """Decodes as gin files configure `infer.infer`, and prints a summary."""
  from speccascade.generate import token_view
  from speccascade.generate.points import point, point_checks
  from speccascade.models.sharding import meshes
  from speccascade.study.measuring import environment, infer

  # None is not an alpha: it takes the method's default.
  names = {"ALPHA", "point.Point.alpha"} & cli.command_line_names()
  if names and cli.bindings_of(point.Point).get("alpha") is not None:
    point_checks.check_alpha_is_used(cli.configure(point.Point)())
  if "MARKER" in cli.command_line_names():
    point_checks.check_marker_is_used(cli.configure(point.Point)())
  mesh = cli.configure(meshes.Mesh)()
  with environment.report_run(mesh.layout()):
    outcome = cli.configure(infer.infer)(
      page=token_view.page_html, on_start=cli.save_config
    )
  print(describe(outcome))


def preview() -> str:
  """Returns the text of `--dry_run`: the memory that each device will need."""
  from speccascade.study.measuring import infer
  from speccascade.tools.planning import decoding_plan, footprint

  def plan():
    return decoding_plan.plan(**cli.bindings_of(infer.infer))

  return footprint.describe_plan(plan)


def describe(outcome) -> str:
  """Returns a few lines about a decode: its measurements and its folder.

  Args:
    outcome: a `DecodeOutcome`.
  """
  from speccascade.study.report import tables

  row = outcome.row
  settings = row.settings
  label = row.label
  if settings.words:
    label += f" ({', '.join(settings.words)})"
  lines = [f"{label} on {settings.task} {settings.split}".rstrip()]
  for name, score in row.quality.items():
    line = f"  {name} {score['value']:.2f}"
    if score.get("low") is not None:
      line += f" [{score['low']:.2f}, {score['high']:.2f}]"
    if score.get("unread"):
      line += f", no answer was read in {score['unread']:.1f}% of the outputs"
    lines.append(line)
  for name, value in row.efficiency.items():
    text = f"{value:.4g}" if isinstance(value, float) else None
    if name == "acceptance_by_position":
      text = tables.format_positions(value)
    elif name in ("tokens_by_phase", "acceptance_rate_by_phase"):
      texts = ("none" if part is None else f"{part:.4g}" for part in value)
      text = " before the marker, ".join(texts) + " after it"
    if text is not None:
      lines.append(f"  {name} {text}")
  if row.latency is not None:
    lines.append(
      f"  walltime_s {row.latency.walltime_s:.4g}, relative_latency"
      f" {row.latency.relative_latency:.3f}"
    )
  if comparison := _compare_with_verifier(row):
    lines.append(f"  {comparison}")
  if row.num_truncated:
    lines.append(f"  {row.num_truncated} sources were truncated")
  lines.append(f"  {outcome.speed} (batches of {outcome.batch_size})")
  lines.append(f"predictions.jsonl and metrics.json are in {outcome.folder}")
  return os.linesep.join(lines)


def _compare_with_verifier(row) -> str | None:
  """Returns whether a method was faster than the verifier alone.

  If nothing was timed, the text is how to find out. A method of one model alone
  has nothing to compare with, and gives None.
  """
  from speccascade.decoding.programs import methods

  execution = methods.find(row.settings.method).execution
  if not (execution.needs_drafter and execution.needs_verifier):
    return None
  if row.latency is None:
    return (
      "not timed against the verifier alone: --gin.NUM_TIMED=20 with another"
      " OUTPUT_DIR says whether this is faster, python -m speccascade.sweep"
      " which settings are"
    )
  # The interval of the relative latency decides: one that contains 1 decides
  # nothing.
  low, high = row.latency.relative_low, row.latency.relative_high
  verdict = "as fast, within the error"
  if high < 1:
    verdict = "faster"
  elif low > 1:
    verdict = "slower"
  return (
    f"against the verifier alone: {verdict}, {row.measured_speedup:.2f} times"
    f" its speed [{1 / high:.2f}, {1 / low:.2f}] in"
    f" {row.latency.num_examples} timed examples, one at a time"
  )


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/decode.gin", preview=preview)
