"""Checks that every file of configs/models has the size that it names."""

import dataclasses
import math
import pathlib
import re

import gin
import pytest

from speccascade.checkpoints import hugging_face_llama, hugging_face_t5gemma
from speccascade.checkpoints.convert import config_from_gin
from speccascade.models import LlamaLM, T5GemmaLM
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import network, param_shapes
from speccascade.models.t5.config import T5Config
from speccascade.models.t5gemma.config import T5GemmaConfig

ROOT = pathlib.Path(__file__).parents[2]
MODELS = ROOT / "configs" / "models"

# In millions. Of T5 1.0 the paper says 60M, 220M, 770M, 2.8B, 11B (its Large is
# 738M by the released shapes); of T5 1.1 the shapes of the released models.
SIZES = ("small", "base", "large", "xl", "xxl")
T5_1_1 = (77.0, 247.6, 783.2, 2849.8, 11135.3)
MILLIONS = {
  "t5_1_0_small": 60.5,
  "t5_1_0_base": 222.9,
  "t5_1_0_large": 737.7,
  "t5_1_0_3b": 2851.6,
  "t5_1_0_11b": 11307.3,
  **{f"t5_1_1_{size}": num for size, num in zip(SIZES, T5_1_1)},
  **{f"flan_t5_{size}": num for size, num in zip(SIZES, T5_1_1)},
  # The paper says 300M, 582M, 1.23B, 3.74B and 12.9B.
  "byt5_small": 299.6,
  "byt5_base": 581.7,
  "byt5_large": 1228.2,
  "byt5_xl": 3737.8,
  "byt5_xxl": 12906.9,
  "quickstart_small": 0.2,
  "quickstart_large": 6.6,
  "built_in_large": 3.8,
  "smollm2_drafter": 12.7,
  "gemma_2b": 2506.2,
  "gemma_7b": 8537.7,
  "gemma2_2b": 2614.3,
  "gemma2_9b": 9241.7,
  "gemma2_27b": 27227.1,
  "gemma3_270m": 268.1,
  "gemma3_1b": 999.9,
  "gemma3_4b": 3880.3,
  "gemma3_12b": 11766.0,
  "gemma3_27b": 27009.3,
  "t5gemma_s": 312.5,
  "t5gemma_b": 591.5,
  "t5gemma_l": 1241.8,
  "t5gemma_ml": 2200.3,
  "t5gemma_xl": 3767.0,
  "t5gemma_2b_2b": 5596.9,
  "t5gemma_9b_2b": 12292.4,
  "t5gemma_9b_9b": 20333.4,
  "t5gemma2_270m": 368.4,
  "t5gemma2_1b": 1697.8,
  "t5gemma2_4b": 7089.1,
}


def test_every_file_is_listed():
  # What is made for a verifier has its size.
  names = {path.stem for path in MODELS.glob("*.gin")}
  names -= {"early_exit", "state_reader"}
  assert {name for name in names if "_heads" not in name} == set(MILLIONS)


@pytest.mark.parametrize("name", MILLIONS)
def test_model_files(name):
  path = MODELS / f"{name}.gin"
  config = config_from_gin(str(path))
  is_llama = name.startswith(("smollm2", "gemma"))
  is_t5gemma = name.startswith("t5gemma")
  kind = LlamaConfig if is_llama else T5Config
  kind = T5GemmaConfig if is_t5gemma else kind
  assert type(config) is kind  # not gin's subclass: configs must be equal
  count = sum(map(math.prod, param_shapes(config).values()))
  assert round(count / 1e6, 1) == MILLIONS[name]
  (number,) = re.findall(r"([\d,]+) parameters", path.read_text())
  assert int(number.replace(",", "")) == count
  if kind is T5Config and "t5" in name:
    assert config.vocab_size == (384 if "byt5" in name else 32128)
  is_tied = is_llama or is_t5gemma or name.startswith("t5_1_0")
  assert config.logits_via_embedding == is_tied


