"""Runs the cases by hand; see the package."""

import argparse
import os
import sys

from tests.audit.fuzz import runner, tables


def main() -> int:
  """Prints what is wrong and a summary; returns the number of wrong cases."""
  parser = argparse.ArgumentParser(prog="python -m tests.audit.fuzz")
  parser.add_argument("--only", default="", help="cases whose name has it")
  parser.add_argument("--every", type=int, default=1, help="each so many-th")
  parser.add_argument("--list", action="store_true", help="name them only")
  parser.add_argument("--verbose", action="store_true", help="print all lines")
  args = parser.parse_args()
  cases = [case for case in tables.cases() if args.only in case.name]
  cases = cases[:: args.every]
  if args.list:
    print("\n".join(case.name for case in cases))
    return 0
  os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no case asks a hub
  outcomes = []
  for outcome in runner.run(cases):
    outcomes.append(outcome)
    if outcome.faults or args.verbose:
      print(f"{outcome.case.name}\n  {'; '.join(outcome.faults) or 'right'}")
      print(f"  {outcome.line.strip()[-800:]}", flush=True)
  wrong = sum(bool(outcome.faults) for outcome in outcomes)
  print(
    f"{len(outcomes)} cases, {wrong} wrong; at most"
    f" {max(outcome.seconds for outcome in outcomes):.1f} s and"
    f" {max(outcome.bytes for outcome in outcomes) / 1e9:.2f} GB, in all"
    f" {sum(outcome.seconds for outcome in outcomes):.0f} s"
  )
  return min(wrong, 100)


if __name__ == "__main__":
  sys.exit(main())
