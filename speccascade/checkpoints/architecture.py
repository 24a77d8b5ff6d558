"""Which arrays a model has, and whether a checkpoint fits a config."""

import functools
import re
from typing import NamedTuple

from flax import traverse_util

from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import parameters as model_params
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.runtime import memory

RELATIVE_BUCKETS = 32  # of T5X's network, where it is no hyperparameter
RELATIVE_MAX_DISTANCE = 128

# The fields of configs that are no facts of the weights.
_RUN_CHOICES = (
  *("dropout_rate", "dtype", "float32_attention_logits"),
  *("eos_ids", "bos_id"),
)


class Parameter(NamedTuple):
  """One array of a model.

  Attributes:
    name: T5X's path, joined by "/".
    shape: T5X's shape.
    hugging_face: its name in a Hugging Face file.
    transposed: True where Hugging Face stores the transpose.
  """

  name: str
  shape: tuple[int, ...]
  hugging_face: str
  transposed: bool = False


# T5X's names, and what Hugging Face calls the arrays; for layers, after "/".
_T5 = {
  r"token_embedder/embedding": r"shared",
  r"(\w+)/relpos_bias/rel_embedding": (
    r"\1.block.0.layer.0.SelfAttention.relative_attention_bias"
  ),
  r"(\w+/\w+)/(?:self_)?attention/(\w)\w*/kernel": r"\1/0.SelfAttention.\2",
  r"(\w+/\w+)/pre_(?:self_)?attention_layer_norm/scale": r"\1/0.layer_norm",
  r"(\w+/\w+)/encoder_decoder_attention/(\w)\w*/kernel": (
    r"\1/1.EncDecAttention.\2"
  ),
  r"(\w+/\w+)/pre_cross_attention_layer_norm/scale": r"\1/1.layer_norm",
  r"(encoder/\w+)/mlp/(\w+)/kernel": r"\1/1.DenseReluDense.\2",
  r"(encoder/\w+)/pre_mlp_layer_norm/scale": r"\1/1.layer_norm",
  r"(decoder/\w+)/mlp/(\w+)/kernel": r"\1/2.DenseReluDense.\2",
  r"(decoder/\w+)/pre_mlp_layer_norm/scale": r"\1/2.layer_norm",
  r"(\w+)/\1_norm/scale": r"\1.final_layer_norm",
  r"decoder/logits_dense/kernel": r"lm_head",
}
_LLAMA = {
  r"token_embedder/embedding": r"model.embed_tokens",
  r"decoder(/\w+)/self_attention/(\w)\w*_norm/scale": (
    r"model\1/self_attn.\2_norm"
  ),
  r"decoder(/\w+)/self_attention/(\w)\w*/(?:kernel|bias)": (
    r"model\1/self_attn.\2_proj"
  ),
  r"decoder(/\w+)/pre_self_attention_layer_norm/scale": (
    r"model\1/input_layernorm"
  ),
  r"decoder(/\w+)/pre_mlp_layer_norm/scale": (
    r"model\1/post_attention_layernorm"
  ),
  r"decoder(/\w+)/mlp/wi_0/kernel": r"model\1/mlp.gate_proj",
  r"decoder(/\w+)/mlp/wi_1/kernel": r"model\1/mlp.up_proj",
  r"decoder(/\w+)/mlp/wo/kernel": r"model\1/mlp.down_proj",
  r"decoder/decoder_norm/scale": r"model.norm",
  r"decoder/logits_dense/kernel": r"lm_head",
}
# Parts of what tells a parameter of T5X's scalable_t5: its name and rank.
_SCALABLE = {
  "scanned layers": r"\n(encoder|decoder)/\1/",
  "relative positions per layer": r"/layers_.*relpos_bias",
  "three-dimensional attention kernels": r"/kernel ([3-9]|\d\d)",
}
# For each: the names, what a number of a layer and what is in it follow.
_HUGGING_FACE = {
  T5Config: (_T5, ".block.", ".layer."),
  LlamaConfig: (_LLAMA, ".layers.", "."),
}


def parameters(config: Config) -> list[Parameter]:
  """Returns every array of the model, in T5X's names and Hugging Face's.

  The joined axis of attention kernels is head-major: column h * head_dim + d.
  Square kernels hide a forgotten transpose, so it is said here for each array.
  """
  names, before_number, before_name = _HUGGING_FACE[type(config)]
  table = []
  for path, shape in model_params.param_shapes(config).items():
    theirs = next(
      match.expand(template)
      for pattern, template in names.items()
      if (match := re.fullmatch(pattern, path))
    )
    theirs = theirs.replace("/layers_", before_number)
    theirs = theirs.replace("/", before_name)
    kind = "bias" if path.endswith("/bias") else "weight"
    is_transposed = len(shape) == 2 and path != "token_embedder/embedding"
    table.append(Parameter(path, shape, f"{theirs}.{kind}", is_transposed))
  return table


