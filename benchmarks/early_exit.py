"""What a draft of an early exit costs, measured.

  python -m benchmarks.early_exit --layers 1 4 8 --kept 8192

A verifier of the shape of SmolLM2-135M, with random weights, takes turns with
its own first layers at batch 1: it feeds one token, and each exit drafts blocks
with all tokens and with the kept ones. c is the time of a draft over that of
the verifier's token. Intervals are 95%, of the median over turns, by a
bootstrap.
"""

import functools

import numpy as np

from benchmarks.draft_vocabulary import (
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


def main():
  parser = cli.Parser("early_exit", __doc__, "benchmarks")
  add = parser.add_argument
  add("--layers", type=int, nargs="+", default=[1, 4, 8], help="of the exits")
  add("--kept", type=int, default=8192, help="tokens of a cut head")
  add("--kernel_dtype", choices=KERNEL_DTYPES, default="bfloat16")
  add("--gamma", type=int, default=4, help="drafts of a block (%(default)s)")
  add("--temperature", type=float, default=1.0)
  add("--turns", type=int, default=15)
  args = parser.parse_args()
  verifier = random_model(VERIFIER, args.kernel_dtype)
  rng = np.random.default_rng(2)
  ids = rng.choice(verifier.vocab_size, args.kept, replace=False)
  state, tokens = filled(verifier)
  sampling, num_each = Sampling.create(args.temperature), 2
  calls = {"verifier": lambda: feed(verifier, state, tokens, num=2)}
  exits = {}
  for num in args.layers:
    whole = verifier.first_layers(num)
    name = f"{num} layer" + "s" * (num > 1)
    exits |= {name: whole, f"{name}, {args.kept} tokens": whole.cut_to(ids)}
  for name, lm in exits.items():
    held, tokens = filled(lm)
    calls[name] = functools.partial(
      draft, lm, held, tokens, sampling, gamma=args.gamma, num=num_each
    )
  parts = dict.fromkeys(exits, args.gamma * num_each) | {"verifier": 2}
  times = in_turns(calls, parts, args.turns)
  print(f"verifier: {interval(times['verifier'])} ms a token")
  for name in exits:
    c = interval(times[name] / times["verifier"])
    least = times[name].min() / times["verifier"].min()
    print(
      f"{name}: {interval(times[name])} ms a draft, least"
      f" {times[name].min():.3g}; c {c}, of the least {least:.3g}"
    )


if __name__ == "__main__":
  main()
