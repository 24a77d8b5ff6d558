"""The decode main: exit codes, what is printed, what is left on disk."""

import json
import pathlib
import re
import types

import jax
import pytest

from speccascade import decode, train
from speccascade import sweep as main_of_sweep
from speccascade.study.measuring import environment
from tests import mains

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parent.parent
SKELETON = ROOT / "configs" / "runs" / "decode.gin"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("files")
  return mains.pair(folder, ["one two", "three"])


@pytest.fixture
def run(files, tmp_path, capsys):
  """Runs the main; returns (exit code, stdout, stderr)."""

  def call(**macros):
    macros = {
      "METHOD": "verifier",
      "OUTPUT_DIR": str(tmp_path / "out"),
      "TASK_FEATURE_LENGTHS": {"inputs": 16},
      "MAX_DECODE_LEN": 4,
      "BATCH_SIZE": 2,
      **files,
      **macros,
    }
    return mains.start(decode, capsys, SKELETON, **macros)

  return call


def without_cost(lines: list[str]) -> list[str]:
  """Returns them without what compiling took, which others may have paid."""
  return [line for line in lines if not line.startswith("compiled ")]


def test_a_run(run, tmp_path):
  code, out, err = run()
  assert code == 0
  assert "Large model" in out
  assert "compiling 1 of" in err
  assert not re.search("[12] of 2.*compiling", err)  # it decodes by then
  folder = tmp_path / "out"
  names = ["metrics.json", "predictions.jsonl", "run.json"]
  assert {path.name for path in folder.iterdir()} == {"config.gin", *names}
  lines = (folder / "predictions.jsonl").read_text().splitlines()
  assert [json.loads(line)["inputs"] for line in lines] == ["one two", "three"]
  assert "METHOD = 'verifier'" in (folder / "config.gin").read_text()
  before = {name: (folder / name).stat().st_mtime_ns for name in names}
  lines = out.splitlines()
  assert lines[-1].endswith(f" are in {folder}")
  assert re.fullmatch(
    r"  [\d.e+]+ tokens/s, compiling left out \(batches of 2\)", lines[-2]
  )
  lines[-2] = "  decoded before (batches of 2)"
  code, again, _ = run(ALPHA=None)  # as if it were not given
  assert code == 0
  assert without_cost(again.splitlines()) == without_cost(lines)
  for name, changed in before.items():
    assert (folder / name).stat().st_mtime_ns == changed


def test_a_few_batches_are_profiled(run, tmp_path, monkeypatch):
  written = []
  monkeypatch.setattr(jax.profiler, "start_trace", written.append)
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: written.append(None))
  folder = str(tmp_path / "profile")
  code, out, _ = run(PROFILE_DIR=folder, TRIALS=9)
  assert code == 0
  assert written == [folder, None]
  assert "profile of 5 steps after 3: pip install xprof && xprof" in out


def test_a_profile_of_refilled_rows_is_refused(run, tmp_path):
  code, _, err = run(PROFILE_DIR=str(tmp_path / "profile"), REFILL=True)
  assert code == 1
  [line] = [x for x in err.splitlines() if "PROFILE_DIR" in x]
  assert "is given next to refill" in line
  assert "leave out one of them" in line
  assert not (tmp_path / "profile").exists()


def row(method="spec_decode", **latency):
  """A result row as far as `describe` reads it."""
  times = {"walltime_s": 0.1, "num_examples": 20, **latency}
  speedup = latency and 1 / latency["relative_latency"]
  return types.SimpleNamespace(
    label="A method",
    settings=types.SimpleNamespace(
      method=method,
      task="task",
      split="test",
      words=["alpha 0.3", "gamma 5", "temperature 1"],
    ),
    quality={},
    efficiency={},
    latency=types.SimpleNamespace(**times) if latency else None,
    measured_speedup=speedup or None,
    num_truncated=0,
  )


@pytest.mark.parametrize(
  ("latency", "said"),
  [
    (
      (0.5, 0.4, 0.625),
      "faster, 2.00 times its speed [1.60, 2.50] in 20 timed",
    ),
    ((1.25, 1.1, 1.6), "slower, 0.80 times its speed"),
    ((1.0, 0.9, 1.2), "as fast, within the error, 1.00 times"),
    ((), "not timed against the verifier alone: --gin.NUM_TIMED=20 with"),
  ],
)
def test_it_says_whether_it_was_faster(latency, said):
  names = ("relative_latency", "relative_low", "relative_high")
  times = dict(zip(names, latency))
  outcome = types.SimpleNamespace(row=row(**times), speed="", batch_size=2)
  outcome.folder = "out"
  assert said in decode.describe(outcome)
  assert decode.describe(outcome).startswith(
    "A method (alpha 0.3, gamma 5, temperature 1) on task test\n"
  )
  # A model alone is not compared with itself.
  outcome.row = row("verifier", **times)
  assert "the verifier alone" not in decode.describe(outcome)


def test_it_says_what_was_accepted_at_each_position():
  measured = row()
  measured.efficiency = {
    "acceptance_rate": 0.875,
    "acceptance_by_position": [0.92, 0.81, None],
    "deferral_rate": None,
  }
  outcome = types.SimpleNamespace(row=measured, speed="", batch_size=2)
  outcome.folder = "out"
  lines = decode.describe(outcome).splitlines()
  assert lines[1:3] == [
    "  acceptance_rate 0.875",
    "  acceptance_by_position .92 .81",
  ]
  assert "deferral_rate" not in "".join(lines)


def test_it_says_how_many_answers_were_not_read():
  measured = row()
  accuracy = {"value": 25, "low": 20, "high": 30, "unread": 12.5}
  # A metric of a task of seqio may have no interval.
  measured.quality = {"accuracy": accuracy, "f1": {"value": 3}}
  outcome = types.SimpleNamespace(row=measured, speed="", batch_size=2)
  outcome.folder = "out"
  assert decode.describe(outcome).splitlines()[1:3] == [
    "  accuracy 25.00 [20.00, 30.00], no answer was read in 12.5% of the"
    " outputs",
    "  f1 3.00",
  ]


def test_without_a_config_one_is_named(capsys):
  """One that is there, for every main whose example has one."""
  for main in (decode, train, main_of_sweep):
    for flags in ((), ("--gin.METHOD='verifier'",)):
      said = mains.refused(mains.start(main, capsys, flags=flags))
      assert "no config is given: pass --gin_file" in said
      [config] = re.findall(r"--gin_file=(\S+\.gin)", said)
      assert (ROOT / config).is_file()


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"METHOD": ..., "OUTPUT_DIR": ...}, "METHOD, OUTPUT_DIR must be given"),
    ({"METHOD": "spec_decode", "ALPHA": 0.3}, "ALPHA is 0.3; SpecDecode takes"),
    ({"MIXTURE_OR_TASK_NAME": "a"}, "one of them and not both"),
    ({"INPUT_FILE": None, "MIXTURE_OR_TASK_NAME": "xsun"}, "xsum"),
  ],
)
def test_one_line_and_nothing_half_written(run, tmp_path, macros, message):
  code, out, err = run(**macros)
  assert message in mains.refused((code, out, err))
  assert set(out.splitlines()) <= {environment.computing_on()}
  assert not (tmp_path / "out").exists()
