"""Prints the table of methods, as docs/methods.md has it.

python -m speccascade.report.methods_table
"""

import argparse

from speccascade.decoding.programs import methods


def markdown(vocab_size: int = 32128) -> str:
  """Returns the table of methods in Markdown.

  Args:
    vocab_size: V, which the range of alpha of some rules depends on.
  """
  lines = [
    "| name | label | execution | sampled from | alpha |",
    "| --- | --- | --- | --- | --- |",
  ]
  for name, method in methods.METHODS.items():
    alpha = "-"
    if method.uses_alpha:
      alpha = method.alpha_interval.describe(vocab_size)
    execution = method.execution.label
    if method.greedy_only:
      execution += ", greedy only"
    lines.append(
      f"| `{name}` | {method.label} | {execution} | {method.law} | {alpha} |"
    )
  return "\n".join(lines)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--vocab_size", type=int, default=32128)
  print(markdown(parser.parse_args().vocab_size))