@pytest.mark.parametrize("name", [x for x in MILLIONS if x.startswith("gemma")])
def test_gemmas(name):
  """Their memory, and what Hugging Face's settings of the model say."""
  path = MODELS / f"{name}.gin"
  config = config_from_gin(str(path))
  weights, cache = re.search(
    r"([\d.]+) GB of weights, and\n# ([\d.]+) kB", path.read_text()
  ).groups()
  count = sum(map(math.prod, param_shapes(config).values()))
  assert float(weights) == round(2 * count / 1e9, 1)
  lm = LlamaLM(None, network(dataclasses.replace(config, dtype="bfloat16")))
  assert float(cache) == round(lm.slot_bytes / 1e3, 1)
  family, _, size = name.partition("_")
  model_type = "gemma3_text" if family == "gemma3" else family
  settings = hugging_face_llama.settings_of(config)
  assert settings["model_type"] == model_type
  # All but the sizes is as the model type has it.
  sizes = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "eos_token_id",
    "sliding_window",
    "rope_scaling",
  )
  sparse = {x: settings[x] for x in sizes if settings.get(x) is not None}
  sparse["model_type"] = model_type
  if size == "27b":
    sparse["query_pre_attn_scalar"] = {"gemma2": 144, "gemma3": 168}[family]
  assert hugging_face_llama.build_config(sparse) == config


@pytest.mark.parametrize(
  "name", [x for x in MILLIONS if x.startswith("t5gemma")]
)
def test_t5gemmas(name):
  """Their memory, and what Hugging Face's settings of the model say."""
  path = MODELS / f"{name}.gin"
  config = config_from_gin(str(path))
  weights, cache = re.search(
    r"([\d.]+) GB of weights, and\n# ([\d.]+) kB", path.read_text()
  ).groups()
  count = sum(map(math.prod, param_shapes(config).values()))
  assert float(weights) == round(2 * count / 1e9, 1)
  lm = T5GemmaLM(None, network(dataclasses.replace(config, dtype="bfloat16")))
  assert float(cache) == round(lm.slot_bytes / 1e3, 1)
  assert config.query_pre_attn_scalar == config.head_dim
  # All but the sizes is as transformers' class has it.
  sizes = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "query_pre_attn_scalar",
  )
  settings = hugging_face_t5gemma.settings_of(config)
  sparse = {x: settings[x] for x in ("model_type", "eos_token_id")}
  encoder, decoder = settings["encoder"], settings["decoder"]
  if settings["model_type"] == "t5gemma2":
    encoder = encoder["text_config"]
    sizes += ("vocab_size", "max_position_embeddings")
    sizes += ("sliding_window", "rope_scaling")
  sparse["decoder"] = {x: decoder[x] for x in sizes}
  sparse["encoder"] = {x: encoder[x] for x in sizes}
  if settings["model_type"] == "t5gemma2":
    sparse["encoder"] = {"text_config": sparse["encoder"]}
  assert hugging_face_t5gemma.build_config(sparse) == config


def test_two_models_in_one_config():
  """As decoding wants it: each by its scope, run choices reaching both."""
  try:
    gin.parse_config(f"""
      from __gin__ import dynamic_registration
      from speccascade.models.t5 import config
      include "{MODELS}/t5_1_1_small.gin"
      include "{MODELS}/t5_1_1_large.gin"
      DRAFTER = @t5_1_1_small/config.T5Config()
      VERIFIER = @t5_1_1_large/config.T5Config()
      config.T5Config.dtype = "bfloat16"
      config.T5Config.dropout_rate = 0.0
    """)
    drafter, verifier = (
      gin.query_parameter(f"{name}/macro.value").scoped_configurable_fn()
      for name in ("DRAFTER", "VERIFIER")
    )
  finally:
    gin.clear_config()
  assert (drafter.emb_dim, drafter.num_decoder_layers) == (512, 8)
  assert (verifier.emb_dim, verifier.num_decoder_layers) == (1024, 24)
  for config in (drafter, verifier):
    assert (config.dtype, config.dropout_rate) == ("bfloat16", 0.0)
