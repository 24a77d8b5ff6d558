"""The SentencePiece vocabulary of the built-in task, a file of this package.

The special ids are pad 0, eos 1 and unk 2; there is no bos. After a change of
the words or the grammar the file has to be made again:
`model_path().write_bytes(train())`.
"""

from collections.abc import Iterable
import functools
import itertools
import pathlib

import numpy as np
import sentencepiece

from speccascade.tasks.generated import examples
from speccascade.text import pieces

SIZE = 768
_TRAINING_PAIRS = 6_000


def model_path() -> pathlib.Path:
  """Returns the path of the vocabulary's file."""
  return pathlib.Path(__file__).with_name("vocabulary.model")


def train() -> bytes:
  """Returns the serialized vocabulary, made from the first training pairs."""
  pairs = (examples.pair("train", i) for i in range(_TRAINING_PAIRS))
  return pieces.train(
    itertools.chain.from_iterable(pairs),
    SIZE,
    normalization_rule_name="identity",
    split_digits=True,
  )


@functools.cache
def load() -> sentencepiece.SentencePieceProcessor:
  """Returns the vocabulary, read once."""
  return sentencepiece.SentencePieceProcessor(model_file=str(model_path()))


def encode(texts: Iterable[str]) -> list[np.ndarray]:
  """Returns the ids of each text as int32, with EOS at the end."""
  rows = load().encode(list(texts), add_eos=True)
  return [np.asarray(row, np.int32) for row in rows]
