"""Commands that are killed at random points, or started twice at once.

Half of the kills come at a set time, half before an operation on a file of the
output folder. What a command leaves once it ends is compared with what an
unbroken run left, bit for bit.
"""

import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from unittest import mock

import jax
import numpy as np

# What children find imported: they start in milliseconds.
from speccascade import cli
from speccascade.checkpoints import load
from speccascade.cli import quiet
from speccascade.study.measuring import infer, measure
from speccascade.training import finetune  # noqa: F401
from tests.generate import tiny

quiet.import_tensorflow()
for name in ("seqio", "orbax.checkpoint", "clu.metric_writers"):
  importlib.import_module(name)

OPERATIONS = {
  *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"),
  "shutil.rmtree",
}
DECODING = {
  "NUM_EXAMPLES": 24,
  "MAX_DECODE_LEN": 8,
  "BATCH_SIZE": 4,
  "TASK_FEATURE_LENGTHS": {"inputs": 96},
}
# Module, gin file, what it calls its folder, macros and parameters.
JOBS = {
  "train": (
    *("speccascade.train", "configs/quickstart/train_small.gin", "MODEL_DIR"),
    {
      "TRAIN_STEPS": 12,
      "CHECKPOINT_PERIOD": 5,
      "EVAL_PERIOD": 3,
      "NUM_EVAL_EXAMPLES": 8,
      "BEST_METRIC": "accuracy",
      "LOG_PERIOD": 2,
      "BATCH_SIZE": 4,
      "DROPOUT_RATE": 0.1,
      "task.register.train": 400,
      "optimizers.linear.warmup_steps": 1,
      "quickstart_small/config.T5Config.emb_dim": 8,
    },
  ),
  "decode": (
    *("speccascade.decode", "configs/quickstart/decode.gin", "OUTPUT_DIR"),
    {**DECODING, "TRACE": True, "NUM_SHOWN": 3},
  ),
  "sweep": (
    "speccascade.sweep",
    *("configs/quickstart/sweep.gin", "OUTPUT_DIR"),
    {
      **DECODING,
      "METHODS": ["token_cascade_chow"],
      "ALPHAS": {"token_cascade_chow": [0.1, 0.5, 0.9]},
      "TEMPERATURES": [1.0],
      "NUM_TIMED": 2,
      "REPEATS": 1,
      "NUM_SHOWN": 2,
    },
  ),
}


def run(main: str, argv: list[str], folder: str, log: str, last: int | None):
  """Runs a main in this process, which dies before its `last` operation."""
  output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  os.dup2(output, 1)
  os.dup2(output, 2)
  count = 0

  def watch(event, args):
    nonlocal count
    if event in OPERATIONS and str(args[0]).startswith(folder):
      count += 1
      if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(watch)
  infer.LEAST_EXAMPLES, infer.LEAST_BATCHES = 4, 1
  measure.measure = functools.partial(measure.measure, group_size=2)
  sys.argv = argv
  module = importlib.import_module(main)
  code = cli.start(module.main, module.__doc__, argv)
  print(f"{count} operations")
  sys.stdout.flush()
  sys.exit(code)


