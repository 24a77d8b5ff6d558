"""Prints Table 1 of Chen et al. and the best block size for given costs.

Table 1 is in arXiv:2312.11462.

python -m speccascade.analysis --acceptance_rate=0.8 --c=0.1 --v=1.4
"""

import sys

from speccascade import cli
from speccascade.study.papers import ewif, speedup

LABELS = {"cnndm": "CNN/DM", "ende": "WMT en-de"}


def table_1() -> str:
  """Returns Chen et al.'s Table 1, recomputed, as text."""
  lines = ["EWIF of Chen et al., Table 1 (costs: ratios of parameters)"]
  lines.append(f"{'task':10} {'drafts':20} {'printed':>8} {'computed':>9}")
  for row, value in ewif.table_1():
    drafts = " + ".join(f"{name} x {k}" for name, k in row.drafts)
    lines.append(
      f"{LABELS[row.task]:10} {drafts:20} {row.printed:8.2f} {value:9.3f}"
    )
  return "\n".join(lines)


def best_block(
  acceptance_rate: float,
  c: float,
  *,
  v: float = 1.0,
  q2: float | None = None,
  bonus_law: bool = False,
) -> str:
  """Returns the best gamma for an acceptance rate and costs, as text.

  The first answer is for the papers' costs, by which a block costs one verifier
  step. Where other costs are given a second answer is for them.

  Args:
    acceptance_rate: in [0, 1].
    c: the cost of a drafter step, in verifier steps.
    v: see `speedup.block_cost`.
    q2: see `speedup.block_cost`.
    bonus_law: see `speedup.block_cost`.
  """
  gamma, speed = speedup.optimal_gamma(acceptance_rate, c)
  lines = [
    f"acceptance rate {acceptance_rate:g}, drafter step c = {c:g}",
    f"block at the price of one step: best gamma {gamma}, speed-up {speed:.3f}",
  ]
  if v != 1 or q2 is not None or bonus_law:
    gamma, speed = speedup.optimal_gamma(
      acceptance_rate, c, v=v, q2=q2, bonus_law=bonus_law
    )
    lines.append(
      f"block at v = {v:g}: best gamma {gamma}, speed-up {speed:.3f}"
    )
    if gamma == 0:
      lines.append("no block size beats the verifier alone at these costs")
  return "\n".join(lines)


def main(argv=None) -> int:
  """Runs the command; returns its exit code."""

  def print_answers(**settings):
    print(best_block(**settings), table_1(), sep="\n\n")

  parser = cli.Parser("analysis", __doc__)
  add = parser.add_argument
  add("--acceptance_rate", type=float, default=0.8, help="in [0, 1]")
  add("--c", type=float, default=0.05, help="drafter step / verifier step")
  add("--v", type=float, default=1.0, help="verifier block / verifier step")
  add("--q2", type=float, help="drafter's two-token call / verifier step")
  add("--bonus_law", action="store_true", help="exact bonus of a target with q")
  return parser.run(print_answers, argv)


if __name__ == "__main__":
  sys.exit(main())
