"""Reads, refuses and converts files of T5Gemma."""

import dataclasses
import json
import re
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from speccascade.checkpoints import (
  CheckpointError,
  convert,
  hugging_face_t5gemma,
  inspect,
  load,
)
from speccascade.generate.pair import pair_checks
from speccascade.models import T5GemmaConfig
from speccascade.models.llama.config import RopeScaling
from tests.checkpoints.conftest import same
from tests.checkpoints.test_hugging_face import settings, weights

KINDS = ("even", "wide", "merged")
EVEN = T5GemmaConfig(
  vocab_size=96,
  emb_dim=32,
  num_heads=4,
  num_kv_heads=2,
  num_encoder_layers=2,
  num_decoder_layers=2,
  head_dim=12,
  mlp_dim=40,
  max_positions=64,
  query_pre_attn_scalar=20.0,
  attention_cap=1.5,
  logit_cap=3.0,
  window=5,
  windowed_layers=(0,),
)
CONFIGS = {
  "even": EVEN,
  # Its config.json says nothing of caps, norms, positions and kinds of layers.
  "wide": dataclasses.replace(
    EVEN,
    num_kv_heads=1,
    attention_cap=50.0,
    logit_cap=30.0,
    num_encoder_layers=3,
    encoder_emb_dim=48,
    encoder_num_heads=6,
    encoder_num_kv_heads=2,
    encoder_head_dim=8,
    encoder_mlp_dim=56,
    encoder_windowed_layers=(0, 2),
    eos_ids=(1, 7),
  ),
  "merged": dataclasses.replace(
    EVEN,
    attention_cap=None,
    logit_cap=None,
    window=6,
    rope_theta=700.0,
    rope_scaling=RopeScaling("linear", 4.0),
    local_rope_theta=50.0,
    query_key_norm=True,
    split_window=True,
    merged_attention=True,
    shared_embedding=True,
    end_of_image_id=7,
  ),
}
VISION = ("vision_tower.", "multi_modal_projector.")
LM_HEAD = "lm_head__out_proj__weight"


@pytest.fixture(scope="module")
def folder(golden):
  return golden.parent / "t5gemma"


@pytest.fixture
def copy(folder, tmp_path):
  """Returns a function from a kind to a copy that may be damaged."""
  return lambda kind: shutil.copytree(folder / kind, tmp_path / kind)


def change(path, stack, **values):
  """Changes settings of a stack in config.json."""
  file = path / "config.json"
  content = json.loads(file.read_text())
  content[stack] |= values
  file.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", KINDS)
def test_read_converted_and_back(folder, tmp_path, kind, capsys):
  """The tokenizer goes along."""
  read = load(folder / kind)
  assert read.config == CONFIGS[kind]
  source = shutil.copytree(folder / kind, tmp_path / "source")
  (source / "tokenizer.json").write_text("{}")
  for format in ("speccascade", "hugging_face"):
    to = tmp_path / format
    flags = {"source": source, "destination": to, "format": format}
    assert not convert.main([f"--{k}={v}" for k, v in flags.items()])
    source = to
    again = load(to)
    assert (again.layout, again.config) == (format, read.config)
    same(again.params, read.params)
  assert (to / "tokenizer.json").read_text() == "{}"
  flags = [f"--source={source}", f"--destination={to}2", "--format=t5x"]
  assert convert.main(flags)
  assert "T5X's format is not for it" in capsys.readouterr().err
  assert not inspect.main([f"--source={to}", "--check"])
  assert "config.T5GemmaConfig:\n  vocab_size = 96" in capsys.readouterr().out
  # transformers reads the names that are written.
  names = load_file(folder / kind / "model.safetensors").keys()
  names = {name for name in names if not any(x in name for x in VISION)}
  assert load_file(to / "model.safetensors").keys() == names


