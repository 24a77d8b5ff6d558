"""Vocabularies of Hugging Face's `tokenizer.json`, with what lies beside it."""

from collections.abc import Iterable, Sequence
import functools
import hashlib
import json
import operator
import re
from typing import TypedDict

import numpy as np

from speccascade.checkpoints import storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.checkpoints.storage import TOKENIZER
from speccascade.data._tf import seqio, tf
from speccascade.data.chat import ChatTemplate
from speccascade.settings import fields

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
SPECIAL = "special_tokens_map.json"
_BESIDE = (CONFIG, SPECIAL, TEMPLATE)
# What ends a text, in the order of who is believed.
_ENDS = ("generation_config.json", "config.json")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class _NamedTemplate(TypedDict):
  name: str
  template: str


class TokenizerVocabulary(seqio.Vocabulary):
  """A tokenizer of Hugging Face; special tokens in a text are read as such.

  Args:
    path: a directory with tokenizer.json, or that file itself; local or on
      gs://. Beside it tokenizer_config.json and special_tokens_map.json say
      BOS and EOS, the chat template lies in the former or in
      chat_template.jinja, and generation_config.json or config.json may name
      several tokens that end a text.

  Attributes:
    path: as it was given.
    prompted: True: what goes on from a prompt has such a tokenizer.
    eos_id: what training puts after a text, the tokenizer's own.
    eos_ids: all that end one.
    bos_id: what a text begins with, None for nothing.
    chat_template: a `ChatTemplate`, or None.

  Raises:
    FileNotFoundError: there is no tokenizer.json.
    ValueError: it is none, or a file beside it is damaged, or no EOS is said.
  """

  prompted = True

  def __init__(self, path: str):
    import tokenizers

    super().__init__()
    self.path = str(path)
    folder = self.path.removesuffix(TOKENIZER) or "."
    self._folder = storage.Directory(folder)
    try:
      content = self._folder.read(TOKENIZER)
      if content is None:
        raise FileNotFoundError(
          f"no vocabulary: {self._folder} has no {TOKENIZER}"
        )
      self.tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except (CheckpointError, OSError, KeyboardInterrupt):
      raise
    except BaseException as error:  # Rust's panics are no Exception
      raise ValueError(
        f"{self._folder}/{TOKENIZER} is no tokenizer of Hugging Face:"
        f" {storage.first_line(error):.200}"
      ) from error
    # Of training: what is cut or padded here is for us to say.
    self.tokenizer.no_truncation()
    self.tokenizer.no_padding()
    self._ids = self.tokenizer.get_vocab(with_added_tokens=True)
    self._size = 1 + max(self._ids.values(), default=-1)
    added = self.tokenizer.get_added_tokens_decoder()
    self._special = {i for i, token in added.items() if token.special}
    decoder = self.tokenizer.decoder
    state = json.loads(decoder.__getstate__()) if decoder else {}
    kinds = [each.get("type") for each in (state, *state.get("decoders", ()))]
    self._is_bytes = "ByteLevel" in kinds
    self._read_beside()

  def _read_beside(self):
    settings = self._json(CONFIG)
    special = self._json(SPECIAL) | settings
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
      token = special.get(name)
      token = token.get("content") if isinstance(token, dict) else token
      tokens |= {name: token} if isinstance(token, str) else {}
    ids = {name: self._ids.get(token) for name, token in tokens.items()}
    self._bos_id, self._unk_id = ids.get("bos_token"), ids.get("unk_token")
    self._adds_bos = settings.get("add_bos_token")
    said = {name: self._json(name).get("eos_token_id") for name in _ENDS}
    said = {name: ends for name, ends in said.items() if ends is not None}
    file, ends = next(iter(said.items()), (CONFIG, ids.get("eos_token")))
    if ends in (None, []):
      raise ValueError(
        f"{self._folder} does not say what ends a text: want eos_token in"
        f" {CONFIG}, or eos_token_id in {_ENDS[0]}, as ids"
      )
    ends = ends if isinstance(ends, list) else [ends]
    if not all(type(i) is int and i >= 0 for i in ends):
      raise ValueError(
        f"{self._folder}/{file}: eos_token_id is {ends!r:.60}; wanted the ids"
        " of the tokens that end a text, whole numbers from 0"
      )
    self.eos_ids = tuple(dict.fromkeys(ends))
    eos_id = ids.get("eos_token")
    self._eos_id = self.eos_ids[0] if eos_id is None else eos_id
    name = f"the chat template of {self._folder}"
    template = self._template(settings)
    self.chat_template = template and ChatTemplate(template, tokens, name)

  def _template(self, settings: dict) -> str | None:
    """Returns the source of the chat template; None where there is none."""
    content = self._folder.read(TEMPLATE)
    if content is not None:
      try:
        return content.decode("utf-8") or None
      except UnicodeDecodeError as error:
        raise ValueError(
          f"{self._folder}/{TEMPLATE} is no UTF-8 ({error.reason} at byte"
          f" {error.start}): convert it, or copy it again"
        ) from error
    template = settings.get("chat_template")
    kind = str | Sequence[_NamedTemplate] | None
    try:
      template = fields.fit("chat_template", template, kind)
    except ValueError as error:
      raise ValueError(f"{self._folder}/{CONFIG}: {error}") from error
    if isinstance(template, tuple):  # several by name
      named = {each["name"]: each["template"] for each in template}
      template = named.get("default") or next(iter(named.values()), None)
    return template or None

  def contents(self) -> dict[str, bytes]:
    """Returns its files by their names, the last one that by which it is found.

    What ends a text stands in generation_config.json, wherever it was said.
    """
    ends = self._json(_ENDS[0]) | {"eos_token_id": list(self.eos_ids)}
    named = {name: self._folder.read(name) for name in (*_BESIDE, TOKENIZER)}
    kept = {k: content for k, content in named.items() if content is not None}
    return {_ENDS[0]: json.dumps(ends, indent=2).encode()} | kept

  def _json(self, name: str) -> dict:
    content = self._folder.read(name)
    try:
      value = {} if content is None else fields.of_json(content)
    except ValueError as error:
      raise ValueError(f"{self._folder}/{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
      raise ValueError(f"{self._folder}/{name} is no JSON object")
    return value

  def __eq__(self, other):
    same = isinstance(other, TokenizerVocabulary)
    return same and self._sha256 == other._sha256

  def __hash__(self):
    return hash(self._sha256)

  @functools.cached_property
  def _sha256(self) -> str:
    in_order = json.dumps(sorted((i, t) for t, i in self._ids.items()))
    return hashlib.sha256(in_order.encode()).hexdigest()

  @property
  def identity(self) -> dict:
    """What makes it this vocabulary: the hash of its tokens by their ids.

    Not of the file, which versions write each in another way.
    """
    return {"sha256": self._sha256}

  eos_id = property(operator.attrgetter("_eos_id"))
  bos_id = property(operator.attrgetter("_bos_id"))
  unk_id = property(operator.attrgetter("_unk_id"))
  _base_vocab_size = property(operator.attrgetter("_size"))

  def _encode(self, s: str) -> list[int]:
    return self.tokenizer.encode(s, add_special_tokens=False).ids

  def prompt(self, text: str) -> list[int]:
    """Returns the ids that a model goes on from: with BOS, without EOS.

    BOS is there where add_bos_token says so, or else where tokenizer.json puts
    it.
    """
    ids, adds = self._encode(text), self._adds_bos
    if adds is None:
      adds = self.bos_id in self.tokenizer.encode("").ids
    return [self.bos_id, *ids] if adds and self.bos_id is not None else ids

  def _kept(self, ids) -> list[int]:
    """Ids that there are; a padded embedding can sample others."""
    return [i for i in np.asarray(ids).tolist() if 0 <= i < self._size]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, special tokens as they are written."""
    ids = self._kept(list(ids))
    return self.tokenizer.decode(ids, skip_special_tokens=False)

  _decode = decode

  def text(self, ids) -> str:
    """Returns the text of generated ids: before the first EOS, and without
    special tokens."""
    ids = self._kept(ids)
    ends = [place for place, i in enumerate(ids) if i in self.eos_ids]
    ids = ids[: ends[0]] if ends else ids
    return self.tokenizer.decode(ids, skip_special_tokens=True)

  def whole(self, ids: Sequence[int]) -> int:
    """Returns how many of the first ids give text that no later id changes.

    Byte fallback decodes a run of byte tokens as one: the run must have ended.
    """
    num = len(ids)
    spelled = lambda i: self.tokenizer.id_to_token(i) or ""
    while num and _BYTE.fullmatch(spelled(ids[num - 1])):
      num -= 1
    return num

  def is_control(self, token: int) -> bool:
    """Whether a token is a special one, and no part of a text."""
    return token in self._special

  def piece(self, token: int) -> str:
    """Returns a token as SentencePiece would spell it: blanks as U+2581, bytes
    that are no text as <0xE2>."""
    piece = self.tokenizer.id_to_token(token)
    if piece is None or not self._is_bytes:
      return piece or ""
    codes = _byte_codes()
    if not all(letter in codes for letter in piece):  # an added token
      return piece
    text = bytes(map(codes.get, piece)).decode("utf-8", "surrogateescape")
    return "".join(
      f"<0x{ord(letter) - 0xDC00:02X}>"
      if 0xDC80 <= ord(letter) <= 0xDCFF
      else "\u2581"
      if letter == " "
      else letter
      for letter in text
    )

  def _encode_tf(self, s):
    def encode(text):
      text = text if isinstance(text, bytes) else text.item()  # eager
      return np.asarray(self._encode(tf.compat.as_text(text)), np.int32)

    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    return tf.ensure_shape(ids, [None])

  def _decode_tf(self, ids):
    text = tf.numpy_function(
      lambda row: self.text(row).encode(), [ids], tf.string, stateful=False
    )
    return tf.ensure_shape(text, [])


@functools.cache
def _byte_codes() -> dict[str, int]:
  """Returns {letter: byte} of byte-level BPE, which writes bytes as letters.

  Printable bytes stand for themselves, the others are numbered from 256 on.

  >>> _byte_codes()["A"], _byte_codes()["Ġ"]
  (65, 32)
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [code for code in range(256) if code not in printable]
  codes = {chr(code): code for code in printable}
  return codes | {chr(256 + i): code for i, code in enumerate(others)}
