"""Makes the Gemmas in `llama/`, and `t5gemma/`: tiny models, what they say.

  python tests/golden/make_gemma.py

Wants torch 2.13.0 and transformers 5.24.0, and nothing of this package. Writes
folders as `make_llama.py` does, and `gemma.npz` beside them, whose arrays have
the names that are described there. Every prompt but the last is longer than the
window. "gemma3" is a text model inside a model that also reads images.

`t5gemma/golden.npz` holds, for NAME of a folder beside it:

  NAME/sources, NAME/source_lengths  [3, S], 0 after them
  NAME/tokens, NAME/lengths          [3, T], the start token and others
  NAME/logits                        [3, T, V], each row alone, 0 after it
  NAME/greedy                        [3, 12] tokens after the start token
"""

import itertools
import json

import make_llama
import numpy as np
import torch
import transformers
from transformers.models.t5gemma import T5GemmaModuleConfig

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


# A decoder and an encoder of one size; and as in T5Gemma 9B-2B, an encoder that
# is wider and deeper, in a file that leaves out what equals the defaults.
T5GEMMA_FOLDER = make_llama.FOLDER.parent / "t5gemma"
STACK = SIZES | {"query_pre_attn_scalar": 20, "sliding_window": 5}
WIDE = {
  "hidden_size": 48,
  "num_hidden_layers": 3,
  "num_attention_heads": 6,
  "intermediate_size": 56,
  "head_dim": 8,
}
T5GEMMAS = {
  "even": (STACK | CAPS, STACK | CAPS),
  "wide": (STACK | WIDE, STACK | {"num_key_value_heads": 1}),
}
# A T5Gemma 2, which also reads images. An even window reaches further after a
# token of the encoder than before it.
MERGED = STACK | {
  "sliding_window": 6,
  "layer_types": LAYERS,
  "rope_parameters": ROPE,
}
END_OF_IMAGE = 7
LEFT_OUT = (
  "attention_bias",
  "attn_logit_softcapping",
  "bos_token_id",
  "eos_token_id",
  "final_logit_softcapping",
  "hidden_activation",
  "layer_types",
  "pad_token_id",
  "rms_norm_eps",
  "rope_parameters",
  "tie_word_embeddings",
)
SOURCE_LENGTHS, TARGET_LENGTHS = (19, 12, 1), (14, 1, 9)
NUM_DIFFERENT = 5


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


def t5gemma_config(name):
  """Returns transformers' config of the T5Gemma of a folder."""
  if name == "merged":
    encoder = {
      "text_config": MERGED,
      "vision_config": VISION | {"model_type": "siglip_vision_model"},
      "mm_tokens_per_image": 4,
      "eoi_token_index": END_OF_IMAGE,
    }
    return transformers.T5Gemma2Config(encoder=encoder, decoder=MERGED)
  encoder, decoder = (T5GemmaModuleConfig(**sizes) for sizes in T5GEMMAS[name])
  return transformers.T5GemmaConfig(
    encoder=encoder, decoder=decoder, vocab_size=96
  )


def t5gemma(name, seed):
  """Writes the folder of a T5Gemma; returns the model that it holds."""
  model = transformers.AutoModelForSeq2SeqLM.from_config(t5gemma_config(name))
  make_llama.randomise(model, seed)
  # Else a text repeats its last token, whose vector is most of the last state.
  decoder = model.model.decoder
  decoder.embed_tokens.weight.data *= 0.2
  decoder.norm.weight.data += 8
  model.tie_weights()
  folder, is_wide = T5GEMMA_FOLDER / name, name == "wide"
  dtype = torch.float32 if name == "even" else torch.bfloat16
  model.to(dtype).save_pretrained(folder)
  if is_wide:
    file = folder / "config.json"
    settings = json.loads(file.read_text())
    for stack, left_out in itertools.product(("encoder", "decoder"), LEFT_OUT):
      settings[stack].pop(left_out, None)
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    # As a chat model's, which has further ends.
    (folder / "generation_config.json").write_text(
      json.dumps({"bos_token_id": 2, "eos_token_id": [1, 7]})
    )
  return transformers.AutoModelForSeq2SeqLM.from_pretrained(
    folder, dtype=torch.float32, attn_implementation="eager"
  )


def t5gemma_logits(model, source, fed):
  with torch.no_grad():
    out = model(
      input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([fed])
    )
  return out.logits[0].float().numpy()


def t5gemma_greedy(model, source):
  """Returns what follows a source, or None where it says little.

  That is where two tokens are as good, or few different ones are written.
  """
  fed = [model.config.decoder.bos_token_id]
  for _ in range(make_llama.NUM_GREEDY):
    last = t5gemma_logits(model, source, fed)[-1]
    second, first = np.sort(last)[-2:]
    # The mask of padding would hide a 0 that a model feeds to itself.
    if first - second < 2e-3 * np.abs(last).max() or not last.argmax():
      return None
    fed.append(int(last.argmax()))
  return fed[1:] if len(set(fed)) > NUM_DIFFERENT else None


def t5gemmas():
  """Writes `t5gemma/`."""
  arrays, rng = {}, np.random.default_rng(4)
  for seed, name in enumerate([*T5GEMMAS, "merged"]):
    model, rows = t5gemma(name, seed), []
    for num_read, num_fed in zip(SOURCE_LENGTHS, TARGET_LENGTHS):
      greedy = None
      while greedy is None:
        source = rng.integers(3, 96, num_read).tolist()
        if name == "merged":
          source[2:3] = [END_OF_IMAGE] * (num_read > 2)
        greedy = t5gemma_greedy(model, source)
      fed = [2, *rng.integers(3, 96, num_fed - 1).tolist()]
      if name == "merged":
        fed[4:5] = [END_OF_IMAGE] * (num_fed > 4)
      logits = t5gemma_logits(model, source, fed)
      rows.append((source, fed, logits, greedy))
    sources, tokens, logits, greedy = zip(*rows)
    arrays |= {
      f"{name}/source_lengths": np.asarray(SOURCE_LENGTHS, np.int32),
      f"{name}/lengths": np.asarray(TARGET_LENGTHS, np.int32),
      f"{name}/greedy": np.asarray(greedy, np.int32),
    }
    for key, texts in {
      "sources": sources,
      "tokens": tokens,
      "logits": logits,
    }.items():
      first = np.asarray(texts[0])
      padded = np.zeros((3, *first.shape), first.dtype)
      for b, text in enumerate(texts):
        padded[b, : len(text)] = text
      is_int = padded.dtype.kind == "i"
      arrays[f"{name}/{key}"] = padded.astype(np.int32) if is_int else padded
  np.savez_compressed(T5GEMMA_FOLDER / "golden.npz", **arrays)


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
  t5gemmas()


if __name__ == "__main__":
  main()
