"""Lists the arrays of a model, and checks whether a checkpoint fits a config.

Arrays have T5X's names in this package, for Llama too. Hugging Face's names are
derived from them by the tables below.
"""

import functools
import re
from typing import NamedTuple

from flax import traverse_util

from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import parameters
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.runtime import memory

# Constants of T5X's network, which are hyperparameters of Hugging Face's T5.
RELATIVE_BUCKETS = 32
RELATIVE_MAX_DISTANCE = 128

# Fields of configs that a run may choose: the same weights serve any value.
_RUN_CHOICES = (
  "dropout_rate",
  "dtype",
  "float32_attention_logits",
  "eos_ids",
  "bos_id",
  "start_id",
)


class Parameter(NamedTuple):
  """One array of a model.

  Attributes:
    name: T5X's path of the array, joined by "/".
    shape: the shape in which T5X stores the array.
    hugging_face: the array's name in a Hugging Face file.
    transposed: whether Hugging Face stores the transpose of T5X's array.
  """

  name: str
  shape: tuple[int, ...]
  hugging_face: str
  transposed: bool = False


# Patterns of T5X's names, and templates of Hugging Face's names for the arrays.
# A "/" in a template, and "/layers_", are replaced by `list_parameters`.
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
# Llama's post_attention_layernorm is the norm before the MLP, Gemma's the norm
# after attention.
_POST_NORMS = _LLAMA | {
  r"decoder(/\w+)/pre_mlp_layer_norm/scale": (
    r"model\1/pre_feedforward_layernorm"
  ),
  r"decoder(/\w+)/post_mlp_layer_norm/scale": (
    r"model\1/post_feedforward_layernorm"
  ),
  r"decoder(/\w+)/post_self_attention_layer_norm/scale": (
    r"model\1/post_attention_layernorm"
  ),
}
_T5GEMMA = {
  r"token_embedder/embedding": r"model.decoder.embed_tokens",
  r"encoder/token_embedder/embedding": r"model.encoder.embed_tokens",
  r"(\w+/\w+)/self_attention/(\w)\w*_norm/scale": r"model/\1/self_attn.\2_norm",
  r"(\w+/\w+)/self_attention/(\w)\w*/(?:kernel|bias)": (
    r"model/\1/self_attn.\2_proj"
  ),
  r"(\w+/\w+)/encoder_decoder_attention/(\w)\w*/(?:kernel|bias)": (
    r"model/\1/cross_attn.\2_proj"
  ),
  r"(\w+/\w+)/(pre|post)_(self|cross)_attention_layer_norm/scale": (
    r"model/\1/\2_\3_attn_layernorm"
  ),
  r"(\w+/\w+)/(pre|post)_mlp_layer_norm/scale": (
    r"model/\1/\2_feedforward_layernorm"
  ),
  r"(\w+/\w+)/mlp/wi_0/kernel": r"model/\1/mlp.gate_proj",
  r"(\w+/\w+)/mlp/wi_1/kernel": r"model/\1/mlp.up_proj",
  r"(\w+/\w+)/mlp/wo/kernel": r"model/\1/mlp.down_proj",
  r"(\w+)/\1_norm/scale": r"model.\1.norm",
  r"decoder/logits_dense/kernel": r"lm_head.out_proj",
}
# A shared table is the encoder's.
_SHARED_TABLE = {
  r"token_embedder/\w+": r"model.encoder.embed_tokens"
} | _T5GEMMA
# The last part of Hugging Face's name, where it is not "weight".
_LAST = {"bias": "bias", "end_of_image": "eoi_embedding"}
# Patterns by which arrays of T5X's scalable_t5 are recognised. Each is searched
# in a text with a line "NAME RANK" for each array.
_SCALABLE = {
  "scanned layers": r"\n(encoder|decoder)/\1/",
  "relative positions per layer": r"/layers_.*relpos_bias",
  "three-dimensional attention kernels": r"/kernel ([3-9]|\d\d)",
}
# For each kind of model: the names above, the text before a layer's number, and
# the text before the name of a part of the layer.
_HUGGING_FACE = {
  T5Config: (_T5, ".block.", ".layer."),
  T5GemmaConfig: (_T5GEMMA, ".layers.", "."),
  LlamaConfig: (_LLAMA, ".layers.", "."),
}


def list_parameters(config: Config) -> list[Parameter]:
  """Returns every array of a model, with T5X's and Hugging Face's names.

  The heads of attention kernels are joined into one axis, in which the column
  of dimension d of head h is h * head_dim + d. Hugging Face stores kernels
  transposed. Many kernels are square, so that a forgotten transpose changes no
  shape; the flag `transposed` of each array says it.
  """
  names, before_number, before_name = _HUGGING_FACE[type(config)]
  if type(config) is LlamaConfig and config.post_norms:
    names = _POST_NORMS
  if type(config) is T5GemmaConfig and config.shared_embedding:
    names = _SHARED_TABLE
  table = []
  for path, shape in parameters.param_shapes(config).items():
    # "decoder/layers_3/mlp/wo/kernel" first becomes "decoder/layers_3/2.Dense
    # ReluDense.wo", and then "decoder.block.3.layer.2.DenseReluDense.wo".
    name = _expand(names, path)
    name = name.replace("/layers_", before_number).replace("/", before_name)
    kind = _LAST.get(path.rpartition("/")[2], "weight")
    is_transposed = len(shape) == 2 and not path.endswith("/embedding")
    table.append(Parameter(path, shape, f"{name}.{kind}", is_transposed))
  return table


