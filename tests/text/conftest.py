"""Gives a small vocabulary that the tests of this folder share."""

import pytest

from tests.generate import tiny

TEXT = [
  "the cat sat on the mat and the dog sat on the rug",
  "a man and a woman walk to the house in the rain",
  "die Katze sitzt auf der Matte und der Hund auf dem Teppich",
  "ein Mann und eine Frau gehen im Regen zum Haus",
  "translate English to German summarize: question answer ABCD 0123456789",
]


def train_vocabulary(path, **options):
  size = {"vocab_size": 96, "hard_vocab_limit": False}
  return tiny.train_words(path, "\n".join(TEXT), **size | options)


@pytest.fixture(scope="session")
def vocabulary_path(tmp_path_factory):
  return train_vocabulary(tmp_path_factory.mktemp("vocab") / "tiny.model")


@pytest.fixture(scope="session")
def vocabulary(vocabulary_path):
  from speccascade.text import vocabularies

  return vocabularies.load(str(vocabulary_path))
