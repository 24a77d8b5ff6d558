"""Compares trees of drafts with chains, in calls and in wall-clock time.

  python -m benchmarks.trees --pair out/quickstart
  python -m benchmarks.trees --drafter out/small --verifier out/large \
    --input_file test.en

The verifier alone, chains of several gammas and trees of several shapes take
turns at batch 1 on the test sentences of the built-in task, or on the texts of
a file. That pair may be decoder-only. "accepted" is the number of accepted
drafts a block, "tokens" the number of tokens a block, which is a pass of the
verifier. The speed-up over the verifier alone has the 95% interval of a
bootstrap over sentences; so has the ratio to the best chain, with the same
resamples. A tree of one branch is timed next to its chain, too.
"""

import ast
import dataclasses
from typing import cast

import numpy as np

from benchmarks import built_in
from speccascade.decoding.records.decode_settings import draft_tree
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.sources import Sources
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.runtime.progress import ProgressBar
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.environment import device_name
from speccascade.study.measuring.study import Measuring, Study
from speccascade.tasks.inputs import Inputs

# A tree that is a chain, timed next to that chain.
ONE_BRANCH = (1, 1, 1)
# Of 4, 4, 8, 10 and 15 drafts.
TREES = [(2, 1), (-1, -1, 0, 2), (2, 1, 1, 1), (2, 2, 1), (3, 2, 1)]
WAYS = {
  "greedy_and_random": ("token", "traversal"),
  "without_replacement": ("token", "traversal"),
  "iid": ("token", "traversal", "k_seq"),
  "top_k": ("token", "traversal"),
}


@dataclasses.dataclass(frozen=True)
class Blocks:
  """What is compared.

  Attributes:
    gammas: the lengths of the chains.
    trees: the trees, as `TREE` has them.
    drawings: the ways in which children are chosen, keys of `WAYS`.
  """

  gammas: list[int]
  trees: list[tuple[int, ...]]
  drawings: list[str]


def shape(text: str) -> tuple[int, ...]:
  """Returns the tree that a flag names; ValueError where it is none."""
  try:
    tree = ast.literal_eval(text)
  except SyntaxError as error:
    raise ValueError(text) from error
  draft_tree(1, tree, None)
  return tree


def points(method: str, temperature: float, blocks: Blocks) -> dict[str, Point]:
  """Returns the chains and the trees by name."""
  found = {}
  chain = Point(method, temperature=temperature)
  for gamma in blocks.gammas:
    for verification in ("token", "block"):
      name = f"chain of {gamma}, {verification}"
      found[name] = dataclasses.replace(
        chain, gamma=gamma, verification=verification
      )
  found["one branch"] = dataclasses.replace(
    chain, gamma=len(ONE_BRANCH), tree=ONE_BRANCH, drawing="iid"
  )
  ways = [
    (drawing, way) for drawing in blocks.drawings for way in WAYS[drawing]
  ]
  if not temperature:
    ways = ways[:1]  # all ways of drawing and verifying are one
  for tree in blocks.trees:
    depth = cast(DraftTree, draft_tree(1, tree, None)).depth
    for drawing, verification in ways:
      name = f"{tree}, {drawing}, {verification}"
      found[name] = dataclasses.replace(
        chain,
        gamma=depth,
        tree=tree,
        drawing=drawing,
        verification=verification,
      )
  return found


