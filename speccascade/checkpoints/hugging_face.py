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

from collections.abc import Callable, Mapping
import contextlib
import json
import os

import numpy as np

from speccascade import files
from speccascade.checkpoints import architecture, storage, stored_arrays
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.t5.config import T5Config

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
VOCABULARY = "spiece.model"

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


def read(directory: storage.Directory) -> tuple[dict, T5Config]:
  """Returns (params in T5X's names, architecture) of a directory.

  Raises:
    CheckpointError: naming the file that is missing or damaged, the array that
      is missing, unexpected or of the wrong shape, or the setting of
      config.json that T5X's network does not have.
  """
  where = str(directory)
  settings = _settings(directory)
  config = _config(settings, where)
  tensors = _tensors(directory, _read_file)
  tensors.pop(_UNUSED, None)
  architecture.check_num_layers(config, len(tensors), where=where)
  _merge_embeddings(tensors, where)
  _resolve_head(tensors, settings, where)

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
      f"{where} has model_type {model_type!r:.60}"
      f"{per_layer if model_type == 'umt5' else ''}; the architectures read "
      f"are {', '.join(_MODEL_TYPES)} (Flan-T5 and byT5 are t5)"
    )
  for name, want in _FIXED.items():
    got = settings.get(name)
    if got is not None and got != want:
      raise CheckpointError(
        f"{where} has {name}={got!r:.60}; the network here has {want!r}"
      )
  if "quantization_config" in settings:
    raise CheckpointError(f"{where} is quantized; want float weights")
  settings = _DEFAULTS | settings
  for name in ("tie_word_embeddings", "scale_decoder_outputs"):
    if not isinstance(value := settings.get(name, False), bool):
      raise CheckpointError(f"{where} has {name}={value!r:.60}, want a boolean")
  return settings


def _config(settings: dict, where: str) -> T5Config:
  values = {"logits_via_embedding": _is_scaled(settings)}
  with storage.parsing(f"{where}/{CONFIG}"):
    for name, field in _FIELDS.items():
      value = settings.get(name)
      if name == "num_decoder_layers" and value is None:
        value = settings["num_layers"]
      architecture.check_field(field, value, name=name)
      values[field] = value
    activations = settings["feed_forward_proj"]
    if activations not in _MLP_ACTIVATIONS:
      raise CheckpointError(
        f"{where}/{CONFIG} has feed_forward_proj={activations!r:.60}; read are "
        f"{', '.join(_MLP_ACTIVATIONS)}"
      )
  return T5Config(mlp_activations=_MLP_ACTIVATIONS[activations], **values)


def _is_scaled(settings: dict) -> bool:
  scaled = settings.get("scale_decoder_outputs")
  return settings["tie_word_embeddings"] if scaled is None else scaled


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


def _resolve_head(tensors: dict, settings: dict, where: str) -> None:
  """Leaves lm_head as `logits_via_embedding` has it: absent or there.

  Args:
    tensors: every array; changed.
    settings: say whether the decoder output is scaled by emb_dim ** -0.5.
    where: the checkpoint, for messages.
  """
  embedding, head = tensors[_EMBEDDINGS[0]], tensors.pop(_LM_HEAD, None)
  if not _is_scaled(settings):
    if head is None and settings.get("scale_decoder_outputs") is None:
      raise CheckpointNotFoundError(
        f"{where}: {CONFIG} says tie_word_embeddings=false and there is no "
        f"{_LM_HEAD}: save the whole T5ForConditionalGeneration"
      )
    tensors[_LM_HEAD] = embedding if head is None else head
  elif head is not None and not np.array_equal(embedding, head):
    raise CheckpointError(
      f"{where}: {CONFIG} says that the output is tied to the embedding and "
      f"scaled, but {_LM_HEAD} is another array than shared.weight: for T5 1.1 "
      "and Flan-T5 set tie_word_embeddings=false (and, if it is there, "
      f"scale_decoder_outputs=false); for T5 1.0 remove {_LM_HEAD}"
    )