def test_a_file_with_nothing_but_its_type():
  """T5Gemma 2B-2B, whose sizes are the defaults."""
  config = hugging_face_t5gemma.build_config({"model_type": "t5gemma"})
  assert (config.emb_dim, config.num_encoder_layers) == (2304, 26)
  assert config.windowed_layers == tuple(range(0, 26, 2))
  assert (config.window, config.start_id, config.eos_ids) == (4096, 2, (1,))
  assert config.encoder == config.decoder


def test_a_sparse_t5gemma_2():
  """What transformers takes for what is left out; but not for the window."""
  stack = {"num_hidden_layers": 7, "sliding_window": 512}
  settings = {
    "model_type": "t5gemma2",
    "encoder": {"text_config": stack, "vision_config": {"hidden_size": 5}},
    "decoder": stack,
  }
  config = hugging_face_t5gemma.build_config(settings)
  assert (config.emb_dim, config.vocab_size) == (2304, 262208)
  assert config.windowed_layers == (0, 1, 2, 3, 4, 6)
  assert (config.rope_theta, config.local_rope_theta) == (1e6, 1e4)
  assert (config.attention_cap, config.logit_cap) == (None, None)
  assert config.query_key_norm
  assert config.merged_attention
  assert (config.end_of_image_id, config.start_id) == (256000, 2)
  assert config.encoder == config.decoder
  settings["decoder"] = {"num_hidden_layers": 7}
  with pytest.raises(ValueError, match=r"decoder\.sliding_window is None"):
    hugging_face_t5gemma.build_config(settings)


def test_a_tower_of_images_is_left_out_in_a_line(copy, caplog):
  path = copy("merged")
  with caplog.at_level("INFO", logger="absl"):
    load(path)
    load(path)
  [line] = [x for x in caplog.messages if "also reads images" in x]
  assert "34 arrays of its vision tower are left out" in line


def test_another_name_of_the_text_model(copy, folder):
  """As transformers has it in memory."""
  path, want = copy("merged"), load(folder / "merged")
  file = path / "model.safetensors"
  inside = re.compile(r"(?<=^model\.encoder\.)(?=embed|layers|norm)")
  arrays = {
    inside.sub("text_model.", name): array
    for name, array in load_file(file).items()
  }
  assert sum("encoder.text_model." in name for name in arrays) == 29
  save_file(arrays, file)
  same(load(path).params, want.params)


@pytest.mark.parametrize("array", ["weight", "eoi_embedding"])
def test_copies_of_a_shared_table(copy, folder, array):
  path, want = copy("merged"), load(folder / "merged")
  table = load_file(path / "model.safetensors")[
    f"model.encoder.embed_tokens.{array}"
  ]
  name = f"model__decoder__embed_tokens__{array}"
  weights(path, **{name: table.copy()})
  same(load(path).params, want.params)
  weights(path, **{name: table + 1})
  with pytest.raises(CheckpointError, match=f"{array} differ; a T5Gemma 2"):
    load(path)


def test_a_config_between_the_two():
  """It decodes here, and transformers has no name for it."""
  config = dataclasses.replace(CONFIGS["merged"], split_window=False)
  with pytest.raises(CheckpointError, match="merged_attention, shared_embed"):
    hugging_face_t5gemma.settings_of(config)


def test_an_output_of_its_own_is_not_written():
  """Its decoder would be read with a random table."""
  config = dataclasses.replace(CONFIGS["merged"], logits_via_embedding=False)
  with pytest.raises(CheckpointError, match="logits_via_embedding is False"):
    hugging_face_t5gemma.settings_of(config)


@pytest.mark.parametrize("kind", ["even", "merged"])
def test_what_transformers_wants_of_settings(kind):
  full = {"window": None, "windowed_layers": (), "local_rope_theta": None}
  config = dataclasses.replace(
    CONFIGS[kind], query_pre_attn_scalar=None, **full
  )
  written = hugging_face_t5gemma.settings_of(config)
  stack = written["decoder"]
  assert isinstance(stack["query_pre_attn_scalar"], int)
  assert "sliding_window" not in stack
  assert hugging_face_t5gemma.build_config(written) == config


