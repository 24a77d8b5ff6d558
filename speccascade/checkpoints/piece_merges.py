"""Makes a tokenizer.json of the pieces of a SentencePiece model.

A tokenizer.model holds such pieces, and so does a GGUF file of Llama 2's kind.
The numbers of the kinds of pieces are the same in both.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_ADDED = (CONTROL, UNKNOWN, USER_DEFINED)


class Piece(NamedTuple):
  """A piece: its text, its score, and its kind, a number as above."""

  text: str
  score: float
  kind: int


def bpe(pieces: Sequence[Piece]) -> dict:
  """Returns the BPE model of some pieces, as tokenizer.json has it."""
  # A piece is merged from any two pieces that spell it. The score of the piece
  # says how early: SentencePiece merges the pair whose piece scores highest.
  ids = {piece.text: i for i, piece in enumerate(pieces)}
  merges = []
  for text, score, kind in pieces:
    if kind not in (NORMAL, USER_DEFINED):
      continue
    pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
    pairs = [(a, b) for a, b in pairs if a in ids and b in ids]
    pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    merges += [(score, pair) for pair in pairs]
  merges.sort(key=lambda merge: merge[0], reverse=True)  # keeps equal ones
  unknown = (piece.text for piece in pieces if piece.kind == UNKNOWN)
  return {
    "type": "BPE",
    "dropout": None,
    # The token of text that no piece spells.
    "unk_token": next(unknown, None),
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": True,
    "byte_fallback": any(piece.kind == BYTE for piece in pieces),
    "ignore_merges": False,
    "vocab": ids,
    "merges": [list(pair) for _, pair in merges],
  }


def added_tokens(pieces: Iterable[Piece]) -> dict[str, tuple[int, bool]]:
  """Returns {token: (id, whether it is special)} of what no merge makes."""
  return {
    piece.text: (i, piece.kind != USER_DEFINED)
    for i, piece in enumerate(pieces)
    if piece.kind in _ADDED
  }


def document(
  model: dict,
  added: dict[str, tuple[int, bool]],
  normalizers: Sequence[dict] = (),
  *,
  blank_before: bool,
) -> dict:
  """Returns the content of tokenizer.json.

  Args:
    model: the model that splits a text.
    added: {token: (id, whether it is special)}.
    normalizers: what is done to a text before blanks become pieces.
    blank_before: whether a text has a blank before it, which is not part of the
      text that is decoded.
  """
  prepend = [{"type": "Prepend", "prepend": BLANK}] * blank_before
  to_piece = {"pattern": {"String": " "}, "content": BLANK}
  to_blank = {"pattern": {"String": BLANK}, "content": " "}
  strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
      {
        "id": i,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
      }
      for token, (i, is_special) in sorted(
        added.items(), key=lambda item: item[1]
      )
    ],
    "normalizer": {
      "type": "Sequence",
      "normalizers": [
        *normalizers,
        *prepend,
        {"type": "Replace", **to_piece},
      ],
    },
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {
      "type": "Sequence",
      "decoders": [
        {"type": "Replace", **to_blank},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *[strip] * blank_before,
      ],
    },
    "model": model,
  }
