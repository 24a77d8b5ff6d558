"""Runs the converter as a user types it."""

import numpy as np
import pytest

from speccascade.checkpoints import convert, load
from tests.checkpoints.conftest import edit, hashes, same
from tests.generate import tiny

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
