"""Translates the config.json of T5Gemma, which has two inside it.

`encoder` and `decoder` are each the settings of a Gemma 2, in T5Gemma 2 of a
Gemma 3, and leave out what equals its defaults. The encoder of T5Gemma 2 also
reads images, and has the settings of its text model as `text_config`. The ends
of a text and the start token are the decoder's, unless the outer settings or
generation_config.json name others.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

from speccascade.checkpoints import hugging_face_llama
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.t5gemma.config import OF_ENCODER, T5GemmaConfig
from speccascade.settings import fields


class _Version(NamedTuple):
  """What settings of a T5Gemma are called; `like` is what its stacks are."""

  name: str
  like: str
  encoder: str
  decoder: str
  table: str


# By model_type.
_VERSIONS = {
  "t5gemma": _Version(
    name="T5Gemma",
    like="gemma2",
    encoder="t5_gemma_module",
    decoder="t5_gemma_module",
    table="model.decoder.embed_tokens.weight",
  ),
  "t5gemma2": _Version(
    name="T5Gemma2",
    like="gemma3_text",
    encoder="t5gemma2_text",
    decoder="t5gemma2_decoder",
    table="model.encoder.embed_tokens.weight",
  ),
}
MODEL_TYPES = tuple(_VERSIONS)
_MERGED = "t5gemma2"
_STACKS = ("encoder", "decoder")
# Where the encoder of T5Gemma 2 has its text model, and the end of an image.
_TEXT, _END_OF_IMAGE = "text_config", "eoi_token_index"
# What transformers takes for an end of an image that is left out.
_END_OF_IMAGE_ID = 256000
# Fields of the encoder's settings that nothing reads: texts end, and are
# limited, by the decoder's.
_NOT_READ = ("eos_ids", "bos_id", "max_positions", "logits_via_embedding")
# Outer settings, which count before those of a stack.
ALSO_IN_GENERATION = (
  *("bos_token_id", "eos_token_id", "decoder_start_token_id"),
  "tie_word_embeddings",
)
_LM_HEAD = "lm_head.out_proj.weight"
# Arrays of a T5Gemma 2's decoder that its encoder has, too.
_COPIES = ("embed_tokens.weight", "embed_tokens.eoi_embedding")


def build_config(settings: dict) -> T5GemmaConfig:
  """Returns the architecture that settings describe.

  See `hugging_face.Family`.
  """
  version, stacks = _VERSIONS[settings["model_type"]], {}
  features: dict[str, Any] = {}
  for name in _STACKS:
    stack = settings.get(name) or {}
    fields.fit(name, stack, dict)
    if name == "encoder" and settings["model_type"] == _MERGED:
      features = {
        "merged_attention": True,
        "shared_embedding": True,
        "split_window": True,
        "end_of_image_id": stack.get(_END_OF_IMAGE, _END_OF_IMAGE_ID),
      }
      stack = stack.get(_TEXT) or {}
      fields.fit(f"{name}.{_TEXT}", stack, dict)
    if stack.get("pad_token_id") is not None:
      fields.one_of([0], **{f"{name}.pad_token_id": stack["pad_token_id"]})
    if name == "decoder":
      chosen = {name: settings.get(name) for name in ALSO_IN_GENERATION}
      stack = stack | {k: v for k, v in chosen.items() if v is not None}
    try:
      stacks[name] = hugging_face_llama.build_config(
        stack | {"model_type": version.like}
      )
    except fields.SettingError as error:
      raise ValueError(f"{name}.{error}") from error
    except ValueError as error:
      raise ValueError(f"{name}: {error}") from error
  encoder, decoder = _explicit(*(stacks[name] for name in _STACKS))
  _check_widths(settings, encoder, decoder)
  own = {
    f"encoder_{name}": getattr(encoder, name)
    for name in OF_ENCODER
    if getattr(encoder, name) != getattr(decoder, name)
  }
  start_id = settings.get("decoder_start_token_id")
  config = T5GemmaConfig(
    **vars(decoder),
    **own,
    **features,
    num_encoder_layers=encoder.num_decoder_layers,
    start_id=decoder.bos_id if start_id is None else start_id,
  )
  differences = [
    f"{name}={value!r} (the decoder's: {getattr(config.encoder, name)!r})"
    for name, value in vars(encoder).items()
    if name not in _NOT_READ and value != getattr(config.encoder, name)
  ]
  if differences:
    raise ValueError(
      f"the encoder has {', '.join(differences)}; in the network here the"
      f" encoder has {', '.join(OF_ENCODER)} of its own, and no more"
    )
  return config


def _check_widths(settings: dict, encoder: LlamaConfig, decoder: LlamaConfig):
  """Raises ValueError where the decoder cannot read the encoder's states."""
  if settings["model_type"] == _MERGED:
    if encoder.emb_dim != decoder.emb_dim:
      raise ValueError(
        f"encoder.{_TEXT}.hidden_size is {encoder.emb_dim}, decoder.hidden_size"
        f" {decoder.emb_dim}; the stacks of a T5Gemma 2 share their table, and"
        " have one width"
      )
    return
  name = "cross_attention_hidden_size"
  width = (settings.get("decoder") or {}).get(name)
  if width not in (None, encoder.emb_dim):
    raise ValueError(
      f"decoder.{name} is {width!r:.20}, encoder.hidden_size"
      f" {encoder.emb_dim}; the decoder reads states of the encoder's width"
    )


