"""An n-gram language model: smoothed counts of a text, as a distribution that
sums to 1.

Each context stores its likeliest successors. The rest of its mass goes to the
shorter context, and in the end to the unigram distribution, which gives every
token a chance. A table over 32,128 tokens therefore stays small.

Axes: B rows, N fed tokens, V vocabulary, C contexts of a level, K successors.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
from typing import IO, Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models.markov_lm import FiniteContext
from speccascade.runtime import array_files

Array = jax.Array

FORMAT = "speccascade n-gram model 1"


class Level(struct.PyTreeNode):
  """The contexts of one length m, in the order of their numbers.

  A context of m > 1 tokens is a child of the context of its first m - 1 tokens.
  The children of a context are neighbours, sorted by their last token. A
  context of one token has that token's id for its number.

  Attributes:
    successors: [C, K] int32, the likeliest next tokens, likeliest first.
    probs: [C, K] float32, share of the mass of each successor; 0 where a
      context has fewer successors.
    backoff: [C] float32, the mass that goes to the shorter context.
    first_child: [C + 1] int32, where the children of each context start in the
      next level. The last level has None.
    tokens: [C] int32, the last token of each context; None for m = 1.
  """

  successors: Array
  probs: Array
  backoff: Array
  first_child: Array | None = None
  tokens: Array | None = None


class NgramLM(FiniteContext, struct.PyTreeNode):
  """Next-token distribution of an interpolated n-gram model.

  p(w | context) = probs(w | context) + backoff(context) p(w | shorter context).

  Attributes:
    unigram: [V] float32, all positive.
    levels: contexts of 1, 2, ..., n-1 tokens.
    vocabulary: SHA-256 of the vocabulary's file, or ""; static.
    prompted: whether the inputs are prompts; static. A file does not say so: it
      is set for the pair, `lm.replace(prompted=True)`.
  """

  unigram: Array
  levels: tuple[Level, ...]
  vocabulary: str = struct.field(pytree_node=False, default="")
  prompted: bool = struct.field(pytree_node=False, default=False)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.unigram.shape[0]

  @property
  def order(self) -> int:
    """Tokens of the longest context, n - 1."""
    return len(self.levels)

  def look_up(self, source: Array, context: Sequence[Array]) -> Array:
    """Returns log p [B, N, V]; see `FiniteContext`."""
    shape = context[-1].shape
    law = jnp.broadcast_to(self.unigram, (*shape, self.vocab_size))
    for size, level in enumerate(self.levels, start=1):
      number, is_seen = self._number(context[len(context) - size :])
      # A context that was never seen passes all mass to the shorter one.
      probs = jnp.where(is_seen[..., None], level.probs[number], 0)
      backoff = jnp.where(is_seen, level.backoff[number], 1)
      law = _add(law * backoff[..., None], level.successors[number], probs)
    return jnp.log(law)

  def _number(self, context: Sequence[Array]) -> tuple[Array, Array]:
    """Returns the number of a context, and whether it was ever seen."""
    # Goes down the tree of contexts: from the first token, whose number is its
    # id, to the child with the second token, and so on.
    number, is_seen = context[0], jnp.ones(context[0].shape, bool)
    for parent, level, token in zip(self.levels, self.levels[1:], context[1:]):
      # The last level alone has no children, the first alone no tokens.
      assert parent.first_child is not None
      assert level.tokens is not None
      low, end = parent.first_child[number], parent.first_child[number + 1]
      low = _search(level.tokens, low, end, token)
      at = jnp.minimum(low, level.tokens.shape[0] - 1)
      is_seen &= (low < end) & (level.tokens[at] == token)
      number = jnp.where(is_seen, at, 0)
    return number, is_seen

  def greedy_bigrams(self) -> np.ndarray:
    """Returns [V] int32, the likeliest token after each; 0 where unknown.

    Max-Gram fills its proposals with these tokens.
    """
    level = self.levels[0]
    is_known = np.asarray(level.probs[:, 0]) > 0
    likeliest = np.asarray(level.successors[:, 0])
    return np.where(is_known, likeliest, 0).astype(np.int32)

  def padded(self, vocab_size: int) -> "NgramLM":
    """Returns the model with further tokens, which have no probability.

    Args:
      vocab_size: number of tokens wanted.

    Raises:
      ValueError: the model has more tokens.
    """
    more = vocab_size - self.vocab_size
    if more < 0:
      raise ValueError(
        f"the n-gram model has {self.vocab_size} tokens, the pair"
        f" {vocab_size}; count it with the pair's vocabulary"
      )
    first, *longer = self.levels
    ends = first.first_child
    # The further tokens are contexts without successors and children: all mass
    # goes to the shorter context, and their children start where the last ones
    # end.
    first = dataclasses.replace(
      first,
      successors=jnp.pad(first.successors, ((0, more), (0, 0))),
      probs=jnp.pad(first.probs, ((0, more), (0, 0))),
      backoff=jnp.pad(first.backoff, (0, more), constant_values=1),
      first_child=None if ends is None else jnp.pad(ends, (0, more), "edge"),
    )
    unigram = jnp.pad(self.unigram, (0, more))
    return dataclasses.replace(self, unigram=unigram, levels=(first, *longer))

  def save(self, file: str | os.PathLike | IO[bytes]) -> None:
    """Writes the model as `.npz`, to a path or an open file."""
    arrays: dict[str, Any] = {"unigram": self.unigram}
    for i, level in enumerate(self.levels):
      for name, value in vars(level).items():
        if value is not None:
          arrays[f"{i}/{name}"] = value
    meta = {
      "format": FORMAT,
      "levels": len(self.levels),
      "vocabulary": self.vocabulary,
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    stored: dict[str, Any] = {
      name: np.asarray(array) for name, array in arrays.items()
    }
    np.savez_compressed(file, **stored)

  @classmethod
  def load(cls, path: str | os.PathLike) -> "NgramLM":
    """Returns the model of a file that `save` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file holds no n-gram model, or is not whole.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
      raise FileNotFoundError(
        f"no n-gram model at {path}; make one with python -m speccascade.ngrams"
      )
    try:
      arrays = array_files.read_npz(path)
      meta = json.loads(arrays.pop("meta").tobytes())
      if meta["format"] != FORMAT:
        raise ValueError(f"its format is {meta['format']!r}")
      levels = tuple(_level(arrays, i) for i in range(meta["levels"]))
      unigram, vocabulary = arrays["unigram"], meta["vocabulary"]
      if not isinstance(vocabulary, str):
        raise ValueError(f"its vocabulary is {vocabulary!r:.60}, no text")
      _check(unigram, levels)
    except (ValueError, KeyError, TypeError, RecursionError) as e:
      raise ValueError(
        f"{path} is not an n-gram model, or not whole ({e}); make it again with"
        " python -m speccascade.ngrams"
      ) from e
    levels = jax.tree.map(jnp.asarray, levels)
    return cls(jnp.asarray(unigram), levels, vocabulary)


