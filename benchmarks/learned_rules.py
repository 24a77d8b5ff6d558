"""Learned rules compared with plug-ins, at equal numbers of verifier calls.

  python -m benchmarks.learned_rules --pair speccascade/built_in \\
    --rule out/rule/rule.npz
  python -m benchmarks.learned_rules --pair out/multi30k \\
    --rule out/multi30k/rule/rule.npz --vocabulary multi30k.model \\
    --test_files data/test_2016_flickr --max_decode_len 64 --gamma 3

Each method decodes a test split at its default alphas or at others. The quality
of a method at a number of verifier calls a token lies on the line between two
of its points. Its difference from OPT's quality there has the 95% interval of a
bootstrap over sentences, with the same resamples for all methods, of quality
and of calls. --costs times pi alone on random pairs, and whole blocks of
decodes of one sentence at a time, the methods in turn.
"""

from collections.abc import Sequence
import functools
import json
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import built_in
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.records import text_of
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.report import frontier
from speccascade.study.search.grid import default_grid
from speccascade.tasks import quality, tasks
from speccascade.tasks.generated import task
from speccascade.tasks.inputs import Inputs

BASE = "spec_cascade_opt"
METHODS = (
  BASE,
  "spec_cascade_diff",
  "spec_cascade_opt_calibrated",
  "spec_cascade_diff_calibrated",
  "spec_cascade_learned",
  "spec_cascade_mixture",
  "spec_cascade_token_v3",
  "spec_decode_lossy",
)
RESAMPLES = 1000


