"""Prints the contents of checkpoints as a user asks for them."""

import pytest

from speccascade.checkpoints import inspect, orbax_io

ARCHITECTURE = """config.T5Config:
  vocab_size = 512
  emb_dim = 32
  num_heads = 4
"""


@pytest.mark.parametrize(
  ("name", "facts"),
  [
    ("t5x_native", ("t5x_native", "3000", "float32", "Adafactor's slots")),
    ("t5x_native_bf16", ("t5x_native", "3000", "bfloat16", "none")),
    ("t5x_orbax", ("t5x_orbax", "3000", "float32", "Adafactor's slots")),
    ("hf", ("hugging_face", "not said", "F32", "none")),
  ],
)
def test_facts(golden, capsys, name, facts):
  assert not inspect.main([f"--source={golden / name}", "--check"])
  printed = capsys.readouterr().out
  layout, step, dtype, optimizer = facts
  assert f"layout      {layout}\nstep        {step}\n" in printed
  assert f"parameters  82,560 in 52 arrays of {dtype}\n" in printed
  assert f"optimizer   {optimizer}\n" in printed
  assert ARCHITECTURE in printed
  assert printed.endswith(" arrays were read, and none is damaged\n")


def test_ours_and_its_damage(golden_params, golden_config, tmp_path, capsys):
  path = tmp_path / "checkpoint_5"
  vocabulary = {"path": "v.model", "sha256": "abc"}
  orbax_io.save(
    path,
    golden_params,
    golden_config,
    step=5,
    opt_state={"mu": golden_params},
    vocabulary=vocabulary,
  )
  flags = [f"--source={tmp_path}", "--check"]
  assert not inspect.main(flags)
  printed = capsys.readouterr().out
  for fact in (
    "vocabulary  v.model, sha256 abc\n",
    "optimizer   optax's state",
    "checksums   of each chunk\n",
    "architecture, by metadata/metadata.json:\n",
    "105 arrays were read",
  ):
    assert fact in printed
  folder = path / "opt_state" / "ocdbt.process_0" / "d"
  file = max(folder.iterdir(), key=lambda file: file.stat().st_size)
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(data)
  assert inspect.main(flags) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: cannot read array mu/")
  assert str(file) in line
