"""Which arrays a T5 has, and whether a checkpoint fits a config."""

import dataclasses
import functools
import re
from typing import NamedTuple

from flax import traverse_util

from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import t5_lm
from speccascade.models.t5.config import T5Config

RELATIVE_BUCKETS = 32  # of T5X's network, where it is no hyperparameter
RELATIVE_MAX_DISTANCE = 128

# The fields of T5Config that are no facts of the weights.
_RUN_CHOICES = ("dropout_rate", "dtype", "float32_attention_logits")
_DTYPES = ("float32", "bfloat16", "float16", "float64")  # of activations


class Parameter(NamedTuple):
  """One array of a T5.

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
_HUGGING_FACE = {
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


def parameters(config: T5Config) -> list[Parameter]:
  """Returns every array of the model, in T5X's names and Hugging Face's.

  The joined axis of attention kernels is head-major: column h * head_dim + d.
  Square kernels hide a forgotten transpose, so it is said here for each array.
  """
  # The network is traced with one layer of each stack: all are alike.
  shapes = t5_lm.param_shapes(
    dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
  )
  table = []
  # The embedding first, then the encoder, as messages name them.
  for name in sorted(shapes, key=lambda name: name.split("/")[0], reverse=True):
    shape, (stack, is_layer, _) = shapes[name], name.partition("/layers_0/")
    for n in range(getattr(config, f"num_{stack}_layers") if is_layer else 1):
      path = name.replace("/layers_0/", f"/layers_{n}/")
      theirs = next(
        match.expand(template)
        for pattern, template in _HUGGING_FACE.items()
        if (match := re.fullmatch(pattern, path))
      )
      theirs = theirs.replace("/layers_", ".block.").replace("/", ".layer.")
      is_transposed = len(shape) == 2 and name != "token_embedder/embedding"
      table.append(Parameter(path, shape, f"{theirs}.weight", is_transposed))
  return table


# {"a/b/c": leaf} of nested dicts, and back.
flatten = functools.partial(traverse_util.flatten_dict, sep="/")
unflatten = functools.partial(traverse_util.unflatten_dict, sep="/")


def shapes_of(params: dict, *, where: str) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each array; refuses those of T5X's scalable_t5."""
  shapes = {name: tuple(x.shape) for name, x in flatten(params).items()}
  refuse_scalable(shapes, where=where)
  return shapes


def config_of_json(values: dict) -> T5Config:
  """Returns the architecture that a file says, each field of its kind.

  Raises:
    TypeError: a field is unknown.
    ValueError: see `check_field`.
  """
  for name, value in values.items():
    if hasattr(T5Config, name):
      check_field(name, value)
  return T5Config(**values)


def check_field(field: str, value, *, name: str | None = None) -> None:
  """Checks that a value is one for a field of `T5Config`.

  Args:
    field: of `T5Config`.
    value: what a file says.
    name: what the file calls it, where that is another.

  Raises:
    ValueError: it is of another kind, or out of range.
  """
  default = getattr(T5Config, field)
  is_right = type(value) is type(default)
  if isinstance(default, bool):
    wanted = "true or false"
  elif isinstance(default, int):
    wanted = "a whole number, 1 or more"
    is_right = is_right and 0 < value < 2**31
  elif isinstance(default, float):
    wanted = "a number from 0 to below 1"
    is_right = type(value) in (int, float) and 0 <= value < 1
  elif field == "dtype":
    wanted = f"one of {', '.join(_DTYPES)}"
    is_right = value in _DTYPES
  else:
    wanted = "a list of names"
    is_right = isinstance(value, list | tuple) and bool(value)
    is_right = is_right and all(isinstance(each, str) for each in value)
  if not is_right:
    raise ValueError(f"{name or field} is {value!r:.60}; wanted {wanted}")


def check_num_layers(config: T5Config, num_arrays: int, *, where: str) -> None:
  """Refuses a config of more layers than a checkpoint has arrays.

  A table of its arrays would take memory that the checkpoint does not.
  """
  layers = config.num_encoder_layers + config.num_decoder_layers
  if layers > num_arrays:
    raise CheckpointError(
      f"the config has num_encoder_layers={config.num_encoder_layers} and "
      f"num_decoder_layers={config.num_decoder_layers}, the checkpoint {where} "
      f"only {num_arrays} arrays"
    )


def check_params(params: dict, config: T5Config, *, where: str = "") -> None:
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
  want = {p.name: p.shape for p in parameters(config)}
  wrong = [
    f"{name} has shape {list(got[name])} in the checkpoint, {list(shape)} by "
    "the config"
    for name, shape in want.items()
    if got.get(name, shape) != shape
  ]
  misfits = {
    "missing ": [name for name in want if name not in got],
    "unexpected ": [name for name in got if name not in want],
    "": wrong,
  }
  if text := listed(misfits):
    raise CheckpointError(
      f"the checkpoint {where} does not fit the model config: {text}; give the "
      "config that the checkpoint was made with"
    )


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
  try:
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads, _ = shapes["decoder/relpos_bias/rel_embedding"]
    _, joined = shapes["decoder/layers_0/self_attention/query/kernel"]
    _, mlp_dim = shapes[f"decoder/layers_0/mlp/{wi}/kernel"]
  except (KeyError, ValueError) as error:
    raise CheckpointError(
      f"the checkpoint {where} is no T5 whose architecture can be read off its"
      f" arrays ({error}): give its T5Config"
    ) from error
  layers = {tuple(name.split("/")[:2]) for name in shapes if "/layers_" in name}
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
  check_params(params, config, where=where)
  return config


def refuse_scalable(shapes: dict[str, tuple[int, ...]], *, where: str = ""):
  """Refuses the parameter trees of T5X's scalable_t5.

  Its relative positions are per layer, so its weights are no plain T5's.
  """
  faults = {
    "scanned layers": lambda name: name.startswith(
      ("encoder/encoder/", "decoder/decoder/")
    ),
    "relative positions per layer": lambda name: (
      "/layers_" in name and "relpos_bias" in name
    ),
    "three-dimensional attention kernels": lambda name: (
      name.endswith("/kernel") and len(shapes[name]) > 2
    ),
  }
  for what, is_so in faults.items():
    if any(map(is_so, shapes)):
      raise CheckpointError(
        f"the checkpoint {where} has {what}: it was written by T5X's "
        "scalable_t5 (or is a umT5); only the layout of t5x/examples/t5 is read"
      )


def check_config(
  wanted: T5Config, stored: T5Config, *, where: str = ""
) -> None:
  """Checks that a config has the architecture that a checkpoint says it has.

  Raises:
    CheckpointError: naming every difference.
  """
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


def listed(misfits: dict[str, list[str]]) -> str:
  """Returns each kind of misfit with the first few of its list, in one line."""
  return "; ".join(k + some(items) for k, items in misfits.items() if items)


def some(items: list[str], limit: int = 4) -> str:
  """Returns the first few of a list, and how many more there are."""
  more = len(items) - limit
  shown = ", ".join(items[:limit])
  return f"{shown} and {more} more" if more > 0 else shown
