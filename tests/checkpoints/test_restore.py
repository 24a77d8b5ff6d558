"""Checks that every layout is recognised, and read to the same numbers."""

import dataclasses
import shutil
import subprocess
import sys
import time

import pytest

from speccascade.checkpoints import (
  CheckpointError,
  CheckpointNotFoundError,
  load,
  restore,
  storage,
)
from tests.checkpoints.conftest import hashes, same

LAYOUTS = {
  "t5x_native/checkpoint_3000": ("t5x_native", 3000),
  "t5x_legacy/checkpoint_3000": ("t5x_native", 3000),
  "t5x_orbax/checkpoint_3000": ("t5x_orbax", 3000),
  "hf": ("hugging_face", None),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_reads_to_the_golden_hashes(
  golden, manifest, name, golden_config, bucket
):
  shutil.copytree(golden / name, bucket / "models" / "checkpoint_3000")
  url = "gs://bucket/models/checkpoint_3000"
  for path, want in (
    (golden / name, str(golden / name)),
    (f"{url}/", url),
    ("gs://bucket/models", url),
  ):
    checkpoint = load(path, config=golden_config)
    assert (checkpoint.layout, checkpoint.step) == LAYOUTS[name]
    assert hashes(checkpoint.params) == manifest
    assert checkpoint.config == golden_config
    assert checkpoint.optimizer is None  # was not asked for
    assert checkpoint.path == want


def test_bfloat16_widens_to_the_rounded_values(golden, bfloat16_params):
  checkpoint = load(golden / "t5x_native_bf16" / "checkpoint_3000")
  assert hashes(checkpoint.params) == hashes(bfloat16_params)


def test_the_name_of_a_directory_does_not_matter(copy_of, manifest):
  source = copy_of("t5x_orbax")
  moved = source.rename(source.parent / "model.safetensors") / "checkpoint_3000"
  assert load(moved).layout == "t5x_orbax"
  plain = copy_of("t5x_native") / "checkpoint_3000"
  renamed = plain.rename(plain.parent / "hf")
  checkpoint = load(f"{renamed}/")
  assert checkpoint.layout == "t5x_native"
  assert hashes(checkpoint.params) == manifest


def test_a_run_directory_gives_its_latest_complete_step(copy_of, tmp_path):
  source = copy_of("t5x_native") / "checkpoint_3000"
  run = tmp_path / "run"
  for name in ("checkpoint_200", "checkpoint_1000"):  # 200 > 1000 as text
    shutil.copytree(source, run / name)
  unfinished = (
    "checkpoint_3000.tmp-1795166630",  # T5X
    "checkpoint_3000.orbax-checkpoint-tmp",  # Orbax
    "checkpoint_latest",
  )
  for name in unfinished:
    shutil.copytree(source, run / name)
  shutil.copytree(source, run / "checkpoint_4000")
  (run / "checkpoint_4000" / "checkpoint").unlink()  # the index comes last
  (run / "train").mkdir()
  assert restore.steps(run) == [200, 1000]
  assert load(run).path == str(run / "checkpoint_1000")


def test_a_vocabulary_may_lie_in_the_latest_step(copy_of, tmp_path):
  # A converted GGUF file leaves its tokenizer beside the arrays.
  source = copy_of("t5x_native") / "checkpoint_3000"
  steps = [tmp_path / "run" / f"checkpoint_{step}" for step in (1, 2)]
  for step in steps:
    shutil.copytree(source, step)
  assert restore.vocabulary_directory(tmp_path / "run") is None
  (steps[1] / "tokenizer.json").write_text("{}")
  for path in (tmp_path / "run", steps[1]):
    assert restore.vocabulary_directory(path).url == str(steps[1])
  assert restore.vocabulary_directory(steps[0]) is None


@pytest.mark.parametrize("remote", [False, True], ids=["local", "bucket"])
def test_each_file_is_looked_for_once(golden, bucket, monkeypatch, remote):
  for name in ("checkpoint_2000", "checkpoint_3000"):
    shutil.copytree(golden / "t5x_orbax" / "checkpoint_3000", bucket / name)
  asked = []

  def counted(method):
    def ask(directory, name="", *args):
      asked.append((method.__name__, f"{directory}/{name}"))
      return method(directory, *filter(None, [name]), *args)

    return ask

  for name in ("has", "children", "check_file"):
    method = counted(getattr(storage.Directory, name))
    monkeypatch.setattr(storage.Directory, name, method)
  run = "gs://bucket" if remote else str(bucket)
  directory, layout = restore.resolve(run)
  assert (str(directory), layout) == (f"{run}/checkpoint_3000", "t5x_orbax")
  directory.read_json("state/_METADATA")
  assert {name for name, _ in asked} == {"has", "children", "check_file"}
  assert len(asked) == len(set(asked))


def test_the_config_is_checked_against_the_checkpoints_own(
  golden, golden_config
):
  run_choices = {"dropout_rate": 0.0, "float32_attention_logits": True}
  same_network = dataclasses.replace(
    golden_config, dtype="bfloat16", **run_choices
  )
  assert load(golden / "hf", config=same_network).config == same_network
  other = dataclasses.replace(
    golden_config, num_heads=2, mlp_activations=("relu", "linear")
  )
  with pytest.raises(CheckpointError) as error:
    load(golden / "hf", config=other)
  message = str(error.value)
  assert "num_heads=2 (the checkpoint: 4)" in message
  assert "('relu', 'linear') (the checkpoint: ('gelu', 'linear'))" in message
  assert "head_dim" not in message
  assert "\n" not in message


def test_the_config_is_read_off_the_arrays_where_nothing_says_it(
  golden, golden_config
):
  checkpoint = load(golden / "t5x_native")
  assert checkpoint.config is None
  assert checkpoint.require_config() == golden_config
  assert load(golden / "hf").require_config().emb_dim == 32


@pytest.mark.parametrize(
  ("files", "message"),
  [
    (["config.json", "pytorch_model.bin"], "AutoModelForCausalLM.from_pret"),
    (["model-00001-of-00002.pt", "training_args.bin"], "model-00001-of-00002"),
    (["consolidated.00.pth"], "consolidated.00.pth, PyTorch weights"),
    (["training_args.bin"], "not a complete checkpoint"),
    (["adapter_config.json", "adapter_model.bin"], "an adapter of another mod"),
    (["a-Q8_0.gguf", "b.txt"], r"a-Q8_0\.gguf, a model in one file: give /"),
    (["config.json", "tf_model.h5"], "want safetensors"),
    (["notes.txt"], "it holds notes.txt; wanted checkpoint"),
    (["checkpoint_5.tmp-1/checkpoint"], "not a complete checkpoint"),
    ([], "nothing at"),
  ],
)
def test_what_is_not_a_checkpoint_says_what_to_do(tmp_path, files, message):
  for name in files:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
  with pytest.raises(CheckpointError, match=message):
    load(tmp_path)


def test_folders_of_hugging_face_that_hold_no_model_say_where_one_is(tmp_path):
  cached = tmp_path / "hub" / "models--a--b"
  for name in ("abc", "def"):
    (cached / "snapshots" / name).mkdir(parents=True)
  (cached / "blobs").mkdir()
  for path in (cached, cached.parent):
    with pytest.raises(CheckpointError, match=f"give {cached}/snapshots/abc$"):
      load(path)
  (cached / "refs").mkdir()
  (cached / "refs" / "main").write_text("def")
  with pytest.raises(CheckpointError, match=f"give {cached}/snapshots/def$"):
    load(cached)
  adapter = tmp_path / "lora"
  adapter.mkdir()
  text = '{"base_model_name_or_path": "owner/base"}'
  (adapter / "adapter_config.json").write_text(text)
  with pytest.raises(CheckpointError, match="an adapter of owner/base, and no"):
    load(adapter)
  (adapter / "adapter_config.json").unlink()
  (adapter / "config.json").write_text('{"model_type": "t5"}')
  (adapter / "pytorch_model.bin").write_bytes(b"")
  with pytest.raises(CheckpointError, match="T5ForConditionalGeneration"):
    load(adapter)


MISSING, WRONG = CheckpointNotFoundError, CheckpointError
NATIVE = "t5x_native/checkpoint_3000"
ABOVE = "give the directory above it"


@pytest.mark.parametrize(
  ("path", "kind", "message"),
  [
    ("t5x_nativ", MISSING, "tiny_a has t5x_native, t5x_native_bf16, t5x_orbax"),
    ("t5x_natve/checkpoint_3000", MISSING, "tiny_a has t5x_native"),
    ("t5x_native/checkpoint_300", MISSING, "t5x_native has checkpoint_3000"),
    ("t5x_orbax/checkpoint_3000/state", WRONG, ABOVE),
    (f"{NATIVE}/target.token_embedder.embedding", WRONG, ABOVE),
    (f"{NATIVE}/checkpoint", WRONG, "give the directory of the checkpoint"),
    ("gs://bucket/x", MISSING, "nothing at gs://bucket/x"),
  ],
)
def test_paths_that_are_none(golden, bucket, path, kind, message):
  with pytest.raises(kind) as error:
    load(path if "://" in path else golden / path)
  assert message in str(error.value)


def test_a_bucket_out_of_reach_is_reported_at_once(monkeypatch, capfd):
  monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", "http://127.0.0.1:1")
  monkeypatch.setattr(storage, "_FIRST_CONTACT_S", 0.5)
  start = time.monotonic()
  with pytest.raises(
    CheckpointError, match=r"cannot reach gs://bbb: .*storage cp"
  ):
    load("gs://bbb/run")
  assert time.monotonic() - start < 5
  assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
  ("path", "message"),
  [
    ("gs://", "names no bucket"),
    ("gs:///x", "names no bucket"),
    *(
      (f"gs://{bucket}/x", "names the bucket .* which cannot be")
      for bucket in (
        "b",
        "b u c",
        "Big",
        "bbb?x",
        "a#b",
        "[bb]",
        "b\nb",
        "bb%2f",
      )
    ),
    ("gs://bbb/a\\b", "has a backslash"),
    ("a\\b", "has a backslash"),
    ("a\udcffb", "has a backslash, or a byte that is not UTF-8"),
  ],
)
def test_what_tensorstore_takes_for_no_path(path, message):
  with pytest.raises(CheckpointError, match=message) as error:
    load(path)
  assert "\n" not in str(error.value)


