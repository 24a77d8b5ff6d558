"""Reads tokenizers of Hugging Face: tokenizer.json and files beside it."""

from collections.abc import Iterable, Mapping, Sequence
import copy
import functools
import hashlib
import json
import operator
import re
from typing import TypedDict

import numpy as np

from speccascade.checkpoints import storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.checkpoints.storage import (
  PIECES,
  SENTENCE_PIECE,
  TOKENIZER,
  TOKENIZER_CONFIG,
)
from speccascade.settings import fields
from speccascade.text import (
  mistral_expression,
  piece_tokenizers,
  tokenizer_bounds,
)
from speccascade.text.chat import ChatTemplate

TEMPLATE = "chat_template.jinja"
SPECIAL = "special_tokens_map.json"
ADDED = "added_tokens.json"
_BESIDE = (TOKENIZER_CONFIG, SPECIAL, TEMPLATE)
# Files that may name the tokens that end a text. The first file that does so is
# believed.
_ENDS = ("generation_config.json", "config.json")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token that stands for one byte


class _NamedTemplate(TypedDict):
  """One of several chat templates of a tokenizer."""

  name: str
  template: str


def read_settings(folder: storage.Directory, name: str) -> dict:
  """Returns the object of a JSON file in a folder; {} if there is no file.

  Raises:
    ValueError: the file is not a JSON object.
  """
  content = folder.read(name)
  try:
    value = {} if content is None else fields.of_json(content)
  except ValueError as error:
    raise ValueError(f"{folder}/{name} is not JSON: {error}") from error
  if not isinstance(value, dict):
    raise ValueError(f"{folder}/{name} is not a JSON object")
  return value


