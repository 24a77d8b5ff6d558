"""Checks that every file of configs/models has the size that it names."""

import math
import pathlib
import re

import gin
import pytest

from speccascade.checkpoints.convert import config_from_gin
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import param_shapes
from speccascade.models.t5.config import T5Config

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
  "quickstart_small": 0.2,
  "quickstart_large": 6.6,
  "built_in_large": 3.8,
  "smollm2_drafter": 12.7,
}


def test_every_file_is_listed():
  # Draft heads have the sizes of their verifier.
  names = {path.stem for path in MODELS.glob("*.gin")}
  assert {name for name in names if "_heads" not in name} == set(MILLIONS)


@pytest.mark.parametrize("name", MILLIONS)
def test_model_files(name):
  path = MODELS / f"{name}.gin"
  config = config_from_gin(str(path))
  kind = LlamaConfig if name.startswith("smollm2") else T5Config
  assert type(config) is kind  # not gin's subclass: configs must be equal
  count = sum(map(math.prod, param_shapes(config).values()))
  assert round(count / 1e6, 1) == MILLIONS[name]
  (number,) = re.findall(r"([\d,]+) parameters", path.read_text())
  assert int(number.replace(",", "")) == count
  if "t5" in name:
    assert config.vocab_size == 32128
  is_tied = name.startswith(("t5_1_0", "smollm2"))
  assert config.logits_via_embedding == is_tied


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
