"""The converter, as a user types it."""

import subprocess
import sys

import numpy as np
import pytest

from speccascade.checkpoints import convert, load
from tests.checkpoints.conftest import edit, hashes, same
from tests.inference import tiny

TINY = """
from __gin__ import dynamic_registration
from speccascade.models.t5 import config

config.T5Config:
  vocab_size = 512
  emb_dim = 32
  num_heads = 4
  num_encoder_layers = 2
  num_decoder_layers = 2
  head_dim = 8
  mlp_dim = 64

MODEL = @config.T5Config()
"""


@pytest.fixture
def model_file(tmp_path):
  file = tmp_path / "tiny.gin"
  file.write_text(TINY)
  return str(file)


def run(*switches, **flags):
  flags = [f"--{name}={value}" for name, value in flags.items()]
  return convert.main([*flags, *switches])


def test_there_and_back(golden, source, tmp_path, model_file, manifest, capsys):
  ours, t5x = tmp_path / "ours", tmp_path / "t5x"
  flags = {"destination": ours, "format": "speccascade"}
  flags |= {"source": golden / "t5x_native", "model_gin_file": model_file}
  assert not run(**flags)
  assert capsys.readouterr().out == f"wrote {ours}/checkpoint_3000\n"
  assert not run(source=ours, destination=t5x, format="t5x")
  after = load(t5x, optimizer=True)
  assert hashes(after.params) == manifest
  assert after.step == 3000
  same(after.optimizer, source.optimizer)


def test_from_hugging_face(golden, tmp_path, bfloat16_params):
  vocabulary = tiny.train_words(tmp_path / "v.model")
  flags = {"source": golden / "hf", "destination": tmp_path / "ours"}
  assert not run(**flags, format="speccascade", vocabulary=vocabulary, step=5)
  ours = load(tmp_path / "ours" / "checkpoint_5")
  assert ours.config.emb_dim == 32
  assert ours.vocabulary["path"] == str(vocabulary)
  flags["destination"] = tmp_path / "t5x"
  assert not run(**flags, format="t5x", dtype="bfloat16")
  t5x = load(tmp_path / "t5x" / "checkpoint_0")  # the layout has no step
  assert hashes(t5x.params) == hashes(bfloat16_params)


def test_nothing_but_the_checkpoint_is_needed(golden, tmp_path, copy_of):
  """Its architecture is its own, and every layout becomes Hugging Face's."""
  for number, name in enumerate(("t5x_native", "t5x_orbax")):
    to = tmp_path / str(number)
    assert not run(source=golden / name, destination=to, format="hugging_face")
    same(load(to).params, load(golden / "hf").params)
  path = copy_of("t5x_native")
  momentum = np.ones(32, np.float32)
  edit(
    path / "checkpoint_3000",
    lambda tree: tree["optimizer"]["state"]["param_states"]["encoder"][
      "encoder_norm"
    ]["scale"].update(m=momentum),
  )
  flags = {"source": path, "destination": tmp_path / "x", "format": "t5x"}
  assert run(**flags) == 1
  assert not run("--parameters_only", **flags)
  assert load(tmp_path / "x", optimizer=True).optimizer is None


def failing(capsys, tmp_path, **flags):
  """Runs it, checks that nothing was written, returns the one line."""
  before = sorted(tmp_path.rglob("*"))
  assert run(**flags) == 1
  captured = capsys.readouterr()
  assert captured.out == ""
  assert captured.err.count("\n") == 1
  assert sorted(tmp_path.rglob("*")) == before
  return captured.err


def test_faults_are_one_line(golden, tmp_path, model_file, capsys):
  out = {"destination": tmp_path / "out", "format": "speccascade"}
  native = golden / "t5x_native"
  nowhere = "configs/models/nothing.gin"
  empty = tmp_path / "empty.gin"
  empty.write_text("X = 1\n")
  for message, flags in {
    "error: there is no checkpoint at": {"source": f"{native}x"},
    f"there is no gin file {nowhere}": {"model_gin_file": nowhere},
    "defines no MODEL": {"model_gin_file": empty},
    "ours is float32": {"dtype": "bfloat16"},
    "says no vocabulary": {"format": "t5x", "vocabulary": empty},
    "no SentencePiece model": {"vocabulary": empty},
    "step is -1; wanted a whole number": {"step": -1},
    "cannot be written to": {"destination": empty / "out"},
  }.items():
    assert message in failing(
      capsys, tmp_path, **{"source": native} | out | flags
    )
  flags = {"source": native, "model_gin_file": model_file, **out}
  assert not run(**flags)
  capsys.readouterr()
  assert "exists already" in failing(capsys, tmp_path, **flags)


def test_help_is_typed_as_documented():
  command = [sys.executable, "-m", "speccascade.checkpoints.convert", "--help"]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  for flag in (
    "--source",
    "--destination",
    "--format {t5x,speccascade,hugging_face}",
  ):
    assert flag in done.stdout
