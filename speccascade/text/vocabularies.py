"""Reads, checks and writes vocabularies, without TensorFlow."""

import functools
import os
import re

from speccascade.checkpoints import hub, storage
from speccascade.runtime import files
from speccascade.text import byte_vocabulary, piece_tokenizers
from speccascade.text.byte_vocabulary import ByteVocabulary
from speccascade.text.sentence_pieces import T5_MODEL, SentencePieces
from speccascade.text.tokenizer import (
  ADDED,
  TokenizerVocabulary,
  read_settings,
)

_SENTINEL = re.compile(r"<extra_id_\d+>")


def load(
  path: str = T5_MODEL, extra_ids: int | None = None
) -> SentencePieces | TokenizerVocabulary | ByteVocabulary:
  """Reads and checks a vocabulary.

  Args:
    path: path of a SentencePiece model, of a tokenizer.json of Hugging Face, of
      a tokenizer.model (the SentencePiece model of a decoder-only model), or
      of a directory of Hugging Face. In a directory, spiece.model (T5's) is
      taken before tokenizer.json, unless its user has added tokens, which only
      tokenizer.json has. tokenizer.model is taken last. "bytes" names ByT5's
      bytes, which need no file; see `ByteVocabulary`. "org/name" names the
      tokenizer of a model on Hugging Face's hub; see `hub`.
    extra_ids: how many sentinels a SentencePiece model has; see
      `SentencePieces`. Of bytes, how many ids follow them; None is 0.

  Raises:
    FileNotFoundError: there is no file, or it cannot be fetched.
    ValueError: the file is not a vocabulary, or has other special ids than T5.
  """
  return _load(os.fspath(hub.local(path, weights=False)), extra_ids)


@functools.lru_cache(maxsize=16)
def _load(
  path: str, extra_ids: int | None
) -> SentencePieces | TokenizerVocabulary | ByteVocabulary:
  """Reads a vocabulary of a path; see `load`."""
  if path == byte_vocabulary.NAME:
    return ByteVocabulary(extra_ids=extra_ids or 0)
  name = path.rstrip("/").rpartition("/")[2]
  if name == storage.TOKENIZER or (name == storage.PIECES and _prompts(path)):
    return TokenizerVocabulary(path)
  # On gs:// a path without a dot in its last name is taken for a directory.
  is_directory = os.path.isdir(os.path.expanduser(path))
  if is_directory or ("://" in path and "." not in name):
    if (file := storage.Directory(path).vocabulary()) is None:
      raise FileNotFoundError(
        f"no vocabulary in {path}: it has neither {storage.SENTENCE_PIECE}"
        f" nor {storage.PIECES} nor {storage.TOKENIZER}, which"
        " save_pretrained of transformers' AutoTokenizer writes"
      )
    if file.endswith(storage.TOKENIZER_CONFIG):
      return byte_vocabulary.read(storage.Directory(path))
    is_t5 = file.endswith(storage.SENTENCE_PIECE)
    if not is_t5 and (not file.endswith(storage.PIECES) or _prompts(file)):
      return TokenizerVocabulary(path)
    if added := _added_tokens(path, file):
      # A SentencePiece model does not know them: it would split their text into
      # pieces, and leave their ids out.
      if not storage.Directory(path).has(storage.TOKENIZER):
        raise ValueError(
          f"{path} has tokens that {storage.SENTENCE_PIECE} does not have,"
          f" {added[0]!r:.60} and {len(added) - 1} others, and no"
          f" {storage.TOKENIZER}: write it with save_pretrained of"
          " transformers' AutoTokenizer"
        )
      return TokenizerVocabulary(path)
    path = file
  vocabulary = SentencePieces(path, extra_ids)
  vocabulary.load_model()
  return vocabulary


load.cache_clear = _load.cache_clear  # type: ignore[attr-defined]


def _prompts(path: str) -> bool:
  """Returns whether a file is a SentencePiece model of a decoder-only model."""
  folder = storage.Directory(path.removesuffix(storage.PIECES) or ".")
  content = folder.read(storage.PIECES)
  return content is not None and piece_tokenizers.is_prompted(content)


def _added_tokens(folder: str, model: str) -> list[str]:
  """Returns the tokens of a directory that its SentencePiece model lacks."""
  directory = storage.Directory(folder)
  tokens = set(read_settings(directory, ADDED))
  decoder = read_settings(directory, storage.TOKENIZER_CONFIG).get(
    "added_tokens_decoder"
  )
  for token in decoder.values() if isinstance(decoder, dict) else ():
    if isinstance(token, dict) and isinstance(token.get("content"), str):
      tokens.add(token["content"])
  # T5 has always had sentinels, "<extra_id_0>" and so on: they do not count.
  tokens = {token for token in tokens if not _SENTINEL.fullmatch(token)}
  if not tokens:
    return []
  pieces = SentencePieces(model).tokenizer
  known = {pieces.id_to_piece(i) for i in range(pieces.get_piece_size())}
  return sorted(tokens - known)


def check_fits(vocabulary, rows: int, model: str = "the model"):
  """Raises ValueError if a vocabulary has more ids than a model has rows.

  More rows than ids are right: embeddings are usually padded.

  Args:
    vocabulary: the vocabulary.
    rows: how many rows the model's embedding has.
    model: what a message calls the model.
  """
  if vocabulary.vocab_size > rows:
    name = getattr(vocabulary, "path", type(vocabulary).__name__)
    raise ValueError(
      f"{model} has {rows} embedding rows, but the vocabulary "
      f"{name} has {vocabulary.vocab_size} pieces: want the "
      "vocabulary that the model was trained with"
    )


def check_saved(vocabulary, folder: str, name: str) -> bool:
  """Returns whether a folder holds a vocabulary already.

  Args:
    vocabulary: the vocabulary that the folder may hold.
    folder: path of the folder, local or on gs://.
    name: name of the setting that gives the folder.

  Raises:
    ValueError: the folder holds another vocabulary, or a damaged one.
  """
  file = storage.Directory(folder).vocabulary()
  if file is None or not hasattr(vocabulary, "identity"):
    return file is not None
  if load(folder).identity["sha256"] != vocabulary.identity["sha256"]:
    raise ValueError(
      f"{name} holds another vocabulary than {vocabulary.path}: {file};"
      f" remove it, or give another {name}"
    )
  return True


def save(vocabulary, folder: str, name: str) -> None:
  """Writes a vocabulary into a folder, where `load` then finds it.

  Each file is written whole or not at all. `load` looks for the file that is
  written last, so that it never finds half a vocabulary. A vocabulary that the
  folder holds already is left as it is.

  Args:
    vocabulary: the vocabulary. One without a method `contents` is not written.
    folder: path of the folder, local or on gs://.
    name: name of the setting that gives the folder.

  Raises:
    ValueError: the folder holds another vocabulary, or a damaged one.
    CheckpointError: a file on gs:// cannot be written.
    OSError: a local file cannot be written.
  """
  if check_saved(vocabulary, folder, name):
    return
  directory = storage.Directory(folder)
  for file, content in getattr(vocabulary, "contents", dict)().items():
    if directory.remote:
      directory.write(file, content)
    else:
      # After a kill, the next start of the run removes the part file.
      files.write_whole(f"{directory}/{file}", content)
