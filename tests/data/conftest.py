"""A small vocabulary that the tests of this folder share."""

import io

import pytest

TEXT = [
  "the cat sat on the mat and the dog sat on the rug",
  "a man and a woman walk to the house in the rain",
  "die Katze sitzt auf der Matte und der Hund auf dem Teppich",
  "ein Mann und eine Frau gehen im Regen zum Haus",
  "translate English to German summarize: question answer ABCD 0123456789",
]


def train_vocabulary(path, pieces=96, **options):
  import sentencepiece

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT * 4),
    model_writer=model,
    vocab_size=pieces,
    hard_vocab_limit=False,
    minloglevel=2,
    **{
      "pad_id": 0,
      "eos_id": 1,
      "unk_id": 2,
      "bos_id": -1,
      **options,
    },
  )
  path.write_bytes(model.getvalue())
  return path


@pytest.fixture(scope="session")
def vocabulary_path(tmp_path_factory):
  return train_vocabulary(tmp_path_factory.mktemp("vocab") / "tiny.model")


@pytest.fixture(scope="session")
def vocabulary(vocabulary_path):
  from speccascade.data import vocabularies

  return vocabularies.load(str(vocabulary_path))
