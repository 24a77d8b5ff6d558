"""Translates a T5 of Hugging Face: its config.json, and its arrays.

The settings of the output projection in config.json have changed their meaning
over the versions of transformers. So the weights decide first:

  lm_head.weight  scaling  becomes
  absent          yes      T5 1.0: logits_via_embedding
  absent          no       logits_dense, a copy of the embedding
  same as shared  yes      T5 1.0: logits_via_embedding
  same as shared  no       logits_dense
  another array   no       T5 1.1: logits_dense
  another array   yes      refused: the two contradict each other

"Scaling" is the setting `scale_decoder_outputs`, which transformers 5 writes.
That version sets `tie_word_embeddings` to true in any case. In the config.json
of older versions, "scaling" is `tie_word_embeddings`.
"""

from collections.abc import Callable

from speccascade.checkpoints import generation_settings
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.t5 import multi_head
from speccascade.models.t5.config import T5Config
from speccascade.settings import fields

# Architectures with T5X's network; umT5 has relative positions per layer.
MODEL_TYPES = ("t5", "mt5")
ALSO_IN_GENERATION = ("eos_token_id",)

# The values that transformers takes for keys that config.json leaves out.
_DEFAULTS = {
  "vocab_size": 32128,
  "d_model": 512,
  "d_kv": 64,
  "d_ff": 2048,
  "num_layers": 6,
  "num_heads": 8,
  "dropout_rate": 0.1,
  "feed_forward_proj": "relu",
  "tie_word_embeddings": True,
}

# Settings whose values are fixed in T5X's network.
_FIXED = {
  "relative_attention_num_buckets": multi_head.NUM_BUCKETS,
  "relative_attention_max_distance": multi_head.MAX_DISTANCE,
  "layer_norm_epsilon": 1e-6,
  "decoder_start_token_id": 0,
  "pad_token_id": 0,
}

# Fields of T5Config, by the names in config.json.
_FIELDS = {
  "vocab_size": "vocab_size",
  "d_model": "emb_dim",
  "num_heads": "num_heads",
  "num_layers": "num_encoder_layers",
  "num_decoder_layers": "num_decoder_layers",
  "d_kv": "head_dim",
  "d_ff": "mlp_dim",
  "dropout_rate": "dropout_rate",
}

# Activations of T5Config, by the names in config.json. The "gated-gelu" of
# transformers is the tanh approximation, and so is the gelu of flax. The "gelu"
# of transformers without a gate is the exact function, which is not read.
_MLP_ACTIVATIONS = {
  "relu": ("relu",),
  "gated-gelu": ("gelu", "linear"),
  "gated-gelu_new": ("gelu", "linear"),
  "gated-relu": ("relu", "linear"),
  "gated-silu": ("silu", "linear"),
}

_EMBEDDINGS = (
  "shared.weight",
  "encoder.embed_tokens.weight",
  "decoder.embed_tokens.weight",
)
_LM_HEAD = "lm_head.weight"

# An array in the files of T5 1.0 that no version of transformers has used.
_UNUSED = (
  "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
)


