"""Trains a T5 on a task, from a checkpoint or from scratch.

  python -m speccascade.train \\
    --gin_file=configs/experiments/wmt_ende/train_small.gin \\
    --gin.MODEL_DIR='"/tmp/small"'

Leaves the latest and the best checkpoint, TensorBoard's event files and the
resolved config.gin in MODEL_DIR. After a kill, the same command continues the
run, and ends with the same parameters. After SIGTERM or Ctrl-C the run saves
first; the exit code is then 143 or 130.
"""

import sys

from speccascade import cli

# The metrics that are of the right outputs, for which nothing is decoded.
_OF_TARGETS = {"eval/loss", "eval/accuracy"}


def main():
  """Trains as gin files configure `finetune.train`, and prints the outcome.

  After a signal the process exits with the signal's exit code.
  """
  from speccascade.models.sharding import meshes
  from speccascade.study.measuring import environment
  from speccascade.training import finetune

  mesh = cli.configure(meshes.Mesh)()
  with environment.report_run(mesh.layout()):
    outcome = cli.configure(finetune.train)(on_start=cli.save_config)
  print(describe(outcome))
  if outcome.stop:
    sys.exit(outcome.stop.exit_code)


def preview() -> str:
  """Returns the text of `--dry_run`: the memory that each device will need."""
  from speccascade.tools.planning import footprint, training_plan
  from speccascade.training import finetune

  def plan():
    return training_plan.plan(**cli.bindings_of(finetune.train))

  return footprint.describe_plan(plan)


def describe(outcome) -> str:
  """Returns one line about the end of a run.

  Args:
    outcome: a `TrainingOutcome`.
  """
  where = f"; checkpoint: {outcome.checkpoint}" if outcome.checkpoint else ""
  if outcome.stop:
    return (
      f"stopped by {outcome.stop.name} at step {outcome.step}{where}; the same "
      "command continues from there"
    )
  numbers = [f"{name} {value:.4g}" for name, value in outcome.metrics.items()]
  if outcome.metrics.keys() - _OF_TARGETS:
    # A decode draws at temperature 1 where it is given none.
    numbers.append("outputs decoded greedily (temperature 0)")
  return "; ".join([f"finished at step {outcome.step}", *numbers]) + where


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/finetune.gin", preview=preview)