class Killing:
  """A job, its unbroken run, and its broken ones.

  Args:
    job: its name in `JOBS`.
    folder: where all of it is kept.
    seed: of the points at which it is killed.
  """

  def __init__(self, job: str, folder: pathlib.Path, seed: int = 0):
    self._rng = np.random.default_rng(seed)
    self._folder = folder
    self._main, file, self._key, macros = JOBS[job]
    macros = dict(macros)
    if job != "train":
      for i, model in enumerate(("DRAFTER", "VERIFIER")):
        path = folder / model.lower()
        tiny.save(path, i, vocab_size=768, emb_dim=8 + 4 * i)
        macros[f"{model}_CHECKPOINT"] = str(path)
    self._argv = ["main", f"--gin_file={file}"]
    self._argv += [f"--gin.{name}={value!r}" for name, value in macros.items()]
    self._processes = multiprocessing.get_context("forkserver")
    self._processes.set_forkserver_preload([__name__])
    cache = {
      "JAX_PLATFORMS": "cpu",
      "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
      "JAX_ENABLE_COMPILATION_CACHE": "1",
      "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with mock.patch.dict(os.environ, cache):
      self._start("first").join()  # compiles
    process, began = self._start("unbroken"), time.monotonic()
    process.join()
    assert process.exitcode == 0, self.log("unbroken")
    self.seconds = time.monotonic() - began
    self.operations = int(self.log("unbroken").split()[-2])

  def _start(self, name: str, last: int | None = None, log: str = ""):
    """Starts a run in a folder, to die before its operation `last`."""
    folder = str(self._folder / name)
    argv = [*self._argv, f"--gin.{self._key}={folder!r}"]
    log = f"{self._folder / (log or name)}.log"
    process = self._processes.Process(
      target=run, args=(self._main, argv, folder, log, last)
    )
    process.start()
    return process

  def log(self, name: str) -> str:
    """Returns what the last run of a folder printed."""
    return (self._folder / f"{name}.log").read_text()

  def kill(self, num: int) -> int:
    """Kills `num` times; returns how many runs ended, each as the unbroken."""
    killed = runs = 0
    while killed < num:
      name, code, at = f"broken_{runs}", None, []
      while code != 0:
        point = "clock"
        if killed == num:
          point = None
        elif self._rng.random() < 0.5:
          point = int(self._rng.integers(self.operations)) + 1
        process = self._start(name, None if point == "clock" else point)
        if point == "clock":
          process.join(self._rng.uniform(0, self.seconds))
          process.kill()
        process.join()
        code = process.exitcode
        if code != 0:
          assert code == -signal.SIGKILL, (name, at, code, self.log(name))
          killed += 1
          at.append(point)
          print(f"{name}: killed at {point} ({killed})", flush=True)
      self._compare(name)
      runs += 1
      print(f"{name}: killed {len(at)} times, equal", flush=True)
    return runs

  def start_two(self):
    """Starts two runs on one folder: one ends, one says why it does not."""
    # A name as long as the others': gin breaks lines by the length of paths.
    logs, name = ["two_0", "two_1"], "two_jobs"
    processes = [self._start(name, log=log) for log in logs]
    for process in processes:
      process.join()
    codes = [process.exitcode for process in processes]
    assert sorted(codes) == [0, 1], (codes, *map(self.log, logs))
    pid = processes[codes.index(0)].pid
    log = self.log(logs[codes.index(1)])
    [said] = [x for x in log.splitlines() if x.startswith("error: ")]
    where = self._folder / name
    assert f"{where} is being written to by process {pid} " in said
    self._compare(name)
    print(f"two at once: {said}", flush=True)

  def _compare(self, name: str):
    """Raises where a folder differs from the unbroken one."""
    want, got = (left(self._folder / folder) for folder in ("unbroken", name))
    assert got.keys() == want.keys(), (name, got.keys() ^ want.keys())
    for file, content in want.items():
      assert got[file] == content, (name, file)


def left(folder: pathlib.Path) -> dict:
  """Returns all that a run left and that does not depend on the clock."""
  found = {}
  for path in folder.rglob("*"):
    name = path.relative_to(folder).as_posix()
    top = name.split("/")[0]
    if top.startswith("events."):
      found["events"] = True
    elif top.startswith("checkpoint_"):
      found.setdefault(top, path)
    elif path.is_file():
      found[name] = path.read_bytes().replace(str(folder).encode(), b"")
  for name in found:
    if name.startswith("checkpoint_"):
      read = load(folder / name, optimizer=True)
      digest = hashlib.sha256(repr((read.step, read.extra)).encode())
      for array in jax.tree.leaves((read.params, read.optimizer)):
        digest.update(np.asarray(array).tobytes())
      found[name] = digest.hexdigest()
  if "rows.jsonl" in found:
    rows = [json.loads(line) for line in found["rows.jsonl"].splitlines()]
    parts = ("key", "settings", "counts", "quality", "efficiency")
    found["rows.jsonl"] = sorted(
      json.dumps([row[part] for part in parts]) for row in rows
    )
  return found
