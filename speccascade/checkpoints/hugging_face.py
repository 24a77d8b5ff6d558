"""Hugging Face directories of T5: config.json and safetensors, sharded or not.

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

import numpy as np

from speccascade.checkpoints import architecture, storage, stored_arrays
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.t5.config import T5Config

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Architectures with T5X's network; umT5 has relative positions per layer.
_MODEL_TYPES = ("t5", "mt5")

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


def read(directory: storage.Directory) -> tuple[dict, T5Config]:
  """Returns (params in T5X's names, architecture) of a directory.

  Raises:
    CheckpointError: naming the file that is missing or damaged, the array that
      is missing, unexpected or of the wrong shape, or the setting of
      config.json that T5X's network does not have.
  """
  where = str(directory)
  settings = _settings(directory)
  tensors = _tensors(directory)
  tensors.pop(_UNUSED, None)
  _merge_embeddings(tensors, where)
  config = _config(settings, _resolve_head(tensors, settings, where), where)

  table = {p.hugging_face: p for p in architecture.parameters(config)}
  params, wrong = {}, []
  for name, parameter in table.items():
    if name not in tensors:
      continue
    value = tensors[name].T if parameter.transposed else tensors[name]
    if value.shape != parameter.shape:
      wrong.append(
        f"{name} ({parameter.name}) has shape {list(value.shape)} as T5X "
        f"stores it, {list(parameter.shape)} by config.json"
      )
    params[parameter.name] = np.ascontiguousarray(value)
  misfits = {
    "missing: ": [name for name in table if name not in tensors],
    "unexpected: ": sorted(tensors.keys() - table.keys()),
    "wrong: ": wrong,
  }
  if text := architecture.listed(misfits):
    raise CheckpointError(
      f"the weights of {where} are not those of the T5 that its config.json "
      f"describes; {text}"
    )
  return architecture.unflatten(params), config


def _settings(directory: storage.Directory) -> dict:
  where = f"{directory}/{CONFIG}"
  settings = directory.read_json(CONFIG)
  model_type = settings.get("model_type")
  if model_type not in _MODEL_TYPES:
    per_layer = ": its relative positions are per layer"
    raise CheckpointError(
      f"{where} has model_type {model_type!r}"
      f"{per_layer if model_type == 'umt5' else ''}; the architectures read "
      f"are {', '.join(_MODEL_TYPES)} (Flan-T5 and byT5 are t5)"
    )
  for name, want in _FIXED.items():
    got = settings.get(name)
    if got is not None and got != want:
      raise CheckpointError(
        f"{where} has {name}={got!r}; the network here has {want!r}"
      )
  if "quantization_config" in settings:
    raise CheckpointError(f"{where} is quantized; want float weights")
  return _DEFAULTS | settings


def _config(settings: dict, tied: bool, where: str) -> T5Config:
  activations = settings["feed_forward_proj"]
  if activations not in _MLP_ACTIVATIONS:
    raise CheckpointError(
      f"{where}/{CONFIG} has feed_forward_proj={activations!r}; read are "
      f"{', '.join(_MLP_ACTIVATIONS)}"
    )
  num_layers = settings["num_layers"]
  num_decoder_layers = settings.get("num_decoder_layers")
  return T5Config(
    vocab_size=settings["vocab_size"],
    emb_dim=settings["d_model"],
    num_heads=settings["num_heads"],
    num_encoder_layers=num_layers,
    num_decoder_layers=(
      num_layers if num_decoder_layers is None else num_decoder_layers
    ),
    head_dim=settings["d_kv"],
    mlp_dim=settings["d_ff"],
    mlp_activations=_MLP_ACTIVATIONS[activations],
    dropout_rate=settings["dropout_rate"],
    logits_via_embedding=tied,
  )


def _merge_embeddings(tensors: dict, where: str) -> None:
  """Leaves `shared.weight` as the one embedding, whatever its name was."""
  held = {name: tensors.pop(name) for name in _EMBEDDINGS if name in tensors}
  if not held:
    raise CheckpointError(f"{where} has no {_EMBEDDINGS[0]}: no embedding")
  first, *others = held
  for other in others:
    if not np.array_equal(held[first], held[other]):
      raise CheckpointError(
        f"{where}: {first} and {other} differ; T5 has one embedding for both "
        "stacks"
      )
  tensors[_EMBEDDINGS[0]] = held[first]


def _resolve_head(tensors: dict, settings: dict, where: str) -> bool:
  """Returns logits_via_embedding, and leaves lm_head accordingly.

  Args:
    tensors: every array; changed.
    settings: say whether the decoder output is scaled by emb_dim ** -0.5.
    where: the checkpoint, for messages.
  """
  embedding, head = tensors[_EMBEDDINGS[0]], tensors.pop(_LM_HEAD, None)
  scaled = settings.get("scale_decoder_outputs")
  is_explicit = scaled is not None
  if not (scaled if is_explicit else settings["tie_word_embeddings"]):
    if head is None and not is_explicit:
      raise CheckpointNotFoundError(
        f"{where}: {CONFIG} says tie_word_embeddings=false and there is no "
        f"{_LM_HEAD}: save the whole T5ForConditionalGeneration"
      )
    tensors[_LM_HEAD] = embedding if head is None else head
    return False
  if head is not None and not np.array_equal(embedding, head):
    raise CheckpointError(
      f"{where}: {CONFIG} says that the output is tied to the embedding and "
      f"scaled, but {_LM_HEAD} is another array than shared.weight: for T5 1.1 "
      "and Flan-T5 set tie_word_embeddings=false (and, if it is there, "
      f"scale_decoder_outputs=false); for T5 1.0 remove {_LM_HEAD}"
    )
  return True


def _tensors(directory: storage.Directory) -> dict[str, np.ndarray]:
  """Returns every array of the weight files, under Hugging Face's names."""
  if directory.has(WEIGHTS):
    return _read_file(directory, WEIGHTS)
  shard_of = directory.read_json(INDEX, lambda index: dict(index["weight_map"]))
  tensors = {}
  for shard in sorted(set(shard_of.values())):
    if not directory.has(shard):
      raise CheckpointNotFoundError(
        f"{directory}/{shard}, which {INDEX} names, is missing: copy it again"
      )
    tensors |= _read_file(directory, shard)
  for name, shard in shard_of.items():
    if name not in tensors:
      raise CheckpointError(
        f"{directory}/{shard} has no {name}, which {INDEX} places there"
      )
  return tensors


def _read_file(directory: storage.Directory, name: str) -> dict:
  import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
  import safetensors

  where = f"{directory}/{name}"
  try:
    with (
      directory.local_copy(name) as path,
      safetensors.safe_open(path, framework="np") as file,
    ):
      tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
  except (safetensors.SafetensorError, OSError, TypeError) as error:
    raise CheckpointError(
      f"{where} is truncated or damaged ({storage.first_line(error)}): copy it "
      "again"
    ) from error
  return stored_arrays.as_float32(tensors, where=where)
