"""Reads, identifies, checks and writes vocabularies."""

import functools
import hashlib
import os
import pathlib

import numpy as np

from speccascade.checkpoints import storage
from speccascade.data._tf import seqio
from speccascade.data.tokenizer import TokenizerVocabulary
from speccascade.runtime import files

# The vocabulary of T5, T5 v1.1 and Flan-T5: 32,000 pieces and 100 sentinels.
T5_MODEL = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
T5_EXTRA_IDS = 100


class Vocabulary(seqio.SentencePieceVocabulary):
  """A SentencePiece model that is read when it is first used.

  Args:
    path: path of the model's file, local or on gs://. A remote file is stored
      in the user's cache folder.
    extra_ids: how many sentinels come after the pieces. None means 100 for T5's
      own model, as in every public T5 checkpoint, and 0 for any other model.
  """

  def __init__(self, path: str = T5_MODEL, extra_ids: int | None = None):
    self.path = os.fspath(path)
    self._wanted_extra_ids = extra_ids
    super().__init__(self.path, extra_ids=extra_ids or 0)

  def _model_context(self):
    """Returns seqio's context, after reading and checking the file once."""
    if self._model is None:
      local, digest = _fetch(self.path)
      self._sentencepiece_model_file = local
      self._extra_ids = self._wanted_extra_ids
      if self._extra_ids is None:
        self._extra_ids = T5_EXTRA_IDS if digest == T5_SHA256 else 0
      try:
        context = super()._model_context()
      except Exception as error:
        raise ValueError(
          f"{self.path} is no SentencePiece model: {storage.first_line(error)}"
        ) from error
      ids = context.tokenizer.pad_id(), context.tokenizer.eos_id()
      if ids != (0, 1):
        raise ValueError(
          f"{self.path} has pad id {ids[0]} and end-of-sequence id {ids[1]}, "
          "want 0 and 1: train it with pad_id=0, eos_id=1, unk_id=2"
        )
    return super()._model_context()

  def __eq__(self, other):
    # The contents are compared, because one model may be in two places.
    return (
      isinstance(other, seqio.SentencePieceVocabulary)
      and self.sp_model == other.sp_model
    )

  def __hash__(self):
    return hash(self.sp_model)

  @property
  def extra_ids(self) -> int:
    """How many sentinels come after the pieces; the file may decide it."""
    self._model_context()
    return self._extra_ids

  @property
  def identity(self) -> dict:
    """The file's hash and the sentinels, which tell vocabularies apart."""
    return {"sha256": _fetch(self.path)[1], "extra_ids": self.extra_ids}

  def contents(self) -> dict[str, bytes]:
    """Returns {name: bytes} of the vocabulary's file, to be written elsewhere.

    The result is empty if `load` would give the file another number of
    sentinels than this vocabulary has.
    """
    local, digest = _fetch(self.path)
    if self.extra_ids != (T5_EXTRA_IDS if digest == T5_SHA256 else 0):
      return {}
    return {storage.SENTENCE_PIECE: pathlib.Path(local).read_bytes()}

  def is_control(self, token: int) -> bool:
    """Returns whether a token is padding, EOS or unknown, and no text."""
    pieces = self.tokenizer
    return pieces.is_control(token) or pieces.is_unknown(token)

  def text(self, ids) -> str:
    """Returns the text of generated ids, up to the first EOS.

    Padding is left out, and so are ids after the pieces, which a model with a
    padded embedding can sample.
    """
    ids = np.asarray(ids).tolist()
    if self.eos_id in ids:
      ids = ids[: ids.index(self.eos_id)]
    return self.tokenizer.decode([i for i in ids if 0 < i < self.vocab_size])


@functools.lru_cache(maxsize=16)
def load(
  path: str = T5_MODEL, extra_ids: int | None = None
) -> Vocabulary | TokenizerVocabulary:
  """Reads and checks a vocabulary.

  Args:
    path: path of a SentencePiece model, of a tokenizer.json of Hugging Face, or
      of a directory of Hugging Face. In a directory, spiece.model (T5's) is
      taken before tokenizer.json.
    extra_ids: how many sentinels a SentencePiece model has; see `Vocabulary`.

  Raises:
    FileNotFoundError: there is no file, or it cannot be fetched.
    ValueError: the file is no vocabulary, or has other special ids than T5.
  """
  name = path.rstrip("/").rpartition("/")[2]
  if name == storage.TOKENIZER:
    return TokenizerVocabulary(path)
  # On gs:// a path without a dot in its last name is taken for a directory.
  is_directory = os.path.isdir(os.path.expanduser(path))
  if is_directory or ("://" in path and "." not in name):
    if (file := storage.Directory(path).vocabulary()) is None:
      raise FileNotFoundError(
        f"no vocabulary in {path}: it has neither {storage.SENTENCE_PIECE}"
        f" nor {storage.TOKENIZER}, which save_pretrained of transformers'"
        " AutoTokenizer writes"
      )
    if not file.endswith(storage.SENTENCE_PIECE):
      return TokenizerVocabulary(path)
    path = file
  vocabulary = Vocabulary(path, extra_ids)
  vocabulary.load_model()
  return vocabulary


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


@functools.cache
def _fetch(path: str) -> tuple[str, str]:
  """Returns (local path, SHA-256) of a SentencePiece model's file.

  A remote file is downloaded into the user's cache folder, once.

  Raises:
    FileNotFoundError: there is no file, or it cannot be fetched.
    ValueError: the file did not arrive whole.
  """
  local = pathlib.Path(path).expanduser()
  if "://" in path:
    key = hashlib.sha256(path.encode()).hexdigest()[:16]
    local = files.cache_dir("vocabularies", f"{key}.model")
    if not local.is_file():
      files.write_whole(local, _download(path))
  elif not local.is_file():
    raise FileNotFoundError(
      f"no vocabulary at {path}: want the file of a SentencePiece model, or a"
      " directory of Hugging Face's"
    )
  return str(local), hashlib.sha256(local.read_bytes()).hexdigest()


def _download(path: str) -> bytes:
  """Returns the bytes of a remote file; raises the errors of `_fetch`."""
  folder, _, name = path.rpartition("/")
  try:
    content = storage.Directory(folder).read(name)
  except (ValueError, OSError) as error:
    raise FileNotFoundError(
      f"the vocabulary {path} cannot be fetched ({error}): download it "
      "elsewhere and pass --gin.VOCABULARY='\"PATH\"'"
    ) from error
  if content is None:
    raise FileNotFoundError(f"no vocabulary at {path}")
  if path == T5_MODEL and hashlib.sha256(content).hexdigest() != T5_SHA256:
    raise ValueError(f"{path} did not arrive whole: run again")
  return content
