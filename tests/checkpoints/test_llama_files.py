"""Reads, refuses and converts files of Llama, Mistral, Qwen and Gemma."""

import dataclasses
import json
import pathlib
import shutil
import struct

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from speccascade.checkpoints import (
  CheckpointError,
  convert,
  hugging_face_llama,
  inspect,
  load,
)
from speccascade.models import LlamaConfig, T5Config
from speccascade.models.llama.config import RopeScaling
from speccascade.runtime import memory
from tests.checkpoints.conftest import same
from tests.checkpoints.test_hugging_face import settings, weights

GEMMAS = ("gemma", "gemma2", "gemma3_text", "gemma3")
KINDS = ("llama", "mistral", "qwen2", "qwen3", *GEMMAS)
LLAMA = LlamaConfig(
  vocab_size=96,
  emb_dim=32,
  num_heads=4,
  num_kv_heads=2,
  num_decoder_layers=2,
  head_dim=8,
  mlp_dim=40,
  max_positions=64,
  rope_theta=500.0,
  logits_via_embedding=False,
  eos_ids=(2, 7),
  bos_id=1,
)
GQA = {"norm_epsilon": 1e-6, "eos_ids": (2,)}
CONFIGS = {
  "llama": LLAMA,
  "mistral": dataclasses.replace(
    LLAMA, **GQA, head_dim=16, num_kv_heads=1, window=5, rope_theta=10000.0
  ),
  "qwen2": dataclasses.replace(
    LLAMA,
    **GQA,
    window=6,
    windowed_layers=(1,),
    rope_theta=1e6,
    qkv_bias=True,
    logits_via_embedding=True,
  ),
  "qwen3": dataclasses.replace(
    LLAMA,
    **GQA,
    head_dim=16,
    rope_theta=10000.0,
    query_key_norm=True,
    logits_via_embedding=True,
  ),
}
GEMMA = dataclasses.replace(
  LLAMA,
  norm_epsilon=1e-6,
  norm_offset=1,
  scaled_embedding=True,
  head_dim=12,
  num_kv_heads=1,
  mlp_activations=("gelu", "linear"),
  rope_theta=10000.0,
  logits_via_embedding=True,
  eos_ids=(1,),
  bos_id=2,
)
GEMMA2 = dataclasses.replace(
  GEMMA,
  num_kv_heads=2,
  post_norms=True,
  query_pre_attn_scalar=20.0,
  window=5,
  windowed_layers=(0,),
  attention_cap=1.5,
  logit_cap=3.0,
  eos_ids=(1, 7),
)
GEMMA3 = dataclasses.replace(
  GEMMA2,
  attention_cap=None,
  logit_cap=None,
  query_key_norm=True,
  window=6,
  rope_theta=700.0,
  rope_scaling=RopeScaling("linear", 4.0),
  local_rope_theta=50.0,
  eos_ids=(1,),
)
CONFIGS |= {
  "gemma": GEMMA,
  "gemma2": GEMMA2,
  "gemma3_text": GEMMA3,
  "gemma3": dataclasses.replace(
    GEMMA3,
    emb_dim=16,
    num_heads=2,
    num_kv_heads=1,
    num_decoder_layers=6,
    head_dim=8,
    mlp_dim=24,
    query_pre_attn_scalar=10.0,
    window=5,
    windowed_layers=(0, 1, 2, 3, 4),
    rope_theta=1e6,
    rope_scaling=RopeScaling("linear", 8.0),
    local_rope_theta=1e4,
    eos_ids=(1, 7),
  ),
}
# google/gemma-3-12b-it's config.json without its vision_config, and its other
# sizes' text_config: they leave out what equals the defaults.
SPARSE = {
  "architectures": ["Gemma3ForConditionalGeneration"],
  "eos_token_id": [1, 106],
  "image_token_index": 262144,
  "model_type": "gemma3",
  "text_config": {
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "model_type": "gemma3_text",
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
  },
}


@pytest.fixture(scope="module")
def folder(golden):
  return golden.parent / "llama"


