"""A tiny pair on disk, and whole runs of it."""

import json

import pytest

from tests.generate import decodes, tiny

TEXTS = ["one two", "three", "four five six", "seven", "eight nine", "zero"]


@pytest.fixture(scope="session")
def files(tmp_path_factory):
  """The folder of three checkpoints and an input."""
  folder = tmp_path_factory.mktemp("pair")
  lines = [
    json.dumps({"inputs": text, "targets": "one two three"}) for text in TEXTS
  ]
  (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
  for seed, name in enumerate(["small", "large", "medium"]):
    emb_dim = 8 if name == "small" else 12
    tiny.save(folder / name / "checkpoint_7", seed, emb_dim=emb_dim)
  return folder


@pytest.fixture
def run(files, tmp_path):
  """Runs `infer` into tmp_path/out with a few settings changed."""

  def call(**changes):
    settings = {
      "output_dir": tmp_path / "out",
      "vocabulary": tiny.Vocabulary(),
      "task_feature_lengths": {"inputs": 8},
      "input_file": str(files / "in.jsonl"),
      **changes,
    }
    return decodes.decode(files, **settings)

  return call


@pytest.fixture
def lines(tmp_path):
  """Reads the records of a run."""

  def read(name="out"):
    text = (tmp_path / name / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]

  return read
