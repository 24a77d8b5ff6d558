"""Counts n-grams of token sequences, and smooths them into a model.

Smoothing is interpolated Witten-Bell: a context that was seen N times with D
different successors gives w the share count(w) / (N + D), and the rest to the
shorter context; the unigram law ends in a uniform one in the same way.
"""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from speccascade.models.ngram_lm import Level, NgramLM

EOS_ID = 1
START_ID = 0
_CHUNK = 1 << 21  # tokens counted at once


def count(
  sequences: Iterable[Sequence[int]],
  *,
  vocab_size: int,
  order: int,
  eos_id: int = EOS_ID,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns the counts of the 1-, 2-, ..., `order`-grams.

  Each sequence is read as a decoder sees it: start tokens before it, the end
  after it (added where it is missing).

  Args:
    sequences: token ids.
    vocab_size: V; packed n-grams must fit in 63 bits.
    order: n, 2 or more.
    eos_id: the end.

  Returns:
    For each n, ([M] int64 packed n-grams, ascending, the first token highest;
    [M] int64 counts).

  Raises:
    ValueError: no tokens, an id outside the vocabulary, or a wrong order.
  """
  if order < 2:
    raise ValueError(f"the order is {order}; wanted 2 (bigrams) or more")
  if vocab_size**order >= 2**63:
    raise ValueError(
      f"{order}-grams over {vocab_size} tokens cannot be counted here; lower"
      " the order"
    )
  counts = [(np.zeros(0, np.int64),) * 2 for _ in range(order)]
  parts, size = [], 0
  for sequence in sequences:
    tokens = np.asarray(sequence, np.int64).reshape(-1)
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
      worst = tokens.min() if tokens.min() < 0 else tokens.max()
      raise ValueError(
        f"the text has token {worst}; the vocabulary has ids 0 to"
        f" {vocab_size - 1}"
      )
    end = [] if tokens.size and tokens[-1] == eos_id else [eos_id]
    parts.append(np.concatenate([[START_ID] * (order - 1), tokens, end]))
    size += parts[-1].size
    if size >= _CHUNK:
      counts, parts, size = _merge(counts, parts, vocab_size), [], 0
  if parts:
    counts = _merge(counts, parts, vocab_size)
  if not counts[0][0].size:
    raise ValueError("the text is empty: there is nothing to count")
  return counts


def _merge(counts, parts, vocab_size):
  """Returns the counts with those of further sequences added."""
  order = len(counts)
  sizes = np.array([part.size for part in parts])
  flat = np.concatenate(parts).astype(np.int64)
  # An n-gram ends at each token that is not a start token.
  ends = np.concatenate([np.arange(order - 1, n) for n in sizes])
  ends += np.repeat(np.cumsum(sizes) - sizes, sizes - order + 1)
  merged, packed = [], np.zeros_like(ends)
  for back, (known, number) in enumerate(counts):
    packed += flat[ends - back] * vocab_size**back
    keys, place = np.unique(np.append(known, packed), return_inverse=True)
    times = np.append(number, np.ones_like(packed))
    merged.append((keys, np.bincount(place, times).astype(np.int64)))
  return merged


def smooth(
  counts: list[tuple[np.ndarray, np.ndarray]],
  *,
  vocab_size: int,
  successors: int = 32,
  min_count: int = 2,
  vocabulary: str = "",
) -> NgramLM:
  """Returns the model of counts.

  Args:
    counts: from `count`.
    vocab_size: V.
    successors: most next tokens that a context keeps, the likeliest; the mass
      of the others goes to the shorter context.
    min_count: contexts of two tokens and more that were seen less often are
      left out.
    vocabulary: SHA-256 of the vocabulary's file, if known.
  """
  keys, number = counts[0]
  unigram = np.zeros(vocab_size)
  unigram[keys] = number
  different = len(keys)
  unigram = (unigram + different / vocab_size) / (number.sum() + different)
  contexts = np.arange(vocab_size)
  levels = []
  for depth, (keys, number) in enumerate(counts[1:], start=1):
    context, token = np.divmod(keys, vocab_size)
    tokens = None
    if depth > 1:
      parents = contexts
      seen, start = np.unique(context, return_index=True)
      contexts = seen[np.add.reduceat(number, start) >= min_count]
      # The parent of a context was seen as often, and is there.
      ends = np.append(parents * vocab_size, vocab_size**depth)
      edges = np.searchsorted(contexts, ends)
      levels[-1] = levels[-1].replace(first_child=_int32(edges))
      tokens = _int32(contexts % vocab_size)
      if not contexts.size:
        break
    kept = np.isin(context, contexts)
    place = np.searchsorted(contexts, context[kept])
    level = _level(len(contexts), place, token[kept], number[kept], successors)
    levels.append(level.replace(tokens=tokens))
  levels[-1] = levels[-1].replace(first_child=None)
  return NgramLM(jnp.asarray(unigram, jnp.float32), tuple(levels), vocabulary)


def _level(num, place, token, number, successors) -> Level:
  """Returns a level of `num` contexts.

  Args:
    num: C.
    place: [M] the context of each n-gram, ascending.
    token: [M] its last token.
    number: [M] how often it was seen.
    successors: most that a context keeps.
  """
  seen = np.bincount(place, weights=number, minlength=num)
  different = np.bincount(place, minlength=num)
  order = np.lexsort((token, -number, place))
  place, token, number = place[order], token[order], number[order]
  rank = np.arange(len(place)) - np.searchsorted(place, place)
  kept = rank < min(successors, different.max())
  place, token, rank = place[kept], token[kept], rank[kept]
  probs = np.zeros((num, rank.max() + 1))
  chosen = np.zeros(probs.shape, np.int64)
  probs[place, rank] = number[kept] / (seen + different)[place]
  chosen[place, rank] = token
  return Level(
    successors=_int32(chosen),
    probs=jnp.asarray(probs, jnp.float32),
    backoff=jnp.asarray(1 - probs.sum(-1), jnp.float32),
  )


def _int32(values):
  return jnp.asarray(values, jnp.int32)