@pytest.fixture
def copy(folder, tmp_path):
  """Returns a function from a kind to a copy that may be damaged."""
  return lambda kind: shutil.copytree(folder / kind, tmp_path / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_read_converted_and_back(folder, tmp_path, kind, capsys):
  """The tokenizer goes along."""
  read = load(folder / kind)
  assert read.config == CONFIGS[kind]
  assert {x.dtype for x in jax.tree.leaves(read.params)} == {np.dtype("f4")}
  source = shutil.copytree(folder / kind, tmp_path / "source")
  (source / "tokenizer.json").write_text("{}")
  for format in ("speccascade", "hugging_face"):
    to = tmp_path / format
    flags = {"source": source, "destination": to, "format": format}
    assert not convert.main([f"--{k}={v}" for k, v in flags.items()])
    source = pathlib.Path(capsys.readouterr().out.split()[1])
    again = load(to)
    assert (again.layout, again.config) == (format, read.config)
    same(again.params, read.params)
    assert (source / "tokenizer.json").read_text() == "{}"
  written = json.loads((to / "config.json").read_text())["model_type"]
  # The other parts of a model that also reads images are left behind.
  assert written == ("gemma3_text" if kind == "gemma3" else kind)
  flags = [f"--source={source}", f"--destination={to}2", "--format=t5x"]
  assert convert.main(flags)
  assert "T5X's format is not for it" in capsys.readouterr().err
  assert not inspect.main([f"--source={to}", "--check"])
  assert "config.LlamaConfig:\n  vocab_size = 96" in capsys.readouterr().out


def test_what_changes_nothing(copy, folder):
  """Old names of rotary positions, a buffer, a tied head that is there too."""
  path, want = copy("llama"), load(folder / "llama")
  settings(path, drop=("rope_parameters",), rope_theta=500.0)
  buffer = np.zeros(4, np.float32)
  weights(path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": buffer})
  read = load(path)
  assert read.config == want.config
  same(read.params, want.params)
  path, want = copy("mistral"), load(folder / "mistral")
  file = path / "model.safetensors"
  table = load_file(file)["model.embed_tokens.weight"]
  weights(path, lm_head__weight=table.copy())
  settings(path, tie_word_embeddings=True)
  assert "logits_dense" not in load(path).params["decoder"]
  weights(path, lm_head__weight=table + 1)
  with pytest.raises(CheckpointError, match=r"true, but lm_head\.weight is an"):
    load(path)


@pytest.mark.parametrize("named", [True, False])
def test_a_head_that_lacks_names_the_setting(copy, named):
  path = copy("llama")
  weights(path, drop=("lm_head.weight",))
  if not named:
    settings(path, drop=("tie_word_embeddings",))
  with pytest.raises(CheckpointError, match=r"missing: lm_head.*tie_word_emb"):
    load(path)
  settings(path, tie_word_embeddings=True)
  assert "logits_dense" not in load(path).params["decoder"]


def test_a_sparse_gemma():
  """What google/gemma-3-12b-it leaves out."""
  config = hugging_face_llama.build_config(SPARSE)
  full = (5, 11, 17, 23, 29, 35, 41, 47)
  assert config == dataclasses.replace(
    GEMMA3,
    vocab_size=262208,
    emb_dim=3840,
    num_heads=16,
    num_kv_heads=8,
    num_decoder_layers=48,
    head_dim=256,
    mlp_dim=15360,
    max_positions=131072,
    rope_theta=1e6,
    rope_scaling=RopeScaling("linear", 8.0),
    local_rope_theta=1e4,
    query_pre_attn_scalar=256,
    window=1024,
    windowed_layers=tuple(i for i in range(48) if i not in full),
    eos_ids=(1, 106),
  )
  assert config.longest_text == 131072
  assert config.query_factor == 1 / 16
  text = SPARSE["text_config"] | {"sliding_window": None}
  with pytest.raises(ValueError, match="sliding_window is None; wanted a"):
    hugging_face_llama.build_config(SPARSE | {"text_config": text})


@pytest.mark.parametrize(
  ("model_type", "settings", "want"),
  [
    ("gemma", {"hidden_act": "gelu"}, {"head_dim": 256, "bos_id": 2}),
    # What Gemma 1 and 2 do not have is not read.
    ("gemma", {"final_logit_softcapping": 30.0}, {"logit_cap": None}),
    ("gemma2", {"rope_local_base_freq": 5.0}, {"local_rope_theta": None}),
    (
      "gemma2",
      {"num_hidden_layers": 4},
      {
        "windowed_layers": (0, 2),
        "window": 4096,
        "attention_cap": 50.0,
        "logit_cap": 30.0,
        "vocab_size": 256000,
      },
    ),
    ("gemma2", {"query_pre_attn_scalar": 144}, {"query_factor": 1 / 12}),
    (
      "gemma3_text",
      {
        "num_hidden_layers": 6,
        "sliding_window": 512,
        "_sliding_window_pattern": 3,
      },
      {"windowed_layers": (0, 1, 3, 4), "window": 512},
    ),
    (
      "gemma3_text",
      {
        "sliding_window": 512,
        "rope_parameters": {
          "full_attention": {"rope_type": "linear", "factor": 8.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 99.0},
        },
      },
      {
        "rope_theta": 1e6,
        "rope_scaling": RopeScaling("linear", 8.0),
        "local_rope_theta": 99.0,
      },
    ),
  ],
)
def test_settings_of_gemmas(model_type, settings, want):
  settings = {"model_type": model_type, **settings}
  config = hugging_face_llama.build_config(settings)
  assert {name: getattr(config, name) for name in want} == want
  again = hugging_face_llama.settings_of(config)
  assert hugging_face_llama.build_config(again) == config
  assert again["model_type"] == model_type


def test_newer_names_of_arrays_inside_a_larger_model(copy, folder):
  path = copy("gemma3")
  file = path / "model.safetensors"
  arrays = {
    "model." + name.replace("language_model.model.", "language_model."): array
    for name, array in load_file(file).items()
  }
  assert "model.language_model.norm.weight" in arrays
  assert any(name.startswith("model.vision_tower.") for name in arrays)
  save_file(arrays, file)
  same(load(path).params, load(folder / "gemma3").params)
  assert not inspect.main([f"--source={path}", "--check"])


@pytest.mark.parametrize(
  ("scaling", "want"),
  [
    ({"type": "linear", "factor": 2}, RopeScaling("linear", 2.0)),
    ({"rope_type": "dynamic", "factor": 2.0}, RopeScaling("dynamic", 2.0)),
    (
      {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
      },
      RopeScaling("yarn", 4.0, 16, attention_factor=1.1386294 / 1.0693147),
    ),
    ({"rope_type": "default"}, None),
  ],
)
def test_rope_scalings(scaling, want):
  read = hugging_face_llama.build_config(
    {"model_type": "llama", "rope_scaling": scaling}
  )
  scaling = read.rope_scaling
  if want and want.attention_factor:
    assert scaling.attention_factor == pytest.approx(want.attention_factor)
    want = dataclasses.replace(want, attention_factor=scaling.attention_factor)
  assert scaling == want
  again = hugging_face_llama.settings_of(read)
  assert hugging_face_llama.build_config(again) == read


@pytest.mark.parametrize(
  ("scaling", "want"),
  [
    (None, 2048),
    ({"type": "linear", "factor": 8.0}, 8 * 2048),
    ({"type": "dynamic", "factor": 2.0}, 2 * 2048),
    ({"type": "yarn", "factor": 4.0}, 4 * 2048),
    # Qwen2.5 names the length before it is scaled, others the scaled one.
    (
      *(
        {
          "type": "yarn",
          "factor": 4.0,
          "original_max_position_embeddings": 2048,
        },
        4 * 2048,
      ),
    ),
    (
      *(
        {
          "type": "yarn",
          "factor": 4.0,
          "original_max_position_embeddings": 512,
        },
        2048,
      ),
    ),
    (
      {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
      },
      2048,
    ),
  ],
)
def test_texts_may_be_as_long_as_scaled_positions_reach(scaling, want):
  config = hugging_face_llama.build_config(
    {"model_type": "llama", "rope_scaling": scaling}
  )
  assert config.max_positions == 2048
  assert config.longest_text == want


def test_llama_has_no_window_whatever_its_file_says(copy, folder):
  path = copy("llama")
  settings(path, sliding_window=8, use_sliding_window=True)
  assert load(path).config == load(folder / "llama").config
  settings(path, max_window_layers=0, layer_types=["sliding_attention"] * 2)
  assert load(path).config.window is None


def test_the_index_says_which_array_counts(copy, folder):
  """A later shard still holds an array of former weights."""
  path = copy("qwen3")
  index = json.loads((path / "model.safetensors.index.json").read_text())
  places = index["weight_map"]
  *_, last = sorted(set(places.values()))
  name = min(name for name, shard in places.items() if shard != last)
  arrays = load_file(path / last)
  arrays[name] = 1 + load_file(path / places[name])[name]
  save_file(arrays, path / last)
  same(load(path).params, load(folder / "qwen3").params)
  same(load(path, lazy=True).params, load(folder / "qwen3").params)
  # What no shard should hold is still seen.
  arrays["nobody"] = arrays[name]
  save_file(arrays, path / last)
  with pytest.raises(CheckpointError, match="unexpected: nobody"):
    load(path)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("lazy", [False, True])
def test_weights_of_eight_bits_are_one_line(copy, dtype, lazy):
  path = copy("llama")
  header, content = {}, b""
  for name, array in load_file(path / "model.safetensors").items():
    kind, raw = "F32", array.tobytes()
    if name.endswith("up_proj.weight"):
      kind, raw = dtype, bytes(array.size)
    places = [len(content), len(content) + len(raw)]
    header[name] = {
      "dtype": kind,
      "shape": array.shape,
      "data_offsets": places,
    }
    content += raw
  text = json.dumps(header).encode()
  (path / "model.safetensors").write_bytes(
    struct.pack("<Q", len(text)) + text + content
  )
  message = rf"layers\.0\.mlp\.up_proj\.weight of dtype {dtype}, quantized"
  with pytest.raises(CheckpointError, match=message):
    load(path, lazy=lazy)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"model_type": "gpt2"},
      "t5, mt5, t5gemma, t5gemma2, llama, mistral, qwen2, qwen3, gemma,",
    ),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention is T"),
    ({"model_type": "gemma", "hidden_activation": "gelu"}, "_activation is 'g"),
    ({"model_type": "gemma3_text"}, "sliding_window is None; wanted"),
    (
      *(
        {
          "model_type": "gemma3_text",
          "sliding_window": 4,
          "attn_logit_softcapping": 50.0,
        },
        "attn_logit_softcapping is 50.0",
      ),
    ),
    (
      *(
        {
          "model_type": "gemma3_text",
          "sliding_window": 4,
          "rope_parameters": {"sliding_attention": {"rope_type": "linear"}},
        },
        "rope_type is 'linear'; wanted one of default",
      ),
    ),
    ({"model_type": "gemma3", "text_config": [1]}, r"text_config is \[1\]"),
    ({"quantization_config": {}}, "quantized"),
    (
      {"rope_scaling": {"rope_type": "longrope", "factor": 2}},
      "rope_type is 'longrope'; .*of default, linear, dynamic, llama3",
    ),
    ({"rope_parameters": {"full_attention": {}}}, "full_attention is {}"),
    ({"rope_scaling": {"type": "linear"}}, "missing factor"),
    ({"rope_scaling": {"type": "linear", "factor": "x"}}, "factor is 'x'"),
    ({"rope_scaling": [1]}, r"rope_parameters is \[1\]"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ({"mlp_bias": True}, "mlp_bias is True"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"num_key_value_heads": 3}, "num_kv_heads is 3, which does not divide"),
    ({"head_dim": 7}, "head_dim is 7; rotary"),
    ({"hidden_size": None}, "hidden_size is None; .*whole number"),
    ({"attention_bias": "no"}, "attention_bias is 'no'"),
    ({"attention_bias": True}, r"missing: model\.layers\.0\.self_attn\.k_proj"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
    ({"eos_token_id": ["end"]}, "eos_token_id"),
    (
      *(
        {"eos_token_id": 10**9},
        "eos_token_id is 1000000000; wanted an id below",
      ),
    ),
    ({"rope_theta": 1e308, "rope_parameters": None}, r"rope_theta is 1e\+308"),
    ({"num_hidden_layers": 1}, r"unexpected: model\.layers\.1"),
    ({"num_hidden_layers": 60}, "num_decoder_layers=60, the checkpoint"),
    ({"vocab_size": 97}, r"has shape \[96, 32\] .*, \[97, 32\] by its"),
    (
      {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["x"]},
      "layer_types is",
    ),
    (
      {"model_type": "qwen3", "use_sliding_window": True, "layer_types": []},
      "layer_types has 0 .*num_hidden_layers is 2",
    ),
  ],
)
def test_other_architectures_are_refused(copy, changes, message):
  path = copy("llama")
  settings(path, **changes)
  (path / "generation_config.json").unlink()
  with pytest.raises(CheckpointError, match=message) as error:
    load(path)
  assert str(path) in str(error.value)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("ends", ["end", 10**9, [2, -1]])
