"""Measures the trade-off of methods: quality against latency, point by point.

  python -m speccascade.sweep \\
    --gin_file=configs/quickstart/sweep.gin --gin.OUTPUT_DIR='"/tmp/sweep"'

Appends a row for each point to OUTPUT_DIR/rows.jsonl, and leaves examples.jsonl
and the resolved config.gin next to it. The same command takes up a sweep that
was killed. SIGTERM and Ctrl-C end it at once; the exit code is then 143 or 130.
--dry_run says what will be measured and about how long that takes: it reads the
models and decodes a few examples, and writes nothing.
"""

import shlex
import sys

from speccascade import cli


def main():
  """Runs the sweep that gin configured, and prints how the sweep ended."""
  from speccascade.models.sharding import meshes
  from speccascade.study.measuring import environment
  from speccascade.study.search import sweeps

  mesh = cli.configure(meshes.Mesh)()
  with environment.report_run(mesh.layout()):
    outcome = cli.configure(sweeps.sweep)(on_start=cli.save_config)
  print(describe(outcome))
  if outcome.stop:
    sys.exit(outcome.stop.exit_code)


def preview() -> str:
  """Returns the text of `--dry_run`.

  The text says what each device will hold, how many points and programs there
  are, and about how long they take.
  """
  from speccascade.generate.points.point import Point
  from speccascade.study.search import forecast, sweeps
  from speccascade.tools.planning import decoding_plan, footprint

  settings = cli.bindings_of(sweeps.sweep)
  # A point that needs both models, and the widest pass of the verifier.
  point = Point("spec_decode", gamma=max(settings["plan"].gammas))
  memory = footprint.describe_plan(
    lambda: decoding_plan.plan(point=point, **settings)
  )
  return f"{memory}\n{forecast.forecast(**settings)}"


def describe(outcome) -> str:
  """Returns the lines that say how a sweep ended, and what to do next."""
  where = f"{len(outcome.rows)} points in {outcome.folder}/rows.jsonl"
  if outcome.stop:
    return (
      f"stopped by {outcome.stop.name} with {where}; the same command continues"
      " from there"
    )
  if outcome.num_shown:
    where += f"; the tokens of {outcome.num_shown} in examples.jsonl"
  folder = shlex.quote(str(outcome.folder))
  return (
    f"finished: {where}\n"
    f"next: python -m speccascade.report --results_dir={folder}"
  )


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/sweep.gin", preview=preview)
