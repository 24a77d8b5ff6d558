"""Trains a small pair on the built-in task and measures methods with it.

By the commands that the README shows: train, twice, and a sweep, each with its
gin file in configs/quickstart. What is done already is found in the output
folder and used again: checkpoints, and the rows of measured points.
"""

from collections.abc import Mapping
import os
import pathlib
import subprocess
import sys

import gin

from speccascade import cli
from speccascade.cli import gin_setup
from speccascade.progress import in_notebook
from speccascade.sweep import sweep

CONFIGS = "configs/quickstart"
MODELS = ("small", "large")

# Macros and parameters for seconds instead of minutes; the models learn
# nothing. For tests.
FAST_TRAINING = {
  "TRAIN_STEPS": 3,
  "BATCH_SIZE": 4,
  "NUM_EVAL_EXAMPLES": 0,
  "task.register.train": 400,
  "quickstart_small/config.T5Config.emb_dim": 8,
  "quickstart_large/config.T5Config.emb_dim": 16,
  "quickstart_large/config.T5Config.num_decoder_layers": 1,
}
FAST_TABLE = {
  "METHODS": ["spec_decode", "spec_cascade_token_v3"],
  "GAMMAS": [2],
  "NUM_EXAMPLES": 3,
  "NUM_TIMED": 1,
  "REPEATS": 1,
  "MAX_DECODE_LEN": 16,
}


def _bindings(values: Mapping) -> list[str]:
  return [f"{name} = {value!r}" for name, value in values.items()]


def train_pair(folder: str | os.PathLike, changes: Mapping | None = None):
  """Trains what `folder` does not hold yet; the two models side by side.

  Args:
    folder: of the checkpoints, in `small` and `large`.
    changes: values of macros or parameters, for both models.

  Raises:
    ValueError: a training failed; it has said why.
  """
  folder, running = pathlib.Path(folder), {}
  path = [str(gin_setup.PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
  try:
    for place, name in enumerate(MODELS):
      file = f"{CONFIGS}/train_{name}.gin"
      bindings = _bindings({"MODEL_DIR": str(folder / name), **(changes or {})})
      gin_setup.parse([file], bindings)
      steps = gin.query_parameter("%TRAIN_STEPS")
      if (folder / name / f"checkpoint_{steps}").is_dir():
        continue
      running[name] = subprocess.Popen(
        [
          *(sys.executable, "-m", "speccascade.train", f"--gin_file={file}"),
          *(f"--gin_bindings={binding}" for binding in bindings),
        ],
        env={
          **os.environ,
          "PYTHONPATH": os.pathsep.join(filter(None, path)),
          "TQDM_POSITION": str(place),  # a bar below the other
        },
        stderr=subprocess.STDOUT if in_notebook() else None,
      )
    codes = {name: process.wait() for name, process in running.items()}
  finally:
    for process in running.values():  # saves where it stops
      process.terminate()
      process.wait()
  for name, code in codes.items():
    if code:
      raise ValueError(f"training the {name} model ended with exit code {code}")


def run(
  folder: pathlib.Path, *, all_methods=False, is_fast=False, progress=True
) -> sweep.SweepOutcome:
  """Trains, decodes and measures.

  Args:
    folder: where everything is kept.
    all_methods: all that one drafter allows, not those of the table's config.
    is_fast: whether models may learn nothing.
    progress: show a bar of what is measured.
  """
  train_pair(folder, FAST_TRAINING if is_fast else None)
  macros = {
    "DRAFTER_CHECKPOINT": str(folder / "small"),
    "VERIFIER_CHECKPOINT": str(folder / "large"),
    "OUTPUT_DIR": str(folder),
    "settings.Run.progress": progress,
    **(FAST_TABLE if is_fast else {}),
    **({"METHODS": None} if all_methods else {}),
  }
  gin_setup.parse([f"{CONFIGS}/table.gin"], _bindings(macros))
  return cli.configured(sweep.sweep)(on_start=cli.save_config)