def test_gs_orbax_without_its_last_file_is_unfinished(golden, bucket):
  shutil.copytree(golden / "t5x_orbax", bucket / "run")
  (bucket / "run/checkpoint_3000/state/commit_success.txt").unlink()
  with pytest.raises(CheckpointError, match="not a complete checkpoint"):
    load("gs://bucket/run")


def test_optimizer_slots_are_those_of_both_t5x_layouts(golden, source):
  slots = source.optimizer
  same(slots, load(golden / "t5x_orbax", optimizer=True).optimizer)
  shapes = lambda tree: {slot: leaf.shape for slot, leaf in tree.items()}
  # Factored: v_row has the smaller dimension, v is not used.
  embedding = shapes(slots["token_embedder"]["embedding"])
  assert embedding == {"v_row": (32,), "v_col": (512,), "v": (1,)}
  scale = shapes(slots["encoder"]["encoder_norm"]["scale"])
  assert scale == {"v_row": (1,), "v_col": (1,), "v": (32,)}
  assert load(golden / "t5x_legacy", optimizer=True).optimizer is None


def test_imports_are_light_and_never_tensorflow(golden, tmp_path):
  """Importing loads nothing that only reading and writing need."""
  code = f"""
import sys
sys.modules["tensorflow"] = None  # any import of it raises
from speccascade.checkpoints import load, orbax_io, t5x_native
assert not {{"orbax", "tensorstore", "safetensors", "gin"}} & {{*sys.modules}}
hf = load({str(golden / "hf")!r})
orbax_io.save({str(tmp_path / "a")!r}, hf.params, hf.config, step=1)
t5x_native.save({str(tmp_path / "checkpoint_1")!r}, hf.params, step=1)
for path in ({str(tmp_path / "a")!r}, {str(tmp_path)!r}):
  load(path)
"""
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