def race(
  study: Study, method: str, temperature: float, blocks: Blocks
) -> list[str]:
  """Prints a line for each point; returns what is printed below the table."""
  named = points(method, temperature, blocks)
  alone = point_timing.reference(next(iter(named.values())))
  outs = {point: Outputs() for point in (alone, *named.values())}
  with ProgressBar(
    total=len(outs) * len(study.timed_examples) * study.measuring.repeats,
    unit="decode",
    desc=f"{method}, T = {temperature:g}",
  ) as bar:
    latencies = point_timing.time_points(
      study, list(outs), outputs=outs, tick=bar.update
    )
  replicates = {
    name: np.array(latencies[point].replicates) for name, point in named.items()
  }
  chains = [name for name in named if name.startswith("chain")]
  best = min(chains, key=lambda name: latencies[named[name]].relative_latency)

  def beside(name: str, other: str) -> str:
    """Returns how many times as fast as another, with its interval."""
    first, second = latencies[named[name]], latencies[named[other]]
    ratio = second.relative_latency / first.relative_latency
    ratios = replicates[other] / replicates[name]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"

  for name, point in named.items():
    counts = decode_counts.total(outs[point].counts)
    latency = latencies[point]
    passes = counts.num_blocks
    print(
      f"| {method} | {temperature:g} | {name} | {point.verify_width - 1} |"
      f" {counts.accepted / passes:.2f} | {counts.num_tokens / passes:.2f} |"
      f" {1 / latency.relative_latency:.2f}"
      f" [{1 / latency.relative_high:.2f}, {1 / latency.relative_low:.2f}] |"
      f" {beside(name, best)} |",
      flush=True,
    )
  same = f"chain of {len(ONE_BRANCH)}, token"
  if same not in named:
    return []
  where = f"{method}, T = {temperature:g}"
  return [
    f"{where}: a tree of one branch compared with the {same}:"
    f" {beside('one branch', same)}"
  ]


def read(args) -> tuple[Sources, ModelPair]:
  """Returns the examples and the pair that the flags name."""
  if args.pair:
    return built_in.read(args.pair, args.num_examples)
  spec = PairSpec(
    drafter_checkpoint=args.drafter,
    verifier_checkpoint=args.verifier,
    kernel_dtype=args.kernel_dtype,
  )
  inputs = Inputs(
    {"inputs": args.max_inputs},
    input_file=args.input_file,
    num_examples=args.num_examples,
    truncate=True,
  )
  sources = inputs.read(spec.vocabulary_path)
  return sources, spec.load(sources.vocabulary)


def main():
  parser = built_in.parser("trees", __doc__, required=False)
  add = parser.add_argument
  add("--drafter", help="in place of --pair: the checkpoint of a drafter")
  add("--verifier", help="its verifier's checkpoint")
  add("--input_file", help="its texts, a line each, or JSON lines")
  add("--kernel_dtype", default="float32", help="of it (%(default)s)")
  add("--max_inputs", type=int, default=96, help="tokens of a text")
  add(
    "--max_decode_len",
    type=int,
    default=built_in.MAX_DECODE_LEN,
    help="tokens of an output (%(default)s)",
  )
  add("--methods", nargs="*", default=["spec_decode"])
  add("--temperatures", type=float, nargs="*", default=[1.0, 0.0])
  add("--gammas", type=int, nargs="*", default=[2, 3, 4, 5])
  add(
    "--trees",
    type=shape,
    nargs="*",
    default=TREES,
    metavar='"(3, 2, 1)"',
    help="as TREE has them, in quotes (shapes of 4 to 15 drafts)",
  )
  add(
    "--drawings",
    nargs="*",
    choices=WAYS,
    default=list(WAYS),
    help="ways in which children are chosen (all)",
  )
  add("--num_examples", type=int, default=24)
  add("--repeats", type=int, default=3, help="of each decode")
  args = parser.parse_args()
  if not args.pair and not (args.drafter and args.verifier and args.input_file):
    parser.error("give --pair, or --drafter, --verifier and --input_file")
  sources, pair = read(args)
  run = Run(max_decode_len=args.max_decode_len, batch_size=1)
  study = Study(
    Session(pair, sources.fit_padding(), run),
    Measuring(num_timed=args.num_examples, repeats=args.repeats),
  )
  print(f"{pair.drafter_name} and {pair.verifier_name}, {device_name()}\n")
  print(
    "| method | T | block | drafts | accepted | tokens | speed-up (95%) |"
    " over the best chain's speed (95%) |"
  )
  print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
  blocks = Blocks(args.gammas, args.trees, args.drawings)
  below = []
  for method in args.methods:
    for temperature in args.temperatures:
      below += race(study, method, temperature, blocks)
  print("\n".join(["", *below]))


if __name__ == "__main__":
  main()
