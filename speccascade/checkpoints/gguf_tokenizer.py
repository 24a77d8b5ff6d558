"""The tokenizer inside a GGUF file, as Hugging Face's files."""

from collections.abc import Mapping, Sequence
import json

from speccascade.checkpoints.errors import CheckpointError
from speccascade.settings import fields

TOKENS = "tokenizer.ggml.tokens"
_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Pieces of GPT-2's kind, which `ByteLevel` cuts itself.
_GPT2 = {
  "type": "ByteLevel",
  "add_prefix_space": False,
  "trim_offsets": True,
  "use_regex": True,
}


def _split(digits: str) -> list[dict]:
  pattern = {"Regex": _SPLIT % digits}
  split = {"type": "Split", "pattern": pattern, "behavior": "Isolated"}
  return [split | {"invert": False}, _GPT2 | {"use_regex": False}]


# How a text is cut before merges, by the name in tokenizer.ggml.pre.
_CUTS = {
  "gpt-2": [_GPT2],
  "llama-bpe": _split("{1,3}"),
  "qwen2": _split(""),
  "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
}
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens that no merge makes
_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_IDS = [f"{name}_token_id" for name in (*_NAMES.values(), "eot")]
_KINDS = {
  **{f"tokenizer.ggml.{name}": str for name in ("model", "pre")},
  **{f"tokenizer.ggml.{name}": Sequence[str] for name in ("tokens", "merges")},
  "tokenizer.ggml.token_type": Sequence[int],
  **{f"tokenizer.ggml.{name}": int for name in _IDS},
  "tokenizer.ggml.add_bos_token": bool,
  "tokenizer.chat_template": str,
}


def files(metadata: Mapping[str, object], where: str) -> dict[str, str]:
  """Returns what `from_pretrained` and `vocabularies.load` read of a tokenizer.

  Args:
    metadata: of the file: names and plain values, lists where there are arrays.
    where: the file, for messages.

  Returns:
    Contents of tokenizer.json, tokenizer_config.json and
    generation_config.json, by name.

  Raises:
    CheckpointError: it is no byte-level BPE, or cuts texts in an unknown way,
      or a value is of a wrong kind.
  """
  for name, kind in _KINDS.items():
    if metadata.get(name) is not None:
      try:
        fields.fit(name, metadata[name], kind)
      except ValueError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
  of = lambda name, default=None: metadata.get(
    f"tokenizer.ggml.{name}", default
  )
  kind, cut = of("model"), of("pre", "gpt-2")
  if kind != "gpt2" or cut not in _CUTS:
    raise CheckpointError(
      f"{where} has a tokenizer of kind {kind!r:.60} that cuts texts as"
      f" {cut!r:.60}; read are byte-level BPE (gpt2) with"
      f" {', '.join(_CUTS)}: take tokenizer.json from where the model was"
      " published"
    )
  tokens, merges = list(of("tokens", ())), list(of("merges", ()))
  types = list(of("token_type", [1] * len(tokens)))
  if not tokens or len(types) != len(tokens) or len({*tokens}) != len(tokens):
    raise CheckpointError(
      f"{where} has {len(tokens)} tokens, {len({*tokens})} of them different,"
      f" with {len(types)} types: it is damaged"
    )
  ids = {name: of(f"{long}_token_id") for name, long in _NAMES.items()}
  ids = {name: int(i) for name, i in ids.items() if i is not None}
  for token in ids.values():
    if not 0 <= token < len(tokens):
      raise CheckpointError(f"{where} names token {token} of {len(tokens)}")
  ends = [ids.get("eos"), of("eot_token_id")]
  ends = list(dict.fromkeys(int(i) for i in ends if i is not None))
  if not ends:
    raise CheckpointError(f"{where} says no token that ends a text")
  for merge in merges:
    if merge.count(" ") != 1:
      raise CheckpointError(f"{where}: the merge {merge!r:.60} is no pair")
  added = [
    {
      "id": place,
      "content": token,
      **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
      "special": each == _CONTROL,
    }
    for place, (token, each) in enumerate(zip(tokens, types))
    if each in (_CONTROL, _USER_DEFINED)
  ]
  model = {
    "type": "BPE",
    **dict.fromkeys(("dropout", "unk_token")),
    **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix")),
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": cut == "llama-bpe",
    "vocab": {token: place for place, token in enumerate(tokens)},
    "merges": [merge.split(" ") for merge in merges],
  }
  tokenizer = {
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
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "add_bos_token": bool(of("add_bos_token", False)),
    **{f"{name}_token": tokens[i] for name, i in ids.items()},
  }
  if (template := metadata.get("tokenizer.chat_template")) is not None:
    settings["chat_template"] = template
  generation = {f"{x}_token_id": ids[x] for x in ("bos", "pad") if x in ids}
  generation["eos_token_id"] = ends if len(ends) > 1 else ends[0]
  contents = {
    "tokenizer.json": tokenizer,
    "tokenizer_config.json": settings,
    "generation_config.json": generation,
  }
  return {
    name: json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    for name, content in contents.items()
  }
