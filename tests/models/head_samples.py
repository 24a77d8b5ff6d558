"""Samples with draft heads or look-ahead embeddings of a tiny T5 or Llama."""

import jax.numpy as jnp
import numpy as np

from speccascade.decoding import Sampling, row_keys
from speccascade.judge import goodness
from tests import toy
from tests.decoding.test_sampled_laws import (
  PROMPTS,
  T5_LENGTH,
  T5_SOURCES,
  T5_VOCAB,
  forced_laws,
  t5_sequence_law,
  tiny_llama,
  tiny_t5,
)

MODELS = {"t5": (tiny_t5, T5_SOURCES), "llama": (tiny_llama, PROMPTS)}
WAYS = {
  "chain": {"gamma": 2},
  "block": {"gamma": 2, "verification": "block"},
  "tree": {"gamma": 2, "tree": (2, 1)},
  "traversal": {
    "gamma": 2,
    "tree": (2, 1),
    "drawing": "without_replacement",
    "verification": "traversal",
  },
}
ROWS = 20_000


SAMPLING = Sampling.create(0.9)


def decode(drafter_of, model: str, **options):
  """Returns samples of `spec_decode`, which have the verifier's distribution.

  Args:
    drafter_of: the function from a verifier to its heads or embeddings.
    model: a name of `MODELS`.
    **options: settings of `Decoder`, as in `WAYS`.
  """
  make, sources = MODELS[model]
  verifier = make(2)
  decoded = decode_pair(drafter_of(verifier), verifier, sources, **options)
  assert min(p_values(decoded, verifier, sources)) > toy.LEVEL
  return decoded


def decode_pair(drafter, verifier, sources, **options):
  """Returns `ROWS` samples of `spec_decode`, the sources in turns."""
  return toy.decode(
    "spec_decode",
    (drafter, verifier),
    sampling=SAMPLING,
    inputs=jnp.asarray(sources[np.arange(ROWS) % len(sources)], jnp.int32),
    keys=row_keys(3, 0, jnp.arange(ROWS)),
    max_decode_len=T5_LENGTH,
    **options,
  )


def p_values(decoded, verifier, sources) -> list[float]:
  """Returns for each source how well its samples fit the verifier."""
  values = []
  for number, (_, p) in enumerate(forced_laws(verifier, sources, SAMPLING)):
    law = t5_sequence_law(np.asarray(p, np.float64))
    which = np.arange(ROWS) % len(sources) == number
    seen = toy.counts(decoded, T5_VOCAB, T5_LENGTH, which)
    values.append(goodness.p_value(seen, law))
  return values
