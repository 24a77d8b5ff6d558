"""Measures several drafters of one verifier in one run.

  python -m benchmarks.drafters --verifier out/smollm/model \\
    --drafters out/drafter out/reader,draft_vocabulary=8192 early-exit:4 \\
    --input_files questions.jsonl sums.jsonl

Prompt lookup and each drafter decode the first texts of each file at batch 1,
in turns with the verifier alone. A drafter is what DRAFTER_CHECKPOINT names: a
checkpoint of a small language model, of draft heads or of a state reader;
early-exit:K, the verifier's first K layers; self-int8, the verifier itself with
int8 weights. Behind it there may be settings of `load_pair`, such as
draft_vocabulary=N or a file, and drafter_kernel_dtype=int8. A language model
also drafts together with prompt lookup (Cascade Speculative Drafting) unless
--alone is given.

A number in --gammas drafts as many tokens in every block. With "adaptive" each
row chooses the size of each block (docs/adaptive.md), by costs that are timed
before the first turn of each file and temperature.

c is the time of a draft over that of a token of the verifier, and v the time of
the verifier's pass over a block over that of a token, by hot loops; MB are
those that a draft reads of the drafter's arrays. The last column says how many
times as fast as the verifier alone a method is, a token, with the 95% interval
of a bootstrap over texts.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import functools
import itertools
import json
import pathlib
from typing import Any

import jax

from speccascade import cli, native
from speccascade.generate.batches.sources import Sources
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points import advice_files, round_times
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_checks import ADAPTIVE
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.models import cut_head
from speccascade.models.cached_lm import CachedLM
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.reader_model import StateReader
from speccascade.runtime import files
from speccascade.runtime.progress import ProgressBar
from speccascade.study import comparison
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.environment import device_name
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.report import tables
from speccascade.study.report.frontier import IntervalEstimate, inverse
from speccascade.study.report.tables import Column
from speccascade.study.rows.results import ResultRow
from speccascade.tasks.inputs import Inputs
from speccascade.tools.examples import smollm_race


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of the table.

  Attributes:
    texts: the name of a file of texts.
    drafter: the name of the rival.
    row: the measured row.
    megabytes: what a draft reads; None for prompt lookup.
  """

  texts: str
  drafter: str
  row: ResultRow
  megabytes: float | None

  @property
  def block(self) -> str:
    """The size of a chain or "adaptive", or the children of a tree by depth."""
    settings = self.row.settings
    return str(settings.tree or settings.gamma)

  @property
  def speedup(self) -> IntervalEstimate:
    """How many times as fast as the verifier alone it writes a token."""
    latency = self.row.latency
    assert latency is not None
    whole = (
      latency.relative_latency,
      latency.relative_low,
      latency.relative_high,
    )
    return inverse(IntervalEstimate(*(latency.per_token or whole)))

  @property
  def v(self) -> float | None:
    """The verifier's pass over a block of fixed size, in tokens."""
    costs, settings = self.row.costs, self.row.settings
    if costs is None or settings.tree or settings.gamma == ADAPTIVE:
      return None
    return costs.v.get(settings.gamma + 1)

  def summary(self) -> dict[str, Any]:
    """Returns what the file of rows says of the line."""
    settings, found = self.row.settings, self.row.efficiency
    costs = self.row.costs
    return {
      "texts": self.texts,
      "drafter": self.drafter,
      "method": settings.method,
      "temperature": settings.temperature,
      "gamma": settings.gamma,
      "tree": settings.tree,
      "c": None if costs is None else costs.c,
      "v": self.v,
      "megabytes": self.megabytes,
      # Of "adaptive" alone: the mean over blocks of what was drafted.
      "mean_gamma": found.get("mean_gamma"),
      "tokens_per_block": found["mean_acceptance_length"],
      "acceptance_rate": found["acceptance_rate"],
      "speedup": [self.speedup.value, *self.speedup.bounds],
      "device": device_name(),
    }


COLUMNS = (
  Column("texts", "texts"),
  Column("T", lambda line: f"{line.row.settings.temperature:g}"),
  Column("drafter", "drafter"),
  Column("method", "row.label"),
  Column("gamma", lambda line: line.block),
  Column("mean gamma", lambda line: line.row.efficiency.get("mean_gamma"), 2),
  Column("c", "row.costs.c", 3),
  Column("v", "v", 2),
  Column("MB", "megabytes", 1),
  Column("tokens/block", "row.efficiency.mean_acceptance_length", 2),
  Column("acceptance", "row.efficiency.acceptance_rate", 3),
  Column(
    tables.BY_POSITION.title,
    lambda line: tables.BY_POSITION.value_of(line.row),
  ),
  Column("times as fast", "speedup", 2, has_interval=True),
)


def method(text: str) -> tuple[str, float | None]:
  """Returns the (name, alpha) that a flag names.

  >>> method("spec_cascade_opt:0.1"), method("spec_decode")
  (('spec_cascade_opt', 0.1), ('spec_decode', None))
  """
  name, _, alpha = text.partition(":")
  return name, float(alpha) if alpha else None


