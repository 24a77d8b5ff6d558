"""Reads SentencePiece models, as T5 has them, without TensorFlow."""

from collections.abc import Iterable
import functools
import hashlib
import json
import os
import pathlib
import threading
from typing import NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from speccascade.checkpoints import generation_settings, storage
from speccascade.runtime import files

# The vocabulary of T5, T5 v1.1 and Flan-T5: 32,000 pieces and 100 sentinels.
T5_MODEL = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
T5_EXTRA_IDS = 100
_LOCK = threading.Lock()


class _Model(NamedTuple):
  """A SentencePiece model in memory and its bytes, sentinels included."""

  tokenizer: sentencepiece.SentencePieceProcessor
  sp_model: bytes


class SentencePieces:
  """A SentencePiece model that is read when it is first used.

  A task of seqio needs `seqio_vocabularies.Vocabulary`, which is this class
  with TensorFlow's operations.

  Args:
    path: path of the model's file, local or on gs://. A remote file is stored
      in the user's cache folder.
    extra_ids: how many sentinels come after the pieces. None means 100 for T5's
      own model, as in every public T5 checkpoint, and 0 for any other model.
  """

  pad_id = 0

  def __init__(self, path: str = T5_MODEL, extra_ids: int | None = None):
    self.path = os.fspath(path)
    self._wanted_extra_ids = extra_ids

  def load_model(self) -> None:
    """Reads and checks the file, once.

    Raises:
      FileNotFoundError: there is no file, or it cannot be fetched.
      ValueError: the file is not a SentencePiece model, or has other special
        ids than T5.
    """
    self._model_context()

  def _model_context(self) -> _Model:
    """Returns the model, after reading and checking the file once."""
    local, _ = _fetch(self.path)
    try:
      model = _load(local, self.extra_ids)
    except Exception as error:
      raise ValueError(
        f"{self.path} is not a SentencePiece model: {storage.first_line(error)}"
      ) from error
    ids = model.tokenizer.pad_id(), model.tokenizer.eos_id()
    if ids != (0, 1) and not _has_own_ids(self.path, model.tokenizer):
      raise ValueError(
        f"{self.path} has pad id {ids[0]} and end-of-sequence id {ids[1]}, "
        "want 0 and 1: train it with pad_id=0, eos_id=1, unk_id=2, or put it"
        " beside a config.json of a T5 that names its ids, as MADLAD-400's does"
      )
    return model

  def __eq__(self, other):
    # The contents are compared, because one model may be in two places.
    sp_model = getattr(other, "sp_model", None)
    return sp_model is not None and self.sp_model == sp_model

  def __hash__(self):
    return hash(self.sp_model)

  @property
  def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
    """SentencePiece's processor, which knows the sentinels."""
    return self._model_context().tokenizer

  @property
  def sp_model(self) -> bytes:
    """The model's bytes, sentinels included."""
    return self._model_context().sp_model

  @property
  def bos_id(self) -> int:
    """The id that begins a text; -1 where there is none."""
    return self.tokenizer.bos_id()

  @property
  def eos_id(self) -> int:
    """The id that ends a text, which is 1 but for MADLAD-400."""
    return self.tokenizer.eos_id()

  @functools.cached_property
  def eos_ids(self) -> tuple[int, ...]:
    """All ids that end a generated text.

    They are those that generation_config.json or config.json names beside a
    file of the name spiece.model, and `eos_id` where neither names any.

    Raises:
      ValueError: a file names something else than ids.
    """
    return _ends_beside(self.path) or (self.eos_id,)

  @property
  def unk_id(self) -> int:
    """The id of text that no piece spells."""
    return self.tokenizer.unk_id()

  @property
  def vocab_size(self) -> int:
    """How many ids there are, with special ids and sentinels."""
    return self.tokenizer.GetPieceSize()

  @property
  def extra_ids(self) -> int:
    """How many sentinels come after the pieces; the file may decide it."""
    if self._wanted_extra_ids is not None:
      return self._wanted_extra_ids
    return T5_EXTRA_IDS if _fetch(self.path)[1] == T5_SHA256 else 0

  @property
  def identity(self) -> dict:
    """The file's hash and the sentinels, which identify the vocabulary."""
    return {"sha256": _fetch(self.path)[1], "extra_ids": self.extra_ids}

  def contents(self) -> dict[str, bytes]:
    """Returns {name: bytes} of the vocabulary's file, to be written elsewhere.

    Where other ids than EOS end a text, generation_config.json comes first and
    names them. The result is empty if `vocabularies.load` would give the file
    another number of sentinels than this vocabulary has.
    """
    local, digest = _fetch(self.path)
    if self.extra_ids != (T5_EXTRA_IDS if digest == T5_SHA256 else 0):
      return {}
    contents = {}
    if self.eos_ids != (self.eos_id,):
      ends = json.dumps({"eos_token_id": list(self.eos_ids)}, indent=2)
      contents[generation_settings.GENERATION] = ends.encode()
    return contents | {storage.SENTENCE_PIECE: pathlib.Path(local).read_bytes()}

  def is_control(self, token: int) -> bool:
    """Returns whether a token is padding, EOS or unknown, and no text."""
    pieces = self.tokenizer
    return pieces.is_control(token) or pieces.is_unknown(token)

  def encode(self, s: str) -> list[int]:
    """Returns the ids of a text, without EOS."""
    return self.tokenizer.EncodeAsIds(s)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, up to the first EOS, as seqio does.

    An id that no piece has is read as unknown.
    """
    size, eos = self.vocab_size, self.eos_id
    ids = [self.unk_id if i >= size else int(i) for i in ids]
    ids = ids[: ids.index(eos) + 1] if eos in ids else ids
    return self.tokenizer.DecodeIds(ids)

  def text(self, ids) -> str:
    """Returns the text of generated ids, up to the first that ends a text.

    Padding is left out, and so are ids after the pieces, which a model with a
    padded embedding can sample.
    """
    ids = np.asarray(ids).tolist()
    ends = [place for place, i in enumerate(ids) if i in self.eos_ids]
    ids = ids[: ends[0]] if ends else ids
    return self.tokenizer.decode([i for i in ids if 0 < i < self.vocab_size])


def _has_own_ids(path: str, pieces) -> bool:
  """Returns whether the config.json beside a model names the model's ids."""
  # MADLAD-400 is a T5 with EOS 2 and unknown 0, whose padding, "<s>", has the
  # id 1 in config.json. Sources are padded with 0 here, which no source then
  # may have (`sources.encode`); the decoder starts at 0, as it was trained.
  folder, _, name = path.rpartition("/")
  if name != storage.SENTENCE_PIECE:
    return False
  directory = storage.Directory(folder or ".")
  if not directory.has("config.json"):
    return False
  settings = directory.read_json("config.json")
  return (
    pieces.unk_id() == 0
    and settings.get("decoder_start_token_id") == 0
    and settings.get("eos_token_id") == pieces.eos_id() > 0
  )


