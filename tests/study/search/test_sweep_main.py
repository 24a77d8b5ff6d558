"""The sweep main: what it prints and leaves, exit codes, all its configs."""

import gzip
import json
import pathlib
import re
import signal

import gin
import pytest

from speccascade import cli, decode
from speccascade import sweep as main_of_sweep
from speccascade.checkpoints import rule_files
from speccascade.cli import gin_setup
from speccascade.decoding.laws.learned import KINDS
from speccascade.generate.points.point import Point
from speccascade.runtime.signals import Stop
from speccascade.study.rows import results
from speccascade.study.search import plans
from speccascade.study.search import sweeps as library
from tests import mains
from tests.generate import tiny
from tests.text.conftest import train_vocabulary

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[3]
CONFIGS = sorted(
  path.relative_to(ROOT).as_posix()
  for pattern in ("sweep*.gin", "figure*.gin", "table*.gin", "results*.gin")
  for path in (ROOT / "configs").glob(f"**/{pattern}")
  if "runs" not in path.parts
)


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


def test_a_pair_of_text_files_in_one_command(multi30k, tmp_path, capsys):
  macros = {"METHODS": ["verifier"], "TEMPERATURES": [0.0], "NUM_TIMED": 1}
  macros |= {"REPEATS": 1, "NUM_SHOWN": 0, "OUTPUT_DIR": f"{tmp_path}/out"}
  config = "configs/experiments/multi30k/sweep.gin"
  start = (main_of_sweep, capsys, config)
  code, out, err = mains.start(*start, **multi30k, **macros)
  assert code == 0, err
  lines = out.splitlines()
  assert lines[0].startswith("computing on ")
  memory = r"compiled \d+ programs in .+ GB of memory at most"
  assert re.fullmatch(memory, lines[1])
  assert lines[2:] == [
    f"finished: 2 points in {tmp_path}/out/rows.jsonl",
    f"next: python -m speccascade.report --results_dir={tmp_path}/out",
  ]
  rows = results.read_rows(tmp_path / "out" / "rows.jsonl")
  assert [row.settings.method for row in rows] == ["drafter", "verifier"]
  for row in rows:
    settings = (row.settings.task, row.settings.split)
    assert settings == ("multi30k_en_de", "test")
    assert row.quality["bleu"]["num_examples"] == 3
  config = (tmp_path / "out" / "config.gin").read_text()
  assert "GAMMAS = [2, 3, 5]" in config
  assert "METHODS = ['verifier']" in config


def test_its_decode_scores_the_same_examples(multi30k, tmp_path, capsys):
  macros = {"METHOD": "drafter", "OUTPUT_DIR": f"{tmp_path}/out"}
  config = "configs/experiments/multi30k/decode.gin"
  code, _, err = mains.start(decode, capsys, config, **multi30k, **macros)
  assert code == 0, err
  lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
  assert json.loads(lines[0])["targets"] == ["die Katze sitzt"]


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_it_says_how_it_ended(monkeypatch, tmp_path, capsys, number):
  where = f"7 points in {tmp_path}/rows.jsonl"
  code, num_shown = 0, 3
  lines = [
    f"finished: {where}; the tokens of 3 in examples.jsonl",
    f"next: python -m speccascade.report --results_dir={tmp_path}",
  ]
  if number:
    code, num_shown = 128 + number, 0
    lines = [
      f"stopped by {number.name} with {where}; the same command continues from"
      " there"
    ]
  stop = number and Stop(number)
  outcome = library.SweepOutcome(tmp_path, [None] * 7, num_shown, stop)
  fake = {library.sweep: lambda **_: outcome}
  monkeypatch.setattr(cli, "configure", lambda part: fake.get(part, part))
  macros = {"OUTPUT_DIR": str(tmp_path)}
  config = "configs/quickstart/sweep.gin"
  ended, out, err = mains.start(main_of_sweep, capsys, config, **macros)
  assert (ended, err) == (code, "")
  assert out.splitlines()[-len(lines) :] == lines


def test_trees_take_their_depth_from_the_plan():
  bindings = ["GAMMAS = [3]", "TREE = (3, 2, 1)", "OUTPUT_DIR = 'a'"]
  try:
    gin_setup.parse([str(ROOT / "configs/built_in/sweep.gin")], bindings)
    planned = cli.configure(plans.Plan)()
    common = cli.configure(Point)()
  finally:
    gin.clear_config()
  curves = planned.curves(common, 4000, plans.default_methods())
  trees = {curve.base.method: curve.base.tree for curve in curves}
  assert trees["spec_cascade_opt"] == (3, 2, 1)
  assert trees["verifier"] is None


@pytest.mark.parametrize("path", CONFIGS)
def test_every_configs_points_are_in_range(path, tmp_path):
  """Its methods, alphas and settings make a plan; paths alone are missing."""
  macros = dict.fromkeys(
    ("DRAFTER_CHECKPOINT", "VERIFIER_CHECKPOINT", "OUTPUT_DIR"), "a"
  )
  if any(name in path for name in ("multi30k", "gsm8k", "own_text")):
    macros |= {"TEST_FILES": "a", "VOCABULARY": "b"}
  if "learned" in path:
    macros["RULE_PARAMETERS"] = str(tmp_path / "rule.npz")
    plug_ins = {name: kind.plug_in() for name, kind in KINDS.items()}
    rule_files.write(macros["RULE_PARAMETERS"], plug_ins, {})
  bindings = [f"{name} = {value!r}" for name, value in macros.items()]
  try:
    gin_setup.parse([str(ROOT / path)], bindings)
    planned = cli.configure(plans.Plan)()
    common = cli.configure(Point)()
  finally:
    gin.clear_config()
  names = plans.default_methods()
  curves = planned.curves(common, 4000, names)
  used = {curve.base.method for curve in curves}
  assert used == {"drafter", "verifier", *(planned.methods or names)}
  asked = {name: {1.0} for name in ("papers", "own_text", "built_in")}
  asked |= {"greedy": {0.0}, "learned": {1.0}}
  kind = pathlib.Path(path)
  has_own = kind.parent.name in ("own_text", "built_in")
  kind = kind.parent.name if has_own else kind.stem.split("_")[-1]
  wanted = asked.get(kind, {0.0, 1.0})
  assert {curve.base.temperature for curve in curves} == wanted
