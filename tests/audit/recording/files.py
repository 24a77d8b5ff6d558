"""What commands write, and what stored files hold.

Commands run in this process, one after another, under a clock that ticks once
each time it is read. So latencies, and what advice makes of them, are the same
in both versions while both read the clock as often.
"""

import gzip
import hashlib
import pathlib
import runpy
import sys
import threading
import time

import jax
import numpy as np

from speccascade import checkpoints
from tests.audit.recording.networks import GOLDEN
from tests.audit.recording.record import Record

TICK_S = 1e-3
RESULTS = GOLDEN.parents[1] / "docs" / "results"
REPORTED = ("lossy_built_in", "trees_built_in", "multi30k_2017")
STORED = (
  *("tiny_a/hf", "tiny_a/t5x_native/checkpoint_3000"),
  *("tiny_a/t5x_native_bf16/checkpoint_3000", "tiny_a/t5x_orbax"),
  *("tiny_a/t5x_legacy/checkpoint_3000", "llama/llama", "llama/mistral"),
  *("llama/qwen2", "llama/qwen3"),
)
# What a run folder holds of the run itself: when, and on which machine.
UNLIKE = ("environment",)
SMALL = {"NUM_EXAMPLES": 4, "MAX_DECODE_LEN": 16, "TEMPERATURE": 1.0}
COMMANDS = {
  "decode": (
    ("decode", "configs/built_in/decode.gin"),
    SMALL | {"TRACE": True, "LOG_PROBS": True, "NUM_TIMED": 2, "REPEATS": 1},
  ),
  "sweep": (
    ("sweep", "configs/built_in/sweep.gin"),
    {
      "METHODS": ["spec_decode", "spec_cascade_opt", "token_cascade_chow"],
      "TEMPERATURES": [0.0, 1.0],
      "ALPHAS": "one",
      "NUM_EXAMPLES": 4,
      "MAX_DECODE_LEN": 16,
      "NUM_TIMED": 2,
      "REPEATS": 1,
      "NUM_SHOWN": 1,
    },
  ),
  "advise": (
    ("advise", "configs/built_in/decode.gin", "configs/runs/advise.gin"),
    SMALL
    | {
      "METHODS": ["spec_decode", "spec_cascade_token_v3"],
      "GAMMAS": [1, 3],
      "NUM_DECODED": 2,
      "TRIALS": 1,
      "ROUNDS": 1,
      "TIME_LIMIT_S": 1e6,
    },
  ),
  "train": (
    ("train", "configs/built_in/train_small.gin"),
    {
      "TRAIN_STEPS": 2,
      "WARMUP_STEPS": 1,
      "NUM_EVAL_EXAMPLES": 4,
      "NUM_DECODED_EXAMPLES": 2,
      "MAX_DECODE_LEN": 8,
    },
  ),
}
_ticks = threading.local()


def _read_clock() -> float:
  """Returns the seconds of this thread's clock, which ticks when it is read."""
  _ticks.count = getattr(_ticks, "count", 0) + 1
  return _ticks.count * TICK_S


def run(name: str, *argv: str):
  """Runs a command of the package as `python -m` does.

  Raises:
    RuntimeError: the command fails.
  """
  sys.argv = [name, *argv]
  try:
    runpy.run_module(f"speccascade.{name}", run_name="__main__", alter_sys=True)
  except SystemExit as stop:
    if stop.code:
      raise RuntimeError(
        f"{' '.join(sys.argv)}: exit code {stop.code}"
      ) from stop


def record_folder(record: Record, name: str, folder: pathlib.Path):
  """Records the text files of a folder, line by line; pictures are left out."""
  for path in sorted(folder.rglob("*")):
    if path.suffix not in (".json", ".jsonl", ".csv", ".md", ".gin"):
      continue
    place = f"{name}/{path.relative_to(folder).as_posix()}"
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
      if not any(word in line for word in UNLIKE):
        record.texts[f"{place}:{number}"] = line


def record_commands(record: Record):
  """What a decode, a sweep, its report, advice and training write."""
  time.perf_counter = time.monotonic = _read_clock
  for name, ((command, *gin_files), macros) in COMMANDS.items():
    folder = pathlib.Path("out", name)  # a file may name it
    macro = "MODEL_DIR" if name == "train" else "OUTPUT_DIR"
    bindings = macros | {macro: str(folder)}
    run(
      command,
      *(f"--gin_file={path}" for path in gin_files),
      *(f"--gin.{key}={value!r}" for key, value in bindings.items()),
    )
    record_folder(record, name, folder)
  run("report", "--results_dir=out/sweep", "--output_dir=out/report")
  record_folder(record, "report", pathlib.Path("out/report"))
  record_stored(record, "trained", pathlib.Path("out/train"))


def record_reports(record: Record):
  """Reports of rows that lie in the documentation: the same bytes."""
  for name in REPORTED:
    rows = pathlib.Path("out", name)
    rows.mkdir(parents=True)
    data = gzip.decompress((RESULTS / name / "rows.jsonl.gz").read_bytes())
    (rows / "rows.jsonl").write_bytes(data)
    run("report", f"--results_dir={rows}", f"--output_dir={rows}/report")
    record_folder(record, f"reports/{name}", rows / "report")
    page = (rows / "report" / "index.html").read_bytes()
    digest = hashlib.sha256(page).hexdigest()
    record.texts[f"reports/{name}/index.html"] = digest


def record_stored(record: Record, name: str, folder: pathlib.Path):
  """Records what a checkpoint of any layout holds."""
  checkpoint = checkpoints.load(folder)
  record.texts[f"{name}/config"] = str(checkpoint.config)
  flat, _ = jax.tree_util.tree_flatten_with_path(checkpoint.params)
  for path, leaf in flat:
    data = np.ascontiguousarray(leaf)
    digest = hashlib.sha256(data.view(np.uint8).tobytes()).hexdigest()
    key = f"{name}/{jax.tree_util.keystr(path)}"
    record.texts[key] = f"{data.dtype} {data.shape} {digest}"


def record_checkpoints(record: Record):
  """Stored checkpoints of every layout that are read."""
  for name in STORED:
    record_stored(record, f"stored/{name}", GOLDEN / name)
  built_in = pathlib.Path("speccascade", "built_in")
  for name in ("small", "large"):
    record_stored(record, f"stored/{name}", built_in / name)


PARTS = {
  "commands": record_commands,
  "reports": record_reports,
  "checkpoints": record_checkpoints,
}
