"""Makes SentencePiece vocabularies, with the special ids of T5."""

from collections.abc import Iterable, Iterator, Sequence
import io
import os
import pathlib
import re
from typing import Annotated, NamedTuple

import numpy as np
import sentencepiece

from speccascade.runtime import files, folders
from speccascade.settings import fields
from speccascade.text import text_files

PAD, EOS, UNK = 0, 1, 2
_MOST_BYTES = 1 << 22  # SentencePiece leaves out longer texts without a message


class NamedTexts(NamedTuple):
  """The texts of a file, or of one field of a file.

  Attributes:
    name: the name of the file, and perhaps of the field, for messages.
    texts: the texts.
  """

  name: str
  texts: list[str]


def columns(
  paths: Iterable[str | os.PathLike], languages: Sequence[str] = ("en", "de")
) -> Iterator[NamedTexts]:
  """Yields the texts from which a vocabulary is made, file by file.

  Args:
    paths: each path is a file of lines, plain or .gz, or a path that
      `text_files.paths_of` takes: a .jsonl file, whose inputs and targets are
      read, or a prefix of two files.
    languages: the two suffixes of a prefix.

  Raises:
    FileNotFoundError: a file does not exist.
    ValueError: a file is empty, is not UTF-8, or has wrong JSON.
  """
  for path in paths:
    is_lines = pathlib.Path(path).expanduser().is_file()
    named = [path] if is_lines else text_files.paths_of(path, languages)
    for name in map(os.fspath, named):
      examples = text_files.read_texts(name)
      yield NamedTexts(name, [example.inputs for example in examples])
      if targets := [text for e in examples for text in e.references]:
        yield NamedTexts(f"{name}, targets", targets)


def train(
  texts: Iterable[str],
  vocab_size: int,
  *,
  character_coverage: float = 1.0,
  **options,
) -> bytes:
  """Returns a serialized SentencePiece model, trained on texts.

  Its special ids are pad 0, EOS 1 and unknown 2; it has no BOS. Equal texts and
  options give equal bytes.

  Args:
    texts: one text or more.
    vocab_size: how many pieces, the special ones included.
    character_coverage: share of the texts' characters that become pieces.
    **options: options of SentencePiece.

  Raises:
    ValueError: SentencePiece cannot make this number of pieces of the
      texts.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=model,
      vocab_size=vocab_size,
      character_coverage=character_coverage,
      max_sentence_length=_MOST_BYTES,
      pad_id=PAD,
      eos_id=EOS,
      unk_id=UNK,
      bos_id=-1,
      # Several threads would add numbers in another order, and the pieces might
      # differ.
      num_threads=1,
      minloglevel=3,
      **options,
    )
  except (RuntimeError, OSError) as error:
    # SentencePiece writes "Internal: FILE(LINE) [CONDITION] What is wrong."
    reason = re.sub(r"^.*\] ?", "", " ".join(str(error).split()))
    raise ValueError(
      f"no vocabulary of {vocab_size} pieces can be made: {reason}"
    ) from error
  return model.getvalue()


@fields.checked
def build(
  paths: Sequence[fields.Path],
  output_file: fields.Path,
  vocab_size: Annotated[int, fields.Bounds(4, 2**24)],
  *,
  languages: tuple[str, str] = ("en", "de"),
  character_coverage: Annotated[
    float, fields.Bounds(0, 1, low_open=True)
  ] = 1.0,
  **options,
) -> Iterator[str]:
  """Trains a vocabulary on files and writes it; yields lines of a report.

  Args:
    paths: the files, as in `columns`.
    output_file: path of the model. If a file exists there, it must be the same
      model.
    vocab_size: how many pieces, the special ones included.
    languages: the two suffixes of a prefix.
    character_coverage: share of the texts' characters that become pieces.
    **options: options of SentencePiece.

  Yields:
    A line for each file or field, about the tokens of its texts, EOS included,
    and a line about the vocabulary.

  Raises:
    FileNotFoundError: a file does not exist.
    ValueError: a file is wrong (see `columns`), the vocabulary cannot be made
      (see `train`), another job writes the model, or another model is there,
      with which checkpoints may have been trained.
  """
  path = pathlib.Path(output_file).expanduser()
  if not path.name or os.path.isdir(path):
    raise ValueError(
      f"output_file {str(path)!r} is a folder; name a file in it"
    )
  with folders.sole_writer(
    path.parent, "the folder of output_file", file=path.name
  ):
    folders.check_files(path.parent, "the folder of output_file", path.name)
    files_of_texts = list(columns(paths, languages))
    model = train(
      (text for column in files_of_texts for text in column.texts),
      vocab_size,
      character_coverage=character_coverage,
      **options,
    )
    if path.exists() and path.read_bytes() != model:
      raise ValueError(
        f"{path} is there and is another vocabulary: give another name, or"
        " remove it and what was trained with it"
      )
    files.write_whole(path, model)
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  for name, texts in files_of_texts:
    lengths = [len(ids) + 1 for ids in processor.encode(texts)]
    middle, most = np.percentile(lengths, [50, 95])
    yield (
      f"{name}: {len(texts)} texts, tokens with EOS: median {middle:.0f}, 95%"
      f" within {most:.0f}, longest {max(lengths)}"
    )
  yield f"{len(processor)} pieces in {path}"
