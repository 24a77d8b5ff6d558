"""Makes SentencePiece vocabularies, with the special ids that T5 has."""

from collections.abc import Iterable, Iterator, Sequence
import io
import os
import pathlib
import re
from typing import Annotated, NamedTuple

import numpy as np
import sentencepiece

from speccascade.data import text_files
from speccascade.runtime import files, folders
from speccascade.settings import fields

PAD, EOS, UNK = 0, 1, 2
_MOST_BYTES = 1 << 22  # SentencePiece skips longer texts without a word


class NamedTexts(NamedTuple):
  """The texts of a file, or of a field of it, and what it is called."""

  name: str
  texts: list[str]


def columns(
  paths: Iterable[str | os.PathLike], languages: Sequence[str] = ("en", "de")
) -> Iterator[NamedTexts]:
  """Yields the texts that a vocabulary is made of.

  Args:
    paths: each a file of lines, plain or .gz; or what `text_files.paths_of`
      takes: a .jsonl file, of which inputs and all targets are read, or a
      prefix.
    languages: the suffixes of a prefix.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a file is empty, or not UTF-8, or no such JSON.
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
  """Returns a serialized model: pad 0, EOS 1, unknown 2, no BOS.

  The same texts and options give the same bytes.

  Args:
    texts: one or more.
    vocab_size: pieces, the special ones counted.
    character_coverage: share of the characters that are pieces.
    **options: SentencePiece's own.

  Raises:
    ValueError: SentencePiece cannot make so many pieces of the texts, or so
      few.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=model,
      vocab_size=vocab_size,
      character_coverage=character_coverage,
      max_sentence_length=_MOST_BYTES,
      **{"pad_id": PAD, "eos_id": EOS, "unk_id": UNK, "bos_id": -1},
      # More threads add up in another order, and the pieces may differ.
      num_threads=1,
      minloglevel=3,
      **options,
    )
  except (RuntimeError, OSError) as error:
    # "Internal: FILE(LINE) [CONDITION] What is wrong."
    said = re.sub(r"^.*\] ?", "", " ".join(str(error).split()))
    raise ValueError(
      f"no vocabulary of {vocab_size} pieces can be made: {said}"
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
  """Trains a vocabulary on files and writes it; yields what to say.

  Args:
    paths: see `columns`.
    output_file: the model; one that stands there must be the same.
    vocab_size: pieces.
    languages: the suffixes of a prefix.
    character_coverage: see `train`.
    **options: likewise.

  Yields:
    A line for each column, with the tokens that its texts have, EOS counted,
    and one for the whole.

  Raises:
    ValueError: see `columns`, `train` and `sole_writer`, or another model
      stands there, which checkpoints may have been trained with.
  """
  path = pathlib.Path(output_file).expanduser()
  if not path.name or os.path.isdir(path):
    raise ValueError(
      f"output_file {str(path)!r} is a folder; name a file in it"
    )
  with folders.sole_writer(
    path.parent, "the folder of output_file", file=path.name
  ):
    read = list(columns(paths, languages))
    model = train(
      (t for column in read for t in column.texts),
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
  for name, texts in read:
    lengths = [len(ids) + 1 for ids in processor.encode(texts)]
    middle, most = np.percentile(lengths, [50, 95])
    yield (
      f"{name}: {len(texts)} texts, tokens with EOS: median {middle:.0f}, 95%"
      f" within {most:.0f}, longest {max(lengths)}"
    )
  yield f"{len(processor)} pieces in {path}"
