"""Whether a block length that follows a row's own history would pay.

  python -m benchmarks.history --pair out/quickstart --c 0.06 --slope 0.17

Only the past may lengthen or shorten a block if the distribution is to stay
exact. Along texts of the verifier on the built-in task, whose acceptance is
known token by token, blocks are drawn under such policies, and their speed is
compared with that of the best fixed gamma. Blocks cost gamma c + v(gamma) + a
loop of half a step; v is 1, or 1 + slope gamma. A compiled block of static
width costs the widest v whatever is drafted.
"""

import numpy as np

from benchmarks import built_in
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Study
from speccascade.study.papers import speedup
from speccascade.study.search.acceptance import rates_along

MOST = 15  # drafts of a block
DRAWS = 20  # of each text
LOOP = 0.5


def blocks(rates, lengths, start, update) -> np.ndarray:
  """Returns [MOST + 1], how many blocks of each length the texts took.

  Args:
    rates: [N, T], chance that the draft of each token is accepted.
    lengths: [N] tokens.
    start: float, the first length.
    update: `(length, accepted, drafted, sums) -> length`, arrays [N]; sums are
      the accepted and examined drafts so far.
  """
  rng, rows = np.random.default_rng(0), len(lengths)
  at, length = np.zeros(rows, int), np.full(rows, float(start))
  sums, count = np.zeros((2, rows)), np.zeros(MOST + 1)
  places = np.arange(MOST)
  while np.any(going := at < lengths):
    drafted = np.clip(length, 1, MOST).astype(int)
    np.add.at(count, drafted[going], 1)
    here = np.minimum(at[:, None] + places, rates.shape[1] - 1)
    kept = rng.random(here.shape) < np.take_along_axis(rates, here, axis=1)
    kept &= places < drafted[:, None]
    accepted = np.cumprod(kept, axis=1).sum(axis=1)
    sums += accepted, np.minimum(accepted + 1, drafted)
    length = np.clip(update(length, accepted, drafted, sums), 1, MOST)
    at += accepted + 1
  return count


def policies(rates, lengths, c, v):
  """Returns what changes a length, by name: a function as in `blocks`."""
  mean = rates.sum() / lengths.sum()
  grid = [
    speedup.optimal_gamma(x, c, v=lambda g: v(g) + LOOP, max_gamma=MOST)[0]
    for x in np.linspace(0, 1, 101)
  ]

  def by_rate(length, accepted, drafted, sums):
    rate = (sums[0] + 20 * mean) / (sums[1] + 20)
    return np.maximum(1, np.array(grid)[np.round(100 * rate).astype(int)])

  def by_steps(up, down):
    return lambda length, accepted, drafted, sums: np.where(
      accepted == drafted, length + up, length - down
    )

  return {
    "2 more, or 1 fewer": by_steps(2, 1),
    "1 more, or 1 fewer": by_steps(1, 1),
    "1 more, or 1/2 fewer": by_steps(1, 0.5),
    "best for the rate so far": by_rate,
  }


def main():
  parser = built_in.parser("history", __doc__)
  add = parser.add_argument
  add("--drafter", help="another checkpoint than small/")
  add("--c", type=float, default=0.06, help="a drafter step, in verifier steps")
  add("--slope", type=float, default=0.17, help="of v, for each draft")
  add("--num_examples", type=int, default=200)
  args = parser.parse_args()
  sources, pair = built_in.read(args.pair, args.num_examples, args.drafter)
  run = Run(max_decode_len=built_in.MAX_DECODE_LEN, num_lengths=1)
  study = Study(Session(pair, sources.fit_padding(), run))
  print("| T | v | best gamma | speed-up | policy | over it | static width |")
  print("| ---: | --- | ---: | ---: | --- | ---: | ---: |")
  for temperature in (0.0, 1.0):
    point = Point("spec_decode", temperature=temperature)
    batches = study.batches(point_timing.reference(point))
    texts = batches.decode_all(study.examples)
    rates = rates_along(study, [point], texts, is_own=True)[0, 0, 0, 0]
    rates = np.repeat(rates, DRAWS, axis=0)
    lengths = np.repeat(texts.lengths, DRAWS)
    for slope in (0.0, args.slope):
      v = lambda gamma, slope=slope: 1 + slope * gamma
      gammas = np.arange(MOST + 1)

      def speed(count, widest=0, v=v, lengths=lengths, gammas=gammas):
        passes = v(widest or gammas)
        return lengths.sum() / (count * (passes + gammas * args.c + LOOP)).sum()

      same = lambda length, *_: length
      fixed = {
        gamma: speed(blocks(rates, lengths, gamma, same))
        for gamma in gammas[1:]
      }
      best = max(fixed, key=fixed.get)
      for name, update in policies(rates, lengths, args.c, v).items():
        count = blocks(rates, lengths, best, update)
        free, static = speed(count), speed(count, np.flatnonzero(count)[-1])
        print(
          f"| {temperature:g} | {'1' if slope == 0 else f'1 + {slope:g} gamma'}"
          f" | {best} | {fixed[best]:.2f} | {name} | {free / fixed[best]:.3f} |"
          f" {static / fixed[best]:.3f} |"
        )


if __name__ == "__main__":
  main()
