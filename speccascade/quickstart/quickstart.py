"""Trains a small pair on the built-in task, measures methods, and reports.

By the commands that the README shows: train, twice, and a sweep, each with its
gin file in configs/quickstart. What is done already is found in the output
folder and used again: checkpoints, and the rows of measured points.
"""

import collections
from collections.abc import Mapping, Sequence
import os
import pathlib
import subprocess
import sys

import gin
import numpy as np

from speccascade import cli
from speccascade.cli import gin_setup
from speccascade.inference.rows.results import ResultRow
from speccascade.report import figures, tables, winners
from speccascade.report.findings import doubts as doubts_of
from speccascade.report.groups import PointGroup, studies
from speccascade.report.measured import MEASURED, SMALL, Measured
from speccascade.runtime import files
from speccascade.runtime.progress import in_notebook
from speccascade.sweep import sweep

CONFIGS = "configs/quickstart"
MODELS = ("small", "large")
FASTER, SLOWER, UNSURE = "faster than", "slower than", "not told apart from"

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
  path = os.pathsep.join(filter(None, path))
  try:
    for place, name in enumerate(MODELS):
      file = f"{CONFIGS}/train_{name}.gin"
      bindings = _bindings({"MODEL_DIR": str(folder / name), **(changes or {})})
      gin_setup.parse([file], bindings)
      steps = gin.query_parameter("%TRAIN_STEPS")
      if (folder / name / f"checkpoint_{steps}").is_dir():
        continue
      command = [sys.executable, "-m", "speccascade.train"]
      command.append(f"--gin_file={file}")
      command += [f"--gin_bindings={binding}" for binding in bindings]
      below = {"TQDM_POSITION": str(place)}  # a bar below the other
      running[name] = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, **below},
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
  return cli.configure(sweep.sweep)(on_start=cli.save_config)


def text(rows: Sequence[ResultRow]) -> str:
  """Returns the table and what it shows; first what there is to doubt."""
  (study,) = studies(rows, "bleu")
  doubts = "".join(f"{said}\n\n" for said in doubts_of(study))
  findings_text = "\n".join(f"- {line}" for line in findings(rows))
  return f"{doubts}{tables.markdown(rows)}\n{findings_text}"


def write(folder: pathlib.Path, rows: Sequence[ResultRow]):
  """Writes table.md, table.csv and quality_latency.{png,svg}."""
  row = rows[0]
  versions = row.environment["versions"].items()
  versions = ", ".join(
    f"{name} {number}" for name, number in versions if number
  )
  head = (
    f"# Quick start\n\n{row.settings.num_examples} test sentences of the"
    f" built-in task, {row.latency.num_examples} of them timed at batch 1 on"
    f" {row.environment['device']}; {versions}.\n\n"
  )
  files.write_whole(folder / "table.md", head + text(rows) + "\n")
  files.write_whole(folder / "table.csv", tables.to_csv(rows))
  figures.of_rows(rows).save(folder / "quality_latency")


def findings(rows: Sequence[ResultRow]) -> list[str]:
  """Returns what the rows show, in five sentences.

  Faster or slower than another are only those whose 95% interval leaves the
  other's time out.
  """
  (study,) = studies(rows, "bleu")
  scores = [
    f"{panel.first(SMALL).quality.value:.1f} and"
    f" {panel.large.quality.value:.1f} BLEU"
    for panel in study.panels
  ]
  greedy, sampled = (panel.first("spec_decode") for panel in study.panels)
  same = greedy.rows[0].agreement
  return [
    f"the small and the large model: {scores[0]} greedy, {scores[1]} at T = 1",
    f"greedy, spec_decode is {_speed(greedy)}; it wrote that model's tokens in"
    f" {same['identical']} of {same['num_examples']} sentences"
    f" ({same['near_ties']} others part at a tie within 1e-4)",
    f"at T = 1, spec_decode is {_speed(sampled)}",
    "at T = 1, as good as the large model by BLEU or by its law:"
    f" {winners.lead(study.panels[-1], MEASURED)}",
    _blocks(study),
  ]


def _verdict(point: Measured) -> str:
  """Says how its time compares with the large model's, by its interval."""
  latency = point.latency
  if not latency.has_interval or latency.low <= 1 <= latency.high:
    return UNSURE
  return FASTER if latency.high < 1 else SLOWER


def _speed(point: Measured) -> str:
  speedup = tables.SPEEDUP.text(point.rows[0])
  return f"{_verdict(point)} the large model, {speedup} times its speed"


def _blocks(study: PointGroup) -> str:
  """Counts points with blocks by their speed; says what decides it."""
  points = [p for p in study.points if p.settings.gamma is not None]
  count = collections.Counter(map(_verdict, points))
  tokens = [point.efficiency["mean_acceptance_length"] for point in points]
  widths = [(p.rows[0].costs.v, p.settings.gamma + 1) for p in points]
  v = np.median([v[width] for v, width in widths if width in v])
  return (
    f"of {len(points)} points with blocks {count[FASTER]} are faster than the"
    f" large model by the clock, {count[SLOWER]} slower, {count[UNSURE]} not"
    f" told apart: a block writes {np.median(tokens):.1f} tokens and costs"
    f" v = {v:.2f} of that model's steps, gamma drafter steps of c ="
    f" {study.cost_ratio:.2f} (medians) and the loop around them"
  )
