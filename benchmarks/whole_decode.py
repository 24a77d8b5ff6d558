"""Whole decodes beside the cost model, for a pair on the built-in task.

  python -m benchmarks.whole_decode --pair out/quickstart

The verifier alone and `spec_decode` at several gammas take turns on the test
sentences at batch 1. Predicted is what the counted passes and the encoders cost
in hot loops of the same run, for the whole decode and not for its blocks alone.
"""

import argparse
import dataclasses
import pathlib

import numpy as np

from speccascade.evaluation import timing
from speccascade.inference import inputs as sources
from speccascade.inference import pair as pairs
from speccascade.inference.batching import Batches, time_batches
from speccascade.inference.point import Point
from speccascade.quickstart import quickstart

ALONE = "verifier"


def race(pair, examples, recipe, gammas, temperature, repeats):
  """Returns a dict of numbers for the verifier and each gamma."""
  points = {ALONE: Point(ALONE, temperature=temperature)}
  for gamma in gammas:
    name = f"spec_decode {gamma}"
    points[name] = Point("spec_decode", gamma=gamma, temperature=temperature)
  limit = recipe.max_tokens + 8
  runs = {
    name: Batches(
      pair,
      point,
      quickstart.Vocabulary(),
      lengths=[recipe.max_tokens],
      batch_size=1,
      max_decode_len=limit,
    )
    for name, point in points.items()
  }
  outs = {name: [] for name in runs}
  seconds = time_batches(
    runs,
    examples,
    repeats=repeats,
    on_result=lambda name, _, out: outs[name].append(
      (int(out.stats.num_blocks[0]), int(out.lengths[0]))
    ),
  )
  costs = timing.measure_costs(
    pair.drafter_lm,
    pair.verifier_lm,
    sources.pad_batch(examples[:1], 1, [recipe.max_tokens])[0],
    points[ALONE].sampling,
    max_decode_len=limit,
    widths=[gamma + 1 for gamma in gammas],
  )
  made = {}
  for name, point in points.items():
    latency = timing.latency(seconds[name], seconds[ALONE])
    blocks, tokens = np.mean(outs[name], axis=0)
    steps = costs.verifier_prefill + tokens
    if name != ALONE:
      block = (point.gamma - 1) * costs.c + costs.q2 + costs.v[point.gamma + 1]
      steps = costs.verifier_prefill + costs.drafter_prefill + blocks * block
    made[name] = {
      "ms": 1e3 * latency.walltime_s,
      "predicted_ms": 1e3 * steps * costs.verifier_step_s,
      "speedup": 1 / latency.relative_latency,
      "low": 1 / latency.relative_high,
      "high": 1 / latency.relative_low,
    }
  return made


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.whole_decode",
    description=__doc__,
    formatter_class=argparse.RawTextHelpFormatter,
  )
  add = parser.add_argument
  add(
    "--pair",
    type=pathlib.Path,
    required=True,
    help="a folder with small/ and large/, as the quick start leaves it",
  )
  add("--gammas", type=int, nargs="*", default=[3, 5, 7])
  add("--num_examples", type=int, default=24)
  add("--repeats", type=int, default=3)
  args = parser.parse_args()
  recipe = dataclasses.replace(quickstart.Recipe(), num_test=args.num_examples)
  pair = pairs.load_pair(
    drafter_checkpoint=str(args.pair / "small"),
    verifier_checkpoint=str(args.pair / "large"),
  )
  examples = quickstart.test_examples(recipe)
  print(f"{pair.drafter_name} and {pair.verifier_name}, {timing.device_name()}")
  print("| T | method | ms | predicted ms | speed-up | predicted |")
  print("| ---: | --- | ---: | ---: | ---: | ---: |")
  for temperature in (0.0, 1.0):
    made = race(pair, examples, recipe, args.gammas, temperature, args.repeats)
    for name, row in made.items():
      predicted = made[ALONE]["predicted_ms"] / row["predicted_ms"]
      print(
        f"| {temperature:g} | {name} | {row['ms']:.2f} |"
        f" {row['predicted_ms']:.2f} | {row['speedup']:.2f}"
        f" [{row['low']:.2f}, {row['high']:.2f}] | {predicted:.2f} |"
      )


if __name__ == "__main__":
  main()
