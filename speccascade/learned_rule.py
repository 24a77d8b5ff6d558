"""Fits the learned rules of a pair, for RULE_PARAMETERS.

  python -m speccascade.learned_rule --gin_file=configs/built_in/decode.gin \\
    --gin_file=configs/runs/learned_rule.gin --gin.OUTPUT_DIR='"/tmp/rule"'

Takes the config of a decode of a task. Both models read the right outputs of
the training split and of the validation split once, and rows of what they said
go to OUTPUT_DIR; then the rules are fitted, which takes seconds. Leaves
rule.npz, which decodes take as RULE_PARAMETERS, and losses.json. After a kill,
the same command continues.
"""

from speccascade import cli


def main():
  """Fits the rules that gin configured, and prints their losses."""
  from speccascade.training import rule_learning

  fitted = cli.configure(rule_learning.learn)(on_start=cli.save_config)
  print(rule_learning.describe(fitted))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/learned_rule.gin")
