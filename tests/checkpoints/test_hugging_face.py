"""Reads Hugging Face directories: sharded, tied, saved again, and wrong."""

import dataclasses
import json
import shutil

import jax
import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import pytest
import safetensors.numpy
from safetensors.numpy import load_file, save_file

from speccascade.checkpoints import (
  CheckpointError,
  architecture,
  hugging_face,
  hugging_face_t5,
  load,
)
from speccascade.models.t5.config import T5Config
from tests.checkpoints.conftest import hashes, same, shard


@pytest.fixture
def hf(copy_of):
  """A copy of the golden directory."""
  return copy_of("hf")


def settings(path, drop=(), **changes):
  """Edits config.json."""
  file = path / "config.json"
  values = json.loads(file.read_text()) | changes
  file.write_text(
    json.dumps({k: v for k, v in values.items() if k not in drop})
  )


def weights(path, drop=(), **changes):
  """Edits model.safetensors; `__` in a name stands for a dot."""
  file = path / "model.safetensors"
  values = load_file(file)
  values |= {name.replace("__", "."): v for name, v in changes.items()}
  save_file({k: v for k, v in values.items() if k not in drop}, file)


def embedding_of(path):
  return load_file(path / "model.safetensors")["shared.weight"]


# ------------------------------- reading --------------------------------------


@pytest.mark.parametrize("is_remote", [False, True])
def test_sharded(golden, bucket, manifest, is_remote):
  shutil.copytree(golden / "hf", bucket / "hf", copy_function=shutil.copyfile)
  shard(bucket / "hf")
  checkpoint = load("gs://bucket/hf" if is_remote else bucket / "hf")
  assert checkpoint.layout == "hugging_face"
  assert hashes(checkpoint.params) == manifest


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_widens(hf, golden_params, dtype):
  file = hf / "model.safetensors"
  values = load_file(file).items()
  save_file({name: value.astype(dtype) for name, value in values}, file)
  params = load(hf).params
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
  rounded = lambda leaf: leaf.astype(dtype).astype(np.float32)
  same(params, jax.tree.map(rounded, golden_params))


def test_duplicate_embeddings_are_merged(hf, manifest):
  embedding = embedding_of(hf)
  weights(
    hf,
    encoder__embed_tokens__weight=embedding,
    decoder__embed_tokens__weight=embedding.copy(),
  )
  assert hashes(load(hf).params) == manifest
  weights(hf, drop=("shared.weight", "encoder.embed_tokens.weight"))
  assert hashes(load(hf).params) == manifest
  weights(hf, shared__weight=embedding + 1)
  with pytest.raises(
    CheckpointError, match=r"shared\.weight and decoder\.embed_tokens\S+ differ"
  ):
    load(hf)


def test_what_changes_nothing(hf, manifest):
  """The unused bias of old files, mT5, and padding that nothing reads."""
  name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias"
  weights(hf, **{f"{name}.weight": np.zeros((32, 4), np.float32)})
  settings(hf, model_type="mt5", architectures=["MT5ForConditionalGeneration"])
  # MADLAD-400's padding is 1, and its decoder starts at row 0.
  settings(hf, pad_token_id=1, eos_token_id=2, decoder_start_token_id=0)
  assert hashes(load(hf).params) == manifest


# ---------------------------- output projection -------------------------------


def test_t5_1_0(hf):
  """One ReLU, tied and scaled output; its files leave out what says so."""
  file = hf / "model.safetensors"
  values = {k.replace("wi_0", "wi"): v for k, v in load_file(file).items()}
  save_file({k: v for k, v in values.items() if "wi_1" not in k}, file)
  weights(hf, drop=("lm_head.weight",))
  drop = ("feed_forward_proj", "tie_word_embeddings", "num_decoder_layers")
  settings(hf, drop=drop)
  checkpoint = load(hf)
  assert checkpoint.config.mlp_activations == ("relu",)
  assert checkpoint.config.logits_via_embedding
  assert checkpoint.config.num_decoder_layers == 2
  flat = architecture.flatten(checkpoint.params)
  assert "encoder/layers_0/mlp/wi/kernel" in flat
  assert "decoder/logits_dense/kernel" not in flat


