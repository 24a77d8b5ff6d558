"""T5 in Hugging Face's names: its config.json, and what its arrays mean.

What config.json says of the output projection changed its meaning over the
versions, so the weights have the first word:

  lm_head.weight  scaling  becomes
  absent          yes      T5 1.0: logits_via_embedding
  absent          no       logits_dense, a copy of the embedding
  same as shared  yes      T5 1.0: logits_via_embedding
  same as shared  no       logits_dense
  another array   no       T5 1.1: logits_dense
  another array   yes      refused: the two contradict each other

"Scaling" is `scale_decoder_outputs`, which transformers 5 writes (beside a
tie_word_embeddings that it always sets to true), else `tie_word_embeddings`.
"""

from collections.abc import Callable

from speccascade.checkpoints import architecture, storage
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.t5.config import T5Config
from speccascade.settings import fields

# Architectures with T5X's network; umT5 has relative positions per layer.
MODEL_TYPES = ("t5", "mt5")

# What transformers assumes of a key that config.json leaves out.
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

# Facts of T5X's network, which has no hyperparameter for them.
_FIXED = {
  "relative_attention_num_buckets": architecture.RELATIVE_BUCKETS,
  "relative_attention_max_distance": architecture.RELATIVE_MAX_DISTANCE,
  "layer_norm_epsilon": 1e-6,
  "decoder_start_token_id": 0,
  "pad_token_id": 0,
}

# Fields of T5Config by their names here.
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

# Names in flax.linen; transformers' "gated-gelu" means the tanh approximation,
# as flax's gelu does, while its bare "gelu" means the exact one.
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

# T5 1.0's files hold it; no version of transformers has used it.
_UNUSED = (
  "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
)


def config_of(settings: dict, directory: storage.Directory) -> T5Config:
  """Returns the architecture that config.json describes.

  Raises:
    CheckpointError: naming the setting that T5X's network does not have.
  """
  where = f"{directory}/config.json"
  for name, want in _FIXED.items():
    got = settings.get(name)
    if got is not None and got != want:
      raise CheckpointError(
        f"{where} has {name}={got!r:.60}; the network here has {want!r}"
      )
  settings = _DEFAULTS | settings
  for name in ("tie_word_embeddings", "scale_decoder_outputs"):
    if not isinstance(value := settings.get(name, False), bool):
      raise CheckpointError(f"{where} has {name}={value!r:.60}, want a boolean")
  values = {field: settings.get(name) for name, field in _FIELDS.items()}
  if values["num_decoder_layers"] is None:
    values["num_decoder_layers"] = settings["num_layers"]
  activations = settings["feed_forward_proj"]
  if activations not in list(_MLP_ACTIVATIONS):  # JSON is not always hashable
    raise CheckpointError(
      f"{where} has feed_forward_proj={activations!r:.60}; read are "
      f"{', '.join(_MLP_ACTIVATIONS)}"
    )
  values["mlp_activations"] = _MLP_ACTIVATIONS[activations]
  values["logits_via_embedding"] = _is_scaled(settings)
  try:
    return fields.build(T5Config, values)
  except fields.SettingError as error:
    name = {field: name for name, field in _FIELDS.items()}[error.name]
    raise CheckpointError(f"{where}: {name}{error.fault}") from error


def _is_scaled(settings: dict) -> bool:
  scaled = settings.get("scale_decoder_outputs")
  tied = settings.get("tie_word_embeddings", _DEFAULTS["tie_word_embeddings"])
  return tied if scaled is None else scaled


def resolve(tensors: dict, settings: dict, where: str, same: Callable) -> None:
  """Leaves the arrays that the network has, of all that files may hold.

  Args:
    tensors: every array, or its shape and dtype; changed.
    settings: of config.json; say whether the output is scaled.
    where: the checkpoint, for messages.
    same: whether two of them may be one.
  """
  tensors.pop(_UNUSED, None)
  held = {name: tensors.pop(name) for name in _EMBEDDINGS if name in tensors}
  if not held:
    raise CheckpointError(f"{where} has no {_EMBEDDINGS[0]}: no embedding")
  first, *others = held
  for other in others:
    if not same(held[first], held[other]):
      raise CheckpointError(
        f"{where}: {first} and {other} differ; T5 has one embedding for both "
        "stacks"
      )
  tensors[_EMBEDDINGS[0]] = embedding = held[first]
  head = tensors.pop(_LM_HEAD, None)
  if not _is_scaled(settings):
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
  """Returns the settings of config.json that describe an architecture.

  Raises:
    CheckpointError: it has no name there.
  """
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