def _expand(names: dict[str, str], path: str) -> str:
  """Returns the template of the first pattern that fits a path, filled in."""
  for pattern, template in names.items():
    if match := re.fullmatch(pattern, path):
      return match.expand(template)
  raise KeyError(path)


# From nested dicts to {"a/b/c": leaf}, and back.
flatten = functools.partial(traverse_util.flatten_dict, sep="/")
unflatten = functools.partial(traverse_util.unflatten_dict, sep="/")


def shapes_of(params: dict, *, where: str) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each array, by name.

  Args:
    params: nested dict of arrays.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: T5X's scalable_t5 wrote the arrays. Its relative positions
      differ in each layer, and no network of this package has such positions.
  """
  shapes = {name: tuple(x.shape) for name, x in flatten(params).items()}
  listing = "".join(f"\n{name} {len(shape)}" for name, shape in shapes.items())
  for feature, pattern in _SCALABLE.items():
    if re.search(pattern, listing):
      raise CheckpointError(
        f"the checkpoint {where} has {feature}: it was written by T5X's "
        "scalable_t5 (or is a umT5); only the layout of t5x/examples/t5 is read"
      )
  return shapes


def check_num_layers(config: Config, num_arrays: int, *, where: str) -> None:
  """Checks that a config has no more layers than a checkpoint has arrays.

  A damaged config may have millions of layers. Listing their arrays would fill
  the memory.

  Args:
    config: the architecture.
    num_arrays: how many arrays the checkpoint has.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: the config has more layers.
  """
  counts = parameters.layer_counts(config)
  if sum(counts.values()) > num_arrays:
    layers = " and ".join(f"{name}={count}" for name, count in counts.items())
    raise CheckpointError(
      f"the config has {layers}, the checkpoint {where} only {num_arrays}"
      " arrays"
    )


def check_memory(config: Config, *, where: str) -> None:
  """Checks that the machine can hold a model's parameters in float32.

  Args:
    config: the architecture.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: the machine has less memory.
  """
  num_weights = parameters.num_parameters(config)
  if 4 * num_weights > memory.machine():
    raise CheckpointError(
      f"{where}: {num_weights:,} parameters take {4e-9 * num_weights:.1f} GB in"
      f" float32, this machine has {memory.machine() / 1e9:.1f} GB"
    )


def check_params(params: dict, config: Config, *, where: str = "") -> None:
  """Checks that a parameter tree has the arrays of `config`.

  Args:
    params: nested dict of arrays in T5X's names.
    config: the architecture.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: arrays are missing or unexpected, or have another shape.
      The message names them, with both shapes.
  """
  shapes = shapes_of(params, where=where)
  check_num_layers(config, len(shapes), where=where)
  try:
    parameters.check_params(config, params, f"the checkpoint {where} does")
  except ValueError as error:
    raise CheckpointError(str(error)) from error


def config_of(params: dict, *, where: str = "") -> T5Config:
  """Returns the architecture of a T5 1.0 or 1.1, from the shapes of its arrays.

  The shapes determine all but the activations. An MLP with one input kernel is
  taken for the relu of T5 1.0, and one with two input kernels for the gated
  gelu of T5 1.1, mT5 and Flan-T5.

  Args:
    params: nested dict of arrays in T5X's names.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: a T5 1.0 or 1.1 has other arrays.
  """
  shapes = shapes_of(params, where=where)
  is_gated = "decoder/layers_0/mlp/wi_0/kernel" in shapes
  wi = "wi_0" if is_gated else "wi"
  layers = {tuple(name.split("/")[:2]) for name in shapes if "/layers_" in name}
  try:
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads, _ = shapes["decoder/relpos_bias/rel_embedding"]
    _, joined_heads = shapes["decoder/layers_0/self_attention/query/kernel"]
    _, mlp_dim = shapes[f"decoder/layers_0/mlp/{wi}/kernel"]
    config = T5Config(
      vocab_size=vocab_size,
      emb_dim=emb_dim,
      num_heads=num_heads,
      num_encoder_layers=sum(stack == "encoder" for stack, _ in layers),
      num_decoder_layers=sum(stack == "decoder" for stack, _ in layers),
      head_dim=joined_heads // num_heads,
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
  """Checks that a config has the architecture that is stored in a checkpoint.

  Args:
    wanted: the config.
    stored: the checkpoint's own config.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: the two differ. The message names every difference.
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
