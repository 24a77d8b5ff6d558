"""Prints Table 1 of Chen et al. and the best block size for given costs.

Their paper is arXiv 2312.11462.

python -m speccascade.analysis --acceptance_rate=0.8 --c=0.1 --v=1.4
"""

import argparse
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


def best_block(args: argparse.Namespace) -> str:
  """Returns the best gamma for the given acceptance rate and costs as text."""
  gamma, plain = speedup.optimal_gamma(args.acceptance_rate, args.c)
  lines = [
    f"acceptance rate {args.acceptance_rate:g}, drafter step c = {args.c:g}",
    f"block at the price of one step: best gamma {gamma}, speed-up {plain:.3f}",
  ]
  if args.v != 1 or args.q2 is not None or args.bonus_law:
    how = {"v": args.v, "q2": args.q2, "bonus_law": args.bonus_law}
    gamma, real = speedup.optimal_gamma(args.acceptance_rate, args.c, **how)
    lines.append(
      f"block at v = {args.v:g}: best gamma {gamma}, speed-up {real:.3f}"
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
  args = parser.parse_args(argv)
  try:
    print(best_block(args), table_1(), sep="\n\n")
  except ValueError as error:
    return cli.fail(error)
  return 0


if __name__ == "__main__":
  sys.exit(main())
