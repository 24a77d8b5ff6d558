"""Wall-clock time of an adaptive draft length and of fixed gammas, in turns.

  python -m benchmarks.adaptive --pair speccascade/built_in
  python -m benchmarks.adaptive --pair speccascade/built_in --costs FILE

A pair decodes three texts greedily, at batch 1: sentences of the built-in task,
which it knows; sources of random tokens; and sources that repeat their first
tokens. Each competitor writes the same tokens, and all of them take turns on
each source. The last columns are how many times as fast as the verifier alone,
and as the best fixed gamma of the text, with 95% intervals of a bootstrap over
sources.

With --costs nothing is timed. The rounds of each decode are priced by the costs
in a file that a decode left in its OUTPUT_DIR, or that --write_costs wrote.
"""

from collections import Counter
import dataclasses
import functools
import itertools
import pathlib
import time

import jax
import numpy as np

from benchmarks import built_in
from speccascade.generate.batches.sources import Source, Sources
from speccascade.generate.points import round_times
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring.environment import device_name

ALONE, ADAPTIVE = "verifier alone", "adaptive"
GAMMAS = (1, 2, 3, 5, 8)
MAX_DECODE_LEN = 96


def texts_of(sources: Sources, vocab_size: int) -> dict[str, list[Source]]:
  """Returns the sources of each text, by its name."""
  rng = np.random.default_rng(0)

  def like(example: Source, tokens: list[int]) -> Source:
    ended = np.array([*tokens, example.tokens[-1]], example.tokens.dtype)
    return dataclasses.replace(example, tokens=ended)

  return {
    "known": list(sources.examples),
    "noise": [
      like(example, rng.integers(3, vocab_size, 40).tolist())
      for example in sources.examples
    ],
    "copies": [
      like(example, [*example.tokens[:6]] * 10) for example in sources.examples
    ],
  }


def seconds_of(calls: dict[str, list], repeats: int) -> dict[str, list[float]]:
  """Returns the least seconds of each competitor for each source.

  In a turn a competitor decodes all sources one after the other, as a decode
  does. Where competitors take turns on each source, what is timed is how long
  the processor takes to find another program's code and weights again.
  """
  times: dict[str, list] = {name: [] for name in calls}
  names = list(calls)
  for repeat in range(repeats + 1):
    for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
      turn = []
      for call in calls[name]:
        start_s = time.perf_counter()
        jax.block_until_ready(call())
        turn.append(time.perf_counter() - start_s)
      if repeat:  # The first turn warms up.
        times[name].append(turn)
  return {name: np.min(each, axis=0).tolist() for name, each in times.items()}


def interval(seconds: np.ndarray, reference: np.ndarray) -> str:
  """Returns how many times as fast as a reference, with its 95% interval."""
  num = len(seconds)
  picks = np.random.default_rng(0).integers(0, num, (2000, num))
  ratios = reference[picks].sum(axis=1) / seconds[picks].sum(axis=1)
  low, high = np.quantile(ratios, [0.025, 0.975])
  return f"{reference.sum() / seconds.sum():.2f} [{low:.2f}, {high:.2f}]"


def priced(decoded, name: str, costs: DraftCosts) -> float:
  """Returns what the rounds of a decode of one row cost, in verifier steps."""
  cost_of = dict(zip(costs.sizes, costs.rounds))
  if name == ALONE:
    return float(decoded.lengths[0])
  if name != ADAPTIVE:
    gamma = int(name.split()[1])
    return float(decoded.stats.num_blocks[0]) * cost_of[gamma]
  trace, num = decoded.trace, int(decoded.lengths[0])
  gammas = dict(zip(trace.block[0, :num], trace.gamma[0, :num]))
  chains = sum(int(gamma) for gamma in gammas.values())
  reads = int(decoded.stats.drafter_calls[0]) - chains
  rounds = sum(cost_of[int(gamma)] for gamma in gammas.values())
  return rounds + reads * costs.catch_up


