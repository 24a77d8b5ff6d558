"""Trains a small pair on the built-in task, measures methods, and reports.

The quick start runs the commands that the README shows: two trainings and a
sweep, each with its gin file in configs/quickstart. It reuses what it finds in
the output folder: checkpoints, and the rows of measured points.
"""

import collections
from collections.abc import Mapping, Sequence
import os
import pathlib
import subprocess
import sys
import time

import gin
import numpy as np

from speccascade import cli
from speccascade.cli import gin_setup
from speccascade.runtime import files
from speccascade.runtime.progress import in_notebook
from speccascade.study.report import figures, tables
from speccascade.study.report.findings import doubts, lead_of
from speccascade.study.report.groups import MeasuredStudy, studies
from speccascade.study.report.measured import SMALL, Measured
from speccascade.study.rows.results import ResultRow
from speccascade.study.search import sweeps

CONFIGS = "configs/quickstart"
MODELS = ("small", "large")
FASTER, SLOWER = "faster than", "slower than"
UNSURE = "not significantly different from"
_POLL_S = 0.05

# The table decodes with the models; their loss is not asked for.
TRAINING = {"NUM_EVAL_EXAMPLES": 0}
# Macros and parameters for a run of seconds instead of minutes, as tests want
# it. The models learn nothing.
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
  "ALPHAS": "one",
  "GAMMAS": [2],
  "NUM_EXAMPLES": 3,
  "NUM_TIMED": 1,
  "REPEATS": 1,
  "MAX_DECODE_LEN": 16,
}


def _bindings(values: Mapping) -> list[str]:
  """Returns values of macros and parameters as gin reads them."""
  return [f"{name} = {value!r}" for name, value in values.items()]


def train_pair(
  folder: str | os.PathLike,
  changes: Mapping | None = None,
  *,
  configs: str = CONFIGS,
) -> dict[str, float]:
  """Trains the models that a folder does not hold yet, both at once.

  Returns the seconds of each model that was trained, by its name, and as
  "start" the seconds up to the first step of the model that was ready last.

  Args:
    folder: the folder of the checkpoints, which are in `small` and `large`.
    changes: values of macros or parameters, for both models.
    configs: the folder of the gin files `train_small` and `train_large`.

  Raises:
    ValueError: a training failed. The training has printed why.
  """
  folder, running = pathlib.Path(folder), {}
  begin, seconds = time.time(), {}
  try:
    for place, name in enumerate(MODELS):
      file = f"{configs}/train_{name}.gin"
      process = _start_training(file, folder / name, changes or {}, place)
      if process is not None:
        running[name] = process
    while len(seconds) < len(running):
      for name in running.keys() - seconds.keys():
        if running[name].poll() is not None:
          seconds[name] = time.time() - begin
      time.sleep(_POLL_S)
  finally:
    # After an error or an interrupt a training saves and ends. A training that
    # has ended is left as it is.
    for process in running.values():
      process.terminate()
      process.wait()
  for name, process in running.items():
    if code := process.returncode:
      raise ValueError(f"training the {name} model ended with exit code {code}")
  # A training writes its configuration when its models and texts are read.
  ready = [(folder / name / "config.gin").stat().st_mtime for name in running]
  if not ready:
    return {}
  return {"start": max(0.0, max(ready) - begin), **seconds}


def _start_training(
  file: str, folder: pathlib.Path, changes: Mapping, place: int
) -> subprocess.Popen | None:
  """Starts a training, unless its folder has the last checkpoint already."""
  bindings = _bindings({"MODEL_DIR": str(folder), **changes})
  gin_setup.parse([file], bindings)
  steps = gin.query_parameter("%TRAIN_STEPS")
  if (folder / f"checkpoint_{steps}").is_dir():
    return None
  command = [sys.executable, "-m", "speccascade.train", f"--gin_file={file}"]
  command += [f"--gin_bindings={binding}" for binding in bindings]
  # The package need not be installed, nor the current folder be its own.
  path = [str(gin_setup.PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
  environment = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, path)),
    "TQDM_POSITION": str(place),
  }
  # A notebook would show the progress bar, on stderr, as an error.
  errors = subprocess.STDOUT if in_notebook() else None
  return subprocess.Popen(command, env=environment, stderr=errors)


def run(
  folder: pathlib.Path,
  *,
  all_methods=False,
  is_fast=False,
  progress=True,
  seconds: dict[str, float] | None = None,
) -> sweeps.SweepOutcome:
  """Trains, decodes and measures.

  Args:
    folder: where everything goes.
    all_methods: whether to measure every method that one drafter allows, at
      its default alpha, not only the methods of the table's config.
    is_fast: whether the models may learn nothing.
    progress: whether to show a bar of what is measured.
    seconds: takes the seconds of each part, by its name.
  """
  seconds = {} if seconds is None else seconds
  seconds |= train_pair(folder, FAST_TRAINING if is_fast else TRAINING)
  begin = time.time()
  macros = {
    "DRAFTER_CHECKPOINT": str(folder / "small"),
    "VERIFIER_CHECKPOINT": str(folder / "large"),
    "OUTPUT_DIR": str(folder),
    "run.Run.progress": progress,
  }
  if is_fast:
    macros |= FAST_TABLE
  if all_methods:
    macros |= {"METHODS": None, "ALPHAS": "one"}
  gin_setup.parse([f"{CONFIGS}/table.gin"], _bindings(macros))
  outcome = cli.configure(sweeps.sweep)(on_start=cli.save_config)
  seconds["sweep"] = time.time() - begin
  return outcome