# {"a/b/c": leaf} of nested dicts, and back.
flatten = functools.partial(traverse_util.flatten_dict, sep="/")
unflatten = functools.partial(traverse_util.unflatten_dict, sep="/")


def shapes_of(params: dict, *, where: str) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each array; refuses those of T5X's scalable_t5.

  Its relative positions are per layer, so its weights are no plain T5's.
  """
  shapes = {name: tuple(x.shape) for name, x in flatten(params).items()}
  told = "".join(f"\n{name} {len(shape)}" for name, shape in shapes.items())
  for what, pattern in _SCALABLE.items():
    if re.search(pattern, told):
      raise CheckpointError(
        f"the checkpoint {where} has {what}: it was written by T5X's "
        "scalable_t5 (or is a umT5); only the layout of t5x/examples/t5 is read"
      )
  return shapes


def check_num_layers(config: Config, num_arrays: int, *, where: str) -> None:
  """Refuses a config of more layers than a checkpoint has arrays.

  A table of its arrays would take memory that the checkpoint does not.
  """
  counts = model_params.layer_counts(config)
  if sum(counts.values()) > num_arrays:
    said = " and ".join(f"{name}={count}" for name, count in counts.items())
    raise CheckpointError(
      f"the config has {said}, the checkpoint {where} only {num_arrays} arrays"
    )


def check_memory(config: Config, *, where: str) -> None:
  """Refuses a model whose parameters in float32 this machine cannot hold."""
  num_weights = model_params.num_parameters(config)
  if 4 * num_weights > memory.machine():
    raise CheckpointError(
      f"{where}: {num_weights:,} parameters take {4e-9 * num_weights:.1f} GB in"
      f" float32, this machine has {memory.machine() / 1e9:.1f} GB"
    )


def check_params(params: dict, config: Config, *, where: str = "") -> None:
  """Checks that a parameter tree is that of `config`.

  Args:
    params: nested dict of arrays in T5X's names.
    config: the architecture wanted.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: naming the arrays that are missing or unexpected, or have
      another shape, with both shapes.
  """
  got = shapes_of(params, where=where)
  check_num_layers(config, len(got), where=where)
  try:
    model_params.check_params(config, params, f"the checkpoint {where} does")
  except ValueError as error:
    raise CheckpointError(str(error)) from error


def config_of(params: dict, *, where: str = "") -> T5Config:
  """Returns the architecture that the arrays have, as a T5 1.0 or 1.1.

  Shapes say everything but the activations: one kernel into the MLP is taken
  for the relu of T5 1.0, two for the gated gelu of T5 1.1, mT5 and Flan-T5.

  Args:
    params: nested dict of arrays in T5X's names.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: they are not those of such a T5.
  """
  shapes = shapes_of(params, where=where)
  is_gated = "decoder/layers_0/mlp/wi_0/kernel" in shapes
  wi = "wi_0" if is_gated else "wi"
  layers = {tuple(name.split("/")[:2]) for name in shapes if "/layers_" in name}
  try:
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads, _ = shapes["decoder/relpos_bias/rel_embedding"]
    _, joined = shapes["decoder/layers_0/self_attention/query/kernel"]
    _, mlp_dim = shapes[f"decoder/layers_0/mlp/{wi}/kernel"]
    config = T5Config(
      vocab_size=vocab_size,
      emb_dim=emb_dim,
      num_heads=num_heads,
      num_encoder_layers=sum(stack == "encoder" for stack, _ in layers),
      num_decoder_layers=sum(stack == "decoder" for stack, _ in layers),
      head_dim=joined // num_heads,
      mlp_dim=mlp_dim,
      mlp_activations=("gelu", "linear") if is_gated else ("relu",),
      logits_via_embedding="decoder/logits_dense/kernel" not in shapes,
    )
  except (KeyError, ValueError, ZeroDivisionError) as error:
    raise CheckpointError(
      f"the checkpoint {where} is no T5 whose architecture can be read off its"
      f" arrays ({error}): give its T5Config (by DRAFTER, VERIFIER or"
      " --model_gin_file, as in configs/models/t5_1_1_small.gin)"
    ) from error
  check_params(params, config, where=where)
  return config


def check_config(wanted: Config, stored: Config, *, where: str = "") -> None:
  """Checks that a config has the architecture that a checkpoint says it has.

  Raises:
    CheckpointError: naming every difference.
  """
  if type(wanted) is not type(stored):
    raise CheckpointError(
      f"the checkpoint {where} is of a {type(stored).__name__}; a"
      f" {type(wanted).__name__} is wanted"
    )
  wanted, stored = vars(wanted), vars(stored)
  differences = [
    f"{name}={value!r} (the checkpoint: {stored[name]!r})"
    for name, value in wanted.items()
    if name not in _RUN_CHOICES and value != stored[name]
  ]
  if differences:
    raise CheckpointError(
      f"the model config is not that of the checkpoint {where}: the config has "
      f"{', '.join(differences)}"
    )