def gamma(text: str) -> int | str:
  """Returns the size of each block that a flag names, or "adaptive".

  >>> gamma("3"), gamma("adaptive")
  (3, 'adaptive')
  """
  if text == ADAPTIVE:
    return text
  try:
    return int(text)
  except ValueError as error:
    raise argparse.ArgumentTypeError(
      f"{text!r} is not a gamma; wanted a number or {ADAPTIVE}"
    ) from error


def sizes(text: str) -> tuple[int, ...]:
  """Returns the numbers of a flag.

  >>> sizes("2,1")
  (2, 1)
  """
  return tuple(map(int, text.split(",")))


def named_settings(text: str) -> tuple[str, dict[str, Any]]:
  """Returns the drafter that a flag names, and its settings.

  >>> named_settings("out/reader,draft_vocabulary=8192")
  ('out/reader', {'draft_vocabulary': 8192})
  """
  path, *settings = text.split(",")
  values: dict[str, Any] = {}
  for setting in settings:
    name, equals, value = setting.partition("=")
    if not equals:
      raise argparse.ArgumentTypeError(
        f"{setting!r} of {text!r} is no setting; wanted NAME=VALUE"
      )
    values[name] = int(value) if value.isdigit() else value
  return path, values


@dataclasses.dataclass(frozen=True)
class Drafter:
  """A drafter with its verifier.

  Attributes:
    name: what the table says.
    pair: drafter and verifier.
  """

  name: str
  pair: ModelPair

  @property
  def is_composed(self) -> bool:
    """Whether it may also draft together with prompt lookup."""
    return isinstance(self.pair.drafter_lm, CachedLM)


def megabytes(pair: ModelPair) -> float:
  """Returns how much of a drafter's arrays a draft reads.

  It is all of a head and of the layers. Of a table of tokens a draft reads one
  row, unless the head is the table. The model reads as much where copies of the
  text are drafted, too.
  """
  drafter: Any = pair.drafters[0].lm
  fuse: Any = ()
  if isinstance(drafter, StateReader):
    reading = drafter.reading_model(pair.verifier_lm)
    drafter, fuse = reading.lm, reading.params
  tree = dict(drafter.params)
  tree.pop("encoder", None)
  has_own = any(
    "logits_dense" in name for name in (*tree, *tree.get("decoder", ()))
  )
  if cut_head.NAME in tree:  # A reader shares the verifier's whole head, too.
    has_own = True
    tree["decoder"] = dict(tree.get("decoder", {}))  # Heads have none.
    tree["decoder"].pop("logits_dense", None)
  if isinstance(drafter, CachedLM) and has_own:
    tree.pop("token_embedder")
  if isinstance(drafter, TrainedHeads) and not has_own:
    tree["head"] = pair.verifier_lm.params["token_embedder"]
  parts = jax.tree.leaves(
    (tree, fuse), is_leaf=lambda x: isinstance(x, native.Panels)
  )
  return sum(map(_num_bytes, parts)) / 1e6


