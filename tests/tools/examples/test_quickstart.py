"""The quick start with models that learn nothing, and what it says of rows."""

import contextlib
import csv
import io
import json
import re
import signal
import time
import types

import gin
import pytest

from speccascade import quickstart
from speccascade.decoding.programs.methods import METHODS
from speccascade.tools.examples import quickstart as library
from tests.study.report.synthetic import changed
from tests.study.rows.test_results import row

pytestmark = pytest.mark.needs_tf


@pytest.fixture(scope="module")
def printed():
  """What the run printed last."""
  return io.StringIO()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, printed):
  """The output of one run."""
  folder = tmp_path_factory.mktemp("quickstart")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # for the trainings
    patch.setenv("SPECCASCADE_INSTALL_S", "90")
    with contextlib.redirect_stdout(printed):
      assert quickstart.main([f"--output_dir={folder}", "--fast"]) == 0
  return folder


def test_it_says_the_seconds_of_its_parts(folder, printed):
  line = printed.getvalue().splitlines()[-3]
  found = re.fullmatch(
    r"seconds: install 90; small model (\d+) and large model (\d+), at once, of"
    r" these (\d+) to import and to make texts; sweep \d+; report \d+",
    line,
  )
  small, large, start = map(int, found.groups())
  assert 0 < start <= max(small, large)


def test_what_it_leaves(folder):
  assert {path.name for path in folder.iterdir()} == {
    "small",
    "large",
    "rows.jsonl",
    "run.json",
    "config.gin",
    "table.md",
    "table.csv",
    "quality_latency.png",
    "quality_latency.svg",
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
  paths = [*(folder / "small").rglob("*"), folder / "rows.jsonl"]
  before = {path: path.stat().st_mtime_ns for path in paths}
  assert quickstart.main([f"--output_dir={folder}", "--fast"]) == 0
  assert {path: path.stat().st_mtime_ns for path in paths} == before
  out = capsys.readouterr().out
  assert "| spec_decode" in out
  # Nothing was trained, and no script installed anything.
  assert re.search(r"^seconds: sweep \d+; report \d+$", out, re.M)
  assert f"table, rows and figure are in {folder}" in out
  assert out.rstrip().endswith(f"speccascade.report --results_dir={folder}")


def test_a_training_that_fails_is_named(tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(library, "MODELS", ["small"])
  with pytest.raises(ValueError, match="small model ended with exit code"):
    library.train_pair(str(tmp_path), {"BATCH_SIZE": 0})
  assert "error: BATCH_SIZE is 0" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("flags", "num"), [([], 12), (["--all_methods"], None)]
)
def test_a_dozen_methods_or_all(flags, num, tmp_path, monkeypatch, capsys):
  queried = []

  def stop_at_once(**_):
    macros = ("%METHODS", "%ALPHAS")
    queried.append([gin.query_parameter(macro) for macro in macros])
    stop = types.SimpleNamespace(name="SIGTERM", exit_code=143)
    return types.SimpleNamespace(stop=stop)

  monkeypatch.setattr(library, "train_pair", lambda *_: {})
  monkeypatch.setattr(library.cli, "configure", lambda _: stop_at_once)
  assert quickstart.main([f"--output_dir={tmp_path}", *flags]) == 143
  assert "stopped by SIGTERM; run again" in capsys.readouterr().out
  ((names, alphas),) = queried
  if num is None:
    assert (names, alphas) == (None, "one")
    return
  assert len(set(names) & {*METHODS}) == num
  # Each method has one alpha, and OPT another than Diff's, 0, where it is Diff.
  assert set(alphas) == {name for name in names if METHODS[name].uses_alpha}
  for name, values in alphas.items():
    is_opt = name == "spec_cascade_opt"
    assert values == [0.3 if is_opt else METHODS[name].default_alpha]
  assert (
    METHODS["spec_cascade_opt"].default_alpha == alphas["spec_cascade_diff"][0]
  )


def test_a_signal_while_models_train_says_how_to_continue(
  tmp_path, monkeypatch, capsys
):
  def killed(*_):
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)

  monkeypatch.setattr(library, "train_pair", killed)
  assert quickstart.main([f"--output_dir={tmp_path}"]) == 143
  err = capsys.readouterr().err
  assert err == "error: ended by SIGTERM; run again to continue\n"


def test_one_quick_start_a_folder(tmp_path, capsys, other_job):
  other_job(tmp_path)
  assert quickstart.main([f"--output_dir={tmp_path}"]) == 1
  err = capsys.readouterr().err
  assert f"--output_dir {tmp_path} is being written to by process" in err


