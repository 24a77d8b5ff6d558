"""Tiny Llamas as Hugging Face directories, which bring their tokenizer."""

import jax

from speccascade.checkpoints import hugging_face
from speccascade.models import LlamaConfig, LlamaLM
from tests.data import tokenizers

# Rows past the tokenizer, as most have them.
ROWS = 328


def save(
  folder, seed: int, *, kind="bytes", template=tokenizers.CHATML, **shape
):
  """Writes a random model and a tokenizer; returns the folder."""
  sizes = {
    "vocab_size": ROWS,
    "emb_dim": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "num_decoder_layers": 1,
    "head_dim": 8,
    "mlp_dim": 16,
    "max_positions": 128,
    "eos_ids": (2, 0),
  }
  config = LlamaConfig(**sizes | shape)
  params = jax.device_get(LlamaLM.init(config, jax.random.key(seed)).params)
  hugging_face.save(folder, params, config)
  return tokenizers.save(folder)
