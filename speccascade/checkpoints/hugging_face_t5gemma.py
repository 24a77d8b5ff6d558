"""Translates the config.json of T5Gemma, which has two inside it.

`encoder` and `decoder` are each the settings of a Gemma 2, and leave out what
equals its defaults. The ends of a text and the start token are the decoder's,
unless the outer settings or generation_config.json name others.
"""

from collections.abc import Callable
import dataclasses

from speccascade.checkpoints import hugging_face_llama, storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.t5gemma.config import OF_ENCODER, T5GemmaConfig
from speccascade.settings import fields

MODEL_TYPES = ("t5gemma",)
_STACKS = ("encoder", "decoder")
# What a stack of a T5Gemma is called, and the model that it is like.
_STACK_TYPE, _LIKE = "t5_gemma_module", "gemma2"
# Fields of the encoder's settings that nothing reads: texts end, and are
# limited, by the decoder's.
_NOT_READ = ("eos_ids", "bos_id", "max_positions", "logits_via_embedding")
# Outer settings that count, before those of generation_config.json.
_OUTER = (
  *("bos_token_id", "eos_token_id", "decoder_start_token_id"),
  "tie_word_embeddings",
)
_LM_HEAD = "lm_head.out_proj.weight"
_EMBEDDING = "model.decoder.embed_tokens.weight"


def config_of(settings: dict, directory: storage.Directory) -> T5GemmaConfig:
  """Returns the architecture that config.json describes.

  Args:
    settings: the settings of config.json.
    directory: the directory of config.json, which may hold
      generation_config.json too.

  Raises:
    CheckpointError: a setting is wrong, or the network here does not have it.
      The message names it.
  """
  where = f"{directory}/config.json"
  if directory.has(hugging_face_llama.GENERATION):
    generation = directory.read_json(hugging_face_llama.GENERATION)
    chosen = {name: generation.get(name) for name in _OUTER}
    settings = settings | {k: v for k, v in chosen.items() if v is not None}
  try:
    return build_config(settings)
  except ValueError as error:
    raise CheckpointError(f"{where}: {error}") from error


def build_config(settings: dict) -> T5GemmaConfig:
  """Returns the architecture that settings describe.

  Args:
    settings: the settings of a config.json.

  Raises:
    ValueError: a setting is wrong, or the network here does not have it. The
      message names it.
  """
  stacks = {}
  for name in _STACKS:
    stack = settings.get(name) or {}
    fields.fit(name, stack, dict)
    if stack.get("pad_token_id") is not None:
      fields.one_of([0], **{f"{name}.pad_token_id": stack["pad_token_id"]})
    if name == "decoder":
      chosen = {name: settings.get(name) for name in _OUTER}
      stack = stack | {k: v for k, v in chosen.items() if v is not None}
    try:
      stacks[name] = hugging_face_llama.build_config(
        stack | {"model_type": _LIKE}
      )
    except fields.SettingError as error:
      setting = hugging_face_llama.name_of(error.name)
      raise ValueError(f"{name}.{setting}{error.fault}") from error
    except ValueError as error:
      raise ValueError(f"{name}: {error}") from error
  encoder, decoder = _explicit(*(stacks[name] for name in _STACKS))
  own = {
    f"encoder_{name}": getattr(encoder, name)
    for name in OF_ENCODER
    if getattr(encoder, name) != getattr(decoder, name)
  }
  start_id = settings.get("decoder_start_token_id")
  config = T5GemmaConfig(
    **vars(decoder),
    **own,
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


def resolve(tensors: dict, settings: dict, where: str, same: Callable) -> None:
  """Removes the output projection where it is tied to the decoder's table.

  Args:
    tensors: all arrays by name, or (shape, dtype) of each. It is changed.
    settings: the settings of config.json.
    where: the checkpoint, for messages.
    same: a function from two values of `tensors` to whether they may be the
      same array.

  Raises:
    CheckpointError: the output projection contradicts config.json.
  """
  if not build_config(settings).logits_via_embedding:
    return
  if _LM_HEAD not in tensors:
    return
  if not same(tensors.pop(_LM_HEAD), tensors.get(_EMBEDDING)):
    raise CheckpointError(
      f"{where}: config.json says tie_word_embeddings=true, but {_LM_HEAD} is"
      f" another array than {_EMBEDDING}: set it to false, or remove {_LM_HEAD}"
    )


def settings_of(config: T5GemmaConfig) -> dict:
  """Returns the settings of config.json that describe an architecture.

  Raises:
    CheckpointError: a T5Gemma of Hugging Face cannot have the architecture.
  """
  stacks = {}
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
    if settings["model_type"] != _LIKE:
      raise CheckpointError(
        f"the {name} of a T5Gemma of Hugging Face is a Gemma 2, and this one"
        f" is a {settings['model_type']}: {config}"
      )
    del settings["architectures"]
    stacks[name] = settings | {"model_type": _STACK_TYPE, "pad_token_id": 0}
  return stacks | {
    "architectures": ["T5GemmaForConditionalGeneration"],
    "model_type": MODEL_TYPES[0],
    "is_encoder_decoder": True,
    "vocab_size": config.vocab_size,
    "tie_word_embeddings": config.logits_via_embedding,
    "bos_token_id": config.bos_id,
    "eos_token_id": list(config.eos_ids) or None,
    "decoder_start_token_id": config.start_id,
    "pad_token_id": 0,
  }
