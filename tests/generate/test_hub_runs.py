"""Whole runs by names of a hub: what rows record, and what resumes."""

import json

import jax
import pytest

from speccascade import checkpoints
from speccascade.checkpoints import hub
from speccascade.runtime.folders import OutputError
from speccascade.study.rows.results import ResultRow
from speccascade.training import finetune, optimizers
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.training_data import TrainingData
from tests import hub_server
from tests.generate import decodes, llamas

pytestmark = pytest.mark.needs_tf
NAMES = {"drafter_checkpoint": "org/small", "verifier_checkpoint": "org/large"}


@pytest.fixture
def commits(served, client, tmp_path):
  """The commits of two models, and of a data set with two prompts."""
  lines = [json.dumps({"inputs": text}) + "\n" for text in ("the cat", "a dog")]
  prompts = {"test.jsonl": "".join(lines).encode()}
  found = {"set": served.add("org/set", prompts, kind="datasets")}
  for seed, name in enumerate(["small", "large"]):
    llamas.save(tmp_path / "models" / name, seed)
    found[name] = served.add(f"org/{name}", tmp_path / "models" / name)
  return found


def decode(tmp_path, **changes):
  settings = {
    "temperature": 0.0,
    "task_feature_lengths": {"inputs": 64},
    "max_decode_len": 6,
    "batch_size": 1,
    "input_file": "hf://datasets/org/set/test.jsonl",
    **NAMES,
    **changes,
  }
  return decodes.decode(tmp_path, tmp_path / "out", **settings)


def test_a_run_records_revisions_and_resumes_by_them(served, tmp_path, commits):
  row = decode(tmp_path)
  names = {
    "drafter": f"org/small@{commits['small']}",
    "verifier": f"org/large@{commits['large']}",
  }
  assert row.environment["revisions"] == names
  assert ResultRow.from_json(row.to_json()) == row
  assert row.settings.drafter == f"small@{commits['small'][:7]}"
  assert row.settings.task == f"test.jsonl@{commits['set'][:7]}"
  stored = json.loads((tmp_path / "out" / "run.json").read_text())
  assert stored["revisions"] == names
  # A branch that moved is another model.
  files = hub_server.files_of(tmp_path / "models" / "small")
  moved = served.add("org/large", files)
  hub.forget()
  with pytest.raises(OutputError, match=r"revisions is .*name the models") as e:
    decode(tmp_path)
  assert names["verifier"] in str(e.value)
  assert moved in str(e.value)
  assert decode(tmp_path, verifier_checkpoint=names["verifier"]) == row


def test_training_records_revisions(served, client, tmp_path, commits):
  config = checkpoints.load("org/small").config
  run = Checkpoints(tmp_path / "run", config)
  start = run.start(
    optimizers.T5_FINE_TUNING, initial_checkpoint_path="org/small"
  )
  jax.block_until_ready(start.state.params)
  name = f"org/small@{commits['small']}"
  assert run.settings == {"INITIAL_CHECKPOINT_PATH": name}
  run.save(start.state)
  # A resumed run keeps it, and does not ask.
  hub.forget()
  asked = len(served.requests)
  resumed = Checkpoints(tmp_path / "run", config)
  resumed.start(optimizers.T5_FINE_TUNING, initial_checkpoint_path="org/small")
  assert resumed.settings == run.settings
  assert len(served.requests) == asked


def test_training_files_are_recorded(served, client, commits):
  name = "hf://datasets/org/set/test.jsonl"
  files = {"train": name, "validation": None}
  data = TrainingData(
    files=files,
    vocabulary="org/small",
    task_feature_lengths={"inputs": 8, "targets": 8},
    batch_size=1,
  )
  hub.file(name)
  commit = commits["set"]
  assert finetune._named(data) == {
    "TRAIN_FILES": [f"hf://datasets/org/set@{commit}/test.jsonl"]
  }


def test_a_teacher_is_recorded(served, client, commits):
  checkpoints.load("org/large")
  data = TrainingData(
    mixture_or_task_name="task",
    teacher_checkpoint="org/large",
    earlier_drafters=["org/small"],
    task_feature_lengths={"inputs": 8, "targets": 8},
    batch_size=1,
  )
  checkpoints.load("org/small")
  assert finetune._named(data) == {
    "TEACHER_CHECKPOINT": f"org/large@{commits['large']}",
    "EARLIER_DRAFTERS": [f"org/small@{commits['small']}"],
  }