def _num_bytes(part: Any) -> int:
  """Returns the bytes of an array, or of one kernel among others."""
  if not isinstance(part, native.Panels):
    return part.nbytes
  num_panels = -(-part.num_out // part.array.shape[2])
  return part.array[:1].nbytes * num_panels


def read_pair(
  args, vocabulary, drafter: str | None = None, **settings
) -> ModelPair:
  """Returns the verifier with a drafter, or alone."""
  return PairSpec(
    drafter_checkpoint=drafter or (),
    verifier_checkpoint=args.verifier,
    kernel_dtype=args.kernel_dtype,
    **settings,
  ).load(vocabulary, needs_drafter=drafter is not None)


def read_drafters(args, vocabulary) -> list[Drafter]:
  """Returns the drafters of the flags."""
  drafters = []
  for path, settings in args.drafters:
    pair = read_pair(args, vocabulary, path, **settings)
    words = [pathlib.Path(path).name]
    for value in settings.values():
      words.append(pathlib.Path(str(value)).stem)
    drafters.append(Drafter(", ".join(words), pair))
  return drafters


def rivals_at(
  temperature: float, alone: ModelPair, drafters: list[Drafter], args
) -> list[smollm_race.Rival]:
  """Returns prompt lookup, and the drafters with the methods of the flags."""

  def lookup(name, pair, k):
    return smollm_race.cascade_rival(name, pair, Cascade(k=k), temperature)

  rivals = [lookup("prompt lookup", alone, [[w]]) for w in args.lookup]
  for drafter in drafters:
    points = [
      Point(name, alpha, gamma=gamma, temperature=temperature)
      for name, alpha in args.methods
      for gamma in args.gammas
    ]
    points += [
      Point(name, alpha, gamma=len(tree), tree=tree, temperature=temperature)
      for name, alpha in args.methods
      for tree in args.trees
    ]
    rivals.append(smollm_race.Rival(drafter.name, drafter.pair, tuple(points)))
    if drafter.is_composed and not args.alone:
      name = f"{drafter.name} and prompt lookup"
      rivals.append(lookup(name, drafter.pair, [[1, 2], [0, 2]]))
  return rivals


def study_of(rival: smollm_race.Rival, sources: Sources, args) -> Study:
  """Returns the study of a rival, which times all examples."""
  run = Run(max_decode_len=args.max_decode_len, batch_size=1, progress=False)
  return Study(
    Session(rival.pair, sources, run),
    Measuring(num_timed=args.num_examples, repeats=args.repeats),
  )


def check(study: Study, points: Sequence[Point]):
  """Raises ValueError where the models of a study do not fit a point."""
  for point in points:
    point = advice_files.resolve_gamma(point, study.pair)
    if point.is_adaptive:  # Whether it fits does not depend on its costs.
      costs = DraftCosts.of_one_size(point.sizes[-1], point.sizes)
      point = dataclasses.replace(point, draft_costs=costs)
    study.batches(point, timed=True).check()


def priced(study: Study, points: Sequence[Point]) -> list[Point]:
  """Returns points with the costs by which "adaptive" chooses block sizes."""
  batches_at = functools.partial(study.batches, timed=True)
  return [round_times.priced(point, batches_at) for point in points]


def main():
  parser = cli.Parser("drafters", __doc__, "benchmarks")
  add = parser.add_argument
  add("--verifier", type=pathlib.Path, required=True, help="its checkpoint")
  add(
    "--drafters",
    type=named_settings,
    nargs="*",
    default=[],
    metavar="DRAFTER[,NAME=VALUE...]",
    help="checkpoints, early-exit:K or self-int8, with settings (none)",
  )
  add("--input_files", nargs="+", required=True, help="a text a line, or JSON")
  add(
    "--methods",
    type=method,
    nargs="*",
    default=[("spec_decode", None)],
    metavar="METHOD[:ALPHA]",
    help="of the drafters (spec_decode)",
  )
  add(
    "--gammas",
    type=gamma,
    nargs="*",
    default=[1, 2, 3],
    help=f"numbers, or {ADAPTIVE} (1 2 3)",
  )
  add(
    "--trees",
    type=sizes,
    nargs="*",
    default=[],
    metavar="N,N...",
    help="children at each depth of trees of drafts (none)",
  )
  add("--lookup", type=int, nargs="*", default=[3], help="tokens it copies")
  add("--alone", action="store_true", help="no drafter with prompt lookup")
  add("--temperatures", type=float, nargs="*", default=[0.0, 1.0])
  add("--kernel_dtype", default="bfloat16", help="of both (%(default)s)")
  add("--num_examples", type=int, default=12, help="of each file (%(default)s)")
  add("--max_inputs", type=int, default=512, help="tokens of a text")
  add("--max_decode_len", type=int, default=64, help="tokens of an output")
  add("--repeats", type=int, default=1, help="of each decode (%(default)s)")
  add("--rows", type=pathlib.Path, help="a file for the rows, as JSON lines")
  args = parser.parse_args()

  texts = {
    pathlib.Path(path).stem: Inputs(
      {"inputs": args.max_inputs},
      input_file=path,
      num_examples=args.num_examples,
    ).read(str(args.verifier))
    for path in args.input_files
  }
  vocabulary = next(iter(texts.values())).vocabulary
  alone, drafters = read_pair(args, vocabulary), read_drafters(args, vocabulary)
  all_rivals = {
    temperature: rivals_at(temperature, alone, drafters, args)
    for temperature in args.temperatures
  }
  for rival in itertools.chain(*all_rivals.values()):
    try:
      check(study_of(rival, next(iter(texts.values())), args), rival.points)
    except ValueError as error:
      parser.error(f"{rival.name}: {error}")
  lines = []
  for temperature, rivals in all_rivals.items():
    turns = sum(1 + len(rival.points) for rival in rivals)
    decodes = turns * args.repeats * args.num_examples * len(texts)
    with ProgressBar(
      total=decodes, unit="decode", desc=f"T = {temperature:g}"
    ) as bar:
      for name, sources in texts.items():
        for rival in rivals:
          study = study_of(rival, sources, args)
          points = priced(study, rival.points)
          costs = size = None
          if rival.pair.drafters:
            size = megabytes(rival.pair)
            costs = point_timing.measure_costs(study, points)
          compared = comparison.compare(study, points, tick=bar.update)
          # The first row is the verifier alone.
          for row in compared.rows[1:]:
            row = dataclasses.replace(row, costs=costs)
            lines.append(Line(name, rival.name, row, size))
  if args.rows:
    written = [json.dumps(line.summary()) + "\n" for line in lines]
    files.write_whole(args.rows, written)
  print(f"{args.verifier}, {args.kernel_dtype} kernels, {device_name()}\n")
  print(tables.markdown(lines, COLUMNS))


if __name__ == "__main__":
  main()
