"""Judges samplers of other projects, as their packages ship them.

  python -m benchmarks.judge_peers --peers=transformers

The Python has the peer's package, and NumPy; our other needs are not needed. It
runs in the root of a clone, or with PYTHONPATH set to it. Nothing of the
package is changed: its random functions are replaced while it runs, and its
paths are enumerated. Prints a line for each problem, and a table with versions
and the date, for docs/judge.md.
"""

import argparse
from collections.abc import Callable
import datetime
import importlib.metadata
import platform
import sys

import numpy as np

from speccascade import judge


def transformers_step() -> tuple[Callable, tuple[str, ...]]:
  """Returns `transformers.generation.utils._speculative_sampling` as a step."""
  import torch
  from transformers.generation import utils

  def transformers_speculative_sampling(tokens, q, p):
    ids = torch.tensor([[0, *tokens.tolist()]])
    with np.errstate(divide="ignore"):
      q_logits, p_logits = (
        torch.tensor(np.log(x), dtype=torch.float32)[None] for x in (q, p)
      )
    valid, _ = utils._speculative_sampling(ids, q_logits, len(tokens), p_logits)
    return valid[0]

  return transformers_speculative_sampling, ("transformers", "torch")


def judge_transformers() -> tuple[judge.Judgement, tuple[str, ...]]:
  """Judges the speculative step of transformers."""
  step, packages = transformers_step()
  return judge.judge_step(step), packages


PEERS = {"transformers": judge_transformers}


def main(argv: list[str] | None = None) -> int:
  """Judges the peers; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.judge_peers",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--peers",
    default=",".join(PEERS),
    help=f"some of {', '.join(PEERS)}, separated by commas",
  )
  names = parser.parse_args(argv).peers.split(",")
  unknown = [name for name in names if name not in PEERS]
  if unknown:
    print(
      f"error: --peers has {unknown[0]!r}; it takes {', '.join(PEERS)}",
      file=sys.stderr,
    )
    return 2
  lines = ["| judged | versions | date | problems | largest TV | verdict |"]
  lines.append("| --- | --- | --- | --- | --- | --- |")
  today = datetime.datetime.now(datetime.UTC).date()
  for name in names:
    judgement, packages = PEERS[name]()
    print(judgement, end="\n\n")
    versions = [f"{x} {importlib.metadata.version(x)}" for x in packages]
    versions.append(f"Python {platform.python_version()}")
    largest = max(
      (x.tv for x in judgement.problems if x.tv is not None), default=0
    )
    right = sum(x.passed for x in judgement.problems)
    row = (
      f"`{judgement.name.rpartition('.')[2]}`",
      ", ".join(versions),
      str(today),
      f"{right} of {len(judgement.problems)} right",
      f"{largest:.1e}",
      "; ".join([judgement.verdict, *judgement.warnings]),
    )
    lines.append(f"| {' | '.join(row)} |")
  print("\n".join(lines))
  return 0


if __name__ == "__main__":
  sys.exit(main())
