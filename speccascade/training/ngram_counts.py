"""Counts n-grams of token sequences, and smooths the counts into a model.

Smoothing is interpolated Witten-Bell. A context that was seen N times with D
different successors gives a successor w the probability count(w) / (N + D); the
remaining probability D / (N + D) is distributed by the shorter context, one
token less. The unigram distribution is smoothed by the uniform distribution in
this way.
"""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from speccascade.models.ngram_lm import Level, NgramLM

EOS_ID = 1
START_ID = 0
# Tokens that are counted at once: a chunk bounds the memory of sorting, and is
# large enough that merging counts costs little.
_CHUNK = 1 << 21


def count(
  sequences: Iterable[Sequence[int]],
  *,
  vocab_size: int,
  order: int,
  eos_id: int = EOS_ID,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns the counts of the 1-grams, 2-grams, ..., `order`-grams.

  Each sequence is read as a decoder sees it: start tokens come before it, and
  EOS after it, which is added where it is missing.

  Args:
    sequences: sequences of token ids.
    vocab_size: V. V ** order must be below 2 ** 63, see Returns.
    order: the largest n, 2 or more.
    eos_id: the token that ends a sequence.

  Returns:
    For each n a pair of [M] int64 arrays: the n-grams in ascending order, and
    their counts. An n-gram is one number with its tokens as digits in base V,
    the first token being the highest digit.

  Raises:
    ValueError: there are no tokens, a token id is outside the vocabulary, or
      the order does not fit.
  """
  if order < 2:
    raise ValueError(f"the order is {order}; wanted 2 (bigrams) or more")
  if vocab_size**order >= 2**63:
    raise ValueError(
      f"{order}-grams over {vocab_size} tokens cannot be counted here; lower"
      " the order"
    )
  counts = [
    (np.zeros(0, np.int64), np.zeros(0, np.int64)) for _ in range(order)
  ]
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
  """Returns counts to which the n-grams of further sequences are added."""
  # Each part has order - 1 start tokens before it.
  order = len(counts)
  sizes = np.array([part.size for part in parts])
  flat = np.concatenate(parts).astype(np.int64)
  # An n-gram of any n ends at each token that is not a start token. With order
  # 3 a part [s, s, 7, 8, 1] has ends 2, 3, 4; a second part begins at 5 in
  # `flat`, so its ends are moved by 5.
  ends = np.concatenate([np.arange(order - 1, size) for size in sizes])
  offsets = np.cumsum(sizes) - sizes
  ends += np.repeat(offsets, sizes - order + 1)
  merged, ngrams = [], np.zeros_like(ends)
  for back, (known_ngrams, known_counts) in enumerate(counts):
    # The token `back` places before the end becomes the next higher digit:
    # [7, 8, 1] is 1, then 8 V + 1, then 7 V^2 + 8 V + 1.
    ngrams += flat[ends - back] * vocab_size**back
    keys, place = np.unique(
      np.append(known_ngrams, ngrams), return_inverse=True
    )
    added = np.append(known_counts, np.ones_like(ngrams))
    merged.append((keys, np.bincount(place, added).astype(np.int64)))
  return merged


def smooth(
  counts: list[tuple[np.ndarray, np.ndarray]],
  *,
  vocab_size: int,
  successors: int = 32,
  min_count: int = 2,
  vocabulary: str = "",
) -> NgramLM:
  """Returns the smoothed language model of n-gram counts.

  Args:
    counts: the result of `count`.
    vocab_size: V.
    successors: the most next tokens that a context stores, the likeliest ones;
      the probability of the others goes to the shorter context.
    min_count: contexts of two or more tokens that were seen less often are left
      out.
    vocabulary: SHA-256 of the vocabulary's file, if known.
  """
  unigram = _unigram(*counts[0], vocab_size)
  # A context of `depth` tokens is a number in base V, as in `count`. Every
  # single token is a context; longer contexts must have been seen.
  contexts = np.arange(vocab_size)
  levels = []
  for depth, (ngrams, num_seen) in enumerate(counts[1:], start=1):
    context, token = np.divmod(ngrams, vocab_size)
    tokens = None
    if depth > 1:
      parents = contexts
      # N-grams are in ascending order, so all n-grams of a context lie
      # together, and `start` is where each group begins.
      seen_contexts, start = np.unique(context, return_index=True)
      is_frequent = np.add.reduceat(num_seen, start) >= min_count
      contexts = seen_contexts[is_frequent]
      # The children of parent c are the contexts c V, ..., c V + V - 1. They
      # together, so the edges of these ranges say which they are. A
      # child's parent was seen as often as the child, and so is there.
      range_starts = np.append(parents * vocab_size, vocab_size**depth)
      edges = np.searchsorted(contexts, range_starts)
      levels[-1] = levels[-1].replace(first_child=_int32(edges))
      tokens = _int32(contexts % vocab_size)
      if not contexts.size:
        break
    is_stored = np.isin(context, contexts)
    level = _level(
      len(contexts),
      np.searchsorted(contexts, context[is_stored]),
      token[is_stored],
      num_seen[is_stored],
      successors,
    )
    levels.append(level.replace(tokens=tokens))
  # The deepest level that has contexts has no children.
  levels[-1] = levels[-1].replace(first_child=None)
  return NgramLM(jnp.asarray(unigram, jnp.float32), tuple(levels), vocabulary)


def _unigram(
  tokens: np.ndarray, num_seen: np.ndarray, vocab_size: int
) -> np.ndarray:
  """Returns [V] float64, the unigrams smoothed by the uniform distribution."""
  unigram = np.zeros(vocab_size)
  unigram[tokens] = num_seen
  num_different = len(tokens)
  return (unigram + num_different / vocab_size) / (
    num_seen.sum() + num_different
  )


def _level(num_contexts, place, token, num_seen, successors) -> Level:
  """Returns the level of all contexts of one length, from M n-grams."""
  # [M] each: `place` is the context that an n-gram begins with, ascending, and
  # `token` its last token.
  total = np.bincount(place, weights=num_seen, minlength=num_contexts)
  num_different = np.bincount(place, minlength=num_contexts)
  # Within each context the most frequent n-gram comes first; equally frequent
  # ones are in the order of their tokens. The last key of lexsort sorts first.
  order = np.lexsort((token, -num_seen, place))
  place, token, num_seen = place[order], token[order], num_seen[order]
  # The rank within a context: for places [0, 0, 0, 2, 2] the ranks are
  # [0, 1, 2, 0, 1], an n-gram's index less the index of its context's first.
  rank = np.arange(len(place)) - np.searchsorted(place, place)
  is_stored = rank < min(successors, num_different.max())
  place, token, rank = place[is_stored], token[is_stored], rank[is_stored]
  probs = np.zeros((num_contexts, rank.max() + 1))
  chosen = np.zeros(probs.shape, np.int64)
  probs[place, rank] = num_seen[is_stored] / (total + num_different)[place]
  chosen[place, rank] = token
  return Level(
    successors=_int32(chosen),
    probs=jnp.asarray(probs, jnp.float32),
    # The probability that no stored successor has: the smoothing's share, and
    # the shares of successors that are not stored.
    backoff=jnp.asarray(1 - probs.sum(-1), jnp.float32),
  )


def _int32(values):
  return jnp.asarray(values, jnp.int32)
