"""A batch writes what each of its rows writes alone, however ragged it is.

Rows of a batch accept different numbers of drafts, so their texts and caches
have different lengths from the first block on. Zhang et al., "Batch Speculative
Decoding Done Right" (arXiv 2510.22876), show implementations of batches in
which positions, masks or caches then lose step with the texts. Their test is
this one: the tokens of a batch against those of each row alone.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Decoder, Sampling, Stream, row_keys
from speccascade.models.llama_lm import LlamaLM
from tests import toy
from tests.decoding import test_sampled_laws

NUM, LENGTH, GAMMA = 8, 16, 3
# Of different lengths, so that prompts are ragged, too.
TEXTS = [(*toy.PROMPTS[row % 5][: 1 + row % 4], row % 7) for row in range(NUM)]
CASES = [
  *(("spec_decode", 0.0), ("spec_decode", 1.0), ("spec_cascade_opt", 1.0)),
  *(("spec_cascade_token_v3", 0.0), ("spec_decode_lossy", 0.7)),
]


@functools.cache
def models():
  return test_sampled_laws.tiny_llama(1), test_sampled_laws.tiny_llama(2)


@functools.cache
def decoder_of(method):
  row = METHODS[method]
  return Decoder(row, gamma=GAMMA, max_decode_len=LENGTH, eos_id=1, trace=True)


def call_of(method, temperature, rows=slice(None), both=None):
  """Returns what a decoder is called with for some rows."""
  sampling = Sampling.create(temperature) if temperature else toy.GREEDY
  inputs = toy.padded(TEXTS, "left")[rows]
  rngs = row_keys(0, 0, jnp.arange(NUM))[rows]
  alpha = METHODS[method].default_alpha
  return (*(both or models()), inputs, rngs, alpha, sampling)


def texts_of(decoded):
  return [
    tokens[:length].tolist()
    for tokens, length in zip(
      np.asarray(decoded.tokens), np.asarray(decoded.lengths)
    )
  ]


def exact_match(texts, others):
  """Returns the share of texts that are equal, and the share of tokens up to
  the first that differs: the paper's two numbers."""
  places = [
    next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), len(b))
    for a, b in zip(texts, others)
  ]
  whole = np.mean([a == b for a, b in zip(texts, others)])
  return whole, sum(places) / sum(map(len, others))


def lengths_of_blocks(decoded):
  """Returns for each row the tokens that each of its blocks wrote."""
  blocks = np.asarray(decoded.trace.block)
  return [
    np.bincount(row[:length]).tolist()
    for row, length in zip(blocks, np.asarray(decoded.lengths))
  ]


def alone(method, temperature, **how):
  decoder = decoder_of(method)
  rows = [np.array([row]) for row in range(NUM)]
  return [
    texts_of(decoder(*call_of(method, temperature, row, **how)))[0]
    for row in rows
  ]


@pytest.mark.parametrize(
  ("method", "temperature"), toy.nightly(CASES, CASES[:2])
)
def test_a_ragged_batch_writes_what_its_rows_write_alone(method, temperature):
  decoder, call = decoder_of(method), call_of(method, temperature)
  together = jax.device_get(decoder(*call))
  # It is ragged: in most rounds some rows accept more drafts than others.
  rounds = [
    {*written}
    for written in zip(*lengths_of_blocks(together))  # until the first row ends
  ]
  assert sum(len(written) > 1 for written in rounds) > len(rounds) / 2
  assert len({size for written in rounds for size in written}) > 1
  assert len({*together.lengths.tolist()}) > 1
  texts = texts_of(together)
  want = alone(method, temperature)
  assert exact_match(texts, want) == (1, 1)
  # Rows that take the places of rows that ended.
  refilled = [None] * NUM
  for places, part in toy.refilled(decoder, *call, rows=3, refill=1):
    for place, text in zip(places, texts_of(part)):
      refilled[place] = text
  assert exact_match(refilled, want) == (1, 1)
  # Streams, a round at a time.
  stream = Stream(decoder, *call)
  while not stream.ended.all():
    stream.advance(1)
  assert exact_match(texts_of(stream.decoded), want) == (1, 1)
  if method == "spec_decode" and temperature == 0:
    assert want == alone("verifier", 0.0)


class OutOfStep(LlamaLM):
  """A Llama whose rows all keep as many tokens as the longest of a batch."""

  def rewind(self, state, length):
    return super().rewind(state, jnp.full_like(length, length.max()))


def test_caches_that_lose_step_are_seen():
  """The fault that the paper found, in a batch; each row alone is right."""
  both = tuple(
    OutOfStep(**{f.name: getattr(lm, f.name) for f in dataclasses.fields(lm)})
    for lm in models()
  )
  want = alone("spec_decode", 0.0)
  assert alone("spec_decode", 0.0, both=both) == want
  decoded = decoder_of("spec_decode")(*call_of("spec_decode", 0.0, both=both))
  whole, tokens = exact_match(texts_of(decoded), want)
  assert whole < 0.8
  assert tokens < 0.95