def build_config(settings: dict) -> T5Config:
  """Returns the architecture that settings describe.

  See `hugging_face.Family`.
  """
  fixed = dict(_FIXED)
  # No network reads the row of padding, which is masked. Where the decoder says
  # itself that it starts at row 0, another id of padding changes nothing; where
  # it does not say so, it starts at the row of padding. MADLAD-400 says so.
  pad_id = settings.get("pad_token_id")
  if settings.get("decoder_start_token_id") == 0 and type(pad_id) is int:
    del fixed["pad_token_id"]
  for name, wanted in fixed.items():
    value = settings.get(name)
    if value is not None and value != wanted:
      raise ValueError(f"{name}={value!r:.60}; the network here has {wanted!r}")
  settings = _DEFAULTS | settings
  for name in ("tie_word_embeddings", "scale_decoder_outputs"):
    value = settings.get(name, False)
    if not isinstance(value, bool):
      raise ValueError(f"{name}={value!r:.60}, want a boolean")
  values = {field: settings.get(name) for name, field in _FIELDS.items()}
  if values["num_decoder_layers"] is None:
    values["num_decoder_layers"] = settings["num_layers"]
  activations = settings["feed_forward_proj"]
  if activations not in list(_MLP_ACTIVATIONS):  # JSON is not always hashable
    raise ValueError(
      f"feed_forward_proj={activations!r:.60}; read are"
      f" {', '.join(_MLP_ACTIVATIONS)}"
    )
  values["mlp_activations"] = _MLP_ACTIVATIONS[activations]
  # Which of the two settings says that the output is the scaled product with
  # the embedding: see the module's text.
  scaled = settings.get("scale_decoder_outputs")
  if scaled is None:
    scaled = settings["tie_word_embeddings"]
  values["logits_via_embedding"] = scaled
  try:
    config = fields.build(T5Config, values)
  except fields.SettingError as error:
    name = {field: name for name, field in _FIELDS.items()}[error.name]
    raise fields.SettingError(name, error.fault) from error
  ends = settings.get("eos_token_id")
  ids = () if ends is None else generation_settings.ids_of(ends)
  if ids and max(ids) >= config.vocab_size:
    fault = f" is {max(ids)}; wanted ids below vocab_size, {config.vocab_size}"
    raise fields.SettingError("eos_token_id", fault)
  return config


def resolve(
  tensors: dict, config: T5Config, settings: dict, where: str, same: Callable
) -> None:
  """Removes copies of the embedding; see the module's text.

  See `hugging_face.Family`.
  """
  tensors.pop(_UNUSED, None)
  copies = {name: tensors.pop(name) for name in _EMBEDDINGS if name in tensors}
  if not copies:
    raise CheckpointError(f"{where} has no {_EMBEDDINGS[0]}: no embedding")
  first, *others = copies
  for other in others:
    if not same(copies[first], copies[other]):
      raise CheckpointError(
        f"{where}: {first} and {other} differ; T5 has one embedding for both "
        "stacks"
      )
  tensors[_EMBEDDINGS[0]] = embedding = copies[first]
  head = tensors.pop(_LM_HEAD, None)
  if not config.logits_via_embedding:
    if head is None and settings.get("scale_decoder_outputs") is None:
      raise CheckpointNotFoundError(
        f"{where}: config.json says tie_word_embeddings=false and there is no "
        f"{_LM_HEAD}: save the whole T5ForConditionalGeneration"
      )
    tensors[_LM_HEAD] = embedding if head is None else head
  elif head is not None and not same(embedding, head):
    raise CheckpointError(
      f"{where}: config.json says that the output is tied to the embedding and "
      f"scaled, but {_LM_HEAD} is another array than shared.weight: for T5 1.1 "
      "and Flan-T5 set tie_word_embeddings=false (and, if it is there, "
      f"scale_decoder_outputs=false); for T5 1.0 remove {_LM_HEAD}"
    )


def settings_of(config: T5Config) -> dict:
  """Returns the settings that describe an architecture.

  See `hugging_face.Family`.
  """
  # Of two names of one activation the first is written, which comes last here.
  names = {value: name for name, value in reversed(_MLP_ACTIVATIONS.items())}
  if config.mlp_activations not in names:
    raise CheckpointError(
      f"mlp_activations={config.mlp_activations} has no feed_forward_proj of "
      "Hugging Face's T5"
    )
  activation = config.mlp_activations[0]
  return {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    **{name: getattr(config, field) for name, field in _FIELDS.items()},
    **_FIXED,
    "feed_forward_proj": names[config.mlp_activations],
    "dense_act_fn": "gelu_new" if activation == "gelu" else activation,
    "is_gated_act": len(config.mlp_activations) > 1,
    "tie_word_embeddings": config.logits_via_embedding,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "use_cache": True,
  }
