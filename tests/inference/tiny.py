"""A tiny pair on disk and a word vocabulary, for tests of whole runs."""

import jax
import numpy as np

from speccascade.checkpoints import orbax_io
from speccascade.models import T5Config
from speccascade.models.t5_lm import T5LM

WORDS = [
  *["zero", "one", "two", "three", "four"],
  *["five", "six", "seven", "eight", "nine"],
]


class Vocabulary:
  """Ids 3.. are words; 0 pads, 1 is EOS, 2 is any other word."""

  eos_id = 1
  vocab_size = 3 + len(WORDS)

  def encode(self, text):
    return [WORDS.index(w) + 3 if w in WORDS else 2 for w in text.split()]

  def decode(self, ids):
    return " ".join(WORDS[i - 3] if i > 2 else "?" for i in ids)


def config(emb_dim=8, vocab_size=16) -> T5Config:
  return T5Config(
    vocab_size=vocab_size,
    emb_dim=emb_dim,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=4,
    mlp_dim=8,
  )


def save(path, seed, *, spoil=None, vocabulary=None, **shape) -> str:
  """Writes a random model; `spoil` replaces its output projection."""
  lm = T5LM.init(config(**shape), jax.random.key(seed))
  params = jax.device_get(lm.params)
  if spoil is not None:
    head = params["decoder"]["logits_dense"]
    head["kernel"] = np.full_like(head["kernel"], spoil)
  orbax_io.save(path, params, config(**shape), step=7, vocabulary=vocabulary)
  return str(path)
