"""The task's own SentencePiece vocabulary, trained once and cached.

Ids: pad 0, eos 1, unk 2; no bos. The model is a function of the grammar's
text and of the settings here, and is kept in the user's cache directory
($XDG_CACHE_HOME or ~/.cache) under a hash of both.
"""

import functools
import hashlib
import io
import json
import os
import pathlib
import tempfile

import numpy as np
import sentencepiece

from speccascade.data.generated import examples

SIZE = 1_536
PAD, EOS, UNK = 0, 1, 2
# Pairs it is trained from; twice as many change only a few pieces.
_TRAINING_PAIRS = 12_000
# Enough to tell grammars apart; VERSION tells the rest.
_FINGERPRINT_PAIRS = 100


def _settings(size: int) -> dict:
  return {
    "vocab_size": size,
    "model_type": "unigram",
    "character_coverage": 1.0,
    "pad_id": PAD,
    "eos_id": EOS,
    "unk_id": UNK,
    "bos_id": -1,
    # More threads add up in another order, and the pieces may differ.
    "num_threads": 1,
    "minloglevel": 2,
  }


def cache_directory() -> pathlib.Path:
  """Where speccascade keeps what it can make again."""
  base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  return pathlib.Path(base).expanduser() / "speccascade"


def model_path(size: int = SIZE) -> pathlib.Path:
  """The vocabulary's file, trained first where the cache has none.

  Args:
    size: number of pieces, the three special ones included.

  Raises:
    ValueError: for a size that the text cannot fill or fit into.
  """
  path = cache_directory() / f"generated_{size}_{_key(size)}.model"
  if not path.is_file():
    _write(path, train(size))
  return path


@functools.cache
def _key(size: int) -> str:
  sample = [examples.pair("train", i) for i in range(_FINGERPRINT_PAIRS)]
  what = {
    "version": examples.VERSION,
    "sample": sample,
    "pairs": _TRAINING_PAIRS,
    "settings": _settings(size),
    "sentencepiece": sentencepiece.__version__,
  }
  text = json.dumps(what, sort_keys=True)
  return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def train(size: int = SIZE) -> bytes:
  """The serialized vocabulary, made from the first training pairs.

  Raises:
    ValueError: where SentencePiece cannot make that many pieces.
  """
  if not 200 <= size <= 4_096:
    raise ValueError(
      f"a vocabulary of {size} pieces is not for this task: give 200 to 4096"
    )
  texts = [
    text for i in range(_TRAINING_PAIRS) for text in examples.pair("train", i)
  ]
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts), model_writer=model, **_settings(size)
  )
  return model.getvalue()


def _write(path: pathlib.Path, content: bytes) -> None:
  """Writes the file whole or not at all, whoever else may be writing it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
  try:
    with os.fdopen(handle, "wb") as file:
      file.write(content)
    os.replace(temporary, path)
  except BaseException:
    pathlib.Path(temporary).unlink(missing_ok=True)
    raise


@functools.cache
def load(size: int = SIZE) -> sentencepiece.SentencePieceProcessor:
  """The vocabulary of that size."""
  return sentencepiece.SentencePieceProcessor(
    model_proto=model_path(size).read_bytes()
  )


def encode(texts, size: int = SIZE) -> list[np.ndarray]:
  """The ids of each text, EOS at the end, int32."""
  rows = load(size).encode(list(texts), add_eos=True)
  return [np.asarray(row, np.int32) for row in rows]


def decode(rows, size: int = SIZE) -> list[str]:
  """The text of each row of ids, up to its first EOS; padding is dropped."""
  vocabulary = load(size)
  texts = []
  for row in rows:
    ids = [int(i) for i in row]
    if EOS in ids:
      ids = ids[: ids.index(EOS)]
    texts.append(
      vocabulary.decode([i for i in ids if i != PAD and i < len(vocabulary)])
    )
  return texts


def pad(rows: list[np.ndarray], length: int | None = None) -> np.ndarray:
  """The rows as one array [rows, length] i32, filled with `PAD`.

  Args:
    rows: what `encode` gives.
    length: of the result; by default that of the longest row.

  Raises:
    ValueError: where a row is longer than `length`.
  """
  longest = max((len(row) for row in rows), default=0)
  length = longest if length is None else length
  if longest > length:
    raise ValueError(f"a row of {longest} ids does not fit into {length}")
  out = np.full((len(rows), length), PAD, np.int32)
  for filled, row in zip(out, rows):
    filled[: len(row)] = row
  return out
