"""Tiny Llamas as Hugging Face directories, which bring their tokenizer."""

import jax
import numpy as np

from speccascade.checkpoints import hugging_face
from speccascade.models import CausalTransformer, LlamaConfig
from tests.text import tokenizers

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
  drawn = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda leaf: drawn.normal(size=leaf.shape).astype(np.float32) * 0.3,
    jax.eval_shape(CausalTransformer(config).initial, jax.random.key(0)),
  )
  hugging_face.save(folder, params, config)
  return tokenizers.save(folder, kind, template=template)
