"""Sentence pairs by index, with every right rendering of a source."""

from collections.abc import Callable
import hashlib
import itertools
import math
import random
from typing import NamedTuple

from speccascade.data.generated import grammar
from speccascade.settings.fields import at_least, one_of

SPLITS = ("train", "validation", "test")
# Sentences with more right renderings are drawn again.
MAX_REFERENCES = 8
# Of 1,000 sources, by hash: validation, test; the rest trains.
_VALIDATION, _TEST = 50, 50
# Probability of the first of several renderings.
_USUAL = 0.65


class Example(NamedTuple):
  """A pair of the task.

  Attributes:
    inputs: English sentence.
    targets: one right German rendering, drawn by its probability.
    references: all right renderings, the most probable first.
  """

  inputs: str
  targets: str
  references: tuple[str, ...]


def split_of(inputs: str) -> str:
  """The split a source belongs to, by a stable hash of its text."""
  digest = hashlib.blake2b(inputs.encode(), digest_size=8).digest()
  place = int.from_bytes(digest, "big") % 1_000
  if place < _VALIDATION:
    return "validation"
  return "test" if place < _VALIDATION + _TEST else "train"


def _write(
  seed: int, choose: Callable[[int, int], int]
) -> tuple[str, str, list[int]]:
  """A sentence in both languages.

  Args:
    seed: of everything but the choices.
    choose: gets the number of a choice and that of its options.

  Returns:
    English, German, and how many options each choice has.
  """
  numbers = []

  def pick(options):
    if len(options) == 1:
      return options[0]
    numbers.append(len(options))
    return options[choose(len(numbers) - 1, len(options))]

  return *grammar.Sentence(random.Random(seed).random, pick).write(), numbers


def _draw(split: str, index: int) -> tuple[int, str, str, list[int]]:
  """A seed that the split may have, and what `_write` gives for it."""
  one_of(SPLITS, split=split)
  at_least(0, index=index)
  uniform = random.Random(len(SPLITS) * index + SPLITS.index(split)).random

  def choose(place, number):
    rest = (uniform() - _USUAL) / (1 - _USUAL)
    return 0 if rest < 0 else 1 + int(rest * (number - 1))

  while True:
    # Sources of other splits are drawn again: one law, given the split.
    seed = int(uniform() * 2**53)
    inputs, targets, numbers = _write(seed, choose)
    if split_of(inputs) == split and math.prod(numbers) <= MAX_REFERENCES:
      return seed, inputs, targets, numbers


def pair(split: str, index: int) -> tuple[str, str]:
  """The source and target number `index` of a split; any index >= 0 exists.

  Raises:
    ValueError: for an unknown split or a negative index.
  """
  return _draw(split, index)[1:3]


def example(split: str, index: int) -> Example:
  """Number `index` of a split with all right renderings."""
  seed, inputs, targets, numbers = _draw(split, index)
  unusual = [(1 - _USUAL) / (number - 1) for number in numbers]
  references = {}
  for taken in itertools.product(*map(range, numbers)):
    _, text, _ = _write(seed, lambda place, _, taken=taken: taken[place])
    references[text] = math.prod(
      rest if choice else _USUAL for choice, rest in zip(taken, unusual)
    )
  order = sorted(references, key=references.get, reverse=True)
  return Example(inputs, targets, tuple(order))
