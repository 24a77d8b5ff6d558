"""The table of methods: python -m speccascade.decoding.programs.table."""

import argparse

from speccascade.decoding.programs import methods


def markdown(vocab_size: int = 32128) -> str:
  """Returns the table in Markdown; ranges are those of `vocab_size`."""
  lines = [
    "| name | label | execution | sampled from | alpha |",
    "| --- | --- | --- | --- | --- |",
  ]
  for name, method in methods.METHODS.items():
    alpha = "-"
    if method.uses_alpha:
      alpha = method.alpha_interval.describe(vocab_size)
    where = ", greedy only" if method.greedy_only else ""
    lines.append(
      f"| `{name}` | {method.label} | {method.execution.label}{where} |"
      f" {method.law} | {alpha} |"
    )
  return "\n".join(lines)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--vocab_size", type=int, default=32128)
  print(markdown(parser.parse_args().vocab_size))
