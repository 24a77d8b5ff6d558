"""Chains that notice misuse, and the cascades that the tests share."""

from flax import struct
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.types import Output
from speccascade.models.markov_lm import MarkovLM


@struct.dataclass
class AuditedLM(MarkovLM):
  """A chain whose logits are NaN once a cache slot was written out of place.

  A block that reaches behind the capacity is moved to the front by
  `dynamic_update_slice` without a word, over good slots.
  """

  def extend(self, state, tokens, count, **how):
    end = state.length + tokens.shape[1]
    outside = (end > state.tokens.shape[1]) & (count > 0)
    state, out = super().extend(state, tokens, count, **how)
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
  own = np.random.default_rng(seed).normal(0, 2, shape)
  table = likeness * shared + (1 - likeness) * own
  table[..., 1] = table[..., 1] - 1 if eos else -1e9
  return jnp.asarray(table, jnp.float32)


def sources(num: int):
  """Returns [num, 4] int32 inputs: row b reads table b, and has a text."""
  rng = np.random.default_rng(5)
  inputs = rng.integers(2, 6, (num, 4))
  inputs[:, 0] = np.arange(num)
  inputs[::3, 3] = 0
  return jnp.asarray(inputs, jnp.int32)


def greedy_tokens(table, max_decode_len: int, eos_id: int = 1):
  """Returns ([K, T], [K]): the arg-max chain of each table, and its length."""
  table = np.asarray(table)
  rows = np.arange(len(table))
  before, last = np.zeros(len(table), int), np.zeros(len(table), int)
  tokens = np.zeros((len(table), max_decode_len), np.int32)
  length = np.zeros(len(table), int)
  done = np.zeros(len(table), bool)
  for t in range(max_decode_len):
    token = table[rows, before, last].argmax(-1)
    tokens[:, t] = np.where(done, 0, token)
    length += ~done
    done |= token == eos_id
    before, last = last, token
  return tokens, length
