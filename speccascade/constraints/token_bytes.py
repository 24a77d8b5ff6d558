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
    drops_blank: whether the tokenizer drops a blank at the beginning of a text.
  """

  tokens: Sequence[bytes]
  drops_blank: bool

  @property
  def first(self) -> Sequence[bytes]:
    """For each id the bytes that the token adds at the beginning of a text."""
    if not self.drops_blank:
      return self.tokens
    return [token.removeprefix(b" ") for token in self.tokens]


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
  is_control = getattr(vocabulary, "is_control", lambda token: False)
  ids, blank = range(vocabulary.vocab_size), None
  if spell is None:
    return TokenBytes([vocabulary.decode([i]).encode() for i in ids], False)
  tokens = []
  for token in ids:
    piece = spell(token)
    if is_control(token):
      tokens.append(text_of([token]).encode())
      continue
    tokens.append(_bytes_of(piece))
    if blank is None and piece[:1] == BLANK and piece[1:].isalpha():
      blank = token
  drops_blank = blank is not None and not text_of([blank]).startswith(" ")
  return TokenBytes(tokens, drops_blank)


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