def _check(unigram: np.ndarray, levels: Sequence[Level]):
  """Raises ValueError where the arrays of a file do not fit each other."""
  size = unigram.size
  if unigram.ndim != 1 or not size or not levels:
    raise ValueError(
      f"it has {len(levels)} levels, over {unigram.shape} tokens"
    )
  num = size  # contexts of the level
  for depth, level in enumerate(levels):
    longer = levels[depth + 1].backoff.size if depth + 1 < len(levels) else None
    most = max(1, *level.successors.shape[1:2])
    _check_array(depth, "successors", level, (num, most), size)
    _check_array(depth, "probs", level, (num, most))
    _check_array(depth, "backoff", level, (num,))
    _check_array(depth, "tokens", level, (num,) if depth else None, size)
    edges = None if longer is None else (num + 1,)
    _check_array(depth, "first_child", level, edges, (longer or 0) + 1)
    if longer is not None:
      num = longer


def _check_array(
  depth: int,
  name: str,
  level: Level,
  shape: tuple[int, ...] | None,
  end: int | None = None,
):
  """Raises ValueError where an array of a level is not as it has to be."""
  array = getattr(level, name)
  if (None if array is None else array.shape) != shape:
    got = "is missing" if array is None else f"has shape {array.shape}"
    raise ValueError(f"array {depth}/{name} {got}; wanted {shape}")
  if array is None:
    return
  if array.dtype.kind != ("f" if end is None else "i"):
    raise ValueError(f"array {depth}/{name} has dtype {array.dtype}")
  if end is not None and array.size:
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= end:
      value = low if low < 0 else high
      raise ValueError(
        f"array {depth}/{name} has {value}; wanted 0 to {end - 1}"
      )


def _level(arrays: Mapping[str, np.ndarray], i: int) -> Level:
  """Returns a level from the arrays of a file, named "i/field"."""
  fields: dict[str, Any] = {}
  for name, array in arrays.items():
    number, _, field = name.partition("/")
    if number == str(i):
      fields[field] = array
  return Level(**fields)


def _add(law: Array, index: Array, values: Array) -> Array:
  """Returns law [B, N, V] with values [B, N, K] added at index [B, N, K]."""
  rows, num, size = law.shape
  flat = law.reshape(-1, size)
  index, values = (x.reshape(rows * num, -1) for x in (index, values))
  flat = jax.vmap(lambda row, i, x: row.at[i].add(x))(flat, index, values)
  return flat.reshape(law.shape)


def _search(tokens: Array, low: Array, high: Array, token: Array) -> Array:
  """Returns the first place in [low, high) whose token is not below `token`."""

  def halve(_, bounds):
    low, high = bounds
    middle = (low + high) // 2
    is_below = tokens[jnp.minimum(middle, tokens.shape[0] - 1)] < token
    # Other rows may still search when a row has found its place.
    is_open = low < high
    return (
      jnp.where(is_open & is_below, middle + 1, low),
      jnp.where(is_open & ~is_below, middle, high),
    )

  steps = max(1, tokens.shape[0]).bit_length()
  return jax.lax.fori_loop(0, steps, halve, (low, high))[0]
