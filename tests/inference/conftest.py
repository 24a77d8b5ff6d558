"""A tiny pair on disk, and whole runs of it."""

import json

import pytest

from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.measuring import infer
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.run import Measuring, Run
from speccascade.report import token_view
from tests.inference import tiny

KINDS = {
  "pair": PairSpec,
  "inputs": Inputs,
  "point": Point,
  "run": Run,
  "measuring": Measuring,
}
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
      "method": "spec_decode",
      "output_dir": tmp_path / "out",
      "vocabulary": tiny.Vocabulary(),
      "task_feature_lengths": {"inputs": 8},
      "gamma": 2,
      "max_decode_len": 8,
      "batch_size": 2,
      "progress": False,
      "drafter_checkpoint": str(files / "small"),
      "verifier_checkpoint": str(files / "large"),
      "input_file": str(files / "in.jsonl"),
      **changes,
    }
    objects = tiny.objects(settings, **KINDS)
    return infer.infer(**objects, page=token_view.page_html).row

  return call


@pytest.fixture
def lines(tmp_path):
  """Reads the records of a run."""

  def read(name="out"):
    text = (tmp_path / name / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]

  return read
