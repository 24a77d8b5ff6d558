"""What the benchmarks of a pair on the built-in task share."""

import pathlib

from speccascade import cli
from speccascade.generate.batches.sources import Sources
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.tasks.generated import task
from speccascade.tasks.inputs import Inputs

MAX_DECODE_LEN = 48


def parser(name: str, doc: str, *, required: bool = True) -> cli.Parser:
  """Returns the flags of a benchmark of a pair, --pair among them.

  Args:
    name: of the benchmark.
    doc: its description.
    required: whether --pair must be given.
  """
  flags = cli.Parser(name, doc, "benchmarks")
  flags.add_argument(
    "--pair",
    type=pathlib.Path,
    required=required,
    help="a folder with small/ and large/, as the quick start leaves it",
  )
  return flags


def read(
  folder: pathlib.Path, num_examples: int, drafter: str | None = None
) -> tuple[Sources, ModelPair]:
  """Returns test sentences, and the pair of a folder or another drafter."""
  sources = Inputs(
    {"inputs": 96},
    mixture_or_task_name=task.register(),
    split="test",
    num_examples=num_examples,
  ).read()
  pair = PairSpec(
    drafter_checkpoint=drafter or str(folder / "small"),
    verifier_checkpoint=str(folder / "large"),
  ).load(sources.vocabulary)
  return sources, pair