def rows(latency=0.625):
  """A small and a large model and speculation, greedy and sampled."""
  return [
    point(method, temperature, value - 7 * temperature, relative)
    for temperature in (0.0, 1.0)
    for method, value, relative in (
      ("drafter", 60.0, 0.25),
      ("verifier", 78.0, 1.0),
      ("spec_decode", 78.0, latency),
    )
  ]


def point(method, temperature, value, latency):
  """A row whose interval of latency reaches 0.1 to either side."""
  gamma = 4 if METHODS[method].has_blocks else None
  agreement = {"identical": 199, "near_ties": 1, "num_examples": 200}
  return changed(
    row(method=method, temperature=temperature, gamma=gamma),
    quality={
      "bleu": {"value": value, "low": value - 4, "high": value + 4},
      "valid": {"value": 30.0, "low": 20.0, "high": 40.0},
    },
    relative_latency=latency,
    relative_low=latency - 0.1,
    relative_high=latency + 0.1,
    measured_speedup=1 / latency,
    agreement=None if temperature else agreement,
    environment={"device": "a chip", "versions": {"jax": "1"}},
  )


FACTS = (
  "a block writes 2.7 tokens, and costs a pass of v = 1.70 steps of the large"
  " model, gamma drafter steps of c = 0.10 each (medians), and the loop around"
  " them"
)


def test_a_gain_in_five_lines():
  faster = "faster than the large model, with 1.60 [1.38, 1.90] times its speed"
  assert library.findings(rows()) == [
    "the small and the large model have 60.0 and 78.0 BLEU greedy, and 53.0 and"
    " 71.0 BLEU at T = 1",
    f"greedy, spec_decode is {faster}; it wrote the large model's tokens in 199"
    " of 200 sentences (1 more diverge at a near tie, where two choices"
    " are within 1e-4)",
    f"at T = 1, spec_decode is {faster}",
    "at T = 1, of the points that have the large model's BLEU or its"
    " distribution: spec_decode is 1.60 [1.38, 1.90] times as fast as the large"
    " model; no other method is shown to be faster; 71.0 BLEU against 71.0, a"
    ' difference of +0.0; METHOD = "spec_decode", GAMMA = 4',
    "of 2 points with blocks, 2 are faster than the large model, 0 are slower,"
    f" and 0 do not differ significantly: {FACTS}",
  ]


@pytest.mark.parametrize(
  ("latency", "clause", "num_slower", "num_unsure"),
  [
    (1.4, "slower than the large model, with 0.71 [0.67, 0.77] times", 2, 0),
    (
      1.05,
      "significantly different from the large model, with 0.95 [0.87, 1.05]",
      0,
      2,
    ),
    (
      0.95,
      "significantly different from the large model, with 1.05 [0.95, 1.18]",
      0,
      2,
    ),
  ],
)
def test_no_gain_is_claimed_where_there_is_none(
  latency, clause, num_slower, num_unsure
):
  lines = library.findings(rows(latency))
  assert len(lines) == 5
  assert clause in lines[1]
  assert clause in lines[2]
  assert not any("faster than" in line for line in lines[:3])
  assert "no method as good as the large model is " in lines[3]
  assert lines[4] == (
    "of 2 points with blocks, 0 are faster than the large model,"
    f" {num_slower} are slower, and {num_unsure} do not differ significantly:"
    f" {FACTS}"
  )


def test_one_timed_sentence_tells_nothing():
  ends = {"relative_low": 0.625, "relative_high": 0.625}
  lines = library.findings([changed(each, **ends) for each in rows()])
  assert (
    "spec_decode is not significantly different from the large model"
    in lines[1]
  )


@pytest.mark.parametrize(
  ("method", "value", "latency", "clause"),
  [
    ("spec_cascade_opt", 71.5, 0.5, "; the difference from spec_decode"),
    ("spec_cascade_opt", 70.9, 0.5, "; no other method is shown to be faster"),
    (
      "oracle_cascade_opt",
      71.5,
      0.5,
      "; no other method is shown to be faster",
    ),
  ],
)
def test_no_winner_is_claimed_that_intervals_do_not_support(
  method, value, latency, clause
):
  """These rows have no replicates, so no two methods differ significantly."""
  added = changed(point(method, 1.0, value, latency), label="OPT")
  line = library.findings([*rows(), added])[3]
  assert clause in line
  assert "times as fast as spec_decode" not in line