def shapes(directory: storage.Directory) -> tuple[dict, T5Config]:
  """Returns ({T5X's name: (shape, dtype)}, architecture); reads no array."""
  where = str(directory)
  config = _config(_settings(directory), where)
  tensors = _tensors(directory, _read_shapes)
  architecture.check_num_layers(config, len(tensors), where=where)
  table = {p.hugging_face: p.name for p in architecture.parameters(config)}
  return {table[name]: tensors[name] for name in table if name in tensors}, (
    config
  )


def _tensors(directory: storage.Directory, read_file: Callable) -> dict:
  """Returns what `read_file` makes of every array, by Hugging Face's names."""
  if directory.has(WEIGHTS):
    return read_file(directory, WEIGHTS)

  def parse(index: dict) -> dict[str, str]:
    for shard in index["weight_map"].values():
      if os.path.basename(shard) != shard or shard in ("", ".", ".."):
        raise CheckpointError(
          f"{directory}/{INDEX} names the file {shard!r:.60}, want one beside "
          "it"
        )
    return index["weight_map"]

  shard_of = directory.read_json(INDEX, parse)
  tensors = {}
  for shard in sorted(set(shard_of.values())):
    directory.check_file(shard)
    if not directory.has(shard):
      raise CheckpointNotFoundError(
        f"{directory}/{shard}, which {INDEX} names, is missing: copy it again"
      )
    tensors |= read_file(directory, shard)
  for name, shard in shard_of.items():
    if name not in tensors:
      raise CheckpointError(
        f"{directory}/{shard} has no {name}, which {INDEX} places there"
      )
  return tensors


def _read_file(directory: storage.Directory, name: str) -> dict:
  with _opened(directory, name) as file:
    tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
  return stored_arrays.as_float32(tensors, where=f"{directory}/{name}")


def _read_shapes(directory: storage.Directory, name: str) -> dict:
  with _opened(directory, name) as file:
    slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
    return {
      key: (tuple(each.get_shape()), each.get_dtype())
      for key, each in slices.items()
    }


@contextlib.contextmanager
def _opened(directory: storage.Directory, name: str):
  import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
  import safetensors

  try:
    with (
      directory.local_copy(name) as path,
      safetensors.safe_open(path, framework="np") as file,
    ):
      yield file
  except (safetensors.SafetensorError, OSError, TypeError) as error:
    raise CheckpointError(
      f"{directory}/{name} is truncated or damaged "
      f"({storage.first_line(error)}): copy it again"
    ) from error


def save(
  path: str | os.PathLike,
  params: Mapping,
  config: T5Config,
  *,
  dtype: str = "float32",
  vocabulary: str | None = None,
) -> None:
  """Writes a directory that `T5ForConditionalGeneration` reads, or nothing.

  Args:
    path: the directory to make, a local one.
    params: nested dict of arrays in T5X's names.
    config: the architecture, checked against `params`.
    dtype: of the arrays, float32 or bfloat16 (nearest even).
    vocabulary: SentencePiece model to lay beside them, as spiece.model.

  Raises:
    CheckpointError: the path is taken or no local one, or the architecture has
      no name in config.json.
  """
  import ml_dtypes  # noqa: F401
  from safetensors.numpy import save_file

  directory = storage.Directory(path)
  if directory.remote:
    raise CheckpointError(f"{directory}: this layout is written to local paths")
  directory.refuse_existing()
  architecture.check_params(params, config, where="to be written")
  names = {value: name for name, value in reversed(_MLP_ACTIVATIONS.items())}
  if config.mlp_activations not in names:
    raise CheckpointError(
      f"mlp_activations={config.mlp_activations} has no feed_forward_proj of "
      "Hugging Face's T5"
    )
  activation = config.mlp_activations[0]
  settings = {
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
  flat, tensors = architecture.flatten(dict(params)), {}
  for each in architecture.parameters(config):
    value = np.asarray(flat[each.name]).astype(dtype)
    value = value.T if each.transposed else value
    tensors[each.hugging_face] = np.ascontiguousarray(value)
  model = None
  if vocabulary is not None:
    model = storage.read_vocabulary(vocabulary)
  with files.whole_folder(directory.url) as folder:
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")
    if model is not None:
      (folder / VOCABULARY).write_bytes(model)
