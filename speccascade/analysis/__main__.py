"""Prints Table 1 of Chen et al. and the best block size for given costs.

Their paper is arXiv 2312.11462.

python -m speccascade.analysis --acceptance_rate=0.8 --c=0.1 --v=1.4
"""

import sys

from speccascade import cli
from speccascade.analysis import ewif, speedup

LABELS = {"cnndm": "CNN/DM", "ende": "WMT en-de"}


def table_1() -> str:
  """Returns the recomputed table as text."""
  lines = ["EWIF of Chen et al., Table 1 (costs: ratios of parameters)"]
  lines.append(f"{'task':10} {'drafts':20} {'printed':>8} {'computed':>9}")
  for row, value in ewif.table_1():
    drafts = " + ".join(f"{name} x {k}" for name, k in row.drafts)
    lines.append(
      f"{LABELS[row.task]:10} {drafts:20} {row.printed:8.2f} {value:9.3f}"
    )
  return "\n".join(lines)


def best_block(acceptance_rate: float, c: float, **costs) -> str:
  """Returns the best gamma for an acceptance rate and costs as text."""
  gamma, plain = speedup.optimal_gamma(acceptance_rate, c)
  lines = [
    f"acceptance rate {acceptance_rate:g}, drafter step c = {c:g}",
    f"block at the price of one step: best gamma {gamma}, speed-up {plain:.3f}",
  ]
  if costs != {"v": 1, "q2": None, "bonus_law": False}:
    gamma, real = speedup.optimal_gamma(acceptance_rate, c, **costs)
    lines.append(
      f"block at v = {costs['v']:g}: best gamma {gamma}, speed-up {real:.3f}"
    )
    if gamma == 0:
      lines.append("no block size beats the verifier alone at these costs")
  return "\n".join(lines)


def main(argv=None) -> int:
  parser = cli.Parser("analysis", __doc__)
  add = parser.add_argument
  add("--acceptance_rate", type=float, default=0.8, help="in [0, 1]")
  add("--c", type=float, default=0.05, help="drafter step / verifier step")
  add("--v", type=float, default=1.0, help="verifier block / verifier step")
  add("--q2", type=float, help="drafter's two-token call / verifier step")
  add("--bonus_law", action="store_true", help="exact bonus of a target with q")
  tell = lambda **asked: print(best_block(**asked), table_1(), sep="\n\n")
  return parser.run(tell, argv)


if __name__ == "__main__":
  sys.exit(main())
