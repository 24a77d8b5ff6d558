"""The bytes of UTF-8 as a vocabulary, as ByT5 has it, without TensorFlow."""

import codecs
from collections.abc import Iterable, Sequence
import functools
import hashlib
import json

import numpy as np

from speccascade.checkpoints import storage
from speccascade.settings import fields

NAME = "bytes"  # names the vocabulary where others are named by their path
_SPECIAL = ("<pad>", "</s>", "<unk>")
_FIRST = len(_SPECIAL)  # the id of byte 0
_END = _FIRST + 256  # the id after the last byte


class ByteVocabulary:
  """The bytes of UTF-8: the id of a byte is the byte + 3.

  Padding is 0, EOS 1 and unknown 2, as for T5. A task of seqio needs
  `seqio_vocabularies.of`, which adds TensorFlow's operations.

  Args:
    path: what names the vocabulary: "bytes", or a directory of Hugging Face
      whose tokenizer is ByT5's.
    extra_ids: how many ids follow the bytes. Such an id stands for no text. The
      published ByT5 models have 125, and 384 rows with them; a model may have
      more rows than its vocabulary has ids.
  """

  pad_id, eos_id, unk_id, bos_id = 0, 1, 2, None
  eos_ids = (1,)

  def __init__(self, path: str = NAME, extra_ids: int = 0):
    self.path, self._extra_ids = path, extra_ids

  @property
  def extra_ids(self) -> int:
    """How many ids follow the bytes."""
    return self._extra_ids

  @property
  def vocab_size(self) -> int:
    """How many ids there are."""
    return _END + self._extra_ids

  @property
  def identity(self) -> dict:
    """What identifies the vocabulary: all bytes are one vocabulary."""
    return {"sha256": _sha256(), "extra_ids": self._extra_ids}

  def __eq__(self, other):
    is_bytes = isinstance(other, ByteVocabulary)
    return is_bytes and self._extra_ids == other.extra_ids

  def __hash__(self):
    return hash((NAME, self._extra_ids))

  def contents(self) -> dict[str, bytes]:
    """Returns {name: bytes} of the file that names ByT5's tokenizer."""
    named = dict(zip(("pad_token", "eos_token", "unk_token"), _SPECIAL))
    settings = {"tokenizer_class": storage.BYTE_TOKENIZER, **named}
    settings["extra_ids"] = self._extra_ids
    content = json.dumps(settings, indent=2).encode()
    return {storage.TOKENIZER_CONFIG: content}

  def is_control(self, token: int) -> bool:
    """Returns whether a token is neither a byte nor part of a text."""
    return not _FIRST <= token < _END

  def encode(self, s: str) -> list[int]:
    """Returns the ids of a text, without EOS."""
    return [byte + _FIRST for byte in s.encode()]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, up to the first EOS, as seqio does.

    Bytes that are not UTF-8 are left out.
    """
    return _bytes_of(ids).decode("utf-8", "ignore")

  def text(self, ids) -> str:
    """Returns the text of generated ids, up to the first EOS.

    Bytes that are not UTF-8 become U+FFFD, as byte-level tokenizers write them.
    So the text has a string, such as a stop, only where its bytes are side by
    side.
    """
    return _bytes_of(np.asarray(ids).tolist()).decode("utf-8", "replace")

  def whole(self, ids: Sequence[int]) -> int:
    """Returns how many of the first ids have a text that no later id changes.

    The bytes at the end may begin a character.
    """
    places = [i for i, token in enumerate(ids) if not self.is_control(token)]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(ids[place] - _FIRST for place in places))
    begun, _ = decoder.getstate()
    return places[-len(begun)] if begun else len(ids)

  def piece(self, token: int) -> str:
    """Returns a token in SentencePiece's spelling.

    A blank is U+2581, and a byte that is not a letter or mark is "<0xE2>", say.
    """
    if token < _FIRST:
      return _SPECIAL[token]
    if token >= _END:
      return f"<extra_id_{token - _END}>"
    byte = token - _FIRST
    if byte == ord(" "):
      return "\u2581"
    is_mark = ord(" ") < byte < 127
    return chr(byte) if is_mark else f"<0x{byte:02X}>"


def read(directory: storage.Directory) -> ByteVocabulary:
  """Returns the vocabulary of a directory whose tokenizer is ByT5's.

  Raises:
    ValueError: the number of extra ids is not a whole number from 0.
  """
  settings = directory.read_json(storage.TOKENIZER_CONFIG)
  extra_ids = settings.get("extra_ids", 125)  # transformers' default
  try:
    extra_ids = fields.fit("extra_ids", extra_ids, fields.NonNegative)
  except ValueError as error:
    name = f"{directory}/{storage.TOKENIZER_CONFIG}"
    raise ValueError(f"{name}: {error}") from error
  return ByteVocabulary(str(directory), extra_ids)


def _bytes_of(ids: Iterable[int]) -> bytes:
  """Returns the bytes before the first EOS; ids that are not bytes are none."""
  ids = [int(token) for token in ids]
  end = ids.index(1) if 1 in ids else len(ids)
  return bytes(i - _FIRST for i in ids[:end] if _FIRST <= i < _END)


@functools.cache
def _sha256() -> str:
  return hashlib.sha256(b"bytes of UTF-8, from id 3 on").hexdigest()
