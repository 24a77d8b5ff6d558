"""Few-shot tasks decoded by a decoder-only pair, as the commands do it."""

import json

import pytest

from speccascade import decode, exchange
from tests import mains
from tests.generate import llamas
from tests.tasks import few_shot_files

pytestmark = pytest.mark.needs_tf


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  folder = tmp_path_factory.mktemp("llamas")
  paths = {}
  for seed, name in enumerate(("DRAFTER_CHECKPOINT", "VERIFIER_CHECKPOINT")):
    paths[name] = str(llamas.save(folder / name, seed, max_positions=2048))
  return paths


SQUAD = ["exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"]


@pytest.mark.parametrize(
  ("task", "metrics"), [("squad2", SQUAD), ("mbpp", ["chrf"])]
)
def test_a_run(task, metrics, pair, tmp_path, capsys):
  files = few_shot_files.write(tmp_path, task)
  out = tmp_path / "out"
  with mains.own_tasks():
    code, _, err = mains.start(
      decode,
      capsys,
      "configs/runs/decode.gin",
      f"configs/experiments/{task}_fewshot.gin",
      **{name.upper(): path for name, path in files.items()},
      **{"METHOD": "spec_cascade_token_v3", "GAMMA": 1, "NUM_SHOTS": 1},
      **{"MAX_DECODE_LEN": 6, "BATCH_SIZE": 4, "OUTPUT_DIR": str(out)},
      **{"TASK_FEATURE_LENGTHS": {"inputs": 1024}},
      **pair,
    )
  assert code == 0, err
  row = json.loads((out / "metrics.json").read_text())
  assert list(row["quality"]) == metrics
  assert row["settings"]["task"] == f"{task}_fewshot"
  lines = (out / "predictions.jsonl").read_text().splitlines()
  records = list(map(json.loads, lines))
  assert len(records) == 3
  # The chat template of the models is not used.
  assert "<|im_start|>" not in records[0]["inputs"]
  if task == "squad2":
    assert records[-1]["targets"] == ["unanswerable"]
    return
  programs = tmp_path / "programs" / "programs.json"
  flags = [f"--decode_dir={out}", f"--output_file={programs}"]
  assert exchange.main([*flags, "--format=generations"]) == 0
  written = json.loads(programs.read_text())
  assert written == [[each["prediction"].rstrip() + "\n"] for each in records]
