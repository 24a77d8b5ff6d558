"""Translates the tokenizer inside a GGUF file into Hugging Face's files.

Byte-level BPE is read, the tokenizer of GPT-2, Llama 3 and Qwen, and pieces of
SentencePiece with scores, the tokenizer of Llama 2, Mistral 7B and Gemma.
"""

from collections.abc import Mapping, Sequence
import json

from speccascade.checkpoints import piece_merges
from speccascade.checkpoints.errors import CheckpointError
from speccascade.settings import fields

TOKENS = "tokenizer.ggml.tokens"
# How Llama 3 and Qwen2 split a text: contractions, words, digits (%s becomes
# the number of digits in a row), punctuation, line breaks, blanks.
_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The pre-tokenizer of GPT-2, whose own pattern splits the text.
_GPT2 = {
  "type": "ByteLevel",
  "add_prefix_space": False,
  "trim_offsets": True,
  "use_regex": True,
}


def _split(digits: str) -> list[dict]:
  """Returns pre-tokenizers that split by `_SPLIT`; `digits` is a repetition."""
  pattern = {"Regex": _SPLIT % digits}
  split = {"type": "Split", "pattern": pattern, "behavior": "Isolated"}
  return [split | {"invert": False}, _GPT2 | {"use_regex": False}]


# The pre-tokenizers, by the name in the metadata tokenizer.ggml.pre.
_CUTS = {
  "gpt-2": [_GPT2],
  "llama-bpe": _split("{1,3}"),
  "qwen2": _split(""),
  "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
}
_PIECES = "llama"  # the kind of tokenizer that is made of pieces
# What llama.cpp takes for the ids of such a tokenizer that a file leaves out.
_IDS_OF_PIECES = {"unk": 0, "bos": 1, "eos": 2}
# Names of special tokens in Hugging Face's files, and in the metadata.
_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_IDS = [f"{name}_token_id" for name in (*_NAMES.values(), "eot")]
# The types of the metadata that are read.
_KINDS = {
  "tokenizer.ggml.model": str,
  "tokenizer.ggml.pre": str,
  TOKENS: Sequence[str],
  "tokenizer.ggml.merges": Sequence[str],
  "tokenizer.ggml.token_type": Sequence[int],
  "tokenizer.ggml.scores": Sequence[float],
  "tokenizer.ggml.add_space_prefix": bool,
  **{f"tokenizer.ggml.{name}": int for name in _IDS},
  "tokenizer.ggml.add_bos_token": bool,
  "tokenizer.chat_template": str,
}


def files(metadata: Mapping[str, object], where: str) -> dict[str, str]:
  """Returns a tokenizer as the files that `save_pretrained` would write.

  `from_pretrained` of transformers and `vocabularies.load` read such files.

  Args:
    metadata: {name: value} of the GGUF file. Values are plain, and lists stand
      for arrays.
    where: the GGUF file, for messages.

  Returns:
    {name: text} of tokenizer.json, tokenizer_config.json and
    generation_config.json.

  Raises:
    CheckpointError: the tokenizer is of another kind or splits texts in an
      unknown way, or a value is of a wrong kind.
  """
  for name, kind in _KINDS.items():
    if metadata.get(name) is not None:
      try:
        fields.fit(name, metadata[name], kind)
      except ValueError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
  kind = _value(metadata, "model")
  cut = _value(metadata, "pre", "gpt-2")
  if kind != _PIECES and (kind != "gpt2" or cut not in _CUTS):
    raise CheckpointError(
      f"{where} has a tokenizer of kind {kind!r:.60} that splits texts as"
      f" {cut!r:.60}; read are byte-level BPE (gpt2) with"
      f" {', '.join(_CUTS)}, and SentencePiece ({_PIECES}): take tokenizer.json"
      " from where the model was published"
    )
  ids = {name: _value(metadata, f"{x}_token_id") for name, x in _NAMES.items()}
  ids = {name: int(token) for name, token in ids.items() if token is not None}
  tokens, types = _tokens(metadata, where)
  if kind == _PIECES:
    ids = _IDS_OF_PIECES | ids
    tokenizer = _of_pieces(metadata, tokens, types, where)
  else:
    tokenizer = _of_merges(metadata, tokens, types, cut, where)
  contents = {"tokenizer.json": tokenizer}
  for token in ids.values():
    if not 0 <= token < len(tokens):
      raise CheckpointError(f"{where} names token {token} of {len(tokens)}")
  contents["tokenizer_config.json"] = _tokenizer_config(metadata, tokens, ids)
  # A chat model has a token that ends a turn beside the one that ends a text.
  ends = [ids.get("eos"), _value(metadata, "eot_token_id")]
  ends = list(dict.fromkeys(int(end) for end in ends if end is not None))
  if not ends:
    raise CheckpointError(f"{where} says no token that ends a text")
  generation = {f"{x}_token_id": ids[x] for x in ("bos", "pad") if x in ids}
  generation["eos_token_id"] = ends if len(ends) > 1 else ends[0]
  contents["generation_config.json"] = generation
  return {
    name: json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    for name, content in contents.items()
  }


