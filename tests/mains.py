"""Runs a main in this process, with gin files and macros, and what it reads."""

import contextlib

import gin

from speccascade import cli
from speccascade.checkpoints import orbax_io
from tests.generate import tiny

# What only the user can say, where it is not text.
_GIVEN = {
  **{"BATCH_SIZE": 2, "CASCADE_K": [[2]], "TRAIN_STEPS": 1},
  "TASK_FEATURE_LENGTHS": {"inputs": 8, "targets": 8},
}
# A training of a tiny model on text files, that lacks its files.
TRAIN = """
from __gin__ import dynamic_registration
from speccascade.models.t5 import config
include "configs/runs/finetune.gin"
include "configs/data/text_files.gin"
tiny/config.T5Config:
  vocab_size = 128
  emb_dim = 16
  num_heads = 2
  num_encoder_layers = 1
  num_decoder_layers = 1
  head_dim = 8
  mlp_dim = 32
MODEL = @tiny/config.T5Config()
TASK_FEATURE_LENGTHS = {"inputs": 24, "targets": 16}
TRAIN_STEPS = 3
BATCH_SIZE = 4
NUM_DECODED_EXAMPLES = 2
MAX_DECODE_LEN = 4
BEST_METRIC = "chrf"
PREFIX = ""
DROPOUT_RATE = 0.0
"""


def start(main, capsys, *files, flags=(), **macros):
  """Returns (exit code, stdout, stderr).

  Args:
    main: the module of the main.
    capsys: pytest's.
    *files: gin files, in order.
    flags: further ones.
    **macros: by name; `...` leaves one out.
  """
  capsys.readouterr()
  argv = ["main", *(f"--gin_file={file}" for file in files), *flags]
  argv += [
    f"--gin.{name}={value!r}"
    for name, value in macros.items()
    if value is not ...
  ]
  try:
    code = cli.start(main.main, main.__doc__, argv)
  except SystemExit as stop:
    code = stop.code
  finally:
    gin.clear_config()  # which is locked, and not for the next test to read
  return code, *capsys.readouterr()


def resolve(flags, capsys) -> tuple[dict, str]:
  """Dry-runs a main of gin, giving it what it asks for.

  Returns:
    ({macro that it lacked: what was given}, stdout of the last run).
  """
  missing = {}
  while True:
    bindings = [f"--gin.{name}={value!r}" for name, value in missing.items()]
    code = cli.start(None, "", ["main", *flags, *bindings, "--dry_run"])
    out, err = capsys.readouterr()
    if code == 0:
      return missing, out
    names, asks, _ = err.removeprefix("error: ").partition(" must be given")
    asked = {name: _GIVEN.get(name, "text") for name in names.split(", ")}
    assert asks, err
    assert not asked.keys() <= missing.keys(), err
    missing |= asked


def refused(ended) -> str:
  """Returns the one line by which a main ended, of what `start` returns."""
  code, _, err = ended
  assert code == 1
  assert "Traceback" not in err
  [line] = [line for line in err.splitlines() if line.startswith("error: ")]
  return line


def pair(folder, texts) -> dict:
  """Returns macros of a pair, the vocabulary it was "trained" with, and texts.

  Args:
    folder: where they are written.
    texts: lines.
  """
  model = tiny.train_words(folder / "words.model")
  identity = orbax_io.vocabulary_identity(model)
  shape = {"vocab_size": 40, "vocabulary": identity}
  (folder / "in.txt").write_text("\n".join([*texts, ""]))
  return {
    "DRAFTER_CHECKPOINT": tiny.save(folder / "small", 0, **shape),
    "VERIFIER_CHECKPOINT": tiny.save(folder / "large", 1, **shape),
    "VOCABULARY": str(model),
    "INPUT_FILE": str(folder / "in.txt"),
  }


@contextlib.contextmanager
def own_tasks():
  """Forgets the tasks that are registered within, in this process."""
  # The package's own tasks stay: they are registered when this is imported.
  from speccascade.tasks import (
    registry,
    tasks,  # noqa: F401
  )
  from speccascade.tasks._tf import seqio

  before = set(seqio.TaskRegistry.names())
  try:
    yield
  finally:
    for name in set(seqio.TaskRegistry.names()) - before:
      seqio.TaskRegistry.remove(name)
      registry._SETTINGS.pop(name, None)
