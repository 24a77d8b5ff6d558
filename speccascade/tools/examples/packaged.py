"""Makes the pair that comes with the package once more.

  python -m speccascade.quickstart.packaged --output_dir=out/built_in

Trains both models on the built-in task, as configs/built_in says, and writes
them to OUTPUT_DIR/pair in bfloat16, with a card of recipe and hashes. A second
run continues where the first one stopped.
"""

import importlib.metadata
import pathlib
import shutil
import sys

from speccascade import cli
from speccascade.runtime import files, folders
from speccascade.study.report import card as model_card

CONFIGS = "configs/built_in"
CARD = "README.md"
MODELS = ("small", "large")
# Parameters for a run of seconds, besides those of the quick start.
FAST_MODEL = {
  "built_in_large/config.T5Config.emb_dim": 16,
  "built_in_large/config.T5Config.num_decoder_layers": 1,
}
LIBRARIES = ("jax", "flax", "optax", "seqio", "tensorflow")

_TITLE = "The pair that comes with the package"
_TEXT = """\
Two T5 models that translate the sentences of the built-in task (English to
German, `speccascade/tasks/generated`). The sentences are generated, so the
models contain nobody else's text. They are for trying out what the package
does, and for nothing else."""
_RECIPE = (
  "by `python -m speccascade.quickstart.packaged`, which trains with"
  " `configs/built_in/train_small.gin` and `configs/built_in/train_large.gin`,"
  " and writes the last checkpoints in bfloat16 in the layout of transformers"
)
_CLOSING = """\
A training elsewhere gives models of the same quality, but not the same bits."""


def make(folder: pathlib.Path, *, is_fast: bool = False) -> pathlib.Path:
  """Trains both models and writes the pair; returns the pair's folder.

  Args:
    folder: where the checkpoints go, and the pair as `pair`.
    is_fast: whether the models may learn nothing.

  Raises:
    ValueError: a training failed. The training has printed why.
  """
  # These need seconds to import, which `--help` does without.
  from speccascade.checkpoints import convert
  from speccascade.tasks.generated import task_pieces
  from speccascade.tools.examples import quickstart

  changes = {**quickstart.FAST_TRAINING, **FAST_MODEL} if is_fast else None
  quickstart.train_pair(folder, changes, configs=CONFIGS)
  pair = folder / "pair"
  for name in MODELS:
    shutil.rmtree(pair / name, ignore_errors=True)
    convert.convert(
      folder / name,
      pair / name,
      format="hugging_face",
      dtype="bfloat16",
      vocabulary=task_pieces.model_path(),
      parameters_only=True,
    )
  files.write_whole(pair / CARD, card(pair).to_markdown())
  files.write_whole(pair / "card.json", card(pair).to_json())
  return pair


def card(pair: pathlib.Path) -> model_card.ModelCard:
  """Returns the card of a pair: its recipe, and the hashes of its files.

  Args:
    pair: the folder with the models `small` and `large`.
  """
  versions = ", ".join(
    f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES
  )
  return model_card.ModelCard(
    title=_TITLE,
    text=_TEXT,
    facts={"Made": _RECIPE, "Versions": versions},
    licence="Apache-2.0, as the package",
    hashes=model_card.hashes_of(pair, MODELS),
    closing=_CLOSING,
  )


def main(argv: list[str] | None = None) -> int:
  """Makes the pair; returns the exit code."""
  parser = cli.Parser("quickstart.packaged", __doc__)
  parser.add_argument(
    "--output_dir",
    dest="folder",
    type=cli.path,
    default=pathlib.Path("out/built_in"),
    help="where checkpoints and the pair go (%(default)s)",
  )
  parser.add_argument(
    "--fast",
    dest="is_fast",
    action="store_true",
    help="seconds: tiny models that learn nothing, to see that all works",
  )
  return parser.run(run, argv, "interrupted; run again to continue")


def run(folder: pathlib.Path, *, is_fast: bool) -> int:
  """Makes the pair and prints where it is; returns the exit code.

  Args:
    folder: where everything goes.
    is_fast: whether the models may learn nothing.
  """
  cli.compilation_cache()
  with folders.sole_writer(folder, "--output_dir"):
    pair = make(folder, is_fast=is_fast)
  print(f"the pair is in {pair.absolute()}: README.md there has its hashes")
  return 0


if __name__ == "__main__":
  sys.exit(main())