def _load(path: str, extra_ids: int) -> _Model:
  """Reads a local SentencePiece model, and adds sentinels to it, once."""
  # The last sentinel is "<extra_id_0>", as in T5's pretraining.
  with _LOCK:  # SentencePiece's loading is not safe for threads.
    return _load_once(path, extra_ids)


@functools.lru_cache(maxsize=16)
def _load_once(path: str, extra_ids: int) -> _Model:
  """Reads a model; see `_load`."""
  kind = sentencepiece_model_pb2.ModelProto
  proto = kind.FromString(pathlib.Path(path).read_bytes())
  for i in reversed(range(extra_ids)):
    proto.pieces.add(
      piece=f"\u2581<extra_id_{i}>",
      score=0.0,
      type=kind.SentencePiece.USER_DEFINED,
    )
  sp_model = proto.SerializeToString()
  tokenizer = sentencepiece.SentencePieceProcessor()
  tokenizer.LoadFromSerializedProto(sp_model)
  return _Model(tokenizer, sp_model)


def _ends_beside(path: str) -> tuple[int, ...]:
  """Returns the ids that end a text, as the files beside a model name them."""
  folder, name = os.path.split(path)
  if name != storage.SENTENCE_PIECE:
    return ()
  return generation_settings.ends_of(storage.Directory(folder or "."))


@functools.cache
def _fetch(path: str) -> tuple[str, str]:
  """Returns (local path, SHA-256) of a SentencePiece model's file."""
  # A remote file is downloaded into the user's cache folder, once.
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
