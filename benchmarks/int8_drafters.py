"""What a draft costs with kernels in float32, bfloat16 and int8, measured.

  python -m benchmarks.int8_drafters

Models of the shapes of SmolLM2-135M and of its drafter, with random weights,
take turns at batch 1: the verifier feeds one token, and each drafter drafts
blocks. One drafter has the small shape; the other is the verifier itself, as
with DRAFTER_CHECKPOINT = "self-int8". c is the time of a draft over that of the
verifier's token. Intervals are 95%, of the median over turns, by a bootstrap.
"""

import functools

import jax

from benchmarks.draft_vocabulary import (
  DRAFTER,
  VERIFIER,
  draft,
  feed,
  filled,
  in_turns,
  interval,
  random_model,
)
from speccascade import cli
from speccascade.decoding.laws.sampling import Sampling
from speccascade.models.parameters import KERNEL_DTYPES

SHAPES = {"small": DRAFTER, "itself": VERIFIER}
NUM_BLOCKS = {"small": 4, "itself": 1}  # of a turn
NUM_FED = 2


def main():
  parser = cli.Parser("int8_drafters", __doc__, "benchmarks")
  add = parser.add_argument
  add("--kernel_dtype", choices=KERNEL_DTYPES, default="bfloat16")
  add("--dtypes", nargs="+", default=["float32", "bfloat16", "int8"])
  add("--gamma", type=int, default=4, help="drafts of a block (%(default)s)")
  add("--temperature", type=float, default=1.0)
  add("--turns", type=int, default=15)
  args = parser.parse_args()
  verifier = random_model(VERIFIER, args.kernel_dtype)
  state, tokens = filled(verifier)
  sampling = Sampling.create(args.temperature)
  calls = {"verifier": lambda: feed(verifier, state, tokens, num=NUM_FED)}
  parts, num_bytes = {"verifier": NUM_FED}, {}
  for name, config in SHAPES.items():
    for dtype in args.dtypes:
      lm = random_model(config, dtype)
      held, text = filled(lm)
      num = NUM_BLOCKS[name]
      key = f"{name}, {dtype}"
      parts[key] = args.gamma * num
      num_bytes[key] = sum(leaf.nbytes for leaf in jax.tree.leaves(lm))
      calls[key] = functools.partial(
        draft, lm, held, text, sampling, gamma=args.gamma, num=num
      )
  times = in_turns(calls, parts, args.turns)
  token = times.pop("verifier")
  print(
    f"verifier, {args.kernel_dtype} kernels: {interval(token)} ms a token,"
    f" least {token.min():.3g}"
  )
  print("| drafter | MB | ms a draft | least | c | over bfloat16 |")
  print("| --- | ---: | ---: | ---: | ---: | ---: |")
  for name, taken in times.items():
    base = times.get(f"{name.split(',')[0]}, bfloat16", taken)
    cells = [
      name,
      f"{num_bytes[name] / 1e6:.0f}",
      interval(taken),
      f"{taken.min():.3g}",
      interval(taken / token),
      interval(taken / base),
    ]
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
  main()
