"""The task's SentencePiece vocabulary, a file of this package.

Ids: pad 0, eos 1, unk 2; no bos. A change of words or grammar asks for another:
`model_path().write_bytes(train())`.
"""

from collections.abc import Iterable
import functools
import itertools
import pathlib

import numpy as np
import sentencepiece

from speccascade.data import pieces
from speccascade.data.generated import examples

SIZE = 768
_TRAINING_PAIRS = 6_000


def model_path() -> pathlib.Path:
  """The vocabulary's file."""
  return pathlib.Path(__file__).with_name("vocabulary.model")


def train() -> bytes:
  """The serialized vocabulary, made from the first training pairs."""
  pairs = (examples.pair("train", i) for i in range(_TRAINING_PAIRS))
  return pieces.train(
    itertools.chain.from_iterable(pairs),
    SIZE,
    normalization_rule_name="identity",
    split_digits=True,
  )


@functools.cache
def load() -> sentencepiece.SentencePieceProcessor:
  """The vocabulary."""
  return sentencepiece.SentencePieceProcessor(model_file=str(model_path()))


def encode(texts: Iterable[str]) -> list[np.ndarray]:
  """The ids of each text, EOS at the end, int32."""
  rows = load().encode(list(texts), add_eos=True)
  return [np.asarray(row, np.int32) for row in rows]
