"""Measures several drafters of one verifier in one run.

  python -m benchmarks.drafters --verifier out/smollm/model \\
    --drafters out/drafter out/heads --input_files questions.jsonl sums.jsonl

Prompt lookup and each drafter decode the first texts of each file at batch 1,
in turns with the verifier alone. A drafter is a checkpoint, a small language
model or draft heads; or self-int8, the verifier itself with int8 weights. A
language model also drafts together with prompt lookup (Cascade Speculative
Drafting). The last column says how many times as fast as the verifier alone a
method is, a token, with the 95% interval of a bootstrap over texts.
"""

import dataclasses
import pathlib

from speccascade import checkpoints, cli
from speccascade.generate.pair import drafter_kernels
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.models.draft_heads import HeadsConfig
from speccascade.runtime import files
from speccascade.runtime.progress import ProgressBar
from speccascade.study import comparison
from speccascade.study.measuring.environment import device_name
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.report import tables
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
  """

  texts: str
  drafter: str
  row: ResultRow


COLUMNS = (
  Column("texts", "texts"),
  Column("T", lambda line: f"{line.row.settings.temperature:g}"),
  Column("drafter", "drafter"),
  Column("method", "row.label"),
  Column("gamma", "row.settings.gamma"),
  Column("tokens/block", "row.efficiency.mean_acceptance_length", 2),
  Column("acceptance", "row.efficiency.acceptance_rate", 3),
  Column(
    tables.BY_POSITION.title,
    lambda line: tables.BY_POSITION.value_of(line.row),
  ),
  Column("times as fast", lambda line: tables.SPEEDUP.value_of(line.row), 2),
)


def method(text: str) -> tuple[str, float | None]:
  """Returns the (name, alpha) that a flag names.

  >>> method("spec_cascade_opt:0.1"), method("spec_decode")
  (('spec_cascade_opt', 0.1), ('spec_decode', None))
  """
  name, _, alpha = text.partition(":")
  return name, float(alpha) if alpha else None


@dataclasses.dataclass(frozen=True)
class Drafter:
  """A drafter with its verifier.

  Attributes:
    name: the name of the checkpoint's folder.
    pair: drafter and verifier.
    has_heads: whether the drafter is draft heads, not a language model.
  """

  name: str
  pair: ModelPair
  has_heads: bool


def read_pair(
  args, vocabulary, drafter: pathlib.Path | None = None
) -> ModelPair:
  """Returns the verifier with a drafter, or alone."""
  return PairSpec(
    drafter_checkpoint=drafter or (),
    verifier_checkpoint=args.verifier,
    kernel_dtype=args.kernel_dtype,
  ).load(vocabulary, needs_drafter=drafter is not None)


def read_drafters(args, vocabulary) -> list[Drafter]:
  """Returns the drafters of the flags."""
  drafters = []
  for path in args.drafters:
    model = args.verifier if drafter_kernels.names_self(path) else path
    config = checkpoints.load(model, lazy=True).require_config()
    pair = read_pair(args, vocabulary, path)
    has_heads = isinstance(config, HeadsConfig)
    drafters.append(Drafter(path.name, pair, has_heads))
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
    rivals.append(smollm_race.Rival(drafter.name, drafter.pair, tuple(points)))
    if not drafter.has_heads:
      name = f"{drafter.name} and prompt lookup"
      rivals.append(lookup(name, drafter.pair, [[1, 2], [0, 2]]))
  return rivals


def main():
  parser = cli.Parser("drafters", __doc__, "benchmarks")
  add = parser.add_argument
  add("--verifier", type=pathlib.Path, required=True, help="its checkpoint")
  add(
    "--drafters",
    type=pathlib.Path,
    nargs="*",
    default=[],
    help="checkpoints of small models or of draft heads, or self-int8 (none)",
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
  add("--gammas", type=int, nargs="*", default=[1, 2, 3])
  add("--lookup", type=int, nargs="*", default=[3], help="tokens it copies")
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
  lines = []
  for temperature in args.temperatures:
    rivals = rivals_at(temperature, alone, drafters, args)
    turns = sum(1 + len(rival.points) for rival in rivals)
    decodes = turns * args.repeats * args.num_examples * len(texts)
    with ProgressBar(
      total=decodes, unit="decode", desc=f"T = {temperature:g}"
    ) as bar:
      for name, sources in texts.items():
        for rival in rivals:
          run = Run(
            max_decode_len=args.max_decode_len, batch_size=1, progress=False
          )
          study = Study(
            Session(rival.pair, sources, run),
            Measuring(num_timed=args.num_examples, repeats=args.repeats),
          )
          compared = comparison.compare(study, rival.points, tick=bar.update)
          # The first row is the verifier alone.
          lines += [Line(name, rival.name, row) for row in compared.rows[1:]]
  if args.rows:
    files.write_whole(args.rows, [line.row.to_json() + "\n" for line in lines])
  print(f"{args.verifier}, {args.kernel_dtype} kernels, {device_name()}\n")
  print(tables.markdown(lines, COLUMNS))


if __name__ == "__main__":
  main()
