"""The distribution of a sequence that is written chunk after chunk.

A block of drafts and its verification write a chunk of 1 to gamma + 1 tokens.
Where the distribution of the chunk after each context is known, that of the
sequence is a sum over all ways to put chunks together.

Axes: S contexts, D drafts (all V**G), G gamma, V vocabulary.
"""

from collections.abc import Callable
import itertools

import numpy as np

from tests import toy_chains
from tests.toy_chains import ChainPair


def chunks(drafts, draft_prob, num_accepted, token) -> list[np.ndarray]:
  """Returns [S, V**m] for m = 1..G+1: the distribution of the chunk a block
  writes.

  Args:
    drafts: [D, G].
    draft_prob: [S, D], the chance of each draft.
    num_accepted: [S, D, G+1], the distribution of the number accepted.
    token: [S, D, G+1, V], the distribution of the token after them.
  """
  contexts, size = token.shape[0], token.shape[-1]
  gamma = drafts.shape[1]
  written = []
  for n in range(gamma + 1):
    chance = draft_prob * num_accepted[..., n]
    # The number of each accepted prefix: 2 0 1 of three tokens is 19 in base 3.
    prefix = (size ** np.arange(n)[::-1] @ drafts[:, :n].T).astype(int)
    law = np.zeros((contexts, size**n, size))
    joint = chance[..., None] * token[:, :, n]
    np.add.at(law, (slice(None), prefix), joint)
    written.append(law.reshape(contexts, -1))
  return written


def cut(tokens: np.ndarray, num: np.ndarray, room: np.ndarray, eos: int):
  """Returns ([B], [B] bool): how many tokens of a chunk are kept; whether it
  ends.

  Args:
    tokens: [B, W] int, chunks.
    num: [B] int, how many tokens each has.
    room: [B] int, how many more tokens the sequence may have.
    eos: the token that ends a sequence.
  """
  place = np.arange(1, tokens.shape[1] + 1)
  is_end = (tokens == eos) & (place <= np.minimum(num, room)[:, None])
  end = np.where(is_end.any(1), is_end.argmax(1) + 1, num + room)
  emitted = np.minimum(np.minimum(num, room), end)
  return emitted, is_end.any(1) | (emitted == room)


def roll_out(
  pair: ChainPair,
  written: list[np.ndarray],
  length: int,
  cut: Callable = cut,
):
  """Returns the distribution of sequences written chunk after chunk.

  Args:
    pair: gives the contexts.
    written: as `chunks` returns.
    length: most tokens, EOS counted.
    cut: cuts a chunk at EOS and at the length limit, as `cut` here does.
  """
  size, follow = pair.vocab_size, pair.next_context()
  width = len(written)
  mass = [np.zeros(size**n) for n in range(length + 1)]
  context = [np.full(size**n, pair.start) for n in range(length + 1)]
  out = [np.zeros(size**n) for n in range(length + 1)]
  for n in range(length):
    context[n + 1] = follow[context[n]].reshape(-1)
  mass[0][0] = 1
  for start in range(length):
    for m, law in enumerate(written, start=1):
      new = np.array(list(itertools.product(range(size), repeat=m)), np.int32)
      pad = np.pad(new, ((0, 0), (0, width - m)))
      ones = np.ones(len(new), np.int32)
      room = (length - start) * ones
      emitted, ended = cut(pad, m * ones, room, toy_chains.EOS)
      emitted, ended = np.asarray(emitted), np.asarray(ended)
      joint = mass[start][:, None] * law[context[start]]
      for e in range(1, m + 1):
        here = np.arange(size**m) // size ** (m - e)
        for continues, into in ((~ended, mass), (ended, out)):
          grown = np.zeros((size**start, size**e))
          pick = continues & (emitted == e)
          np.add.at(grown, (slice(None), here[pick]), joint[:, pick])
          if pick.any():
            into[start + e] += grown.reshape(-1)
  return np.concatenate(out[1:])


def wrong_replacement_law(pair: ChainPair, law, length: int):
  """Returns the distribution if pi, not the residual, replaced a rejected
  draft.

  Args:
    pair: gives the contexts.
    law: has the tables q and pi, [S, V] each (`method_laws.MethodLaws`).
    length: most tokens, EOS counted.
  """
  accepted = np.minimum(law.q, law.pi)
  wrong = accepted + (1 - accepted.sum(-1, keepdims=True)) * law.pi
  return toy_chains.chain_law(pair, wrong, length)


def verifier_bonus_law(pair: ChainPair, law, gamma: int, length: int):
  """Returns the distribution that Algorithm 4 has with its bonus token from p.

  From a block start, with k_i = min(q_i, pi_i)(x_i): the first j - 1 drafts
  pass and the j-th token is another, prod_{i<j} k_i (pi_j - min(q_j, pi_j)), or
  all pass and p writes one more.

  Args:
    pair: gives the contexts.
    law: has the tables q, p and pi, [S, V] each.
    gamma: tokens drafted.
    length: most tokens, EOS counted.
  """
  contexts, follow = pair.num_contexts, pair.next_context()
  accepted = np.minimum(law.q, law.pi)
  written = []
  reach, context = np.ones((contexts, 1)), np.arange(contexts)[:, None]
  for j in range(gamma + 1):
    last = law.p if j == gamma else law.pi - accepted
    written.append((reach[..., None] * last[context]).reshape(contexts, -1))
    reach = (reach[..., None] * accepted[context]).reshape(contexts, -1)
    context = follow[context].reshape(contexts, -1)
  return roll_out(pair, written, length)