def test_the_file_that_says_a_wrong_end_is_named(copy, ends):
  path = copy("llama")
  text = json.dumps({"eos_token_id": ends})
  (path / "generation_config.json").write_text(text)
  message = r"llama/generation_config\.json: eos_token_id is "
  with pytest.raises(CheckpointError, match=message):
    load(path)


def test_missing_shard_memory_and_another_config(copy, monkeypatch):
  path = copy("qwen3")
  with pytest.raises(CheckpointError, match="is of a LlamaConfig; a T5Config"):
    load(path, config=T5Config())
  wrong = dataclasses.replace(CONFIGS["qwen3"], window=3)
  with pytest.raises(CheckpointError, match=r"window=3 \(the checkpoint: None"):
    load(path, config=wrong)
  monkeypatch.setattr(memory, "machine", lambda: 50_000)
  with pytest.raises(CheckpointError, match="parameters take 0"):
    load(path)
  monkeypatch.undo()
  (path / "model-00002-of-00004.safetensors").unlink()
  with pytest.raises(CheckpointError, match=r"00002-of-00004.* is missing"):
    load(path)


def test_no_model_type_has_it(folder, tmp_path):
  odd = dataclasses.replace(LLAMA, query_key_norm=True, window=3, out_bias=True)
  with pytest.raises(CheckpointError, match="no model type of llama, mistral"):
    hugging_face_llama.settings_of(odd)
