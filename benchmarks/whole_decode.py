"""Whole decodes compared with the cost model, for a pair on the built-in task.

  python -m benchmarks.whole_decode --pair out/quickstart

The verifier alone and `spec_decode` at several gammas take turns on the test
sentences at batch 1. Predicted is what the counted passes and the encoders cost
in hot loops of the same round, for the whole decode and not for its blocks
alone. Numbers are medians over rounds, [least, most].
"""

import numpy as np

from benchmarks import built_in
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.environment import device_name
from speccascade.study.measuring.study import Measuring, Study

ALONE = "verifier"


def race(study, gammas, temperature):
  """Returns a dict of numbers for the verifier and each gamma."""
  points = {ALONE: Point(ALONE, temperature=temperature)}
  for gamma in gammas:
    name = f"spec_decode {gamma}"
    points[name] = Point("spec_decode", gamma=gamma, temperature=temperature)
  outs = {point: Outputs() for point in points.values()}
  latencies = point_timing.time_points(study, list(outs), outputs=outs)
  costs = point_timing.measure_costs(study, list(outs))
  numbers = {}
  for name, point in points.items():
    latency = latencies[point]
    counts = outs[point].counts
    blocks = np.mean([each.num_blocks for each in counts])
    tokens = np.mean([each.num_tokens for each in counts])
    steps = costs.verifier_prefill + tokens
    if name != ALONE:
      block = (
        (point.gamma - 1) * costs.c + costs.q2 + costs.v[point.verify_width]
      )
      steps = costs.verifier_prefill + costs.drafter_prefill + blocks * block
    numbers[name] = {
      "ms": 1e3 * latency.walltime_s,
      "predicted_ms": 1e3 * steps * costs.verifier_step_s,
      "speedup": 1 / latency.relative_latency,
    }
  for row in numbers.values():
    row["predicted"] = numbers[ALONE]["predicted_ms"] / row["predicted_ms"]
    row["share"] = row["speedup"] / row["predicted"]
  return numbers


def spread(values):
  """Returns the median of rounds with the least and the most."""
  low, middle, high = np.quantile(values, [0, 0.5, 1])
  return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def main():
  parser = built_in.parser("whole_decode", __doc__)
  add = parser.add_argument
  add("--gammas", type=int, nargs="*", default=[3, 5, 7])
  add("--num_examples", type=int, default=24)
  add("--repeats", type=int, default=1, help="of each decode in a round")
  add("--rounds", type=int, default=5)
  args = parser.parse_args()
  sources, pair = built_in.read(args.pair, args.num_examples)
  run = Run(max_decode_len=built_in.MAX_DECODE_LEN, batch_size=1)
  study = Study(
    Session(pair, sources.fit_padding(), run),
    Measuring(num_timed=args.num_examples, repeats=args.repeats),
  )
  print(f"{pair.drafter_name} and {pair.verifier_name}, {device_name()}")
  print(
    "| T | method | ms | predicted ms | speed-up | predicted | share of it |"
  )
  print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
  for temperature in (0.0, 1.0):
    rounds = [race(study, args.gammas, temperature) for _ in range(args.rounds)]
    for name in rounds[0]:
      of_rounds = {
        key: [numbers[name][key] for numbers in rounds]
        for key in rounds[0][name]
      }
      times = (f"{np.median(of_rounds[x]):.2f}" for x in ("ms", "predicted_ms"))
      ratios = (spread(of_rounds[x]) for x in ("speedup", "predicted", "share"))
      print("|", " | ".join([f"{temperature:g}", name, *times, *ratios]), "|")


if __name__ == "__main__":
  main()
