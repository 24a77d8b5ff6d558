"""Translates SentencePiece models of decoder-only models into tokenizer.json.

Llama 2, Mistral and Gemma were published with `tokenizer.model`, and some
copies of them have no other tokenizer. Their models are BPE or unigram models
that spell unknown letters with bytes.
"""

import base64
from collections.abc import Mapping
import json

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

BLANK = "\u2581"
_TYPES = sentencepiece_model_pb2.ModelProto.SentencePiece.Type
_KIND = sentencepiece_model_pb2.TrainerSpec.ModelType


def is_prompted(content: bytes) -> bool:
  """Returns whether a model has the special ids of decoder-only models.

  They have BOS and no padding; T5's have padding 0 and no BOS.

  Args:
    content: the bytes of a SentencePiece model.
  """
  pieces = sentencepiece.SentencePieceProcessor()
  try:
    pieces.LoadFromSerializedProto(content)
  except Exception:  # the caller's reader says what is wrong
    return False
  return pieces.bos_id() >= 0 and pieces.eos_id() >= 0 > pieces.pad_id()


def special_tokens(content: bytes) -> dict[str, object]:
  """Returns the settings of tokenizer_config.json that a model decides.

  Args:
    content: the bytes of a SentencePiece model.
  """
  pieces = sentencepiece.SentencePieceProcessor()
  pieces.LoadFromSerializedProto(content)
  ids = {
    "bos_token": pieces.bos_id(),
    "eos_token": pieces.eos_id(),
    "unk_token": pieces.unk_id(),
  }
  tokens = {name: pieces.id_to_piece(i) for name, i in ids.items() if i >= 0}
  return {"add_bos_token": True, **tokens}


def to_json(content: bytes, added: Mapping[str, int]) -> bytes:
  """Returns a tokenizer.json that cuts texts as a SentencePiece model does.

  Args:
    content: the bytes of a SentencePiece model.
    added: {token: id} of further tokens, as added_tokens.json has them.

  Raises:
    ValueError: the model is no BPE or unigram model, or an added token has the
      id of a piece.
  """
  proto = sentencepiece_model_pb2.ModelProto.FromString(content)
  kind, pieces = proto.trainer_spec.model_type, proto.pieces
  if kind == _KIND.BPE:
    model = _bpe(pieces)
  elif kind == _KIND.UNIGRAM:
    model = _unigram(proto)
  else:
    raise ValueError("it cuts words or letters; wanted a BPE or unigram model")
  taken = {i for i in added.values() if not len(pieces) <= i}
  if taken:
    raise ValueError(f"added tokens have the ids {sorted(taken)} of pieces")
  own = {
    piece.piece: (i, piece.type != _TYPES.USER_DEFINED)
    for i, piece in enumerate(pieces)
    if piece.type in (_TYPES.CONTROL, _TYPES.UNKNOWN, _TYPES.USER_DEFINED)
  }
  further = {token: (i, True) for token, i in added.items() if token not in own}
  in_order = sorted((own | further).items(), key=lambda item: item[1])
  read = {
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
      for token, (i, is_special) in in_order
    ],
    "normalizer": _normalizer(proto.normalizer_spec),
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": _decoder(proto.normalizer_spec),
    "model": model,
  }
  return json.dumps(read, ensure_ascii=False).encode("utf-8")


def _bpe(pieces) -> dict:
  """Returns the BPE model of some pieces."""
  # A piece is merged from any two pieces that spell it. The score of the piece
  # says how early: SentencePiece merges the pair whose piece scores highest.
  ids = {piece.piece: i for i, piece in enumerate(pieces)}
  merges = []
  for piece in pieces:
    if piece.type not in (_TYPES.NORMAL, _TYPES.USER_DEFINED):
      continue
    text = piece.piece
    pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
    pairs = [(a, b) for a, b in pairs if a in ids and b in ids]
    pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    merges += [(piece.score, pair) for pair in pairs]
  merges.sort(key=lambda merge: merge[0], reverse=True)  # keeps equal ones
  return {
    "type": "BPE",
    "dropout": None,
    "unk_token": _unknown(pieces),
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": True,
    "byte_fallback": any(piece.type == _TYPES.BYTE for piece in pieces),
    "ignore_merges": False,
    "vocab": ids,
    "merges": [list(pair) for _, pair in merges],
  }


def _unigram(proto) -> dict:
  """Returns the unigram model of a SentencePiece model."""
  types = [piece.type for piece in proto.pieces]
  return {
    "type": "Unigram",
    "unk_id": types.index(_TYPES.UNKNOWN) if _TYPES.UNKNOWN in types else None,
    "vocab": [[piece.piece, piece.score] for piece in proto.pieces],
    "byte_fallback": _TYPES.BYTE in types,
  }


def _unknown(pieces) -> str | None:
  """Returns the token of text that no piece spells; None if there is none."""
  kinds = (piece.piece for piece in pieces if piece.type == _TYPES.UNKNOWN)
  return next(kinds, None)


def _normalizer(spec) -> dict:
  """Returns the normalizers of a SentencePiece model."""
  steps: list[dict] = []
  if spec.precompiled_charsmap:
    table = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
    steps.append({"type": "Precompiled", "precompiled_charsmap": table})
  if spec.remove_extra_whitespaces:
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    blanks = {"pattern": {"Regex": " {2,}"}, "content": " "}
    steps.append({"type": "Replace", **blanks})
  if spec.add_dummy_prefix:
    steps.append({"type": "Prepend", "prepend": BLANK})
  blank = {"pattern": {"String": " "}, "content": BLANK}
  steps.append({"type": "Replace", **blank})
  return {"type": "Sequence", "normalizers": steps}


def _decoder(spec) -> dict:
  """Returns the steps that make a text of tokens."""
  blank = {"pattern": {"String": BLANK}, "content": " "}
  steps: list[dict] = [
    {"type": "Replace", **blank},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
  ]
  if spec.add_dummy_prefix:
    steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
  return {"type": "Sequence", "decoders": steps}
