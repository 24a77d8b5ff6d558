"""The bytes that each token adds to a text."""

from collections.abc import Callable, Sequence
import dataclasses
import re

BLANK = "\u2581"
_BYTE = re.compile("(<0x[0-9A-F]{2}>)")

# (ids) -> the text of an output.
TextOf = Callable[[Sequence[int]], str]


@dataclasses.dataclass(frozen=True)
class TokenBytes:
  """The bytes of all tokens of a vocabulary.

  Attributes:
    tokens: for each id the bytes that the token adds to a text; b"" for tokens
      that are no part of a text, such as EOS and padding.
    first: for each id the bytes that the token adds at the beginning of a text,
      where a tokenizer may drop a blank.
    stays_first: whether the beginning goes on after a token of which nothing is
      left there, as SentencePiece has it for T5: it drops all blanks.
  """

  tokens: Sequence[bytes]
  first: Sequence[bytes]
  stays_first: bool = False

  def padded(self, num: int) -> "TokenBytes":
    """Returns the bytes of `num` tokens, of which the last may be no text."""
    spare = [b""] * (num - len(self.tokens))
    tokens, first = (
      [*each, *spare][:num] for each in (self.tokens, self.first)
    )
    return TokenBytes(tokens, first, self.stays_first)


def read(vocabulary, text_of: TextOf) -> TokenBytes:
  """Returns the bytes of a vocabulary's tokens.

  Args:
    vocabulary: an object with `vocab_size` and `piece(id)`, or with a
      `tokenizer` that has `id_to_piece(id)`, or with `decode(ids)`.
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
  pieces = ["" if is_control(token) else spell(token) for token in ids]
  tokens = [
    _bytes_of(piece) if piece else text_of([token]).encode()
    for token, piece in enumerate(pieces)
  ]
  words = (i for i, each in enumerate(pieces) if _is_word(each))
  word = next(words, None)
  if word is None or text_of([word]).startswith(" "):
    return TokenBytes(tokens, tokens)
  first = [
    token.removeprefix(b" ") if piece else token
    for token, piece in zip(tokens, pieces)
  ]
  blanks = [i for i, each in enumerate(pieces) if each == BLANK]
  stays = bool(blanks) and not text_of([blanks[0], word]).startswith(" ")
  return TokenBytes(tokens, first, stays)


def _is_word(piece: str) -> bool:
  return piece[:1] == BLANK and piece[1:].isalpha()


def _bytes_of(piece: str) -> bytes:
  """Returns the bytes of a piece in SentencePiece's spelling.

  >>> _bytes_of("\\u2581a<0xC3>")
  b' a\\xc3'
  """
  whole = b""
  for part in _BYTE.split(piece):
    if _BYTE.fullmatch(part):
      whole += bytes([int(part[3:5], 16)])
    else:
      whole += part.replace(BLANK, " ").encode("utf-8", "surrogatepass")
  return whole
