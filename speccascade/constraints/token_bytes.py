"""The bytes that each token adds to a text."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import re

import numpy as np

from speccascade.constraints.token_walks import BYTE_TOKENS, Spelling

BLANK = "\u2581"
_BYTE = re.compile("(<0x[0-9A-F]{2}>)")

# (ids) -> the text of an output.
TextOf = Callable[[Sequence[int]], str]


@dataclasses.dataclass(frozen=True)
class TokenBytes:
  """The bytes of all tokens of a vocabulary.

  Attributes:
    tokens: for each id the bytes that the token adds to a text; b"" for tokens
      that are not part of a text, such as EOS and padding.
    first: for each id the bytes that the token adds at the beginning of a text,
      where a tokenizer may drop a blank.
    stays_first: whether the beginning continues after a token of which nothing
      is left there, as SentencePiece has it for T5: it drops all blanks.
    byte_tokens: the ids of tokens that stand for one byte each, if a run of
      them becomes U+FFFD as a whole where it is not UTF-8, as in byte fallback
      of `tokenizers`. Empty where each byte is decoded by itself.
    special: {how it is written: its id} of tokens that are not part of a text.
  """

  tokens: Sequence[bytes]
  first: Sequence[bytes]
  stays_first: bool = False
  byte_tokens: Sequence[int] = ()
  special: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def padded(self, num: int) -> "TokenBytes":
    """Returns the bytes of `num` tokens, of which the last may not be text."""
    if len(self.tokens) == num:
      return self
    spare = [b""] * (num - len(self.tokens))
    tokens, first = (
      [*each, *spare][:num] for each in (self.tokens, self.first)
    )
    return dataclasses.replace(
      self,
      tokens=tokens,
      first=first,
      byte_tokens=[token for token in self.byte_tokens if token < num],
      special={text: i for text, i in self.special.items() if i < num},
    )

  @functools.cached_property
  def spelling(self) -> Spelling:
    """The symbols of `tokens`."""
    return self._spelling(self.tokens)

  @functools.cached_property
  def first_spelling(self) -> Spelling:
    """The symbols of `first`."""
    return self.spelling if self._is_uniform else self._spelling(self.first)

  @property
  def _is_uniform(self) -> bool:
    return self.first is self.tokens

  def _spelling(self, tokens: Sequence[bytes]) -> Spelling:
    """Returns the symbols of tokens' bytes."""
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    starts = np.cumsum(lengths) - lengths
    symbols = np.frombuffer(b"".join(tokens), np.uint8).astype(np.int16)
    lone = np.array(self.byte_tokens, np.int64)
    symbols[starts[lone[lengths[lone] > 0]]] += BYTE_TOKENS
    return Spelling(symbols, starts, lengths)

  @functools.cached_property
  def starts_inert(self) -> np.ndarray:
    """[V] bool, the tokens that leave a text at its beginning."""
    return (self.first_spelling if self.stays_first else self.spelling).is_empty

  @functools.cached_property
  def letters(self) -> tuple[set[int], set[str]]:
    """The bytes that tokens have which are not UTF-8, and all their letters."""
    parts, letters = set(), set()
    for token in set(self.tokens):
      try:
        letters.update(token.decode())
      except UnicodeDecodeError:
        parts.update(token)
    return parts, letters

  def lacks(self, text: str) -> list[str]:
    """Returns the letters of a text that no tokens spell.

    >>> TokenBytes([b"a ", b"\\xc3"], []).lacks("a b\xe9")
    ['b', '\xe9']
    """
    parts, letters = self.letters
    return [
      letter
      for letter in dict.fromkeys(text)
      if letter not in letters
      and not all(
        byte in parts or (byte < 128 and chr(byte) in letters)
        for byte in letter.encode()
      )
    ]


def read(vocabulary, text_of: TextOf) -> TokenBytes:
  """Returns the bytes of a vocabulary's tokens.

  Args:
    vocabulary: an object with `vocab_size` and `piece(id)`, or with a
      `tokenizer` that has `id_to_piece(id)`, or with `decode(ids)`. It may have
      `is_control(id)` and `token_bytes(id)`, as `TokenizerVocabulary` has.
    text_of: ids -> text, as outputs are written.
  """
  spell = getattr(vocabulary, "piece", None)
  if spell is None:
    tokenizer = getattr(vocabulary, "tokenizer", None)
    spell = getattr(tokenizer, "id_to_piece", None)
  ids = range(vocabulary.vocab_size)
  if spell is None:
    tokens = [vocabulary.decode([token]).encode() for token in ids]
    return TokenBytes(tokens, tokens)
  is_control = getattr(vocabulary, "is_control", lambda token: False)
  pieces = [spell(token) for token in ids]
  special = {}
  for token in filter(is_control, ids):
    if pieces[token]:
      special.setdefault(pieces[token], token)
    pieces[token] = ""
  # A piece of byte-level BPE may have the letter that stands for a blank.
  exact = getattr(vocabulary, "token_bytes", lambda token: None)
  tokens = [
    (exact(token) or _bytes_of(piece)) if piece else text_of([token]).encode()
    for token, piece in enumerate(pieces)
  ]
  lone = _byte_tokens(pieces, text_of)
  words = (i for i, each in enumerate(pieces) if _is_word(each))
  word = next(words, None)
  if word is None or text_of([word]).startswith(" "):
    return TokenBytes(tokens, tokens, False, lone, special)
  first = [
    token.removeprefix(b" ") if piece else token
    for token, piece in zip(tokens, pieces)
  ]
  blanks = [i for i, each in enumerate(pieces) if each == BLANK]
  stays = bool(blanks) and not text_of([blanks[0], word]).startswith(" ")
  return TokenBytes(tokens, first, stays, lone, special)


def _byte_tokens(pieces: Sequence[str], text_of: TextOf) -> Sequence[int]:
  """Returns the tokens whose runs are read as a whole; see `TokenBytes`."""
  ids = {piece: i for i, piece in enumerate(pieces) if _BYTE.fullmatch(piece)}
  half, letter = ids.get("<0xC3>"), ids.get("<0x77>")
  if half is None or letter is None or "w" in text_of([half, letter]):
    return ()
  return sorted(ids.values())


def _is_word(piece: str) -> bool:
  return piece[:1] == BLANK and piece[1:].isalpha()


def _bytes_of(piece: str) -> bytes:
  """Returns the bytes of a piece in SentencePiece's spelling.

  >>> _bytes_of("\\u2581a<0xC3>")
  b' a\\xc3'
  """
  if "<0x" not in piece:
    return piece.replace(BLANK, " ").encode("utf-8", "surrogatepass")
  whole = b""
  for part in _BYTE.split(piece):
    if _BYTE.fullmatch(part):
      whole += bytes([int(part[3:5], 16)])
    else:
      whole += part.replace(BLANK, " ").encode("utf-8", "surrogatepass")
  return whole
