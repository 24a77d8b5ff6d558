"""Sentence pairs by index, and every right rendering of a source."""

import dataclasses
import functools
import hashlib
import random

from speccascade.data.generated import (
  english,
  english_grammar,
  lattice,
  rendering,
)

# Raise it whenever grammar or words change: vocabularies are cached under it.
VERSION = 1
SPLITS = ("train", "validation", "test")
# Of 1,000 sources, by hash: validation, test; the rest trains.
_VALIDATION, _TEST = 50, 50
MAX_REFERENCES = 8
# Longer sentences are drawn again: the task fits into 64 pieces a side.
MAX_WORDS = 28


@dataclasses.dataclass(frozen=True)
class Example:
  """A pair of the task.

  Attributes:
    inputs: English sentence.
    targets: one right German rendering, drawn by its probability.
    references: up to `MAX_REFERENCES` right renderings, the most probable
      first; `targets` need not be among them where there are more.
  """

  inputs: str
  targets: str
  references: tuple[str, ...]


@functools.cache
def _grammar():
  grammar = english_grammar.build()
  return grammar, grammar.symbol("S")


def split_of(inputs: str) -> str:
  """The split a source belongs to, by a stable hash of its text."""
  digest = hashlib.blake2b(inputs.encode(), digest_size=8).digest()
  place = int.from_bytes(digest, "big") % 1_000
  if place < _VALIDATION:
    return "validation"
  return "test" if place < _VALIDATION + _TEST else "train"


def _check(split: str) -> int:
  if split not in SPLITS:
    raise ValueError(f"split {split!r} is unknown; there are {SPLITS}")
  return SPLITS.index(split)


def pair(split: str, index: int) -> tuple[str, str]:
  """The source and target number `index` of a split; any index >= 0 exists.

  Raises:
    ValueError: for an unknown split or a negative index.
  """
  place = _check(split)
  if index < 0:
    raise ValueError(f"index must be 0 or more, not {index}")
  grammar, start = _grammar()
  attempt = 0
  while True:
    # Sources of other splits are drawn again: one law, given the split.
    uniform = random.Random((((index << 24) + attempt) << 2) + place).random
    words = []
    tree = grammar.sample(start, uniform, words)
    inputs = english.detokenize(words) if len(words) <= MAX_WORDS else ""
    if inputs and split_of(inputs) == split:
      text = rendering.sentence(lattice.Draw(uniform), tree)
      return inputs, lattice.finish(text)
    attempt += 1


def example(split: str, index: int) -> Example:
  """Number `index` of a split with its references."""
  inputs, targets = pair(split, index)
  return Example(inputs, targets, tuple(references(inputs)))


def pairs(split: str, start: int, count: int) -> list[Example]:
  """The examples `start` to `start + count` of a split, with references.

  Args:
    split: "train", "validation" or "test".
    start: first index.
    count: how many; training streams want `pair`, which is faster.
  """
  return [example(split, i) for i in range(start, start + count)]


def _trees(inputs: str) -> list:
  grammar, start = _grammar()
  tokens = english.tokenize(inputs)
  if not tokens or english.detokenize(tokens) != inputs:
    return []
  # The first word is written large whatever it is.
  lower = tokens[0][0].lower() + tokens[0][1:]
  trees = []
  for first in dict.fromkeys((tokens[0], lower)):
    trees += grammar.parse(start, [first, *tokens[1:]])
  return trees


@functools.lru_cache(maxsize=4_096)
def _lattices(inputs: str) -> tuple:
  g = lattice.Everything()
  return tuple(rendering.sentence(g, tree) for tree in _trees(inputs))


def _parsed(inputs: str) -> tuple:
  found = _lattices(inputs)
  if not found:
    raise ValueError(f"not a sentence of the generated task: {inputs!r}")
  return found


def references(inputs: str, limit: int = MAX_REFERENCES) -> list[str]:
  """The most probable right renderings of a source, the likeliest first.

  Raises:
    ValueError: where the source is not a sentence of the grammar.
  """
  weights = {}
  for node in _parsed(inputs):
    for probability, text in lattice.best(node, limit):
      text = lattice.finish(text)
      weights[text] = weights.get(text, 0) + probability
  return sorted(weights, key=lambda text: -weights[text])[:limit]


def draw(inputs: str, seed: int) -> str:
  """One right rendering of a source, drawn as `pair` draws its target.

  Raises:
    ValueError: where the source is not a sentence of the grammar.
  """
  _parsed(inputs)
  uniform = random.Random(seed).random
  tree = _trees(inputs)[0]
  return lattice.finish(rendering.sentence(lattice.Draw(uniform), tree))


def num_renderings(inputs: str) -> int:
  """How many right renderings the grammar has for a source."""
  return sum(lattice.count(node) for node in _parsed(inputs))


def renderings(inputs: str, limit: int = 100_000) -> list[str]:
  """All right renderings of a source, the likeliest first.

  Raises:
    ValueError: where there are more than `limit`, or the source is not a
      sentence of the grammar.
  """
  total = num_renderings(inputs)
  if total > limit:
    raise ValueError(
      f"{total} renderings are more than {limit}; test with is_rendering"
    )
  return references(inputs, total)


def is_rendering(inputs: str, text: str) -> bool:
  """Whether `text` is one of the right renderings of the source; exact.

  Raises:
    ValueError: where the source is not a sentence of the grammar.
  """
  return any(lattice.matches(node, text) for node in _parsed(inputs))


def num_sentences() -> int:
  """The number of derivations of sentences of at most `MAX_WORDS` words.

  It bounds the number of distinct sentences from above; hardly any sentence
  has two derivations, which a test measures.
  """
  grammar, start = _grammar()
  return sum(grammar.count(start, MAX_WORDS))