class TokenizerVocabulary:
  """A tokenizer of Hugging Face.

  The text of a special token inside a text is read as the special token.

  Args:
    path: path of a directory with tokenizer.json, or of that file; local or on
      gs://. Without tokenizer.json, tokenizer.model is read, a SentencePiece
      model of a decoder-only model. The files beside it are read too:
      tokenizer_config.json and special_tokens_map.json name BOS and EOS. The
      chat template is in tokenizer_config.json or in chat_template.jinja.
      generation_config.json or config.json may name several tokens that end a
      text.

  Attributes:
    path: the path.
    prompted: whether decoder-only models have this tokenizer. False where
      config.json beside it says is_encoder_decoder, or where a T5's
      SentencePiece model lies beside it.
    eos_id: the id that training puts after a text.
    eos_ids: all ids that end a generated text.
    bos_id: the id that begins a text; None if there is none.
    chat_template: a `ChatTemplate`, or None.

  Raises:
    FileNotFoundError: there is no tokenizer.json.
    ValueError: tokenizer.json or a file beside it is damaged, or no file names
      the tokens that end a text.
  """

  _continues = False

  def __init__(self, path: str):
    import tokenizers

    self.path = str(path)
    folder = self.path.removesuffix(TOKENIZER).removesuffix(PIECES) or "."
    self._folder, self._of_pieces = storage.Directory(folder), {}
    is_named = self.path.endswith(PIECES)
    self._content = None if is_named else self._folder.read(TOKENIZER)
    if self._content is None:
      self._content = self._read_pieces()
    self._where = f"{self._folder}/{TOKENIZER}"
    self._bounds = tokenizer_bounds.GrowthBounds(self._content, self._where)
    try:
      self.tokenizer = tokenizers.Tokenizer.from_buffer(self._content)
    except (CheckpointError, OSError, KeyboardInterrupt):
      raise
    except BaseException as error:  # A panic of Rust is not an Exception.
      raise ValueError(
        f"{self._where} is not a tokenizer of Hugging Face:"
        f" {storage.first_line(error):.200}"
      ) from error
    # tokenizer.json may have the truncation and padding of some training.
    self.tokenizer.no_truncation()
    self.tokenizer.no_padding()
    self._ids = self.tokenizer.get_vocab(with_added_tokens=True)
    self._size = 1 + max(self._ids.values(), default=-1)
    added = self.tokenizer.get_added_tokens_decoder()
    self._added = {i: token.content for i, token in added.items()}
    self._special = {i for i, token in added.items() if token.special}
    decoder = self.tokenizer.decoder
    state = json.loads(decoder.__getstate__()) if decoder else {}
    kinds = [each.get("type") for each in (state, *state.get("decoders", ()))]
    self._is_byte_level = "ByteLevel" in kinds
    self._read_files_beside()

  def _read_pieces(self) -> bytes:
    """Returns the tokenizer.json of the SentencePiece model in the folder."""
    content = self._folder.read(PIECES)
    if content is None:
      raise FileNotFoundError(
        f"no vocabulary: {self._folder} has no {TOKENIZER}"
      )
    added = self._json(ADDED)
    try:
      ids = fields.fit(ADDED, added, Mapping[str, fields.NonNegative])
      self._of_pieces = piece_tokenizers.special_tokens(content)
      return piece_tokenizers.to_json(content, ids)
    except Exception as error:  # sentencepiece's errors have many types
      raise ValueError(
        f"{self._folder}/{PIECES} is not a SentencePiece model of a"
        f" decoder-only model: {storage.first_line(error):.200}; convert it to"
        f" {TOKENIZER}"
      ) from error

  def _read_files_beside(self):
    """Reads special tokens, the tokens that end a text, and the template."""
    settings = self._json(TOKENIZER_CONFIG)
    special = self._of_pieces | self._json(SPECIAL) | settings
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
      token = special.get(name)
      if isinstance(token, dict):  # an AddedToken
        token = token.get("content")
      if isinstance(token, str):
        tokens[name] = token
    ids = {name: self._ids.get(token) for name, token in tokens.items()}
    self._bos_id, self._unk_id = ids.get("bos_token"), ids.get("unk_token")
    self._adds_bos = special.get("add_bos_token")
    self.eos_ids = self._read_ends(ids.get("eos_token"))
    eos_id = ids.get("eos_token")
    self._eos_id = self.eos_ids[0] if eos_id is None else eos_id
    name = f"the chat template of {self._folder}"
    is_t5 = self._json(_ENDS[1]).get("is_encoder_decoder") is True
    self.prompted = not (is_t5 or self._folder.has(SENTENCE_PIECE))
    if self.prompted and self._is_byte_level:
      mistral_expression.warn(
        self._content,
        self._where,
        self._sha256,
        self._json(_ENDS[1]).get("model_type"),
        self._added.values(),
      )
    template = self._template(settings)
    self.chat_template = template and ChatTemplate(template, tokens, name)

  def _read_ends(self, eos_id: int | None) -> tuple[int, ...]:
    """Returns the ids that end a text."""
    file, ends = TOKENIZER_CONFIG, eos_id
    # The last file that is looked at here is the one that is believed first.
    for name in reversed(_ENDS):
      if (named := self._json(name).get("eos_token_id")) is not None:
        file, ends = name, named
    if ends in (None, []):
      raise ValueError(
        f"{self._folder} does not say what ends a text: want eos_token in"
        f" {TOKENIZER_CONFIG}, or eos_token_id in {_ENDS[0]}, as ids"
      )
    ends = ends if isinstance(ends, list) else [ends]
    if not all(type(i) is int and i >= 0 for i in ends):
      raise ValueError(
        f"{self._folder}/{file}: eos_token_id is {ends!r:.60}; wanted the ids"
        " of the tokens that end a text, whole numbers from 0"
      )
    return tuple(dict.fromkeys(ends))

  def _template(self, settings: dict) -> str | None:
    """Returns the source of the chat template; None if there is none."""
    content = self._folder.read(TEMPLATE)
    if content is not None:
      try:
        return content.decode("utf-8") or None
      except UnicodeDecodeError as error:
        raise ValueError(
          f"{self._folder}/{TEMPLATE} is not UTF-8 ({error.reason} at byte"
          f" {error.start}): convert it, or copy it again"
        ) from error
    template = settings.get("chat_template")
    kind = str | Sequence[_NamedTemplate] | None
    try:
      template = fields.fit("chat_template", template, kind)
    except ValueError as error:
      raise ValueError(f"{self._folder}/{TOKENIZER_CONFIG}: {error}") from error
    if isinstance(template, tuple):  # several templates, each with a name
      templates = {each["name"]: each["template"] for each in template}
      first = next(iter(templates.values()), None)
      template = templates.get("default") or first
    return template or None

  def contents(self) -> dict[str, bytes]:
    """Returns {name: bytes} of the tokenizer's files, to be written elsewhere.

    tokenizer.json is the last one: a folder that has it has all files. The
    tokens that end a text are in generation_config.json, whichever file named
    them here.
    """
    ends = self._json(_ENDS[0]) | {"eos_token_id": list(self.eos_ids)}
    contents = {_ENDS[0]: json.dumps(ends, indent=2).encode()}
    for name in _BESIDE:
      if (content := self._folder.read(name)) is not None:
        contents[name] = content
    if self._of_pieces:
      # The special tokens are in the SentencePiece model, which is not written.
      settings = (
        self._of_pieces | self._json(SPECIAL) | self._json(TOKENIZER_CONFIG)
      )
      contents[TOKENIZER_CONFIG] = json.dumps(settings, indent=2).encode()
    return contents | {TOKENIZER: self._content}

  def _json(self, name: str) -> dict:
    """Returns the object of a JSON file in the folder; {} if there is none."""
    return read_settings(self._folder, name)

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
    """The hash of the tokens by their ids, which identifies the vocabulary.

    The file itself has another hash for each version that writes it.
    """
    return {"sha256": self._sha256}

  eos_id = property(operator.attrgetter("_eos_id"))
  bos_id = property(operator.attrgetter("_bos_id"))
  unk_id = property(operator.attrgetter("_unk_id"))
  vocab_size = property(operator.attrgetter("_size"))
  extra_ids = 0
  pad_id = 0

  def added_from(self, first: int) -> list[str] | None:
    """Returns the tokens from an id on; None if a text may need one of them.

    Added tokens are beside the tokenizer's own vocabulary: a text has them
    only where it spells them out. One that ends a text is needed. More than
    eight are not an afterthought, but those of another model.
    """
    ids = range(first, self._size)
    is_needed = len(ids) > 8 or any(i in self.eos_ids for i in ids)
    if is_needed or not all(i in self._added for i in ids):
      return None
    return [self._added[i] for i in ids]

  def encode(self, s: str) -> list[int]:
    """Returns the ids of a text, without EOS."""
    return self._ids_of(s, special=False)

  def _ids_of(self, text: str, *, special: bool) -> list[int]:
    """Returns the ids of a text, perhaps with those around any text."""
    self._bounds.check(text)
    with tokenizer_bounds.one_line(self._where, "encode a text"):
      return self.tokenizer.encode(text, add_special_tokens=special).ids

  def _text_of(self, ids: list[int], *, special: bool) -> str:
    """Returns the text of ids, perhaps with special tokens."""
    pieces = (self.tokenizer.id_to_token(i) or "" for i in ids)
    self._bounds.check_decoded(pieces)
    with tokenizer_bounds.one_line(self._where, "decode tokens"):
      return self.tokenizer.decode(ids, skip_special_tokens=not special)

  def prompt(self, text: str) -> list[int]:
    """Returns the ids of a prompt: with BOS, and without EOS.

    The setting add_bos_token decides whether there is a BOS. Without it,
    tokenizer.json decides.
    """
    ids, adds_bos = self.encode(text), self._adds_bos
    if adds_bos is None:
      # tokenizer.json may put special tokens around any text, an empty one too.
      adds_bos = self.bos_id in self._ids_of("", special=True)
    # A rendered chat has its BOS in the text; a second one is not a model's
    # input.
    if not adds_bos or self.bos_id is None or ids[:1] == [self.bos_id]:
      return ids
    return [self.bos_id, *ids]

  @functools.cached_property
  def source_prefix(self) -> list[int]:
    """The ids before the text of a source, for encoders; EOS is after it.

    The tokenizer of CodeT5 writes "<s> TEXT </s>", and T5's "TEXT </s>". One
    that does not end a text in EOS is not an encoder's and has no prefix.
    """
    around = self._ids_of("", special=True)
    return around[:-1] if around[-1:] == [self.eos_id] else []

  def _known(self, ids) -> list[int]:
    """Returns the ids that have a token."""
    # A model with a padded embedding can sample other ids.
    return [i for i in np.asarray(ids).tolist() if 0 <= i < self._size]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, special tokens as they are written."""
    ids = self._known(list(ids))
    return self._text_of(ids, special=True)

  def text(self, ids) -> str:
    """Returns the text of generated ids, up to the first EOS.

    Special tokens are left out.
    """
    ids = self._known(ids)
    ends = [place for place, i in enumerate(ids) if i in self.eos_ids]
    ids = ids[: ends[0]] if ends else ids
    text = self._text_of(ids, special=False)
    if self._continues:
      # With "a" before the ids, nothing takes the first blank for the one that
      # the tokenizer puts before every text.
      before = self.encode("a")
      whole = self._text_of([*before, *ids], special=False)
      if whole.startswith("a") and whole.endswith(text):
        return whole[1:]
    return text

  def continuing(self) -> "TokenizerVocabulary":
    """Returns the vocabulary of texts that continue others.

    The tokenizer of Llama 2 puts a blank before a text, and leaves the first
    blank of ids out. A text that continues a prompt has that blank: the
    prompt "x =" with the output " 1" is "x = 1".
    """
    other = copy.copy(self)
    other._continues = True
    return other

  def whole(self, ids: Sequence[int]) -> int:
    """Returns how many of the first ids have a text that no later id changes.

    Byte fallback decodes a run of byte tokens together, so that a run at the
    end is not counted: the character may continue. Special tokens and ids
    without a token are not text, and do not end a run.
    """
    whole = len(ids)
    for place in reversed(range(len(ids))):
      token = self.tokenizer.id_to_token(ids[place]) or ""
      if _BYTE.fullmatch(token):
        whole = place
      elif token and ids[place] not in self._special:
        break
    return whole

  def is_control(self, token: int) -> bool:
    """Returns whether a token is a special one, and no part of a text."""
    return token in self._special

  def token_bytes(self, token: int) -> bytes | None:
    """Returns the bytes of a token of byte-level BPE; None for other tokens."""
    piece = self.tokenizer.id_to_token(token) if self._is_byte_level else None
    codes = _byte_codes()
    if piece is None or not all(letter in codes for letter in piece):
      return None  # an added token, or another kind of tokenizer
    return bytes(map(codes.__getitem__, piece))

  def piece(self, token: int) -> str:
    """Returns a token in SentencePiece's spelling.

    A blank is U+2581, and a byte that is not a whole character is "<0xE2>",
    say. The byte 0 is "<0x00>", because readers of records refuse a text with
    it.
    """
    content = self.token_bytes(token)
    if content is None:
      return self.tokenizer.id_to_token(token) or ""
    # Python decodes a byte 0xE2 that is not a whole character as U+DCE2.
    text = content.decode("utf-8", "surrogateescape")
    spelling = ""
    for letter in text:
      if letter == "\0" or 0xDC80 <= ord(letter) <= 0xDCFF:
        spelling += f"<0x{ord(letter) & 0xFF:02X}>"
      else:
        spelling += "\u2581" if letter == " " else letter
    return spelling


@functools.cache
def _byte_codes() -> dict[str, int]:
  """Returns {letter: byte} of byte-level BPE, which writes bytes as letters.

  A printable byte is the letter of its number. The other bytes are the letters
  from number 256 on, in their order.

  >>> _byte_codes()["A"], _byte_codes()["Ġ"]
  (65, 32)
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [code for code in range(256) if code not in printable]
  codes = {chr(code): code for code in printable}
  return codes | {chr(256 + i): code for i, code in enumerate(others)}
