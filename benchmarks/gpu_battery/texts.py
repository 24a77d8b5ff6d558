"""The texts of the trained pair, as token arrays of one length."""

import dataclasses
import io
import pathlib

import numpy as np
import sentencepiece

from speccascade.runtime import files
from speccascade.tasks.generated import examples, task_pieces
from speccascade.text import pieces

EOS = 1
VOCAB_SIZE = 4000  # of a vocabulary that is trained on the texts
BUILT_IN_TRAIN = 20_000


@dataclasses.dataclass(frozen=True)
class Texts:
  """Sentence pairs to train on and to test.

  Attributes:
    name: what results call them.
    train_inputs: [N, L] uint16, 0 pads; EOS ends a sentence.
    train_targets: [N, L] uint16.
    test_inputs: [M, S] uint16.
    references: M lists of right translations.
    model: the serialized SentencePiece model.
  """

  name: str
  train_inputs: np.ndarray
  train_targets: np.ndarray
  test_inputs: np.ndarray
  references: list[list[str]]
  model: bytes

  @property
  def processor(self) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=self.model)

  @property
  def vocab_size(self) -> int:
    """The pieces, rounded up to a multiple of 64."""
    return -(-len(self.processor) // 64) * 64

  def save(self, path: pathlib.Path):
    """Writes one .npz file, which `load` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(
      content,
      name=self.name,
      train_inputs=self.train_inputs,
      train_targets=self.train_targets,
      test_inputs=self.test_inputs,
      references=np.asarray([several[0] for several in self.references]),
      model=np.frombuffer(self.model, np.uint8),
    )
    files.write_whole(path, content.getvalue())


def load(path: pathlib.Path) -> Texts:
  """Returns the texts of a file of `Texts.save`."""
  with np.load(path) as arrays:
    return Texts(
      str(arrays["name"]),
      arrays["train_inputs"],
      arrays["train_targets"],
      arrays["test_inputs"],
      [[text] for text in arrays["references"].tolist()],
      arrays["model"].tobytes(),
    )


def built_in(
  length: int, source_len: int, num_test: int, num_train: int
) -> Texts:
  """Returns pairs of the package's generated task.

  Args:
    length: room for each side of a training pair; longer ones are left out.
    source_len: room for a test sentence; longer ones are left out.
    num_test: how many test sentences.
    num_train: how many training pairs.
  """
  model = task_pieces.model_path().read_bytes()
  train = [examples.pair("train", i) for i in range(num_train)]
  test = [examples.example("test", i) for i in range(num_test)]
  return _tokens(
    "the built-in task",
    model,
    train,
    [(each.inputs, list(each.references)) for each in test],
    length,
    source_len,
  )


def from_files(
  folder: pathlib.Path,
  train: str,
  test: str,
  length: int,
  source_len: int,
  vocab_size: int = VOCAB_SIZE,
) -> Texts:
  """Returns the pairs of line files NAME.en and NAME.de, plain or .gz.

  A vocabulary is trained on the training files.

  Args:
    folder: where the files are.
    train: the name of the training files.
    test: the name of the test files.
    length: see `built_in`.
    source_len: see `built_in`.
    vocab_size: pieces of the vocabulary.
  """
  columns = [
    column.texts
    for name in (train, test)
    for column in pieces.columns([folder / name])
  ]
  sources, targets, test_sources, references = columns
  model = pieces.train(sources + targets, vocab_size)
  return _tokens(
    f"{train}, {test}",
    model,
    list(zip(sources, targets)),
    [(inputs, [text]) for inputs, text in zip(test_sources, references)],
    length,
    source_len,
  )


def _tokens(name, model, train, test, length, source_len) -> Texts:
  """Returns texts as arrays; pairs that are too long are left out."""
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  encode = lambda texts: processor.encode(list(texts), add_eos=True)
  inputs, targets = (encode(side) for side in zip(*train))
  fits = [max(map(len, pair)) <= length for pair in zip(inputs, targets)]
  pick = lambda rows: [row for row, fit in zip(rows, fits) if fit]
  sources = encode(text for text, _ in test)
  taken = [i for i, row in enumerate(sources) if len(row) <= source_len]
  return Texts(
    name,
    _padded(pick(inputs), length),
    _padded(pick(targets), length),
    _padded([sources[i] for i in taken], source_len),
    [test[i][1] for i in taken],
    model,
  )


def _padded(rows: list[list[int]], length: int) -> np.ndarray:
  """Returns [N, length] uint16 with 0 after each row."""
  padded = np.zeros((len(rows), length), np.uint16)
  for row, ids in zip(padded, rows):
    row[: len(ids)] = ids
  return padded


def text_of(
  processor: sentencepiece.SentencePieceProcessor, tokens: np.ndarray
) -> str:
  """Returns the text of tokens, without the EOS.

  A model has some more rows than there are pieces, which may be sampled.
  """
  ids = [int(x) for x in tokens if x != EOS and x < len(processor)]
  return processor.decode(ids)
