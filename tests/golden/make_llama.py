"""Makes `llama/`: tiny random models of each kind, and what they say.

  python tests/golden/make_llama.py

Wants torch 2.13.0 and transformers 5.23.0, and nothing of this package. Each
folder is what `save_pretrained` writes; `golden.npz` beside them holds, for
NAME of a folder, or of a folder and a rope scaling ("llama-yarn"):

  NAME/tokens, NAME/lengths    [3, T] prompts, 0 after them
  NAME/logits                  [3, T, V], each prompt alone, 0 after it
  NAME/greedy                  [3, 12] tokens after each prompt
  NAME-KIND/tokens             [1, 60]: the text is longer than trained on
  NAME-KIND/logits             [1, 20, V], of every third token

Logits are float32 by eager attention. Those of "dynamic" are made a token at a
time, with the cache: of a text fed whole, transformers turns all tokens by the
whole length.
"""

import json
import pathlib

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "llama"
LENGTHS = (19, 12, 1)
NUM_GREEDY = 12
SIZES = {
  "vocab_size": 96,
  "hidden_size": 32,
  "intermediate_size": 40,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 64,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
KINDS = {
  "llama": {"rms_norm_eps": 1e-5, "rope_theta": 500.0},
  "mistral": {"sliding_window": 5, "head_dim": 16, "num_key_value_heads": 1},
  "qwen2": {
    "tie_word_embeddings": True,
    "use_sliding_window": True,
    "sliding_window": 6,
    "max_window_layers": 1,
    "rope_theta": 1e6,
  },
  "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
}
SAVED = {
  "qwen2": {"dtype": torch.bfloat16},
  "qwen3": {"max_shard_size": "30KB"},
}
SCALINGS = {
  "linear": {"factor": 4.0},
  "dynamic": {"factor": 4.0},
  "llama3": {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
  },
  "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
}


def randomise(model, seed):
  """Draws all weights anew, so that biases and norms are not 0 and 1."""
  generator = torch.Generator().manual_seed(seed)
  for parameter in model.parameters():
    value = torch.randn(parameter.shape, generator=generator)
    is_matrix = parameter.ndim == 2
    scale = parameter.shape[1] ** -0.5 if is_matrix else 0.3
    parameter.data = value * scale + (0 if is_matrix else 0.6)


def read(name, **changes):
  """Returns the model of a folder, in float32."""
  return transformers.AutoModelForCausalLM.from_pretrained(
    FOLDER / name, dtype=torch.float32, attn_implementation="eager", **changes
  )


def logits_of(model, tokens):
  with torch.no_grad():
    return model(torch.tensor([tokens])).logits[0].float().numpy()


def logits_by_token(model, tokens):
  rows, cache = [], transformers.DynamicCache(config=model.config)
  for token in tokens:
    with torch.no_grad():
      out = model(torch.tensor([[token]]), past_key_values=cache)
    rows.append(out.logits[0].float().numpy())
  return np.concatenate(rows)


def greedy_after(model, text):
  """Returns what follows a text, or None where two tokens are as good."""
  text = list(text)
  for _ in range(NUM_GREEDY):
    last = logits_of(model, text)[-1]
    second, first = np.sort(last)[-2:]
    if first - second < 2e-3 * np.abs(last).max():
      return None
    text.append(int(last.argmax()))
  return text[-NUM_GREEDY:]


def prompts(model, arrays, name, rng):
  """Adds the logits of some prompts, and what follows them greedily."""
  tokens = np.zeros((len(LENGTHS), max(LENGTHS)), np.int32)
  logits = np.zeros((*tokens.shape, 96), np.float32)
  greedy = []
  for b, length in enumerate(LENGTHS):
    after = None
    while after is None:
      text = rng.integers(0, 96, length).tolist()
      after = greedy_after(model, text)
    tokens[b, :length], logits[b, :length] = text, logits_of(model, text)
    greedy.append(after)
  arrays |= {
    f"{name}/tokens": tokens,
    f"{name}/lengths": np.asarray(LENGTHS, np.int32),
    f"{name}/logits": logits,
    f"{name}/greedy": np.asarray(greedy, np.int32),
  }


def main():
  arrays, rng = {}, np.random.default_rng(1)
  for seed, (name, settings) in enumerate(KINDS.items()):
    config = transformers.AutoConfig.for_model(name, **SIZES | settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, seed)
    model.tie_weights()
    saved = dict(SAVED.get(name, {}))
    model.to(saved.pop("dtype", torch.float32)).save_pretrained(
      FOLDER / name, **saved
    )
    prompts(read(name), arrays, name, rng)
  (FOLDER / "llama" / "generation_config.json").write_text(
    json.dumps({"bos_token_id": 1, "eos_token_id": [2, 7]})
  )
  text = rng.integers(0, 96, 60)
  for kind, scaling in SCALINGS.items():
    scaling = {"rope_type": kind, "rope_theta": 500.0, **scaling}
    length = 16 if kind == "dynamic" else 64
    changes = {"rope_parameters": scaling, "max_position_embeddings": length}
    model = read("llama", **changes)
    run = logits_by_token if kind == "dynamic" else logits_of
    arrays[f"llama-{kind}/tokens"] = text[None].astype(np.int32)
    arrays[f"llama-{kind}/logits"] = run(model, text.tolist())[None, ::3]
    arrays[f"llama-{kind}/scaling"] = np.asarray(json.dumps(scaling))
  np.savez_compressed(FOLDER / "golden.npz", **arrays)


if __name__ == "__main__":
  main()
