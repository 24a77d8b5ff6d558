"""Translates the config.json of Llama, Mistral, Qwen and Gemma.

`hugging_face_rope` has the settings of rotary positions.

A file leaves out what equals the defaults of its model type. A Gemma 3 that
also reads images has the settings of its text model as `text_config`; the
arrays of its other parts are left alone.
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from speccascade.checkpoints import hugging_face_rope
from speccascade.checkpoints.errors import CheckpointError
from speccascade.checkpoints.hugging_face_rope import FULL, WINDOWED
from speccascade.models.llama.config import LlamaConfig
from speccascade.settings import fields

_TANH_GELU = "gelu_pytorch_tanh"
# The values that transformers takes for keys that config.json leaves out. A
# model type has the settings of layers and of Gemmas that its defaults name.
_LLAMA = {
  "vocab_size": 32000,
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "num_hidden_layers": 32,
  "num_attention_heads": 32,
  "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6,
  "hidden_act": "silu",
  "tie_word_embeddings": False,
  "attention_bias": False,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
_MISTRAL = _LLAMA | {
  "intermediate_size": 14336,
  "num_key_value_heads": 8,
  "max_position_embeddings": 131072,
  "sliding_window": 4096,
}
_QWEN2 = _LLAMA | {
  "vocab_size": 151936,
  "intermediate_size": 22016,
  "num_key_value_heads": 32,
  "max_position_embeddings": 32768,
  "use_sliding_window": False,
  "sliding_window": 4096,
  "max_window_layers": 28,
  "layer_types": None,
  "bos_token_id": None,
  "eos_token_id": None,
}
_QWEN3 = _QWEN2 | {"head_dim": 128}
_GEMMA = _LLAMA | {
  "vocab_size": 256000,
  "hidden_size": 3072,
  "intermediate_size": 24576,
  "num_hidden_layers": 28,
  "num_attention_heads": 16,
  "num_key_value_heads": 16,
  "head_dim": 256,
  "hidden_act": _TANH_GELU,
  "max_position_embeddings": 8192,
  "tie_word_embeddings": True,
  "bos_token_id": 2,
  "eos_token_id": 1,
}
_GEMMA2 = _GEMMA | {
  "hidden_size": 2304,
  "intermediate_size": 9216,
  "num_hidden_layers": 26,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "query_pre_attn_scalar": 256,
  "sliding_window": 4096,
  "sliding_window_pattern": 2,
  "layer_types": None,
  "attn_logit_softcapping": 50.0,
  "final_logit_softcapping": 30.0,
}
_GEMMA3 = _GEMMA2 | {
  "vocab_size": 262208,
  "max_position_embeddings": 131072,
  # No default: the class has 4096, and no published model has so many.
  "sliding_window": None,
  "sliding_window_pattern": 6,
  "attn_logit_softcapping": None,
  "final_logit_softcapping": None,
  "rope_theta": 1e6,
  "rope_local_base_freq": 1e4,
}
ALSO_IN_GENERATION = ("eos_token_id",)
_WITH_TEXT_CONFIG = ("gemma3",)
# Settings that a model with a `text_config` has beside it.
_OUTER = ("bos_token_id", "eos_token_id", "tie_word_embeddings")

# Settings whose values are fixed in the network here.
_FIXED = {
  "mlp_bias": False,
  "partial_rotary_factor": 1.0,
  "use_bidirectional_attention": False,
}

# Fields of LlamaConfig, by the names in config.json.
_FIELDS = {
  "vocab_size": "vocab_size",
  "hidden_size": "emb_dim",
  "num_attention_heads": "num_heads",
  "num_key_value_heads": "num_kv_heads",
  "num_hidden_layers": "num_decoder_layers",
  "head_dim": "head_dim",
  "intermediate_size": "mlp_dim",
  "max_position_embeddings": "max_positions",
  "rms_norm_eps": "norm_epsilon",
  "tie_word_embeddings": "logits_via_embedding",
  "attention_bias": "qkv_bias",
  "sliding_window": "window",
  "bos_token_id": "bos_id",
  "eos_token_id": "eos_ids",
  "rope_theta": "rope_theta",
}
_GEMMA_FIELDS = {
  "query_pre_attn_scalar": "query_pre_attn_scalar",
  "attn_logit_softcapping": "attention_cap",
  "final_logit_softcapping": "logit_cap",
  "rope_local_base_freq": "local_rope_theta",
}
# Activations of LlamaConfig, by the names in config.json. The gelu of flax is
# the tanh approximation.
_MLP_ACTIVATIONS = {
  "silu": ("silu", "linear"),
  _TANH_GELU: ("gelu", "linear"),
}
_EMBEDDING = "model.embed_tokens.weight"
# The end of names of arrays in old files, which are computed from the settings.
_UNUSED = "rotary_emb.inv_freq"


def build_config(settings: dict) -> LlamaConfig:
  """Returns the architecture that settings describe.

  See `hugging_face.Family`.
  """
  kind, settings = _TYPES[settings["model_type"]], _complete(settings)
  for name, wanted in _FIXED.items():
    if settings.get(name) is not None:
      fields.one_of([wanted], **{name: settings[name]})
  for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
    fields.fit(name, settings[name], fields.Size)
  fields.fit("attention_bias", settings["attention_bias"], bool)
  num_heads = settings["num_attention_heads"]
  for name, default in {
    "num_key_value_heads": num_heads,
    "head_dim": settings["hidden_size"] // num_heads,
  }.items():
    if settings.get(name) is None:
      settings[name] = default
  ends = settings["eos_token_id"]
  if not isinstance(ends, list):
    settings["eos_token_id"] = [] if ends is None else [ends]
  names = _names(kind)
  window, layers = kind.window(settings)
  local_theta = None
  if "rope_local_base_freq" in names:
    # transformers reads no such setting of Gemma 3.
    fields.one_of(
      [None], attn_logit_softcapping=settings["attn_logit_softcapping"]
    )
    settings, local_theta = hugging_face_rope.split(settings)
  theta, scaling = hugging_face_rope.read(settings)
  values = {
    field: settings[name] for name, field in names.items() if name in settings
  }
  values |= {
    "mlp_activations": _activations(settings),
    "out_bias": settings["attention_bias"],
    "window": window,
    "windowed_layers": layers,
    "rope_theta": theta,
    "rope_scaling": scaling,
    "local_rope_theta": local_theta,
    **kind.features,
  }
  try:
    return fields.build(LlamaConfig, values)
  except fields.SettingError as error:
    setting_of = {field: name for name, field in names.items()}
    name = setting_of.get(error.name, error.name)
    raise fields.SettingError(name, error.fault) from error


def _complete(settings: dict) -> dict:
  """Returns the settings of the text model, with those that are left out."""
  model_type = settings["model_type"]
  if model_type in _WITH_TEXT_CONFIG:
    text = settings.get("text_config") or {}
    fields.fit("text_config", text, dict)
    outer = {name: settings.get(name) for name in _OUTER}
    outer = {name: value for name, value in outer.items() if value is not None}
    settings = text | outer | {"model_type": model_type}
  return {**_TYPES[model_type].defaults, **settings}


def _names(kind: "_Type") -> dict[str, str]:
  """Returns the fields of `LlamaConfig` that settings say, by their names."""
  of_gemmas = {
    name: field
    for name, field in _GEMMA_FIELDS.items()
    if name in kind.defaults
  }
  return _FIELDS | of_gemmas


def _activations(settings: dict) -> tuple[str, ...]:
  """Returns the activations of the MLP."""
  setting, activation = "hidden_act", settings["hidden_act"]
  if _TYPES[settings["model_type"]].defaults["hidden_act"] == _TANH_GELU:
    # The first files of Gemma say gelu, and mean its tanh form.
    if activation == "gelu":
      activation = _TANH_GELU
    if settings.get("hidden_activation") is not None:
      setting, activation = "hidden_activation", settings["hidden_activation"]
  fields.one_of(list(_MLP_ACTIVATIONS), **{setting: activation})
  return _MLP_ACTIVATIONS[activation]


# Each of the next functions returns (window, windowed layers) of attention. The
# window is None if no layer has one. The layers are None if all have it.
_Windows = tuple[int | None, list[int] | None]


def _no_window(settings: dict) -> _Windows:
  """Returns no window: transformers reads the setting from no such file."""
  del settings
  return None, None


def _window_of_all(settings: dict) -> _Windows:
  return settings["sliding_window"], None


def _window_above(settings: dict) -> _Windows:
  """Returns the window, which layers from some layer on have, if it is used."""
  window, kinds = settings["sliding_window"], settings["layer_types"]
  if not settings["use_sliding_window"] or window is None:
    return None, None
  if kinds is None:
    first, count = settings["max_window_layers"], settings["num_hidden_layers"]
    fields.fit("max_window_layers", first, fields.NonNegative)
    # The layers below `max_window_layers` see the whole text.
    kinds = [WINDOWED if i >= first else FULL for i in range(count)]
  return _window_of(kinds, settings)


def _window_in_periods(settings: dict) -> _Windows:
  """Returns the window, which all but the last layer of each period have."""
  kinds, count = settings["layer_types"], settings["num_hidden_layers"]
  if kinds is None:
    name = "_sliding_window_pattern"
    period = settings.get(name) or settings[name.removeprefix("_")]
    fields.fit(name, period, fields.Positive)
    kinds = [WINDOWED if (i + 1) % period else FULL for i in range(count)]
  window, layers = _window_of(kinds, settings)
  if layers != []:
    fields.fit("sliding_window", settings["sliding_window"], fields.Positive)
  return window, layers


def _window_of(kinds: list[str], settings: dict) -> _Windows:
  """Returns the window, which the layers of one kind have."""
  count = settings["num_hidden_layers"]
  fields.fit("layer_types", kinds, list[Literal[WINDOWED, FULL]])
  if len(kinds) != count:
    raise ValueError(
      f"layer_types has {len(kinds)} items; num_hidden_layers is {count}"
    )
  layers = [i for i, kind in enumerate(kinds) if kind == WINDOWED]
  if not layers:
    return None, []
  return settings["sliding_window"], layers if len(layers) < count else None


class _Type(NamedTuple):
  """What the models of a model type have in common.

  Attributes:
    name: the beginning of the names of transformers' classes.
    defaults: the values that transformers takes for keys that are left out.
    window: a function from the settings to the window, and its layers.
    features: fields of `LlamaConfig` that no setting says.
  """

  name: str
  defaults: Mapping[str, Any]
  window: Callable[[dict], _Windows]
  features: Mapping[str, Any] = MappingProxyType({})


# Mistral and Qwen2 have no setting of biases. Mistral never has them, and Qwen2
# always has those of queries, keys and values.
_OF_MISTRAL = {"qkv_bias": False, "out_bias": False}
_OF_QWEN2 = {"qkv_bias": True, "out_bias": False}
_OF_GEMMA = {"norm_offset": 1, "scaled_embedding": True}
_OF_GEMMA2 = _OF_GEMMA | {"post_norms": True}
_OF_GEMMA3 = _OF_GEMMA2 | {"query_key_norm": True}
# A "gemma3" has a "gemma3_text", which is what is written.
_TYPES = {
  "llama": _Type("Llama", _LLAMA, _no_window),
  "mistral": _Type("Mistral", _MISTRAL, _window_of_all, _OF_MISTRAL),
  "qwen2": _Type("Qwen2", _QWEN2, _window_above, _OF_QWEN2),
  "qwen3": _Type("Qwen3", _QWEN3, _window_above, {"query_key_norm": True}),
  "gemma": _Type("Gemma", _GEMMA, _no_window, _OF_GEMMA),
  "gemma2": _Type("Gemma2", _GEMMA2, _window_in_periods, _OF_GEMMA2),
  "gemma3_text": _Type("Gemma3", _GEMMA3, _window_in_periods, _OF_GEMMA3),
  "gemma3": _Type("Gemma3", _GEMMA3, _window_in_periods, _OF_GEMMA3),
}
MODEL_TYPES = tuple(_TYPES)


def resolve(
  tensors: dict, config: LlamaConfig, settings: dict, where: str, same: Callable
) -> None:
  """Removes buffers of old files, and a copy of a tied head.

  See `hugging_face.Family`.
  """
  for name in [name for name in tensors if name.endswith(_UNUSED)]:
    del tensors[name]
  if config.logits_via_embedding:
    drop_tied_head(tensors, "lm_head.weight", _EMBEDDING, where, same)


def drop_tied_head(
  tensors: dict, head: str, table: str, where: str, same: Callable
) -> None:
  """Removes an output projection that is the table of tokens once more.

  Args:
    tensors: as in `hugging_face.Family.resolve`.
    head: name of the projection.
    table: name of the table.
    where: as in `hugging_face.Family.resolve`.
    same: as in `hugging_face.Family.resolve`.

  Raises:
    CheckpointError: the projection is another array than the table.
  """
  if head in tensors and not same(tensors.pop(head), tensors.get(table)):
    raise CheckpointError(
      f"{where}: config.json says tie_word_embeddings=true, but {head} is"
      f" another array than {table}: set it to false, or remove {head}"
    )


def settings_of(config: LlamaConfig) -> dict:
  """Returns the settings that describe an architecture.

  See `hugging_face.Family`.
  """
  settings = {name: getattr(config, field) for name, field in _FIELDS.items()}
  activations = {value: name for name, value in _MLP_ACTIVATIONS.items()}
  layers = range(config.num_decoder_layers)
  settings |= {
    "hidden_act": activations.get(config.mlp_activations),
    "eos_token_id": list(config.eos_ids) or None,
    "use_sliding_window": config.window is not None,
    "layer_types": [
      FULL if config.window_of(i) is None else WINDOWED for i in layers
    ],
  }
  if scaling := config.rope_scaling:
    settings["rope_scaling"] = hugging_face_rope.settings_of(scaling)
  # The model type is the one whose settings are read back as the architecture.
  # The dtype of activations is not a setting of config.json.
  wanted = dataclasses.replace(config, dtype="float32")
  for model_type, kind in _TYPES.items():
    candidate = settings | {"model_type": model_type}
    for name in ("layer_types", "use_sliding_window"):
      if name not in kind.defaults:
        del candidate[name]
    for name, field in _names(kind).items():
      if name in _GEMMA_FIELDS:
        candidate[name] = getattr(config, field)
    # transformers wants an integer, and takes no None for a window.
    if "query_pre_attn_scalar" in candidate:
      candidate["hidden_activation"] = candidate.pop("hidden_act")
      scale = candidate["query_pre_attn_scalar"]
      if scale is not None and scale == int(scale):
        candidate["query_pre_attn_scalar"] = int(scale)
      if config.window is None:
        del candidate["sliding_window"]
    with contextlib.suppress(ValueError):
      if build_config(candidate) == wanted:
        return candidate | {"architectures": [f"{kind.name}ForCausalLM"]}
  raise CheckpointError(
    f"no model type of {', '.join(MODEL_TYPES)} has this architecture: {config}"
  )
