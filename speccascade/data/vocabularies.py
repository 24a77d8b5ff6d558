"""Vocabularies: where they are, which they are, what they fit."""

import functools
import hashlib
import itertools
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
    path: the model file, local or on gs://; a remote one is kept in the
      user's cache directory.
    extra_ids: sentinels added after the pieces; None means 100 for T5's own
      model, which every public T5 checkpoint has, and 0 for any other.
  """

  def __init__(self, path: str = T5_MODEL, extra_ids: int | None = None):
    self.path = os.fspath(path)
    self._wanted_extra_ids = extra_ids
    super().__init__(self.path, extra_ids=extra_ids or 0)

  def _model_context(self):
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
    # By content: the same model may lie in two places.
    return (
      isinstance(other, seqio.SentencePieceVocabulary)
      and self.sp_model == other.sp_model
    )

  def __hash__(self):
    return hash(self.sp_model)

  @property
  def extra_ids(self) -> int:
    self._model_context()
    return self._extra_ids

  @property
  def identity(self) -> dict:
    """What makes it this vocabulary: the file's hash, and the sentinels."""
    return {"sha256": _fetch(self.path)[1], "extra_ids": self.extra_ids}

  def contents(self) -> dict[str, bytes]:
    """Returns its file by the name under which a directory holds one.

    There is none where `load` would not find the sentinels that it has.
    """
    local, digest = _fetch(self.path)
    if self.extra_ids != (T5_EXTRA_IDS if digest == T5_SHA256 else 0):
      return {}
    return {storage.SENTENCE_PIECE: pathlib.Path(local).read_bytes()}

  def is_control(self, token: int) -> bool:
    """Whether a token is padding, the end, or unknown, and no text."""
    pieces = self.tokenizer
    return pieces.is_control(token) or pieces.is_unknown(token)

  def text(self, ids) -> str:
    """Returns the text of generated ids.

    It ends before the first end-of-sequence. Padding and ids past the pieces,
    which a model with a padded embedding can sample, are left out.
    """
    ids = np.asarray(ids).tolist()
    kept = itertools.takewhile(lambda i: i != self.eos_id, ids)
    return self.tokenizer.decode([i for i in kept if 0 < i < self.vocab_size])


@functools.lru_cache(maxsize=16)
def load(
  path: str = T5_MODEL, extra_ids: int | None = None
) -> Vocabulary | TokenizerVocabulary:
  """Returns a vocabulary, read and checked.

  Args:
    path: a SentencePiece model; or a tokenizer.json of Hugging Face; or a
      directory of theirs, whose spiece.model (T5's) is taken before its
      tokenizer.json.
    extra_ids: see `Vocabulary`.

  Raises:
    FileNotFoundError: no file there, or it cannot be fetch.
    ValueError: it is no vocabulary, or its special ids differ.
  """
  name = path.rstrip("/").rpartition("/")[2]
  if name == storage.TOKENIZER:
    return TokenizerVocabulary(path)
  if os.path.isdir(os.path.expanduser(path)) or (
    "://" in path and "." not in name
  ):
    if (brought := storage.Directory(path).vocabulary()) is None:
      raise FileNotFoundError(
        f"no vocabulary in {path}: it has neither {storage.SENTENCE_PIECE}"
        f" nor {storage.TOKENIZER}, which save_pretrained of transformers'"
        " AutoTokenizer writes"
      )
    if not brought.endswith(storage.SENTENCE_PIECE):
      return TokenizerVocabulary(path)
    path = brought
  vocabulary = Vocabulary(path, extra_ids)
  vocabulary.load_model()
  return vocabulary


def check_fits(vocabulary, rows: int, model: str = "the model"):
  """Raises ValueError where a task's ids do not fit a model's embedding.

  Args:
    vocabulary: the task's vocabulary.
    rows: the embedding's rows; more rows than pieces is the usual padding.
    model: what to call it.
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
    vocabulary: the one that it may hold.
    folder: local or on gs://.
    name: of the setting that gives the folder.

  Raises:
    ValueError: it holds another one, or what it holds is damaged.
  """
  there = storage.Directory(folder).vocabulary()
  if there is None or not hasattr(vocabulary, "identity"):
    return there is not None
  if load(folder).identity["sha256"] != vocabulary.identity["sha256"]:
    raise ValueError(
      f"{name} holds another vocabulary than {vocabulary.path}: {there};"
      f" remove it, or give another {name}"
    )
  return True


def save(vocabulary, folder: str, name: str) -> None:
  """Writes a vocabulary into a folder, in which `load` then finds it.

  Each file is written whole or not at all, and the file by which the vocabulary
  is found comes last. What the folder holds already is left as it is.

  Args:
    vocabulary: with `contents()`; any other is not written.
    folder: local or on gs://.
    name: of the setting that gives the folder.

  Raises:
    ValueError: see `check_saved`.
    CheckpointError: a file on gs:// cannot be written.
    OSError: a local file cannot be written.
  """
  if check_saved(vocabulary, folder, name):
    return
  directory = storage.Directory(folder)
  for file, content in getattr(vocabulary, "contents", dict)().items():
    if directory.remote:
      directory.write(file, content)
    else:  # of a killed run the next start removes what is half written
      files.write_whole(f"{directory}/{file}", content)


@functools.cache
def _fetch(path: str) -> tuple[str, str]:
  """Returns a local path with the model's bytes, and their SHA-256."""
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
  folder, _, name = path.rpartition("/")
  try:
    content = storage.Directory(folder).read(name)
  except (ValueError, OSError) as error:
    raise FileNotFoundError(
      f"the vocabulary {path} cannot be fetch ({error}): download it "
      "elsewhere and pass --gin.VOCABULARY='\"PATH\"'"
    ) from error
  if content is None:
    raise FileNotFoundError(f"no vocabulary at {path}")
  if path == T5_MODEL and hashlib.sha256(content).hexdigest() != T5_SHA256:
    raise ValueError(f"{path} did not arrive whole: run again")
  return content