def _explicit(*stacks: LlamaConfig) -> list[LlamaConfig]:
  """Returns both stacks with one window, and the layers that have it."""
  windows = {stack.window for stack in stacks} - {None}
  if len(windows) > 1 or all(stack.windowed_layers is None for stack in stacks):
    return [*stacks]
  return [
    dataclasses.replace(
      stack,
      window=next(iter(windows), None),
      windowed_layers=tuple(
        layer
        for layer in range(stack.num_decoder_layers)
        if stack.window_of(layer) is not None
      ),
    )
    for stack in stacks
  ]


def resolve(
  tensors: dict,
  config: T5GemmaConfig,
  settings: dict,
  where: str,
  same: Callable,
) -> None:
  """Removes copies of tables, and of an output that is tied.

  See `hugging_face.Family`.
  """
  if config.logits_via_embedding:
    table = _VERSIONS[settings["model_type"]].table
    hugging_face_llama.drop_tied_head(tensors, _LM_HEAD, table, where, same)
  if not config.merged_attention:
    return
  for array in _COPIES:
    copy, first = f"model.decoder.{array}", f"model.encoder.{array}"
    if copy in tensors and not same(tensors.pop(copy), tensors.get(first)):
      raise CheckpointError(
        f"{where}: {copy} and {first} differ; a T5Gemma 2 is read with one"
        " table for both stacks, as tie_word_embeddings=true has it"
      )


def settings_of(config: T5GemmaConfig) -> dict:
  """Returns the settings that describe an architecture.

  See `hugging_face.Family`.
  """
  model_type = _MERGED if config.merged_attention else MODEL_TYPES[0]
  version, stacks = _VERSIONS[model_type], {}
  others = {
    "shared_embedding": config.shared_embedding,
    "split_window": config.split_window,
    "end_of_image_id": config.end_of_image_id is not None,
  }
  if set(others.values()) != {config.merged_attention}:
    raise CheckpointError(
      f"a T5Gemma of Hugging Face has merged_attention, {', '.join(others)}, or"
      f" none of these: {config}"
    )
  if config.merged_attention and not config.logits_via_embedding:
    raise CheckpointError(
      "a T5Gemma 2 of Hugging Face has one table for its stacks only where its"
      f" output is tied to it, too; logits_via_embedding is False: {config}"
    )
  for name in _STACKS:
    stack = getattr(config, name)
    # As files have it: always a scale, and None where all layers are windowed.
    layers = range(stack.num_decoder_layers)
    windowed = tuple(i for i in layers if stack.window_of(i) is not None)
    stack = dataclasses.replace(
      stack,
      query_pre_attn_scalar=stack.query_pre_attn_scalar or stack.head_dim,
      windowed_layers=windowed if len(windowed) < len(layers) else None,
    )
    settings = hugging_face_llama.settings_of(stack)
    if settings["model_type"] != version.like:
      raise CheckpointError(
        f"the {name} of a {version.name} of Hugging Face is a {version.like},"
        f" and this one is a {settings['model_type']}: {config}"
      )
    del settings["architectures"]
    stack_type = getattr(version, name)
    stacks[name] = settings | {"model_type": stack_type, "pad_token_id": 0}
  if model_type == _MERGED:
    stacks["encoder"] = {
      "model_type": "t5gemma2_encoder",
      _TEXT: stacks["encoder"],
      _END_OF_IMAGE: config.end_of_image_id,
    }
  return stacks | {
    "architectures": [f"{version.name}ForConditionalGeneration"],
    "model_type": model_type,
    "is_encoder_decoder": True,
    "vocab_size": config.vocab_size,
    "tie_word_embeddings": config.logits_via_embedding,
    "bos_token_id": config.bos_id,
    "eos_token_id": list(config.eos_ids) or None,
    "decoder_start_token_id": config.start_id,
    "pad_token_id": 0,
  }