def describe_seconds(seconds: Mapping[str, float]) -> str:
  """Returns the seconds of the parts of a quick start as a line.

  Args:
    seconds: those of "install", "start", "small", "large", "sweep" and
      "report", as far as they are known.

  >>> describe_seconds({"install": 90.4, "sweep": 25, "report": 1})
  'seconds: install 90; sweep 25; report 1'
  >>> describe_seconds({"start": 13.4, "large": 104.2})
  'seconds: large model 104, of these 13 to import and to make texts'
  """
  parts = []
  if "install" in seconds:
    parts.append(f"install {seconds['install']:.0f}")
  if "start" in seconds:
    models = [f"{x} model {seconds[x]:.0f}" for x in MODELS if x in seconds]
    at_once = ", at once" if len(models) > 1 else ""
    start = f"of these {seconds['start']:.0f} to import and to make texts"
    parts.append(f"{' and '.join(models)}{at_once}, {start}")
  parts += [
    f"{x} {seconds[x]:.0f}" for x in ("sweep", "report") if x in seconds
  ]
  return f"seconds: {'; '.join(parts)}"


def text(rows: Sequence[ResultRow]) -> str:
  """Returns doubts about the pair, the table, and what the table shows."""
  (study,) = studies(rows, "bleu")
  paragraphs = "".join(f"{doubt}\n\n" for doubt in doubts(study))
  sentences = "\n".join(f"- {sentence}" for sentence in findings(rows))
  return f"{paragraphs}{tables.markdown(rows)}\n{sentences}"


def write(folder: pathlib.Path, rows: Sequence[ResultRow]):
  """Writes table.md, table.csv, quality_latency.png and quality_latency.svg."""
  row = rows[0]
  versions = ", ".join(
    f"{name} {version}"
    for name, version in row.environment["versions"].items()
    if version
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

  A method is called faster or slower than the large model only where the 95%
  interval of its relative latency leaves 1 out.

  Args:
    rows: rows of one pair, greedy and at temperature 1.
  """
  (study,) = studies(rows, "bleu")
  scores = [
    f"{panel.first(SMALL).quality.value:.1f} and"
    f" {panel.large.quality.value:.1f} BLEU"
    for panel in study.panels
  ]
  greedy, sampled = (panel.first("spec_decode") for panel in study.panels)
  agreement = greedy.rows[0].agreement
  ties = ""
  if num_ties := agreement["near_ties"]:
    ties = (
      f" ({num_ties} more diverge at a near tie, where two choices are"
      " within 1e-4)"
    )
  return [
    f"the small and the large model have {scores[0]} greedy, and {scores[1]} at"
    " T = 1",
    f"greedy, spec_decode is {_describe_speed(greedy)}; it wrote the large"
    f" model's tokens in {agreement['identical']} of"
    f" {agreement['num_examples']} sentences{ties}",
    f"at T = 1, spec_decode is {_describe_speed(sampled)}",
    "at T = 1, of the points that have the large model's BLEU or its"
    f" distribution: {lead_of(study.panels[-1])}",
    _describe_blocks(study),
  ]


def _verdict(point: Measured) -> str:
  """Returns how a point's time compares with the large model's time."""
  latency = point.latency
  if not latency.has_interval or latency.low <= 1 <= latency.high:
    return UNSURE
  return FASTER if latency.high < 1 else SLOWER


def _describe_speed(point: Measured) -> str:
  speedup = tables.SPEEDUP.text(point.rows[0])
  return f"{_verdict(point)} the large model, with {speedup} times its speed"


def _describe_blocks(study: MeasuredStudy) -> str:
  """Returns how many points with blocks are faster, and what decides it."""
  points = [p for p in study.points if p.settings.gamma is not None]
  num_by_verdict = collections.Counter(map(_verdict, points))
  tokens = [point.efficiency["mean_acceptance_length"] for point in points]
  v = np.median(_pass_costs(points))
  return (
    f"of {len(points)} points with blocks, {num_by_verdict[FASTER]} are faster"
    f" than the large model, {num_by_verdict[SLOWER]} are slower, and"
    f" {num_by_verdict[UNSURE]} do not differ significantly: a block writes"
    f" {np.median(tokens):.1f} tokens, and costs a pass of v = {v:.2f} steps of"
    " the large model, gamma drafter steps of c ="
    f" {study.cost_ratio:.2f} each (medians), and the loop around them"
  )


def _pass_costs(points: Sequence[Measured]) -> list[float]:
  """Returns the cost of the verifier's pass over a block, where measured."""
  costs = []
  for point in points:
    cost_by_width = point.rows[0].costs.v
    width = point.settings.block_width
    if width in cost_by_width:
      costs.append(cost_by_width[width])
  return costs
