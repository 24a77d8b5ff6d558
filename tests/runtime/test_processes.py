"""Checks that several processes are one job: results, files and last lines.

Two and four processes of a CPU are started as a user starts them.
"""

import json
import re
import signal
import socket

import numpy as np
import pytest

from speccascade import decode
from speccascade.checkpoints import load
from speccascade.cli import distributed
from speccascade.runtime import processes
from tests import jobs, mains
from tests.generate import tiny

slow = pytest.mark.slow
DECODE = "--gin_file=configs/runs/decode.gin"
TRAIN = "tests.training.job"
MESH = {"data": 2, "model": 2}
TWO = ("--coordinator_address=x:1", "--process_count=2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """A pair, its vocabulary and some texts, as macros."""
  folder = tmp_path_factory.mktemp("files")
  return {
    **mains.pair(folder, [tiny.WORDS[i % 4] for i in range(10)]),
    "TASK_FEATURE_LENGTHS": {"inputs": 8},
    "MAX_DECODE_LEN": 5,
    "BATCH_SIZE": 4,
    "METHOD": "spec_cascade_opt",
    "ALPHA": 0.2,
    "GAMMA": 3,
  }


@slow
@pytest.mark.parametrize(
  ("num", "devices", "more"),
  [(2, 2, {}), (4, 1, {"TEMPERATURE": 0.0, "MESH": {"data": 4, "model": 1}})],
)
def test_processes_decode_what_one_does(files, tmp_path, num, devices, more):
  macros = {**files, "MESH": MESH, **more}

  def run(num, devices, name):
    macros["OUTPUT_DIR"] = str(tmp_path / name)
    return jobs.run(
      num, "speccascade.decode", DECODE, devices=devices, **macros
    )

  [[_, out, _]] = run(1, 4, "one")
  [_, first, _], *others = run(num, devices, "several")
  for name in ("predictions.jsonl", "run.json"):
    one, several = (tmp_path / x / name for x in ("one", "several"))
    assert one.read_bytes() == several.read_bytes()
  # The last two lines hold the speed, which differs.
  one, several = (x[x.index("SpecCascade") :] for x in (out, first))
  assert one.splitlines()[:-2] == several.splitlines()[:-2]
  assert all(each[1:] == ("", "") for each in others)
  names = {path.name for path in (tmp_path / "several").iterdir()}
  outputs = {"predictions.jsonl", "run.json", "metrics.json", "config.gin"}
  assert names == outputs


SWEEP = {"METHODS": ["spec_decode"], "NUM_TIMED": 1, "TEMPERATURES": [0.0]}
SEARCH = {"NUM_CANDIDATES": 2, "FIRST_EXAMPLES": 4, "NUM_EXAMPLES": 8}


@slow
@pytest.mark.parametrize(
  ("main", "file", "macros"),
  [("sweep", "rows.jsonl", SWEEP), ("cascade_search", "report.csv", SEARCH)],
)
def test_processes_measure_what_one_does(files, tmp_path, main, file, macros):
  common = {k: v for k, v in files.items() if k not in ("METHOD", "ALPHA")}
  common |= {"MESH": MESH, "REPEATS": 1, **macros}
  common.pop("GAMMA")
  results = {}
  for num in (1, 2):
    folder = tmp_path / str(num)
    jobs.run(
      num,
      f"speccascade.{main}",
      f"--gin_file=configs/runs/{main}.gin",
      devices=4 // num,
      OUTPUT_DIR=str(folder),
      **common,
    )
    results[num] = (folder / file).read_text()
    if main == "sweep":
      rows = map(json.loads, results[num].splitlines())
      names = ("key", "counts", "efficiency", "agreement")
      results[num] = [{name: row[name] for name in names} for row in rows]
  assert results[1] == results[2]


def trained(tmp_path, num, devices, name, *, codes=None, **job):
  """Returns what a training job printed, a dict of each kind of line, and the
  stderr of each process."""
  job = {"mesh": MESH, "folder": str(tmp_path / name), **job}
  several = jobs.ended(jobs.started(num, TRAIN, devices=devices, job=job))
  assert [code for code, *_ in several] == (codes or [0] * num), several
  lines = map(json.loads, several[0][1].splitlines())
  return {next(iter(x)): x for x in lines}, [err for *_, err in several]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """The losses of 20 steps of one process, by step."""
  job, _ = trained(tmp_path_factory.mktemp("unbroken"), 1, 4, "run")
  assert len(job["losses"]["losses"]) == 20
  return job["losses"]["losses"]


def check_alike(losses, unbroken):
  assert losses.keys() == unbroken.keys()
  ours, theirs = (list(each.values()) for each in (losses, unbroken))
  np.testing.assert_allclose(ours, theirs, atol=1e-5)


@slow
@pytest.mark.parametrize(("num", "devices"), [(2, 2), (4, 1)])
def test_processes_train_as_one_does(unbroken, tmp_path, num, devices):
  several, _ = trained(tmp_path, num, devices, "several")
  check_alike(several["losses"]["losses"], unbroken)
  assert load(tmp_path / "several").step == 20


@slow
def test_a_job_that_is_stopped_continues_elsewhere(unbroken, tmp_path):
  """SIGTERM to the second process: all save at one step, and stop."""
  stopped, errors = trained(
    tmp_path, 2, 2, "run", codes=[143, 143], signal="SIGTERM"
  )
  step = stopped["losses"]["step"]
  assert 7 < step < 20
  assert errors == ["", ""]
  assert stopped["save"]["save"] == step
  ended, _ = trained(tmp_path, 1, 4, "run")
  assert ended["start"]["sha256"] == stopped["save"]["sha256"]
  check_alike(stopped["losses"]["losses"] | ended["losses"]["losses"], unbroken)


@slow
@pytest.mark.parametrize(("who", "continues"), [(0, (1, 4)), (1, (2, 2))])
def test_a_killed_process_ends_the_others(unbroken, tmp_path, who, continues):
  job = {"mesh": MESH, "folder": str(tmp_path / "run")}
  several = jobs.ended(
    jobs.started(2, TRAIN, job={**job, "signal": "SIGKILL", "who": who})
  )
  codes, _, errors = zip(*several)
  assert codes[who] == -signal.SIGKILL
  assert codes[1 - who] not in (0, None)
  assert re.search(
    "error: another process of this job ended, or cannot be reached\n|"
    "This most likely indicates that another task died",
    errors[1 - who],
  )
  ended, _ = trained(tmp_path, *continues, "run")
  assert ended["start"]["start"] == 5
  assert ended["losses"]["step"] == 20
  losses = ended["losses"]["losses"]
  assert len(losses) == 15
  check_alike(losses, {step: unbroken[step] for step in losses})
  if who:  # the first process has printed what it saved
    saved = json.loads(several[0][1].splitlines()[1])
    assert saved == {"save": 5, "sha256": ended["start"]["sha256"]}


@slow
def test_an_error_of_one_ends_all(files, tmp_path):
  several = jobs.ended(
    jobs.started(
      2,
      "speccascade.decode",
      DECODE,
      of_each=("--gin.SEED=0", "--gin.BATCH_SIZE=3"),
      **files,
      MESH={"model": 2},
      OUTPUT_DIR=str(tmp_path / "out"),
    )
  )
  fault = "BATCH_SIZE is 3, which MESH splits into 2 along 'data'"
  assert [code for code, *_ in several] == [1, 1]
  first, second = (err.splitlines() for *_, err in several)
  # The bar of the first process may move once more while the process ends.
  [message] = [
    x for x in first if not x.startswith("SpecCascade [OPT]: 0 of 10")
  ]
  assert message.startswith(f"error: process 1 of this job ended: {fault}")
  [line] = second
  assert line.startswith(f"error: {fault}")


@slow
def test_a_process_that_does_not_come(files):
  [first, second] = jobs.started(
    2,
    "speccascade.decode",
    DECODE,
    "--distributed_timeout=5",
    **files,
    OUTPUT_DIR="",
  )
  second.kill()
  second.communicate()
  [[code, _, line]] = jobs.ended([first])
  assert code == -signal.SIGABRT
  assert re.match(
    r"waiting up to 5 seconds until all 2 processes of this job meet at"
    r" localhost:\d+: see that each was started",
    line,
  )


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--process_count=2"], "--coordinator_address and --process_index must"),
    (["--coordinator_address=x:1"], "--process_count and --process_index must"),
    ([*TWO, "--process_index=2"], "--process_index is 2; wanted 0 to 1"),
    (["--distributed", "--coordinator_address=x"], "is 'x'; want HOST:PORT"),
    (["--distributed", "--coordinator_address=x:0"], "with a PORT from 1 to 6"),
    (["--distributed", "--coordinator_address=x:99999"], "is 'x:99999'; want"),
    (["--distributed", "--process_count=0"], "--process_count is 0; wanted 1"),
  ],
)
def test_flags_that_name_no_job(capsys, flags, message):
  code, _, err = mains.start(decode, capsys, flags=flags)
  assert (code, err.count("\n")) == (2, 1)
  assert message in err


def test_a_port_that_is_taken_is_named():
  with socket.create_server(("localhost", 0)) as taken:
    port = taken.getsockname()[1]
    message = (
      rf"--coordinator_address is localhost:{port}, .* \(.* in use\): give"
    )
    with pytest.raises(processes.ProcessError, match=message):
      distributed._check_port(f"localhost:{port}")
  distributed._check_port(f"localhost:{port}")


def test_one_process_agrees_with_itself():
  assert processes.agree(lambda: {"a": [1]}) == {"a": [1]}
  processes.meet()
  assert (processes.index(), processes.count()) == (0, 1)
