"""A tiny pair on disk and a word vocabulary, for tests of whole runs."""

import dataclasses

import jax
import numpy as np
import sentencepiece

from speccascade import checkpoints
from speccascade.checkpoints import orbax_io
from speccascade.models import HeadsConfig, T5Config, draft_heads, parameters
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


def train_words(path, text=None, **options):
  """Writes a SentencePiece model, of `WORDS` or of a text; returns its path."""
  text = " ".join(WORDS) if text is None else text
  ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
  with path.open("wb") as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(text.splitlines() * 9),
      model_writer=file,
      minloglevel=2,
      **{"vocab_size": 24, **ids, **options},
    )
  return path


def config(emb_dim=8, vocab_size=16, **sizes) -> T5Config:
  small = {"num_heads": 2, "head_dim": 4, "mlp_dim": 8}
  small |= {"num_encoder_layers": 1, "num_decoder_layers": 1, **sizes}
  return T5Config(emb_dim=emb_dim, vocab_size=vocab_size, **small)


def save(path, seed, *, spoil=None, vocabulary=None, **shape) -> str:
  """Writes a random model; `spoil` replaces its output projection."""
  lm = T5LM.init(config(**shape), jax.random.key(seed))
  params = jax.device_get(lm.params)
  if spoil is not None:
    head = params["decoder"]["logits_dense"]
    head["kernel"] = np.full_like(head["kernel"], spoil)
  orbax_io.save(path, params, config(**shape), step=7, vocabulary=vocabulary)
  return str(path)


def save_heads(path, verifier, **settings) -> str:
  """Writes draft heads of a T5 on disk, which differ from it a little.

  Args:
    path: the folder to write.
    verifier: the path of the verifier's checkpoint.
    **settings: fields of `HeadsConfig`.
  """
  stored = checkpoints.load(str(verifier))
  config = HeadsConfig(**{"num_heads": 3, "mlp_dim": 8} | settings)
  config = config.of_verifier(stored.config, stored.params)
  network = parameters.network(stored.config)
  params = draft_heads.initial_params(config, network, stored.params)
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda leaf: np.asarray(leaf + 0.1 * rng.normal(0, 1, leaf.shape)), params
  )
  orbax_io.save(path, params, config, step=3)
  return str(path)


def objects(settings: dict, **kinds) -> dict:
  """Returns settings, given flat, with those of each kind as one object."""
  grouped = dict(settings)
  for name, kind in kinds.items():
    fields = [field.name for field in dataclasses.fields(kind)]
    grouped[name] = kind(**{x: grouped.pop(x) for x in fields if x in grouped})
  return grouped