def test_a_head_that_is_there_too(copy, folder):
  path, want = copy("even"), load(folder / "even")
  file = path / "model.safetensors"
  table = load_file(file)["model.decoder.embed_tokens.weight"]
  weights(path, **{LM_HEAD: table.copy()})
  same(load(path).params, want.params)
  weights(path, **{LM_HEAD: table + 1})
  with pytest.raises(CheckpointError, match=r"out_proj\.weight is another"):
    load(path)
  settings(path, tie_word_embeddings=False)
  head = load(path).params["decoder"]["logits_dense"]["kernel"]
  assert (head == (table + 1).T).all()


def test_where_the_start_token_is_said(copy):
  path = copy("even")
  change(path, "decoder", bos_token_id=5)
  settings(path, bos_token_id=None)
  (path / "generation_config.json").unlink()
  assert load(path).config.start_id == 5
  settings(path, bos_token_id=4)
  assert load(path).config.start_id == 4
  settings(path, decoder_start_token_id=6)
  assert load(path).config.start_id == 6
  (path / "generation_config.json").write_text('{"decoder_start_token_id": 7}')
  assert load(path).config.start_id == 7


@pytest.mark.parametrize(
  ("stack", "values", "message"),
  [
    ("encoder", {"rope_theta": 5.0, "rope_parameters": None}, "has rope_theta"),
    ("encoder", {"final_logit_softcapping": 2.0}, r"logit_cap=2\.0 \(the deco"),
    ("encoder", {"vocab_size": 90}, r"vocab_size=90 \(the decoder's: 96\)"),
    ("decoder", {"pad_token_id": 3}, r"decoder\.pad_token_id"),
    (
      "decoder",
      {"hidden_size": 0},
      r"decoder: hidden_size|decoder\.hidden_size",
    ),
    ("encoder", {"num_key_value_heads": 3}, "encoder: num_kv_heads is 3"),
    ("encoder", {"hidden_activation": "relu"}, "encoder: hidden_activation is"),
  ],
)
def test_what_is_refused(copy, stack, values, message):
  path = copy("even")
  change(path, stack, **values)
  with pytest.raises(CheckpointError, match=message):
    load(path)


def test_unlike_widths_are_refused_by_their_settings():
  stack = {"num_hidden_layers": 7, "sliding_window": 512}
  wide = stack | {"hidden_size": 2560}
  for encoder, decoder in ((wide, stack), (stack, wide)):
    merged = {"model_type": "t5gemma2", "encoder": {"text_config": encoder}}
    with pytest.raises(ValueError, match=r"encoder\.text_config\.hidden_size"):
      hugging_face_t5gemma.build_config(merged | {"decoder": decoder})
    own = {"model_type": "t5gemma", "encoder": encoder, "decoder": decoder}
    config = hugging_face_t5gemma.build_config(own)
    for width in (config.encoder.emb_dim, None):
      decoder = own["decoder"] | {"cross_attention_hidden_size": width}
      read = hugging_face_t5gemma.build_config(own | {"decoder": decoder})
      assert read == config
    decoder = decoder | {"cross_attention_hidden_size": 7}
    with pytest.raises(
      ValueError, match=r"decoder\.cross_attention_hidden_size"
    ):
      hugging_face_t5gemma.build_config(own | {"decoder": decoder})


def test_rows_are_cut_of_the_shared_table(folder):
  read = load(folder / "merged")
  _, params = pair_checks.cut_rows(read.config, read.params, 90)
  table, given = params["token_embedder"], read.params["token_embedder"]
  assert table["embedding"].shape[0] == 90
  assert table["end_of_image"] is given["end_of_image"]


def test_rows_are_cut_of_both_tables(folder):
  read = load(folder / "wide")
  config, params = pair_checks.cut_rows(read.config, read.params, 90)
  assert config.vocab_size == 90
  for part in (params, params["encoder"]):
    assert part["token_embedder"]["embedding"].shape[0] == 90
  assert read.params["encoder"]["token_embedder"]["embedding"].shape[0] == 96
