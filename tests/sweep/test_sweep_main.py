"""The sweep main: what it prints and leaves, exit codes, all its configs."""

import gzip
import json
import pathlib
import signal

import pytest

from speccascade import cli, decode, sweep
from speccascade.inference import results
from speccascade.sweep import sweep as library
from speccascade.training.signals import Stop
from tests.data.conftest import train_vocabulary
from tests.inference import tiny

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(
  path.relative_to(ROOT).as_posix()
  for pattern in ("sweep.gin", "figure*.gin", "table*.gin", "results*.gin")
  for path in (ROOT / "configs").glob(f"**/{pattern}")
  if "runs" not in path.parts
)
# What is included by others there and is no experiment by itself.
SHARED = [
  f"configs/experiments/{name}/sweep.gin"
  for name in ("cnndm", "wmt_ende", "xsum")
]


def takes_files(path):
  """Whether a config leaves test files and vocabulary to the user."""
  return "multi30k" in path or "gsm8k" in path


def start(main, argv, capsys):
  """Runs a main; returns (exit code, stdout, stderr)."""
  capsys.readouterr()
  with pytest.raises(SystemExit) as stop:
    cli.run(main.main, main.__doc__, argv)
  return (stop.value.code, *capsys.readouterr())


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory):
  """Macros for three sentence pairs in line files, with a pair of models."""
  folder = tmp_path_factory.mktemp("multi30k")
  train_vocabulary(folder / "words.model")
  texts = {
    "en": ["the cat sat", "a dog", "on the mat"],
    "de": ["die Katze sitzt", "ein Hund", "auf der Matte"],
  }
  for language, lines in texts.items():
    with gzip.open(folder / f"test.{language}.gz", "wt") as file:
      file.write("\n".join(lines) + "\n")
  return {
    "TEST_FILES": str(folder / "test"),
    "VOCABULARY": str(folder / "words.model"),
    "DRAFTER_CHECKPOINT": tiny.save(folder / "small", 0, vocab_size=128),
    "VERIFIER_CHECKPOINT": tiny.save(folder / "large", 1, vocab_size=128),
    "MAX_DECODE_LEN": 4,
    "BATCH_SIZE": 3,
  }


def macros(values):
  return [f"--gin.{name}={value!r}" for name, value in values.items()]


def test_a_pair_of_text_files_in_one_command(multi30k, tmp_path, capsys):
  argv = [
    "sweep",
    f"--gin_file={ROOT}/configs/experiments/multi30k/sweep.gin",
    *macros(multi30k),
    *macros(
      {
        "METHODS": ["verifier"],
        "TEMPERATURES": [0.0],
        "NUM_TIMED": 1,
        "REPEATS": 1,
        "NUM_SHOWN": 0,
        "OUTPUT_DIR": str(tmp_path / "out"),
      }
    ),
  ]
  code, out, err = start(sweep, argv, capsys)
  assert code == 0, err
  assert out == f"finished: 2 points in {tmp_path}/out/rows.jsonl\n"
  rows = results.read_rows(tmp_path / "out" / "rows.jsonl")
  assert [row.settings.method for row in rows] == ["drafter", "verifier"]
  for row in rows:
    assert row.settings.task == "multi30k_en_de"
    assert row.settings.split == "test"
    assert row.quality["bleu"]["num_examples"] == 3
  config = (tmp_path / "out" / "config.gin").read_text()
  assert "GAMMAS = [2, 3, 5]" in config
  assert "METHODS = ['verifier']" in config


def test_its_decode_scores_the_same_examples(multi30k, tmp_path, capsys):
  argv = [
    "decode",
    f"--gin_file={ROOT}/configs/experiments/multi30k/decode.gin",
    *macros(multi30k),
    *macros({"METHOD": "drafter", "OUTPUT_DIR": str(tmp_path / "out")}),
  ]
  code, _, err = start(decode, argv, capsys)
  assert code == 0, err
  lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
  assert json.loads(lines[0])["targets"] == ["die Katze sitzt"]


def test_it_says_how_it_ended(monkeypatch, tmp_path, capsys):
  argv = [
    "sweep",
    f"--gin_file={ROOT}/configs/quickstart/sweep.gin",
    *macros({"OUTPUT_DIR": str(tmp_path)}),
  ]

  def ends(stop):
    outcome = library.Outcome(tmp_path, [None] * 7, 0 if stop else 3, stop)
    monkeypatch.setattr(cli, "configured", lambda function: lambda **_: outcome)
    return start(sweep, argv, capsys)

  assert ends(None) == (
    0,
    f"finished: 7 points in {tmp_path}/rows.jsonl; the tokens of 3 in"
    " examples.jsonl\n",
    "",
  )
  said = (
    f"stopped by %s with 7 points in {tmp_path}/rows.jsonl; the same command"
    " goes on from there\n"
  )
  assert ends(Stop(signal.SIGTERM)) == (143, said % "SIGTERM", "")
  assert ends(Stop(signal.SIGINT)) == (130, said % "SIGINT", "")


@pytest.mark.parametrize("path", CONFIGS)
def test_every_config_says_all_but_what_the_user_must(path, capsys):
  """A dry run prints it resolved; nothing but paths had to be added."""
  given = {
    "DRAFTER_CHECKPOINT": "small",
    "VERIFIER_CHECKPOINT": "large",
    "OUTPUT_DIR": "out",
  }
  if takes_files(path):
    given |= {"TEST_FILES": "a", "VOCABULARY": "b"}
  argv = ["sweep", f"--gin_file={ROOT / path}", "--dry_run", *macros(given)]
  code, out, err = start(sweep, argv, capsys)
  assert code == 0, err
  assert "sweep.sweep.methods = %METHODS" in out
  header = (ROOT / path).read_text().split("\n\n")[0]
  said = " ".join(header.replace("#", " ").split())
  wanted = ("Reproduces:", "Cost:", "python -m speccascade.sweep", path)
  for words in ("chosen by us",) if path in SHARED else wanted:
    assert words in said


@pytest.mark.parametrize("path", CONFIGS)
def test_every_configs_points_are_in_range(path):
  """Its methods, alphas and settings make a plan."""
  import gin

  from speccascade.cli import gin_setup
  from speccascade.sweep import plan

  given = {"DRAFTER_CHECKPOINT": "a", "VERIFIER_CHECKPOINT": "b"}
  given |= {"OUTPUT_DIR": "c", "TEST_FILES": "a"}
  given = given if takes_files(path) else {**given, "TEST_FILES": None}
  bindings = [f"{k} = {v!r}" for k, v in given.items() if v is not None]
  if takes_files(path):
    bindings.append("VOCABULARY = 'b'")
  try:
    gin_setup.parse([str(ROOT / path)], bindings)

    def macro(name):
      return gin.query_parameter(f"{name}/macro.value")

    methods = macro("METHODS") or plan.default_methods()
    found = plan.curves(
      methods,
      macro("ALPHAS"),
      gammas=macro("GAMMAS"),
      temperatures=macro("TEMPERATURES"),
      seeds=macro("SEEDS"),
      vocab_size=4000,
      bonus=macro("BONUS"),
      verification=macro("VERIFICATION"),
    )
  finally:
    gin.clear_config()
  names = {curve.base.method for curve in found}
  assert names == {"drafter", "verifier", *methods}
  asked = {"papers": {1.0}, "greedy": {0.0}}
  wanted = asked.get(pathlib.Path(path).stem.split("_")[-1], {0.0, 1.0})
  assert {curve.base.temperature for curve in found} == wanted
