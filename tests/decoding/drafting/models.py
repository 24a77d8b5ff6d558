"""Chains that notice misuse, and what drafters propose."""

import functools

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import MaxGramDrafter, row_keys
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models.markov_lm import MarkovLM


@struct.dataclass
class AuditedLM(MarkovLM):
  """A chain whose logits are NaN once a cache slot was written out of place.

  A block that reaches past the capacity is moved to the front by
  `dynamic_update_slice` without a word, over good slots.
  """

  def extend(self, state, tokens, count, **options):
    end = state.length + tokens.shape[1]
    outside = (end > state.tokens.shape[1]) & (count > 0)
    state, out = super().extend(state, tokens, count, **options)
    bad = outside[:, None, None]
    return state, Output(logits=jnp.where(bad, jnp.nan, out.logits))


def tables(seed: int, sources: int, vocab_size: int, *, eos=True, likeness=0.0):
  """Returns [K, V, V, V] float32 logits: one chain of order 2 per source.

  Args:
    seed: of the tables; the same seed shares a part of every table.
    sources: K.
    vocab_size: V.
    eos: whether token 1, the end, ever comes.
    likeness: weight of a part that all seeds share.
  """
  shape = (sources, vocab_size, vocab_size, vocab_size)
  shared = np.random.default_rng(77).normal(0, 2, shape)
  apart = np.random.default_rng(seed).normal(0, 2, shape)
  table = likeness * shared + (1 - likeness) * apart
  table[..., 1] = table[..., 1] - 1 if eos else -1e9
  return jnp.asarray(table, jnp.float32)


def audited(seed: int, sources: int, vocab_size: int, **options) -> AuditedLM:
  """Returns a chain of `tables`."""
  return AuditedLM(tables(seed, sources, vocab_size, **options))


def copier(vocab_size: int) -> MaxGramDrafter:
  """Returns a drafter that copies, with bigrams for what is new."""
  table = (np.arange(vocab_size) * 5 + 2) % vocab_size
  return MaxGramDrafter.create(table, width=1, vocab_size=vocab_size)


@functools.partial(jax.jit, static_argnames="needs_bonus_law")
def propose(
  drafter,
  inputs,
  sampling,
  *,
  tokens=None,
  length=None,
  keys=None,
  active=None,
  needs_bonus_law=False,
):
  """Returns the proposals after a prefix, the start token by default.

  Args:
    drafter: a `Drafter`.
    inputs: [B, S].
    sampling: a `Sampling`.
    tokens: [B, L], the prefixes; zeros for None.
    length: [B]; 1 for None.
    keys: [B]; those of examples 0, 1, ... for None.
    active: [B]; all for None.
    needs_bonus_law: whether the distribution after the last token is wanted.
  """
  rows = inputs.shape[0]
  tokens = jnp.zeros((rows, 12), jnp.int32) if tokens is None else tokens
  length = jnp.ones((rows,), jnp.int32) if length is None else length
  return drafter.propose(
    drafter.prefill(inputs, capacity=tokens.shape[1]),
    Prefix(tokens, length, length > 0 if active is None else active),
    row_keys(0, 0, jnp.arange(rows)) if keys is None else keys,
    sampling,
    needs_bonus_law=needs_bonus_law,
  )[1]


def sources(num: int):
  """Returns [num, 4] int32 inputs: row b reads table b, and has a text."""
  rng = np.random.default_rng(5)
  inputs = rng.integers(2, 6, (num, 4))
  inputs[:, 0] = np.arange(num)
  inputs[::3, 3] = 0
  return jnp.asarray(inputs, jnp.int32)