@pytest.mark.parametrize(
  ("tie", "scale", "head", "want"),
  [
    # transformers 4 and the public files.
    (False, None, "other", "separate"),
    (True, None, "absent", "tied"),
    (None, None, "absent", "tied"),
    (True, None, "same", "tied"),
    # transformers 5 writes tie=true whatever the model is.
    (True, False, "other", "separate"),
    (True, True, "absent", "tied"),
    (True, True, "same", "tied"),
    (True, False, "absent", "copied"),
    (True, False, "same", "copied"),
    (False, None, "same", "copied"),
    # Contradictions.
    (True, None, "other", "refused"),
    (True, True, "other", "refused"),
    (False, None, "absent", "refused"),
  ],
)
def test_what_the_head_becomes(hf, golden_params, tie, scale, head, want):
  changes = {"tie_word_embeddings": tie, "scale_decoder_outputs": scale}
  settings(
    hf,
    drop=[name for name, value in changes.items() if value is None],
    **changes,
  )
  embedding = embedding_of(hf)
  if head == "same":
    weights(hf, lm_head__weight=embedding.copy())
  elif head == "absent":
    weights(hf, drop=("lm_head.weight",))
  if want == "refused":
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
      load(hf)
    return
  checkpoint = load(hf)
  assert checkpoint.config.logits_via_embedding == (want == "tied")
  decoder = checkpoint.params["decoder"]
  if want == "tied":
    assert "logits_dense" not in decoder
    return
  separate = golden_params["decoder"]["logits_dense"]["kernel"]
  np.testing.assert_array_equal(
    decoder["logits_dense"]["kernel"],
    embedding.T if want == "copied" else separate,
  )


# ------------------------------- writing --------------------------------------


def test_written_files_are_those_of_the_golden_directory(
  golden, source, golden_config, tmp_path
):
  hugging_face.save(tmp_path / "hf", source.params, golden_config)
  for name in ("config.json", "model.safetensors"):
    read = json.loads if name == "config.json" else safetensors.numpy.load
    files = (tmp_path / "hf" / name, golden / "hf" / name)
    same(*(read(file.read_bytes()) for file in files))
  with pytest.raises(CheckpointError, match="exists already"):
    hugging_face.save(tmp_path / "hf", source.params, golden_config)


def test_tied_models_and_bfloat16_come_back(hf, tmp_path, bfloat16_params):
  del bfloat16_params["decoder"]["logits_dense"]
  config = dataclasses.replace(load(hf).config, logits_via_embedding=True)
  (vocabulary := tmp_path / "v").write_bytes(b"pieces")
  to = tmp_path / "tied"
  options = {"dtype": "bfloat16", "vocabulary": vocabulary}
  hugging_face.save(to, bfloat16_params, config, **options)
  read = load(to)
  same(read.params, bfloat16_params)
  assert read.config == config
  assert (to / "spiece.model").read_bytes() == b"pieces"
  odd = dataclasses.replace(config, mlp_activations=("relu", "relu"))
  with pytest.raises(CheckpointError, match="has no feed_forward_proj"):
    hugging_face.save(tmp_path / "odd", bfloat16_params, odd)
  with pytest.raises(CheckpointError, match="written to local paths"):
    hugging_face.save("gs://bucket/x", bfloat16_params, config)


# ------------------------------ architecture ----------------------------------


def test_settings_left_out_have_transformers_defaults():
  # The published config.json of t5-small leaves most of them out.
  read = hugging_face_t5.build_config({})
  assert read == T5Config(
    vocab_size=32128,
    emb_dim=512,
    num_heads=8,
    num_encoder_layers=6,
    num_decoder_layers=6,
    head_dim=64,
    mlp_dim=2048,
    mlp_activations=("relu",),
    logits_via_embedding=True,
  )


def test_weights_that_are_none(hf):
  weights(hf, shared__weight=np.ones((512, 32), np.int8))
  with pytest.raises(CheckpointError, match=r"shared\.weight .* dtype int8"):
    load(hf)
  weights(hf, drop=("shared.weight",))
  with pytest.raises(CheckpointError, match=r"has no shared\.weight"):
    load(hf)
