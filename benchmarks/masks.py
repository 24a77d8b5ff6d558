"""Measures what stops and masks cost, in one run.

  python -m benchmarks.masks --pair out/quickstart

A pair decodes test sentences of the built-in task greedily, at batch 1: without
limits, with a stop that never occurs, and with a banned id that is never
written. All three write the same tokens, and take turns. The last column is how
many times as long as without limits a decode takes: the median over sentences,
with the 95% interval of a bootstrap over them.
"""

import time

import jax
import numpy as np

from benchmarks import built_in
from speccascade.constraints.limits import TextLimits
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.settings.fields import values_of
from speccascade.study.measuring.environment import device_name

METHODS = ("verifier", "spec_decode", "spec_cascade_opt")
NONE = "none"


def limits_of(vocab_size: int) -> dict[str, TextLimits]:
  """Returns limits by their names, which change no output."""
  return {
    NONE: TextLimits(),
    "a stop": TextLimits(stop=("no such words",)),
    "a mask": TextLimits(banned=(vocab_size - 1,)),
  }


def timed(calls, repeats: int) -> np.ndarray:
  """Returns the least seconds of each call, of which all take turns."""
  best = np.full(len(calls), np.inf)
  for _ in range(repeats):
    for place, call in enumerate(calls):
      start_s = time.perf_counter()
      jax.block_until_ready(call())
      best[place] = min(best[place], time.perf_counter() - start_s)
  return best


def interval(ratios: np.ndarray) -> str:
  """Returns the median of ratios with its 95% interval."""
  draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
  low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
  return f"{np.median(ratios):.2f} [{low:.2f}, {high:.2f}]"


def main():
  parser = built_in.parser("masks", __doc__)
  parser.add_argument("--num_examples", type=int, default=24)
  parser.add_argument("--repeats", type=int, default=5)
  args = parser.parse_args()
  sources, pair = built_in.read(args.pair, args.num_examples)
  sources = sources.fit_padding()
  print(f"{pair.drafter_name} and {pair.verifier_name}, {device_name()}")
  print("| method | limits | us a token | times as long |")
  print("| --- | --- | ---: | ---: |")
  for method in METHODS:
    point, seconds, tokens = Point(method, temperature=0.0), {}, {}
    sessions = {
      name: Session(
        pair,
        sources,
        Run(
          max_decode_len=built_in.MAX_DECODE_LEN,
          batch_size=1,
          **values_of(limits, TextLimits),
        ),
      )
      for name, limits in limits_of(pair.models[-1].lm.vocab_size).items()
    }
    for example in sources.examples:
      calls = []
      for name, session in sessions.items():
        batches = session.batches(point, shared=False, alike=session.examples)
        calls.append(batches.bind(batches.prepare([example])))
        tokens.setdefault(name, []).append(int(calls[-1]().lengths[0]))
      for name, best in zip(sessions, timed(calls, args.repeats)):
        seconds.setdefault(name, []).append(best)
    assert all(each == tokens[NONE] for each in tokens.values())
    for name in sessions:
      each = 1e6 * np.sum(seconds[name]) / np.sum(tokens[name])
      ratios = np.divide(seconds[name], seconds[NONE])
      print(f"| {method} | {name} | {each:.0f} | {interval(ratios)} |")


if __name__ == "__main__":
  main()
