"""Draws sentence pairs by index, with every right rendering of a source."""

from collections.abc import Callable
import hashlib
import itertools
import math
import random
from typing import NamedTuple

from speccascade.settings.fields import at_least, one_of
from speccascade.tasks.generated import grammar

SPLITS = ("train", "validation", "test")
# Sentences with more right renderings are drawn again.
MAX_REFERENCES = 8
# How many of 1,000 sources are for validation and for testing, by a hash of
# their text. The rest is for training.
_VALIDATION, _TEST = 50, 50
# Probability that the first of several renderings is drawn.
_USUAL = 0.65


class Example(NamedTuple):
  """A pair of the task.

  Attributes:
    inputs: the English sentence.
    targets: one right German rendering, drawn by the renderings' probabilities.
    references: all right renderings, the most probable first.
  """

  inputs: str
  targets: str
  references: tuple[str, ...]


def split_of(inputs: str) -> str:
  """Returns the split of a source, by a stable hash of its text.

  No source is in two splits.
  """
  digest = hashlib.blake2b(inputs.encode(), digest_size=8).digest()
  place = int.from_bytes(digest, "big") % 1_000
  if place < _VALIDATION:
    return "validation"
  return "test" if place < _VALIDATION + _TEST else "train"


def _write(
  seed: int, choose: Callable[[int, int], int]
) -> tuple[str, str, list[int]]:
  """Returns a sentence in both languages, and how many options choices have."""
  # A choice is one between German options: `choose` takes its number and how
  # many options it has.
  numbers = []

  def pick(options):
    if len(options) == 1:  # no choice
      return options[0]
    numbers.append(len(options))
    return options[choose(len(numbers) - 1, len(options))]

  english, german = grammar.Sentence(random.Random(seed).random, pick).write()
  return english, german, numbers


def _draw(split: str, index: int) -> tuple[int, str, str, list[int]]:
  """Returns the seed of a sentence of a split, and the results of `_write`."""
  one_of(SPLITS, split=split)
  at_least(0, index=index)
  uniform = random.Random(len(SPLITS) * index + SPLITS.index(split)).random

  def choose(choice, number):
    # Below _USUAL the first option. The rest of the interval is divided evenly
    # among the other options: with 3 options and 0.9 it is 1 + int(1.43) = 2.
    rest = (uniform() - _USUAL) / (1 - _USUAL)
    return 0 if rest < 0 else 1 + int(rest * (number - 1))

  while True:
    # Sources of other splits are drawn again, so that the distribution is the
    # same one in every split.
    seed = int(uniform() * 2**53)
    inputs, targets, numbers = _write(seed, choose)
    if split_of(inputs) == split and math.prod(numbers) <= MAX_REFERENCES:
      return seed, inputs, targets, numbers


def pair(split: str, index: int) -> tuple[str, str]:
  """Returns the source and the target of an example.

  Args:
    split: one of `SPLITS`.
    index: number of the example in the split. Every index >= 0 has an example.

  Raises:
    ValueError: the split is unknown, or the index is negative.
  """
  return _draw(split, index)[1:3]


def example(split: str, index: int) -> Example:
  """Returns an example with all right renderings of its source.

  The arguments are as in `pair`.
  """
  seed, inputs, targets, numbers = _draw(split, index)
  # The probability of each option that is not the first one, for each choice.
  unusual = [(1 - _USUAL) / (number - 1) for number in numbers]
  references = {}
  for options in itertools.product(*map(range, numbers)):
    _, text, _ = _write(seed, lambda choice, _, picks=options: picks[choice])
    references[text] = math.prod(
      rest if option else _USUAL for option, rest in zip(options, unusual)
    )
  order = sorted(references, key=references.get, reverse=True)
  return Example(inputs, targets, tuple(order))


def built_in_examples(
  num: int = 32, split: str = "test"
) -> list[tuple[str, tuple[str, ...]]]:
  """Returns sentences of the built-in task, each with its right renderings.

  Args:
    num: how many.
    split: one of `SPLITS`.

  Raises:
    ValueError: the split is unknown, or the number is not positive.
  """
  at_least(1, num=num)
  drawn = (example(split, index) for index in range(num))
  return [(each.inputs, each.references) for each in drawn]
