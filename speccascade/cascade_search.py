"""Searches K and lenience of a cascade of drafters for a pair and a task.

  python -m speccascade.cascade_search \\
    --gin_file=configs/runs/cascade_search.gin \\
    --gin.MIXTURE_OR_TASK_NAME='"speccascade_en_de"' \\
    --gin.DRAFTER_CHECKPOINT='"..."' --gin.VERIFIER_CHECKPOINT='"..."' \\
    --gin.OUTPUT_DIR='"/tmp/search"'

Successive halving by SWI or measured time. Leaves report.md, report.csv and
best.gin in OUTPUT_DIR; a killed search continues where it stopped.
"""

from speccascade import cli


def main():
  """Runs the search as gin configured it, and prints the best."""
  from speccascade.study.search import halving

  ranking = cli.configure(halving.search)()
  print(halving.describe(ranking))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/cascade_search.gin")
