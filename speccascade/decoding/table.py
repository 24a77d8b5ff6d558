"""The table of methods as text: python -m speccascade.decoding.table."""

import argparse

from speccascade.decoding import methods
from speccascade.decoding.executions.autoregressive import (
  drafter_alone,
  verifier_alone,
)
from speccascade.decoding.executions.bild import bild
from speccascade.decoding.executions.oracle_cascade import oracle_cascade
from speccascade.decoding.executions.sequence_cascade import sequence_cascade
from speccascade.decoding.executions.sequential_cascade import (
  sequential_cascade,
)
from speccascade.decoding.executions.speculative import speculative

EXECUTIONS = {
  drafter_alone: "autoregressive",
  verifier_alone: "autoregressive",
  sequence_cascade: "sequence",
  methods.per_token_sequence: "sequence",
  sequential_cascade: "sequential",
  oracle_cascade: "oracle",
  speculative: "speculative",
  bild: "fallback and rollback",
}


def law(method: methods.Method) -> str:
  """Returns in a few words what the output is sampled from."""
  if method.execution is drafter_alone:
    return "q"
  if method.target is not None:
    name = method.target.name
    known = {"lossless": "p", "ensemble": "alpha q + (1 - alpha) p"}
    return known.get(name, f"T[{name}](q, p)")
  if method.execution is bild:
    return "greedy, its own"
  return "q's sequence, or p's where it defers"


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
      f"| `{name}` | {method.label} | {EXECUTIONS[method.execution]}{where} |"
      f" {law(method)} | {alpha} |"
    )
  return "\n".join(lines)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--vocab_size", type=int, default=32128)
  print(markdown(parser.parse_args().vocab_size))
