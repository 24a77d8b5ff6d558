"""Tokens a second by batch size, with rows that are refilled and without.

  python -m benchmarks.throughput --pair out/quickstart

All take turns on the test sentences, which come in one order; programs are
compiled before. Each line says whether all tokens are those of batch 1.
"""

import time

import numpy as np

from benchmarks import built_in
from speccascade.generate.batches.batching import Batches
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring.environment import device_name


def make(pair, sources, point, size, refill) -> tuple[Batches, Session]:
  """Returns what decodes the sentences, so many at a time."""
  run = Run(
    max_decode_len=built_in.MAX_DECODE_LEN,
    batch_size=size,
    num_lengths=1,
    refill=refill,
  )
  session = Session(pair, sources.fit_padding(), run)
  return session.batches(point, shared=False), session


def main():
  parser = built_in.parser("throughput", __doc__)
  add = parser.add_argument
  add("--batch_sizes", type=int, nargs="*", default=[1, 8, 32, 128])
  add("--methods", nargs="*", default=["verifier", "spec_decode"])
  add("--gamma", type=int, default=5)
  add("--temperature", type=float, default=1.0)
  add("--num_examples", type=int, default=256)
  add("--rounds", type=int, default=3)
  args = parser.parse_args()
  sources, pair = built_in.read(args.pair, args.num_examples)
  print(f"{pair.drafter_name} and {pair.verifier_name}, {device_name()}")
  print(
    "| method | rows | tokens/s, whole batches | refilled | faster, in a round"
    " | texts as at one row |"
  )
  print("| --- | ---: | ---: | ---: | ---: | ---: |")
  for name in args.methods:
    point = Point(name, gamma=args.gamma, temperature=args.temperature)
    plans = [(size, on) for size in args.batch_sizes for on in (False, True)]
    plans = [plan for plan in plans if plan != (1, True)]
    made = {plan: make(pair, sources, point, *plan) for plan in plans}
    first, seconds = {}, {plan: [] for plan in plans}
    for plan, (batches, session) in made.items():
      first[plan] = batches.decode_all(session.examples)
    for _ in range(args.rounds):
      for plan, (batches, session) in made.items():
        began = time.monotonic()
        batches.decode_all(session.examples)
        seconds[plan].append(time.monotonic() - began)
    want = first[plans[0]]
    num = int(want.lengths.sum())
    for size in args.batch_sizes:
      rows = [plan for plan in plans if plan[0] == size]
      same = [
        np.all(first[plan].tokens == want.tokens, axis=1).sum() for plan in rows
      ]
      rates = [num / np.median(seconds[plan]) for plan in rows]
      ratios = np.divide(seconds[rows[0]], seconds[rows[-1]])
      print(
        f"| {name} | {size} | {rates[0]:.0f} | {rates[-1]:.0f} |"
        f" {np.median(ratios):.2f} [{ratios.min():.2f}, {ratios.max():.2f}] |"
        f" {', '.join(f'{n} of {len(want.tokens)}' for n in same)} |"
      )


if __name__ == "__main__":
  main()