def _value(metadata: Mapping[str, object], name: str, default=None):
  """Returns the metadata of a tokenizer by the end of its name."""
  return metadata.get(f"tokenizer.ggml.{name}", default)


def _tokens(
  metadata: Mapping[str, object], where: str
) -> tuple[list[str], list[int]]:
  """Returns the tokens and their types."""
  tokens = list(metadata.get(TOKENS, ()))
  types = list(_value(metadata, "token_type", [1] * len(tokens)))
  if not tokens or len(types) != len(tokens) or len({*tokens}) != len(tokens):
    raise CheckpointError(
      f"{where} has {len(tokens)} tokens, {len({*tokens})} of them different,"
      f" with {len(types)} types: it is damaged"
    )
  return tokens, types


def _of_pieces(
  metadata: Mapping[str, object],
  tokens: Sequence[str],
  types: Sequence[int],
  where: str,
) -> dict:
  """Returns the content of tokenizer.json for pieces with scores."""
  scores = list(_value(metadata, "scores", ()))
  if len(scores) != len(tokens):
    raise CheckpointError(
      f"{where} has {len(tokens)} pieces with {len(scores)} scores: it is"
      " damaged"
    )
  pieces = [*map(piece_merges.Piece, tokens, scores, types)]
  return piece_merges.document(
    piece_merges.bpe(pieces),
    piece_merges.added_tokens(pieces),
    blank_before=bool(_value(metadata, "add_space_prefix", True)),
  )


def _of_merges(
  metadata: Mapping[str, object],
  tokens: Sequence[str],
  types: Sequence[int],
  cut: str,
  where: str,
) -> dict:
  """Returns the content of tokenizer.json for byte-level BPE."""
  merges = list(_value(metadata, "merges", ()))
  for merge in merges:
    if merge.count(" ") != 1:
      raise CheckpointError(f"{where}: the merge {merge!r:.60} is not a pair")
  added = [
    {
      "id": token_id,
      "content": token,
      "single_word": False,
      "lstrip": False,
      "rstrip": False,
      "normalized": False,
      "special": kind == piece_merges.CONTROL,
    }
    for token_id, (token, kind) in enumerate(zip(tokens, types))
    if kind in (piece_merges.CONTROL, piece_merges.USER_DEFINED)
  ]
  model = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    # Llama 3 takes a word that is a token as it is, whatever its merges give.
    "ignore_merges": cut == "llama-bpe",
    "vocab": {token: token_id for token_id, token in enumerate(tokens)},
    "merges": [merge.split(" ") for merge in merges],
  }
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": added,
    "normalizer": {"type": "NFC"} if cut == "qwen2" else None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": _CUTS[cut]},
    "post_processor": None,
    "decoder": _GPT2,
    "model": model,
  }


def _tokenizer_config(
  metadata: Mapping[str, object], tokens: Sequence[str], ids: dict[str, int]
) -> dict:
  """Returns the content of tokenizer_config.json."""
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "add_bos_token": bool(
      _value(metadata, "add_bos_token", _value(metadata, "model") == _PIECES)
    ),
  }
  settings |= {f"{name}_token": tokens[i] for name, i in ids.items()}
  if (template := metadata.get("tokenizer.chat_template")) is not None:
    settings["chat_template"] = template
  return settings
