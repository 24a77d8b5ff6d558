"""The quick start from end to end, with models that learn nothing."""

import csv
import json
import re
import types

import gin
import pytest

from speccascade.decoding.methods import METHODS
from speccascade.quickstart import __main__ as quickstart
from speccascade.quickstart import quickstart as library

pytestmark = [
  pytest.mark.needs_tf,
  pytest.mark.usefixtures("quick_compiles"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The output of one run."""
  folder = tmp_path_factory.mktemp("quickstart")
  with pytest.MonkeyPatch.context() as patch:  # for the trainings
    patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    assert quickstart.main([f"--output_dir={folder}", "--fast"]) == 0
  return folder


def test_what_it_leaves(folder):
  assert {path.name for path in folder.iterdir()} == {
    *["small", "large", "rows.jsonl", "run.json", "config.gin"],
    *["table.md", "table.csv", "quality_latency.png", "quality_latency.svg"],
  }
  heading = (folder / "table.md").read_text().split("\n\n")[1]
  assert re.fullmatch(
    r"3 test sentences of the built-in task, 1 of them timed at batch 1 on .+;"
    r" .*\bjax \d.*\.",
    heading,
  )
  methods = ["drafter", "verifier", "spec_decode", "spec_cascade_token_v3"]
  with (folder / "table.csv").open() as file:
    table = list(csv.DictReader(file))
  assert [(row["method"], float(row["T"])) for row in table] == [
    (method, temperature) for temperature in (0, 1) for method in methods
  ]
  for line in (folder / "rows.jsonl").read_text().splitlines():
    row = json.loads(line)
    assert row["settings"]["drafter"] == "small-3"
    assert row["settings"]["alpha"] in (None, 0.3)
    assert set(row["quality"]) == {"bleu", "valid"}
    assert row["latency"]["walltime_s"] > 0


def test_a_second_run_reuses_all(folder, capsys):
  kept = [*(folder / "small").rglob("*"), folder / "rows.jsonl"]
  before = {path: path.stat().st_mtime_ns for path in kept}
  assert quickstart.main([f"--output_dir={folder}", "--fast"]) == 0
  assert {path: path.stat().st_mtime_ns for path in kept} == before
  out = capsys.readouterr().out
  assert "| spec_decode" in out
  assert f"table, rows and figure are in {folder}" in out
  assert out.rstrip().endswith(f"speccascade.report --results_dir={folder}")


def test_a_training_that_fails_is_said(tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(library, "MODELS", ["small"])
  with pytest.raises(ValueError, match="the small model ended with exit code"):
    library.train_pair(str(tmp_path), {"BATCH_SIZE": 0})
  assert "error: BATCH_SIZE is 0" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("flags", "num"), [([], 12), (["--all_methods"], None)]
)
def test_a_dozen_methods_or_all(flags, num, tmp_path, monkeypatch, capsys):
  measured = []

  def stopped(**_):
    measured.append(gin.query_parameter("%METHODS"))
    stop = types.SimpleNamespace(name="SIGTERM", exit_code=143)
    return types.SimpleNamespace(stop=stop)

  monkeypatch.setattr(library, "train_pair", lambda *_: None)
  monkeypatch.setattr(library.cli, "configured", lambda _: stopped)
  assert quickstart.main([f"--output_dir={tmp_path}", *flags]) == 143
  assert "stopped by SIGTERM; run again" in capsys.readouterr().out
  (names,) = measured
  assert names is None if num is None else len(set(names) & {*METHODS}) == num


def test_one_quick_start_a_folder(tmp_path, capsys, other_job):
  other_job(tmp_path)
  assert quickstart.main([f"--output_dir={tmp_path}"]) == 1
  err = capsys.readouterr().err
  assert f"--output_dir {tmp_path} is being written to by process" in err


def test_errors_are_one_line(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(library, "train_pair", lambda *_: None)
  (tmp_path / "rows.jsonl").write_text("no row\n")
  assert quickstart.main([f"--output_dir={tmp_path}", "--fast"]) == 1
  err = capsys.readouterr().err
  assert err.startswith("error: ")
  assert err.count("\n") == 1
