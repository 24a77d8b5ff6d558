"""Makes the Gemmas in `llama/`: tiny random models, and what they say.

  python tests/golden/make_gemma.py

Wants torch 2.13.0 and transformers 5.24.0, and nothing of this package. Writes
folders as `make_llama.py` does, and `gemma.npz` beside them, whose arrays have
the names that are described there. Every prompt but the last is longer than the
window. "gemma3" is a text model inside a model that also reads images.
"""

import json

import make_llama
import numpy as np
import torch
import transformers

SIZES = make_llama.SIZES | {
  "head_dim": 12,
  "hidden_activation": "gelu_pytorch_tanh",
  "bos_token_id": 2,
  "eos_token_id": 1,
}
# Caps so small that they change most numbers.
CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0}
LAYERS = ["sliding_attention", "full_attention"]
ROPE = {
  "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
  "full_attention": {
    "rope_type": "linear",
    "factor": 4.0,
    "rope_theta": 700.0,
  },
}
KINDS = {
  "gemma": {"num_key_value_heads": 1},
  "gemma2": {"sliding_window": 5, "query_pre_attn_scalar": 20, **CAPS},
  "gemma3_text": {
    "sliding_window": 6,
    "query_pre_attn_scalar": 20,
    "layer_types": LAYERS,
    "rope_parameters": ROPE,
  },
}
SAVED = {"gemma2": {"dtype": torch.bfloat16}}
# Six layers, of which the last sees the whole text: as published, a file says
# neither which layers nor their bases.
TEXT = SIZES | {
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 6,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 8,
  "sliding_window": 5,
  "query_pre_attn_scalar": 10,
}
VISION = {
  "hidden_size": 16,
  "intermediate_size": 16,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "image_size": 16,
  "patch_size": 8,
}


def with_images():
  """Returns a text model inside a model that also reads images."""
  config = transformers.Gemma3Config(
    text_config=TEXT,
    vision_config=VISION | {"model_type": "siglip_vision_model"},
    mm_tokens_per_image=4,
    eos_token_id=[1, 7],
  )
  return transformers.Gemma3ForConditionalGeneration(config)


def leave_out(folder):
  """Leaves out of config.json what google/gemma-3-12b-it leaves out, too."""
  file = folder / "config.json"
  settings = json.loads(file.read_text())
  for name in (
    "_sliding_window_pattern",
    "hidden_activation",
    "layer_types",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
  ):
    settings["text_config"].pop(name, None)
    settings.pop(name, None)
  settings["text_config"]["rope_scaling"] = {
    "rope_type": "linear",
    "factor": 8.0,
  }
  file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def main():
  arrays, rng = {}, np.random.default_rng(3)
  for seed, name in enumerate([*KINDS, "gemma3"]):
    folder = make_llama.FOLDER / name
    if name == "gemma3":
      model = with_images()
    else:
      config = transformers.AutoConfig.for_model(name, **SIZES | KINDS[name])
      model = transformers.AutoModelForCausalLM.from_config(config)
    make_llama.randomise(model, seed)
    model.tie_weights()
    saved = SAVED.get(name, {"dtype": torch.float32})
    model.to(saved["dtype"]).save_pretrained(folder)
    if name == "gemma3":
      leave_out(folder)
    make_llama.prompts(make_llama.read(name), arrays, name, rng)
  # A chat model has further ends, which only this file names.
  (make_llama.FOLDER / "gemma2" / "generation_config.json").write_text(
    json.dumps({"bos_token_id": 2, "eos_token_id": [1, 7]})
  )
  np.savez_compressed(make_llama.FOLDER / "gemma.npz", **arrays)


if __name__ == "__main__":
  main()