@dataclasses.dataclass
class Race:
  """What competitors took for one text.

  Attributes:
    seconds: of each competitor, for each source.
    drafted: tokens that each competitor drafted.
    blocks: rounds that each competitor took.
    scale: what a second is in the unit of the table.
    tokens: tokens that each of them wrote.
  """

  seconds: dict[str, list[float]]
  scale: float
  drafted: Counter = dataclasses.field(default_factory=Counter)
  blocks: Counter = dataclasses.field(default_factory=Counter)
  tokens: int = 0

  def add(self, outputs: dict):
    """Adds the outputs of one source, which must be alike."""
    for name, out in outputs.items():
      assert np.array_equal(out.tokens, outputs[ALONE].tokens), name
      self.drafted[name] += int(out.stats.drafted[0])
      self.blocks[name] += int(out.stats.num_blocks[0])
    self.tokens += int(outputs[ALONE].lengths[0])

  def print(self, text: str):
    """Prints a line of the table for each competitor."""
    totals = {name: np.array(each) for name, each in self.seconds.items()}
    fixed = [name for name in totals if name != ADAPTIVE]
    best = min(fixed, key=lambda name: totals[name].sum())
    for name, seconds in totals.items():
      num = self.blocks[name]
      mean = f"{self.drafted[name] / num:.1f}" if num else "-"
      each = self.scale * seconds.sum() / self.tokens
      print(
        f"| {text} | {name} | {mean} | {each:.3g}"
        f" | {interval(seconds, totals[ALONE])}"
        f" | {interval(seconds, totals[best])} |"
      )


def run_race(
  session: Session, points: dict[str, Point], examples, repeats: int, costs
) -> Race:
  """Returns what the points took for some sources; priced, where costs are."""
  calls: dict[str, list] = {name: [] for name in points}
  prices: dict[str, list[float]] = {name: [] for name in points}
  race = Race(prices, 1e6 if costs is None else 1.0)
  for example in examples:
    outputs = {}
    for name, point in points.items():
      batches = session.batches(point, shared=False, alike=session.examples)
      call = batches.bind(batches.prepare([example]))
      calls[name].append(call)
      outputs[name] = out = jax.device_get(call())
      if costs is not None:
        prices[name].append(priced(out, name, costs))
    race.add(outputs)
  if costs is None:
    race.seconds = seconds_of(calls, repeats)
  return race


def main():
  parser = built_in.parser("adaptive", __doc__)
  parser.add_argument("--num_examples", type=int, default=24)
  parser.add_argument("--repeats", type=int, default=7)
  parser.add_argument("--costs", type=pathlib.Path, help="prices; no clock")
  parser.add_argument("--write_costs", type=pathlib.Path)
  args = parser.parse_args()
  sources, pair = built_in.read(args.pair, args.num_examples)
  texts = texts_of(sources, pair.verifier_lm.vocab_size)
  # All sources are padded to one length, so that each competitor is compiled
  # once.
  examples = list(itertools.chain(*texts.values()))
  sources = dataclasses.replace(sources, examples=examples).fit_padding()
  is_traced = args.costs is not None
  run = Run(max_decode_len=MAX_DECODE_LEN, batch_size=1, trace=is_traced)
  session = Session(pair, sources, run)
  point = Point("spec_decode", gamma=ADAPTIVE, temperature=0.0)
  if is_traced:
    point = dataclasses.replace(point, draft_costs=args.costs)
  point = round_times.priced(
    point, functools.partial(session.batches, shared=False, alike=examples)
  )
  costs = point.draft_costs
  if args.write_costs is not None:
    costs.write(args.write_costs)
  points = {ALONE: point.of("verifier"), ADAPTIVE: point}
  for gamma in GAMMAS:
    points[f"gamma {gamma}"] = dataclasses.replace(point, gamma=gamma)
  print(f"{pair.drafter_name} and {pair.verifier_name}, {device_name()}")
  rounds = zip(costs.sizes, costs.rounds)
  words = ", ".join(f"{gamma}: {cost:.2f}" for gamma, cost in rounds)
  print(f"A round of each gamma, in rounds of gamma 0: {words}")
  unit = "rounds" if is_traced else "us"
  print(f"| text | competitor | gamma | {unit} a token | x alone | x best |")
  print("| --- | --- | ---: | ---: | ---: | ---: |")
  for text, of_text in texts.items():
    race = run_race(
      session, points, of_text, args.repeats, costs if is_traced else None
    )
    race.print(text)


if __name__ == "__main__":
  main()