class Decodes(NamedTuple):
  """What the decodes of one point gave, summed over trials.

  Attributes:
    statistics: `quality.Statistics` of N sentences.
    calls: [N] verifier calls.
    tokens: [N] emitted tokens.
    examined: [N] drafts that were examined.
    accepted: [N] drafts that were accepted.
  """

  statistics: quality.Statistics
  calls: np.ndarray
  tokens: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray

  @property
  def rejection(self) -> float:
    return 1 - self.accepted.sum() / self.examined.sum()

  def samples(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns calls a token and quality, [1 + RESAMPLES] each."""
    num = len(self.tokens)
    rng = np.random.default_rng(0)
    weights = [np.ones(num)]
    for _ in range(RESAMPLES):
      drawn = rng.integers(num, size=num)
      weights.append(np.bincount(drawn, minlength=num))
    weights = np.stack(weights)
    calls = (weights @ self.calls) / (weights @ self.tokens)
    scores = [self.statistics.score(x) for x in weights @ self.statistics.sums]
    return calls, np.array(scores)


def decode(study: Study, point: Point, trials: int, metric: str) -> Decodes:
  """Decodes all examples at a point, several times."""
  texts, columns, groups = [], [], []
  for trial in range(trials):
    decoded = study.batches(point).decode_all(study.examples, trial)
    ends = zip(decoded.tokens, decoded.lengths)
    texts += [text_of(study.session.vocabulary, row[:end]) for row, end in ends]
    stats = decoded.stats
    columns.append(
      [stats.verifier_calls, decoded.lengths, stats.examined, stats.accepted]
    )
    groups += range(len(study.examples))
  references = [example.references for example in study.examples] * trials
  [statistics] = quality.metric(metric)(texts, references)
  return Decodes(
    statistics.grouped(groups), *np.sum(columns, axis=0, dtype=np.float64)
  )


def compare(
  decodes: dict[str, list[Decodes]],
  metric: str,
  budgets: Sequence[float] | None,
  base: str = BASE,
):
  """Prints the quality of each method at equal calls, and against a base's."""
  curves = {
    name: frontier.points_by_replicate(
      *zip(*(each.samples() for each in several))
    )
    for name, several in decodes.items()
  }
  shown = np.asarray(budgets)
  if budgets is None:
    ranges = [points[0].latency for points in curves.values()]
    ends = max(x.min() for x in ranges), min(x.max() for x in ranges)
    shown = np.linspace(*ends, 5)
  print(f"\n{metric} at verifier calls a token, and over {base}")
  print("| method |", " | ".join(f"{x:.3f}" for x in shown), "| mean gap |")
  print("| --- |", " | ".join("---:" for _ in shown), "| ---: |")
  for name, points in curves.items():
    cells = []
    for budget in shown:
      score = functools.partial(frontier.quality_within, latency=budget)
      at = frontier.estimate(score, points)
      if not np.isfinite(at.value):  # its points all need more calls
        cells.append("-")
        continue
      gap = frontier.estimate(
        functools.partial(_gap, budget), points, curves[base]
      )
      cells.append(f"{at.value:.2f}{format_gap(gap, name == base)}")
    gap = frontier.estimate(frontier.mean_gap, points, curves[base])
    cells.append(format_gap(gap, name == base).strip() or "-")
    print(f"| {name} |", " | ".join(cells), "|")


def _gap(budget: float, points, base) -> float:
  """Returns the quality of points within a budget, minus that of the base."""
  of = frontier.quality_within(points, budget)
  return of - frontier.quality_within(base, budget)


def format_gap(gap: frontier.IntervalEstimate, is_base: bool) -> str:
  if is_base:
    return ""
  low, high = gap.bounds
  return f" ({gap.value:+.2f} [{low:+.2f}, {high:+.2f}])"


def pi_costs(points: Sequence[Point], vocab_size: int, gamma: int, rounds: int):
  """Prints the time of pi of a block, and its ratio to OPT's."""
  rng = np.random.default_rng(0)
  shape = (1, gamma + 1, vocab_size)
  q, p = (
    jax.nn.softmax(jnp.asarray(rng.normal(0, 4, shape), jnp.float32))
    for _ in range(2)
  )
  functions = {}
  for point in points:
    target = point.spec.target

    # What verification does next is a part of it: min(q, pi) is summed up.
    @jax.jit
    def block(q, p, alpha, target=target):
      pi = target.probs(q, p, alpha=alpha, sampled=(q, p))
      return jnp.sum(jnp.minimum(q, pi), axis=-1)

    functions[point.method] = (block, point.decoder_alpha)
  seconds = {name: [] for name in functions}
  for number in range(rounds + 1):
    for name, (block, alpha) in functions.items():
      start = time.perf_counter()
      for _ in range(20):
        block(q, p, alpha).block_until_ready()
      if number:  # the first round compiles
        seconds[name].append((time.perf_counter() - start) / 20)
  print_ratios(f"pi of a block, V {vocab_size}, gamma {gamma}", seconds)


def block_costs(study: Study, points: Sequence[Point], rounds: int):
  """Prints the time of a block of whole decodes, and its ratio to OPT's."""
  alone = [study.batches(point, timed=True, shared=False) for point in points]
  seconds: dict[str, list[float]] = {point.method: [] for point in points}
  for number in range(rounds + 1):
    # The first round compiles.
    example = study.examples[max(number - 1, 0)]
    for point, batches in zip(points, alone):
      decode = batches.bind(batches.prepare([example]))
      start = time.perf_counter()
      decoded = jax.block_until_ready(decode())
      taken = time.perf_counter() - start
      if number:
        num_blocks = int(decoded.stats.num_blocks.sum())
        seconds[point.method].append(taken / num_blocks)
  print_ratios("a block of a decode at batch 1, encoder included", seconds)


def print_ratios(what: str, seconds: dict[str, list[float]]):
  """Prints medians, and the quartiles of the ratio to OPT in the same turn."""
  print(f"\n{what}: us, and over {BASE}")
  base = np.array(seconds[BASE])
  for name, values in seconds.items():
    low, middle, high = np.quantile(np.array(values) / base, [0.25, 0.5, 0.75])
    median = 1e6 * np.median(values)
    print(f"| {name} | {median:.0f} | {middle:.2f} [{low:.2f}, {high:.2f}] |")


def main():
  parser = built_in.parser("learned_rules", __doc__)
  add = parser.add_argument
  add("--rule", required=True, help="the file of speccascade.learned_rule")
  add("--methods", nargs="+", default=METHODS)
  add("--test_files", help="NAME of NAME.en and NAME.de; None: built-in task")
  add("--vocabulary", help="of the test files")
  add("--metric", help="the task's first one")
  add("--num_examples", type=int, default=500)
  add("--max_decode_len", type=int, default=96)
  add("--gamma", type=int, default=5)
  add("--temperature", type=float, default=1.0)
  add("--trials", type=int, default=2)
  add("--batch_size", type=int, default=50)
  add("--split", default="test", help="of the built-in task")
  add("--rows", help="a file that gets a line of JSON for each point")
  add("--alphas", type=float, nargs="+", help="each method's own grid")
  add("--calls", type=float, nargs="+", help="a token, where to compare")
  add("--costs", type=int, default=0, help="rounds of timing pi; 0 decodes")
  args = parser.parse_args()
  name = task.register()
  if args.test_files is not None:
    name = tasks.register_text_task(
      "learned_rules_task",
      tasks.TextSplits(test=args.test_files),
      prefix="",
      vocabulary=args.vocabulary,
    )
  sources = Inputs(
    {"inputs": 96},
    mixture_or_task_name=name,
    split=args.split,
    num_examples=args.num_examples,
  ).read()
  metric = args.metric or sources.metrics[0]
  pair = PairSpec(
    drafter_checkpoint=str(args.pair / "small"),
    verifier_checkpoint=str(args.pair / "large"),
  ).load(sources.vocabulary)
  run = Run(
    max_decode_len=args.max_decode_len,
    batch_size=args.batch_size,
    num_lengths=1,
    progress=False,
  )
  measuring = Measuring(num_timed=args.costs)
  study = Study(Session(pair, sources.fit_padding(), run), measuring)
  size = pair.verifier_lm.vocab_size
  point = Point(
    "spec_decode",
    gamma=args.gamma,
    temperature=args.temperature,
    rule_parameters=args.rule,
  )
  if args.costs:
    points = [point.of(name) for name in ("spec_decode", *args.methods)]
    for vocab_size in (size, 32128):
      pi_costs(points, vocab_size, args.gamma, args.costs)
    block_costs(study, points, args.costs)
    return
  decodes: dict[str, list[Decodes]] = {}
  for name in ("spec_decode", *args.methods):
    method = point.of(name)
    grid = default_grid(method.spec, size, greedy=method.is_greedy)
    alphas = grid.alphas and (args.alphas or grid.alphas)
    for alpha in alphas or [None]:
      each = decode(study, point.of(name, alpha=alpha), args.trials, metric)
      decodes.setdefault(name, []).append(each)
      row = {
        "method": name,
        "alpha": alpha,
        metric: each.statistics.value,
        "calls_per_token": each.calls.sum() / each.tokens.sum(),
        "rejection_rate": each.rejection,
      }
      print(json.dumps(row), flush=True)
      if args.rows:
        with open(args.rows, "a", encoding="utf-8") as file:
          file.write(json.dumps(row) + "\n")
  del decodes["spec_decode"]  # a point, and no curve
  compare(decodes, metric, args.calls)


if __name__ == "__main__":
  main()
