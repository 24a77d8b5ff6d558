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

from speccascade.checkpoints import piece_merges
from speccascade.checkpoints.piece_merges import Piece

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
  """Returns a tokenizer.json that splits texts as a SentencePiece model does.

  Args:
    content: the bytes of a SentencePiece model.
    added: {token: id} of further tokens, as added_tokens.json has them.

  Raises:
    ValueError: the model is not a BPE or unigram model, or an added token has
      the id of a piece.
  """
  proto = sentencepiece_model_pb2.ModelProto.FromString(content)
  kind = proto.trainer_spec.model_type
  pieces = [Piece(x.piece, x.score, x.type) for x in proto.pieces]
  if kind == _KIND.BPE:
    model = piece_merges.bpe(pieces)
  elif kind == _KIND.UNIGRAM:
    model = _unigram(pieces)
  else:
    raise ValueError(
      "it splits words or letters; wanted a BPE or unigram model"
    )
  taken = {i for i in added.values() if not len(pieces) <= i}
  if taken:
    raise ValueError(f"added tokens have the ids {sorted(taken)} of pieces")
  own = piece_merges.added_tokens(pieces)
  further = {token: (i, True) for token, i in added.items() if token not in own}
  read = piece_merges.document(
    model,
    own | further,
    _normalizers(proto.normalizer_spec),
    blank_before=proto.normalizer_spec.add_dummy_prefix,
  )
  return json.dumps(read, ensure_ascii=False).encode("utf-8")


def _unigram(pieces: list[Piece]) -> dict:
  """Returns the unigram model of some pieces."""
  kinds = [piece.kind for piece in pieces]
  unknown = piece_merges.UNKNOWN
  return {
    "type": "Unigram",
    "unk_id": kinds.index(unknown) if unknown in kinds else None,
    "vocab": [[piece.text, piece.score] for piece in pieces],
    "byte_fallback": piece_merges.BYTE in kinds,
  }


def _normalizers(spec) -> list[dict]:
  """Returns the normalizers of a SentencePiece model, but for its blanks."""
  steps: list[dict] = []
  if spec.precompiled_charsmap:
    table = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
    steps.append({"type": "Precompiled", "precompiled_charsmap": table})
  if spec.remove_extra_whitespaces:
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    blanks = {"pattern": {"Regex": " {2,}"}, "content": " "}
    steps.append({"type": "Replace", **blanks})
  return steps
